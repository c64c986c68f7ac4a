"""What can go wrong with the saved conversations."""

from edgechat.errors import EdgechatError, ExitCode, NotFoundError, UsageError


class HistoryError(EdgechatError):
    """The database can't be read or written: a full disk, missing rights, a newer edgechat's file."""

    code = ExitCode.RESOURCES


class DamagedHistory(HistoryError):
    """The file is no database of ours any more."""


class NewerHistory(HistoryError):
    """A newer edgechat made the file, or changed it."""


class ConversationGone(NotFoundError):
    """Another program deleted the conversation."""


class ConversationOpen(UsageError):
    """Another window goes on with the conversation just now."""
