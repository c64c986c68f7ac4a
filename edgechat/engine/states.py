"""Saved states of conversations: in memory, then on disk, the longest unused given up first.

A file is a header, the conversation's tokens and texts, and the runtime's own bytes of the cache, under one
checksum. It is named after the conversation and after the model and context settings that it belongs to.
What is damaged, foreign or contradicts itself is removed and ignored: all can be computed anew.
"""

import contextlib
import hashlib
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import msgspec

from edgechat import paths
from edgechat.engine.holes import Filling, Holes, Range
from edgechat.engine.process.state_files import SUFFIX, file_name
from edgechat.engine.sequence import NEVER, Segment, Transcript

_log = logging.getLogger(__name__)

MIN_TOKENS = 256
"""Shorter ones are computed again sooner than read."""
MAGIC = b"EDGECHAT-STATE\x00\x01"
_HEADER = struct.Struct("<16s32sQ")  # magic, checksum of all that follows, bytes of the description
MAX_DESCRIPTION = 2**28
ABANDONED_S = 3600.0
"""A file that was begun so long ago was left behind by a process that was killed."""

Key = str | int


class SavedState(msgspec.Struct, frozen=True):
    """What a sequence held when it was saved."""

    conversation: str
    """Its name; "" for one that has none, which is never written to disk."""
    identity: str
    """The model and the context settings that it belongs to."""
    tokens: tuple[int, ...]
    """Those in the cache, by position."""
    segments: tuple[Segment, ...]
    """The whole conversation: its texts with their tokens, so that none is tokenized again."""
    holes: tuple[Range, ...] = ()
    filling: Filling | None = None
    tainted: int = NEVER
    blob: bytes = b""
    """The runtime's own."""

    @property
    def n_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.blob) + 16 * len(self.tokens)

    @property
    def transcript(self) -> Transcript:
        """The whole conversation."""
        return Transcript(self.segments)

    @property
    def left(self) -> Holes:
        """What of it was evicted, and what stands in for that.

        Raises:
            ValueError: it contradicts itself.
        """
        return Holes(self.holes, self.filling)

    def consistent(self, n_vocab: int) -> bool:
        """Whether the tokens are the conversation's, less the holes, and all in the vocabulary."""
        try:
            seen = self.left.applied(self.transcript.tokens)
        except ValueError:
            return False
        known = 0 < len(self.tokens) <= len(seen) and tuple(seen[: len(self.tokens)]) == self.tokens
        return known and min(self.tokens) >= 0 and max(self.tokens) < n_vocab


class StateFiles:
    """A folder of saved states. Written by a thread of its own, so that no answer waits for the disk."""

    def __init__(self, folder: Path, identity: str, limit_bytes: int, n_vocab: int) -> None:
        """Use `folder`, which must exist.

        Args:
            folder: for states of any model; readable by its owner only.
            identity: of this model and these context settings.
            limit_bytes: of all files together.
            n_vocab: of this model.
        """
        self.folder = folder
        self.identity = identity
        self._limit = limit_bytes
        self._n_vocab = n_vocab
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = None

    def path(self, conversation: str) -> Path:
        """The file of a conversation."""
        return self.folder / file_name(conversation, self.identity)

    def read(self, conversation: str) -> SavedState | None:
        """The state of a conversation; None, and no file any more, where it can't be used."""
        self.wait()
        path = self.path(conversation)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        state = unpack(data)
        if (
            state is None
            or state.identity != self.identity
            or state.conversation != conversation
            or not state.consistent(self._n_vocab)
        ):
            _log.warning("ignored a damaged or foreign state: %s", path.name)
            self.remove(conversation)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return state

    def write(self, state: SavedState) -> None:
        """Save a state some time soon, in place of the conversation's last one."""
        if state.n_bytes <= self._limit // 2:
            self._submit(lambda: self._write(state))

    def remove(self, conversation: str) -> None:
        """Forget a conversation's state."""
        with contextlib.suppress(OSError):
            self.path(conversation).unlink(missing_ok=True)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all is written, at most `seconds`; False where it isn't."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._pending, seconds)

    def _submit(self, job: Callable[[], None]) -> None:
        with self._idle:
            self._pending += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="states", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except OSError as error:
                _log.warning("a state could not be saved: %s", error)
            finally:
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _write(self, state: SavedState) -> None:
        paths.write_atomic(self.path(state.conversation), pack(state))
        self._prune()

    def _prune(self) -> None:
        """Remove the longest unused files beyond the limit, and what a killed process left half written."""
        files = []
        for entry in os.scandir(self.folder):
            if SUFFIX in entry.name and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.startswith(".") and status.st_mtime < time.time() - ABANDONED_S:
                        os.unlink(entry.path)
                        continue
                    files.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files)[:-1]:
            if total <= self._limit:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


class StateStore:
    """States in memory, and behind them those on disk."""

    def __init__(self, memory_bytes: int = 0, files: StateFiles | None = None, identity: str = "") -> None:
        """Hold `memory_bytes`; what doesn't fit any more goes to `files`, or for good."""
        self.files = files
        self.identity = identity if files is None else files.identity
        self._limit = memory_bytes
        self._states: OrderedDict[Key, SavedState] = OrderedDict()
        self._saved: set[Key] = set()
        """Those in memory that are on disk as well."""

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._limit > 0 or self.files is not None

    @property
    def n_bytes(self) -> int:
        """Memory in use."""
        return sum(state.n_bytes for state in self._states.values())

    def get(self, key: Key) -> SavedState | None:
        """A conversation's state, from memory or else from disk."""
        state = self._states.get(key)
        if state is None and self.files is not None and isinstance(key, str) and key:
            state = self.files.read(key)
            if state is not None:
                self._saved.add(key)
                self._keep(key, state)
        elif state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: Key, state: SavedState) -> None:
        """Keep a state, in place of the conversation's last one."""
        self._saved.discard(key)
        if state.n_bytes > self._limit:
            self._states.pop(key, None)
            self._spill(key, state)
            return
        self._keep(key, state)

    def take(self, key: Key) -> bool:
        """Let go of a state that is in use again; whether it is on disk as well."""
        self._states.pop(key, None)
        saved = key in self._saved
        self._saved.discard(key)
        return saved

    def drop(self, key: Key) -> None:
        """Forget a state, on disk too: it is damaged, or its conversation was deleted."""
        self.take(key)
        if self.files is not None and isinstance(key, str) and key:
            self.files.wait()
            self.files.remove(key)

    def flush(self, seconds: float) -> None:
        """Bring all that is named to disk, as far as `seconds` allow."""
        for key, state in self._states.items():
            self._spill(key, state)
        if self.files is not None:
            self.files.wait(seconds)

    def _keep(self, key: Key, state: SavedState) -> None:
        self._states[key] = state
        self._states.move_to_end(key)
        while self.n_bytes > self._limit and len(self._states) > 1:
            oldest, old = self._states.popitem(last=False)
            self._spill(oldest, old)
            self._saved.discard(oldest)

    def _spill(self, key: Key, state: SavedState) -> None:
        if self.files is not None and state.conversation and key not in self._saved:
            self.files.write(state)
            self._saved.add(key)


def pack(state: SavedState) -> bytes:
    """A state as bytes."""
    description = msgspec.msgpack.encode(msgspec.structs.replace(state, blob=b""))
    checksum = _checksum(description, state.blob)
    return b"".join((_HEADER.pack(MAGIC, checksum, len(description)), description, state.blob))


def unpack(data: bytes) -> SavedState | None:
    """The state that `pack` wrote; None for anything else."""
    if len(data) < _HEADER.size:
        return None
    magic, checksum, length = _HEADER.unpack_from(data)
    view = memoryview(data)
    description, blob = view[_HEADER.size : _HEADER.size + length], view[_HEADER.size + length :]
    if magic != MAGIC or length > MAX_DESCRIPTION or len(description) != length:
        return None
    if _checksum(description, blob) != checksum:
        return None
    try:
        state = msgspec.msgpack.decode(description, type=SavedState)
    except (msgspec.DecodeError, ValueError):
        return None
    return msgspec.structs.replace(state, blob=bytes(blob))


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


def open_states(folder: str, memory_bytes: int, disk_bytes: int, identity: str, n_vocab: int) -> StateStore:
    """The store that the settings ask for; one in memory alone where the folder can't be used."""
    files = None
    if folder and disk_bytes > 0:
        try:
            files = StateFiles(paths.private_folder(Path(folder)), identity, disk_bytes, n_vocab)
        except Exception as error:
            _log.warning("states are not saved: %s", error)
    return StateStore(memory_bytes, files, identity)
