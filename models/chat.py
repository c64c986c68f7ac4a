"""The messages of a conversation, as chat templates see them."""

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant"]


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: str
