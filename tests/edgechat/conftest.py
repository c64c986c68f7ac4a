"""What the tests of the application share."""

from pathlib import Path

import pytest

from edgechat.library import places


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home, without the variables that move what is in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "OLLAMA_SYSTEM", tmp_path / "no-service")
    return tmp_path
