"""Results of `edgechat quantize`, made in edgechat's own environment, for readers in this one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.cases import CASES

ROOT = Path(__file__).parents[2]

# The ordinary suite passes by: `make test-interop` runs these where the readers are.
collect_ignore_glob = [] if importlib.util.find_spec("gptqmodel") else ["test_*.py"]


@pytest.fixture(scope="session")
def edgechat_python() -> str:
    """The Python that edgechat is installed in."""
    found = os.environ.get("EDGECHAT_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    assert Path(found).is_file(), f"no {found}: make setup-all, or set EDGECHAT_PYTHON"
    return found


@pytest.fixture(scope="session")
def results(
    edgechat_python: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A folder with the result of each case that a chosen test asks for, by the case's name."""
    folder = tmp_path_factory.mktemp("results")
    smollm2 = request.config.cache.mkdir("smollm2-checkpoint")
    wanted = {name for item in request.session.items for name in cases_of(item)}
    names = [name for name in CASES if name in wanted]
    run(edgechat_python, "-m", "tests.interop.make", str(smollm2), str(folder), *names, limit=6000)
    return folder


def cases_of(item: pytest.Item) -> list[str]:
    """Whose results a test reads by its parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return [str(parameters["name"])] if "name" in parameters else []


def run(python: str, *arguments: str, limit: float) -> None:
    """Run a command at the root of the repository; what it said is shown where it fails."""
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        pytest.fail(f"{' '.join(arguments[:3])} exited with {done.returncode}: {done.stderr[-400:]}")
