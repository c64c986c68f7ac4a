"""The chat itself: transcript, prompt and status line."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Center
from textual.content import Content
from textual.screen import Screen
from textual.widget import MountError
from textual.widgets import Markdown, Static

from edgechat.chat.actions import ACTIONS, is_unknown_command, typed_action
from edgechat.chat.appearance import DARK, LIGHT
from edgechat.chat.controller import ChatController
from edgechat.chat.events import ChatEvent, ChatStatus, GivenBack, State, StatusChanged, merged
from edgechat.chat.hints import WIDE, Hint, hints
from edgechat.chat.plain import one_line
from edgechat.chat.screens.confirm import ConfirmScreen
from edgechat.chat.screens.conversations import ConversationsScreen
from edgechat.chat.screens.details import DetailsScreen, details
from edgechat.chat.screens.help import HelpScreen
from edgechat.chat.screens.system_prompt import SystemPromptScreen
from edgechat.chat.styles import FAINT, MUTED
from edgechat.chat.widgets.markdown import CopyCode
from edgechat.chat.widgets.prompt import Prompt, PromptArea, Recall
from edgechat.chat.widgets.status import StatusLine
from edgechat.chat.widgets.transcript import Transcript
from edgechat.chat.widgets.welcome import Example, Welcome
from edgechat.errors import EdgechatError

FRAME_S = 1 / 20
"""Pieces of an answer are drawn this often at most; Textual's Markdown keeps up with no more."""
LONGEST_FRAME_S = 1 / 5
"""And at least so often."""
DRAWING_SHARE = 1 / 8
"""Of a core that drawing may take: the model needs them all."""


def pause_after(spent_s: float) -> float:
    """Seconds to wait before what comes next is drawn, where the last drawing took `spent_s` of CPU time."""
    return min(max(spent_s / DRAWING_SHARE, FRAME_S), LONGEST_FRAME_S)


def _said_of_system_prompt(text: str | None) -> str:
    """What the person is told of a new conversation's system prompt."""
    if text is None:
        return "No system prompt of yours: the model's own holds, if it has one."
    return "System prompt set." if text else "No system prompt, nor the model's own."


class ChatScreen(Screen[None]):
    """Shows what the controller tells, and tells the controller what the person wants."""

    AUTO_FOCUS = "#prompt"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-normal")]  # noqa: RUF012 - as the base has it
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - as the base has it
        (0, "-least"),
        (9, "-tiny"),
        (16, "-low"),
        (30, "-high"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(action.binding for action in ACTIONS if action.keys),
        Binding("pageup", "scroll('page_up')", "Page up", show=False, priority=True, id="chat.page_up"),
        Binding(
            "pagedown", "scroll('page_down')", "Page down", show=False, priority=True, id="chat.page_down"
        ),
        Binding("ctrl+up", "scroll('up')", "Line up", show=False, priority=True, id="chat.line_up"),
        Binding("ctrl+down", "scroll('down')", "Line down", show=False, priority=True, id="chat.line_down"),
        Binding("ctrl+home", "start", "Oldest", show=False, priority=True, id="chat.top"),
        Binding("ctrl+end", "end", "Newest", show=False, priority=True, id="chat.end"),
    ]

    controller: ChatController
    """Given by the app before the screen is shown."""

    def __init__(self, model: str, recall: Recall, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the epoch."""
        super().__init__()
        self._clock = clock
        self.welcome = Welcome(model)
        self.transcript = Transcript(self.welcome)
        self.status_line = StatusLine()
        self.prompt = Prompt(recall)
        self._waiting: deque[ChatEvent] = deque()
        self._news = asyncio.Event()
        self._hints: tuple[Hint, ...] | None = None
        self._top = Static(id="top")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        # Textual sets these with the first resize: after the first frame, which would jump.
        width, height = self.app.size
        for breakpoints, length in (
            (self.HORIZONTAL_BREAKPOINTS, width),
            (self.VERTICAL_BREAKPOINTS, height),
        ):
            self.add_class(max(point for point in breakpoints if point[0] <= length)[1])
        yield Center(self._top)
        yield self.transcript
        yield Center(self.prompt)
        yield Center(self.status_line)

    def on_mount(self) -> None:
        """Begin to show events."""
        self.prompt.area.cursor_blink = self.app.animation_level != "none"
        self._show_status(self.controller.status)
        self._show_events()

    def on_resize(self) -> None:
        """Say what there is room for."""
        self.call_after_refresh(self._show_hint)

    # --- from the controller

    def hear(self, event: ChatEvent) -> None:
        """Take an event; it is shown soon."""
        self._waiting.append(event)
        self._news.set()

    @work(group="events")
    async def _show_events(self) -> None:
        pause = FRAME_S
        while True:
            await self._news.wait()
            self._news.clear()
            before = time.thread_time()
            events = merged(self._waiting)
            self._waiting.clear()
            for event in events:
                try:
                    await self._show(event)
                except MountError:
                    if self.app.is_running and self.transcript.is_attached:
                        raise
                    return  # the app is ending
            self._show_hint()
            await asyncio.sleep(pause)
            spent = time.thread_time() - before  # Textual lays out and draws while this sleeps
            pause = pause_after(spent)

    async def _show(self, event: ChatEvent) -> None:
        if isinstance(event, StatusChanged):
            self._show_status(event.status)
        elif isinstance(event, GivenBack):
            if not self.prompt.area.text.strip():  # else Up brings it
                self.prompt.area.fill(event.text)
                if event.edited:
                    self.controller.edit()
        else:
            await self.transcript.apply(event)

    def _show_status(self, status: ChatStatus) -> None:
        self.status_line.status = status
        self.welcome.show_model(status.model)
        title = one_line(status.title)
        self._top.update(
            Content.assemble(("edgechat", "bold $primary"), ("  ›  ", FAINT), (title, MUTED))
            if title
            else Content("")
        )
        self.set_class(status.busy, "-busy")
        self.prompt.area.placeholder = Content(
            "No model is loaded: a question tries again"
            if status.state is State.UNAVAILABLE
            else "Ask anything"
        )
        self._show_hint()

    def _show_hint(self) -> None:
        shown = hints(
            self.controller.status,
            n_lines=self.prompt.area.document.line_count,
            follows_end=self.transcript.follows_end,
            width=self.size.width,
        )
        if shown != self._hints:
            self._hints = shown
            self.prompt.show_hint(
                Content("  ").join(Content.assemble((key, "bold"), " ", what) for key, what in shown)
            )

    # --- from the person

    @on(PromptArea.Changed)
    def _typed(self) -> None:
        self._show_hint()

    @on(PromptArea.Emptied)
    def _emptied(self) -> None:
        self.controller.keep()

    @on(PromptArea.Sent)
    async def _sent(self, event: PromptArea.Sent) -> None:
        action = typed_action(event.text)
        if not event.text.strip():
            if self.controller.status.state is State.UNAVAILABLE:
                self.controller.start()
        elif action is not None:
            self.controller.keep()
            await self.run_action(action.name)
        elif is_unknown_command(event.text):
            self.prompt.area.give_back(event.text)
            self.app.notify(
                f"There is no command {event.text.strip()}. F1 lists them; after a space it is sent.",
                severity="warning",
                timeout=5,
                markup=False,
            )
        elif not self.controller.send(event.text):
            self.prompt.area.give_back(event.text)
            self.app.notify("Still answering. Esc stops it; what you typed stays.", timeout=3)

    @on(Example.Chosen)
    def _chosen(self, event: Example.Chosen) -> None:
        self.prompt.area.fill(event.text)
        self.prompt.area.focus()

    @on(CopyCode.Pressed)
    def _copy_code(self, event: CopyCode.Pressed) -> None:
        self._copy(event.code, "code")

    @on(Markdown.LinkClicked)
    def _copy_link(self, event: Markdown.LinkClicked) -> None:
        # A model's links are never opened: they may be made up, and edgechat stays offline.
        event.stop()
        self._copy(event.href, "link")

    async def action_stop(self) -> None:
        """End the running answer, or leave the question that is edited as it was."""
        if self.controller.status.editing:
            self.controller.keep()
            self.prompt.area.fill("")
        else:
            self.run_worker(self.controller.stop(), group="stop")

    def action_regenerate(self) -> None:
        """Answer the last question again."""
        if not self.controller.regenerate():
            self._say_why_not()

    def action_new(self) -> None:
        """Begin a conversation."""
        self.run_worker(self.controller.new(), group="switch", exclusive=True)
        self.prompt.area.focus()

    def action_edit_question(self) -> None:
        """Put the last question into the prompt, unless something else is typed there."""
        if self.prompt.area.text.strip():
            self.app.notify("The prompt has text already: send or delete that first.", timeout=4)
            return
        question = self.controller.edit()
        if question is None:
            self._say_why_not()
        else:
            self.prompt.area.fill(question)

    def _say_why_not(self) -> None:
        """Why the last question can't be edited or answered again now."""
        busy = self.controller.status.busy
        self.app.notify("Still answering. Esc stops it." if busy else "There is no question yet.", timeout=3)

    def action_copy_answer(self) -> None:
        """Copy the last answer."""
        answer = self.controller.last_answer
        if answer:
            self._copy(answer, "answer")
        else:
            self.app.notify("There is no answer yet.", timeout=3)

    def action_details(self) -> None:
        """Show how the last answer came about."""
        answer = self.controller.last_answer_entry
        if answer is None:
            self.app.notify("There is no answer yet.", timeout=3)
        else:
            self.app.push_screen(DetailsScreen(details(answer, self.controller.status.context_size)))

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpScreen())

    def action_theme(self) -> None:
        """Light or dark."""
        self.app.theme = LIGHT.name if self.app.current_theme.dark else DARK.name

    async def action_quit(self) -> None:
        """Leave."""
        await self.app.action_quit()

    @work
    async def action_system_prompt(self) -> None:
        """Write the system prompt."""
        text = await self.app.push_screen_wait(SystemPromptScreen(self.controller.system_prompt or ""))
        if text is not None:
            self.controller.set_system_prompt(text)
            if not self.controller.entries:
                self.app.notify(_said_of_system_prompt(self.controller.system_prompt), timeout=3)

    @work
    async def action_conversations(self) -> None:
        """Choose a conversation."""
        chosen = await self.app.push_screen_wait(
            ConversationsScreen(
                self.controller.store,
                self.controller.conversation_id,
                self._clock(),
                self.controller.check_deletable,
            )
        )
        if chosen is not None and chosen != self.controller.conversation_id:
            await self.resume(chosen)

    async def resume(self, conversation_id: int) -> None:
        """Go on with a saved conversation."""
        try:
            await self.controller.resume(conversation_id)
        except EdgechatError as error:
            self.app.notify(str(error), severity="error", markup=False)

    @work
    async def action_delete(self) -> None:
        """Delete this conversation, after a question."""
        conversation_id = self.controller.conversation_id
        if conversation_id is None:
            self.app.notify("This conversation is not saved: there is nothing to delete.", timeout=3)
            return
        title = one_line(self.controller.status.title)
        question = ConfirmScreen(
            Content.assemble("Delete “", title, "”?"), "It can't be undone.", "Delete", "Keep"
        )
        if await self.app.push_screen_wait(question):
            await self.delete(conversation_id)

    async def delete(self, conversation_id: int) -> None:
        """Delete a conversation that the person said twice to delete."""
        try:
            await self.controller.delete(conversation_id)
        except EdgechatError as error:
            self.app.notify(str(error), severity="error", markup=False)

    def action_scroll(self, where: str) -> None:
        """Scroll the transcript."""
        getattr(self.transcript, f"scroll_{where}")(animate=False)
        self.call_after_refresh(self._show_hint)

    async def action_start(self) -> None:
        """Go to the oldest message."""
        await self.transcript.show_start()
        self.call_after_refresh(self._show_hint)

    async def action_end(self) -> None:
        """Go to the newest message."""
        await self.transcript.show_end()
        self.call_after_refresh(self._show_hint)

    def _copy(self, text: str, what: str) -> None:
        self.app.copy_to_clipboard(text)
        self.app.notify(f"Copied the {what} ({len(text):,} characters).", timeout=2)
