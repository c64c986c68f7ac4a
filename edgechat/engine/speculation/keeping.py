"""What was learnt of drafts' acceptance, kept on disk between runs beside the table of costs."""

import hashlib
import logging
from pathlib import Path

import msgspec

from edgechat import paths
from edgechat.engine.speculation.calibration import Calibration, Learnt
from edgechat.errors import EdgechatError
from edgechat.records import ModelInfo

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 2**16


class AcceptanceFile:
    """The file of one pair of models."""

    def __init__(self, folder: str, target: ModelInfo, draft: ModelInfo | None = None) -> None:
        """Name it.

        Args:
            folder: where; "" keeps nothing.
            target: whose tokens are drafted.
            draft: the model that drafts beside the words; None: there is none.
        """
        parts = (target.fingerprint, "" if draft is None else draft.fingerprint, 1)
        name = hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
        self._path = Path(folder) / f"{name}.acceptance.json" if folder else None
        self._written = Learnt()

    def read(self) -> Calibration:
        """What was learnt; nothing where there is no file, or a damaged one."""
        try:
            if self._path is not None and self._path.stat().st_size <= MAX_FILE_BYTES:
                self._written = msgspec.json.decode(self._path.read_bytes(), type=Learnt)
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            pass
        return Calibration(self._written)

    def write(self, calibration: Calibration) -> None:
        """Keep what was learnt since; where that fails, the next run learns it again."""
        learnt = calibration.learnt()
        if self._path is None or learnt == self._written:
            return
        self._written = learnt
        try:
            paths.private_folder(self._path.parent)
            paths.write_atomic(self._path, msgspec.json.encode(learnt))
        except (OSError, EdgechatError) as error:
            _log.warning("what was learnt of drafts is not kept: %s", error)
