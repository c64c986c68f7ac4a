"""Conversations without what some templates refuse: a system prompt, two turns of one role in a row."""

from collections.abc import Sequence
from itertools import pairwise

from models.chat import ChatMessage

_BETWEEN = "\n\n"


def has_system(messages: Sequence[ChatMessage]) -> bool:
    """Whether there is a system prompt."""
    return any(message.role == "system" for message in messages)


def has_repeated_roles(messages: Sequence[ChatMessage]) -> bool:
    """Whether two messages in a row are of one role."""
    return any(one.role == other.role for one, other in pairwise(messages))


def fold_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Each system text in front of the next message of the user, or as a message of its own at the end."""
    folded: list[ChatMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message.content)
        elif message.role == "user" and waiting:
            folded.append(ChatMessage("user", _joined([*waiting, message.content])))
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append(ChatMessage("user", _joined(waiting)))
    return folded


def fold_turns(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Messages in a row of one role as one message."""
    folded: list[ChatMessage] = []
    for message in messages:
        if folded and folded[-1].role == message.role:
            folded[-1] = ChatMessage(message.role, _joined([folded[-1].content, message.content]))
        else:
            folded.append(message)
    return folded


def _joined(texts: Sequence[str]) -> str:
    return _BETWEEN.join(text for text in texts if text.strip())
