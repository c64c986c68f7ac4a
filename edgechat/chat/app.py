"""The terminal app: themes, signals, and the way from the screens to the controller."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from edgechat.chat.actions import ACTIONS, QUIT_KEY
from edgechat.chat.appearance import DARK, LIGHT, ThemeMemory
from edgechat.chat.controller import ChatController
from edgechat.chat.engine import ChatEngine, EngineState
from edgechat.chat.entries import Severity
from edgechat.chat.events import ChatEvent
from edgechat.chat.guardian import guarded
from edgechat.chat.hangup import when_hung_up
from edgechat.chat.keys import tell_alt_enter_from_enter
from edgechat.chat.options import ChatOptions
from edgechat.chat.screens.chat import ChatScreen
from edgechat.chat.screens.conversations import ConversationsScreen
from edgechat.chat.widgets.prompt import Recall
from edgechat.errors import EdgechatError
from edgechat.history import HistoryError, OpenedHistory

SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT")
LAST_PATIENCE_S = 5.0
"""How long leaving after a signal may take; the terminal may be gone, and take no more output."""


class EngineFactory(Protocol):
    """Makes the engine; called once, when the app has drawn itself."""

    def __call__(
        self,
        *,
        on_progress: Callable[[float], None],
        on_note: Callable[[str], None],
        on_warning: Callable[[str], None],
        on_state: Callable[[EngineState], None],
    ) -> ChatEngine:
        """What it tells: how far loading has come, what the person should know, trouble, where it stands."""
        ...


@dataclass(frozen=True, slots=True)
class ChatSetup:
    """All that the app is given."""

    engine: EngineFactory
    history: OpenedHistory
    options: ChatOptions
    theme: ThemeMemory = field(default_factory=lambda: ThemeMemory(None))
    resume: int | None = None
    """Number of a conversation to go on with."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch, for dates."""
    timer: Callable[[], float] = time.monotonic
    """Monotonic seconds, for the rate of a running answer."""


class ChatApp(App[None]):
    """One chat in a terminal."""

    TITLE = "edgechat"
    CSS_PATH = ["app.tcss", "screens/chat.tcss"]  # noqa: RUF012 - the first screen's is not found by itself
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(QUIT_KEY, "quit", "Quit", show=False, priority=True, id="app.quit"),
    ]

    def __init__(self, setup: ChatSetup) -> None:
        super().__init__()
        tell_alt_enter_from_enter()
        self.setup = setup
        self.chat = ChatScreen(setup.options.model, Recall(_earlier_questions(setup.history)), setup.clock)
        self.controller = ChatController(
            setup.engine(
                on_progress=self._on_progress,
                on_note=self._on_note,
                on_warning=self._on_warning,
                on_state=self._on_state,
            ),
            setup.history.store,
            setup.options,
            self._hear,
            clock=setup.timer,
        )
        self.chat.controller = self.controller
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        remembered = setup.theme.recall()
        self.theme = remembered if remembered in self.available_themes else DARK.name
        self._early: list[events.Key | events.Paste] | None = []
        self._signals: list[signal.Signals] = []

    def get_default_screen(self) -> Screen[None]:
        """The chat."""
        return self.chat

    async def on_ready(self) -> None:
        """The app is drawn: load the model, and go on with a conversation where that was asked for."""
        self._watch_signals()
        await self._type_what_was_kept()
        self.controller.start()
        if self.setup.resume is not None:
            try:
                await self.controller.resume(self.setup.resume)
            except EdgechatError as error:
                self.controller.notice(f"{error}. This is a new conversation.", Severity.WARNING)
        if self.setup.history.notice:  # after the conversation, which clears the transcript
            self.controller.notice(self.setup.history.notice, Severity.WARNING)

    async def close(self) -> None:
        """After the app has ended: save what there is and end the engine."""
        self.controller.save_now()
        await self.controller.close()
        self.setup.history.store.close()

    # --- the controller and the engine

    def _hear(self, event: ChatEvent) -> None:
        self.chat.hear(event)

    def _on_progress(self, progress: float) -> None:
        self.controller.loading_progress(progress)

    def _on_note(self, text: str) -> None:
        self.controller.notice(text)

    def _on_warning(self, text: str) -> None:
        self.controller.notice(text, Severity.WARNING)

    def _on_state(self, state: EngineState) -> None:
        self.controller.engine_state(state)

    # --- trouble of our own

    def _fatal_error(self) -> None:
        """End without Textual's pages of traceback: `run_chat` raises what went wrong."""
        self._close_messages_no_wait()

    def panic(self, *renderables: object) -> None:
        """End the same way for errors that Textual has its own words for, such as bad style sheets."""
        self._close_messages_no_wait()

    # --- keys that come before the prompt

    async def on_event(self, event: events.Event) -> None:
        """Keep what is typed until there is a prompt for it."""
        if (
            self._early is not None
            and isinstance(event, events.Key | events.Paste)
            and not event.is_forwarded
        ):
            self._early.append(event)
        else:
            await super().on_event(event)

    async def _type_what_was_kept(self) -> None:
        """Before what waits in the queue, which was typed after it."""
        self.chat.set_focus(self.chat.prompt.area)
        early, self._early = self._early or [], None
        for event in early:
            await super().on_event(event)

    # --- signals

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        if not self.is_headless:
            when_hung_up(0, lambda: loop.call_soon_threadsafe(self._leave, signal.SIGHUP))
        for name in SIGNALS:
            number = getattr(signal, name, None)
            if number is not None:
                with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                    loop.add_signal_handler(number, self._leave, number)
                    self._signals.append(number)

    def _leave(self, number: signal.Signals) -> None:
        """Save, restore the terminal and end; and end in any case, should the terminal take no output."""
        code = 128 + number
        self.controller.save_now()
        watchdog = threading.Timer(LAST_PATIENCE_S, os._exit, (code,))
        watchdog.daemon = True
        watchdog.start()
        self.exit(return_code=code)

    # --- actions

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers: the chat's own actions, and all the themes."""
        if isinstance(screen, ChatScreen):
            for action in ACTIONS:
                keys = " or ".join(
                    _key_name(key) for key in (action.keys or action.app_keys).split(",") if key
                )
                yield SystemCommand(
                    action.title,
                    f"{action.help}  ({keys})" if keys else action.help,
                    lambda name=action.name: screen.run_worker(screen.run_action(name)),
                )
        yield SystemCommand("Theme", "Choose among all themes", self.action_change_theme)

    def _watch_theme(self, theme_name: str) -> None:
        super()._watch_theme(theme_name)
        if self.is_running:
            self.setup.theme.remember(theme_name)

    def action_help_quit(self) -> None:
        """Ctrl+C with nothing selected: stop the answer; without one, say how to quit."""
        if self.controller.status.busy:
            self.chat.run_worker(self.controller.stop(), group="stop")
        else:
            self.notify("Ctrl+Q quits.", timeout=3)

    async def on_conversations_screen_deleted(self, event: ConversationsScreen.Deleted) -> None:
        """The list's person said twice that a conversation should go."""
        await self.chat.delete(event.conversation_id)
        if isinstance(self.screen, ConversationsScreen):
            self.screen.refresh_list()


async def run_chat(setup: ChatSetup) -> int:
    """Run the app in this terminal until the person leaves.

    Returns:
        What to answer to the shell.

    Raises:
        Exception: a bug of ours, which ended the app; the terminal is as it was before.
    """
    app = ChatApp(setup)
    try:
        with guarded(0):
            await app.run_async()
    finally:
        await app.close()
    if app._exception is not None:
        raise app._exception
    failure = app.controller.failure
    return app.return_code or (failure.code if failure is not None else 0)


def _earlier_questions(history: OpenedHistory) -> list[str]:
    try:
        return history.store.recent_questions()
    except HistoryError:
        return []


def _key_name(key: str) -> str:
    return "+".join(part.capitalize() for part in key.split("+")).replace("Escape", "Esc")
