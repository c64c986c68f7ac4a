"""What the tests of `edgechat models pull` share: the hub's repository, and where its model comes to lie."""

from pathlib import Path

import pytest

from edgechat.cli import app
from edgechat.library.local import models_dir
from edgechat.library.pull import UNFINISHED

Captured = pytest.CaptureFixture[str]
REPO = "owner/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
PART_1, PART_2 = "tiny-Q8_0-00001-of-00002.gguf", "tiny-Q8_0-00002-of-00002.gguf"


def target(name: str = FILE) -> Path:
    """Where the model comes to lie."""
    return models_dir() / "owner" / "tiny-GGUF" / name


def left_over() -> list[str]:
    """What is kept of downloads that were not finished."""
    folder = models_dir() / UNFINISHED
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def pull(*arguments: str) -> int:
    """`edgechat models pull`; the exit code."""
    return app.main(["models", "pull", *arguments])
