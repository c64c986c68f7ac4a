"""Names of the files that hold conversations' states: what the engine writes, the client can remove."""

import contextlib
import hashlib
from pathlib import Path

from edgechat import paths

SUFFIX = ".state"


def states_dir() -> Path:
    """The person's own folder of states; it need not exist."""
    return paths.cache_dir() / "states"


def file_name(conversation: str, identity: str) -> str:
    """The file of a conversation's state.

    Args:
        conversation: its name.
        identity: of the model and the context settings.
    """
    return f"{_stem(conversation)}-{_digest(identity, 8)}{SUFFIX}"


def remove_states(folder: Path, conversation: str) -> None:
    """Remove a conversation's states of all models: it was deleted."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_stem(conversation)}-*{SUFFIX}"):
            path.unlink(missing_ok=True)


def _stem(conversation: str) -> str:
    return _digest(conversation, 12)


def _digest(text: str, n_bytes: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=n_bytes).hexdigest()
