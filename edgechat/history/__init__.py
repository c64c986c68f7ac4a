"""Conversations, in SQLite with full-text search."""

from edgechat.history.errors import ConversationGone, DamagedHistory, HistoryError
from edgechat.history.opening import OpenedHistory, open_history
from edgechat.history.records import Conversation, Found, Receipt, SavedMessage, Status
from edgechat.history.store import HistoryStore

__all__ = [
    "Conversation",
    "ConversationGone",
    "DamagedHistory",
    "Found",
    "HistoryError",
    "HistoryStore",
    "OpenedHistory",
    "Receipt",
    "SavedMessage",
    "Status",
    "open_history",
]
