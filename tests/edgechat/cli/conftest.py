"""What the tests of commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A path that the scripted engine takes for a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)
