"""All that a person can make the chat do: the keys, the command palette and the typed commands."""

import re
from dataclasses import dataclass

from textual.binding import Binding

QUIT_KEY = "ctrl+q"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    name: str
    """Of the screen's `action_...` method; the binding's id, for keymaps, is "chat." and this."""
    keys: str
    title: str
    help: str
    typed: tuple[str, ...] = ()
    """What does it when it is typed into the prompt."""
    priority: bool = False
    """The key does it whatever has the focus."""
    app_keys: str = ""
    """The app's own keys that do it, on every screen."""

    @property
    def binding(self) -> Binding:
        """The keys, as Textual takes them."""
        return Binding(
            self.keys, self.name, self.title, show=False, priority=self.priority, id=f"chat.{self.name}"
        )


ACTIONS = (
    Action("stop", "escape", "Stop", "End the running answer; what there is of it stays"),
    Action(
        "regenerate",
        "ctrl+r",
        "Answer again",
        "Let the model answer the last question anew",
        ("/again", "/regen", "/regenerate"),
        True,
    ),
    Action(
        "new",
        "ctrl+n",
        "New conversation",
        "Begin anew; this one stays in the list",
        ("/new", "/clear"),
        True,
    ),
    Action(
        "conversations",
        "ctrl+o",
        "Conversations",
        "Search, go on with one, or delete it",
        ("/list", "/load", "/conversations"),
        True,
    ),
    Action(
        "system_prompt",
        "f2,ctrl+s",
        "System prompt",
        "Tell the model how to behave",
        ("/system", "/system-prompt"),
        True,
    ),
    Action(
        "copy_answer", "f3", "Copy the last answer", "Put it on the clipboard, as Markdown", ("/copy",), True
    ),
    Action(
        "details",
        "f6",
        "Answer details",
        "How long the last answer took, what the model saw, what drafting did",
        ("/details", "/stats"),
        True,
    ),
    Action(
        "edit_question",
        "f4",
        "Edit the last question",
        "Ask it otherwise; Enter replaces it and its answer, Esc keeps them",
        ("/edit",),
        True,
    ),
    Action("theme", "ctrl+t", "Light or dark", "Change the theme; it is remembered", ("/theme",), True),
    Action("delete", "", "Delete this conversation", "With all its messages, after a question", ("/delete",)),
    Action("help", "f1,ctrl+g", "Help", "What the keys do", ("/help", "/?"), True),
    Action("quit", "", "Quit", "A running answer is saved", ("/quit", "/exit", "/bye"), app_keys=QUIT_KEY),
)


def typed_action(text: str) -> Action | None:
    """The action that a text in the prompt names; None where it is a question like any other."""
    word = text.strip().lower()
    return next((action for action in ACTIONS if word in action.typed), None)


def is_unknown_command(text: str) -> bool:
    """Whether a text looks like a command and is none; a path or a space before it make it a question."""
    return re.fullmatch(r"/[a-z][a-z-]*\s*", text) is not None and typed_action(text) is None
