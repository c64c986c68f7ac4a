"""What the tests of the application share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from edgechat.library import places

# How long an example takes is the machine's affair, and what else it does.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home, without the variables that move what is in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "OLLAMA_SYSTEM", tmp_path / "no-service")
    return tmp_path
