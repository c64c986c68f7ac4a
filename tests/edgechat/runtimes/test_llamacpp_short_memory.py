"""A load where the system itself refuses memory: address space that `ulimit -v` has taken away."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.library.dry_run import DryRunProcess
from edgechat.records import LoadSettings

CHILD = """
import json, resource, sys
import psutil
from edgechat.errors import EdgechatError
from edgechat.records import LoadSettings
from edgechat.runtimes.base import Chunk
from edgechat.runtimes.llamacpp import LlamaCppRuntime, attention, logs

attention.products_are_faster = lambda: False  # which need less memory for results
settings = LoadSettings(sys.argv[1], n_ctx=int(sys.argv[3]), n_threads=1, n_sequences=1)
logs.capture()
limit = psutil.Process().memory_info().vms + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    runtime = LlamaCppRuntime.load(settings)
except EdgechatError as error:
    print(json.dumps({"error": str(error), "code": int(error.code)}))
else:
    runtime.decode([Chunk(0, [1, 2, 3], 0)])
    print(json.dumps({"n_ctx": runtime.n_ctx, "kv": runtime.settings.kv_type, "notes": runtime.notes}))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux only")


def load(path: Path, mib: int, n_ctx: int = 0) -> dict[str, object]:
    """What a process says that may have so many MiB more than an empty engine."""
    command = [sys.executable, "-c", CHILD, str(path), str(mib), str(n_ctx)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def weights(path: Path) -> int:
    """MiB that they take: 93, and as much again where AMX has copies."""
    with DryRunProcess(path) as dry:
        needs = dry.ask(LoadSettings(str(path))).needs
    assert needs is not None
    return (needs.weights + needs.repacked) // 2**20


def test_a_load_that_is_refused_memory_goes_down_the_ladder(starter_gguf: Path) -> None:
    loaded = load(starter_gguf, 1000)
    assert (loaded["n_ctx"], loaded["notes"]) == (8192, [])
    # Beside them 98 MiB are reserved for results, 20 the vocabulary: 180 for the context are too much.
    loaded = load(starter_gguf, weights(starter_gguf) + 298)
    assert loaded["kv"] == "q8_0"
    assert "memory is short" in str(loaded["notes"])


def test_a_context_that_was_asked_for_is_refused(starter_gguf: Path) -> None:
    refused = load(starter_gguf, weights(starter_gguf) + 298, n_ctx=32768)
    assert refused["code"] == 5
    assert "memory" in str(refused["error"])
