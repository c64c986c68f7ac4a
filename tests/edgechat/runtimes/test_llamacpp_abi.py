"""Another version of the bindings is a sentence, not a segmentation fault."""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgechat.runtimes.llamacpp
from edgechat.errors import ExitCode, UnsupportedError
from edgechat.runtimes.llamacpp import abi
from edgechat.runtimes.llamacpp.backends import BuildInfo, build_info, features
from edgechat.runtimes.llamacpp.devices import DeviceKind

FOLDER = Path(edgechat.runtimes.llamacpp.__file__).parent


def stand_in(**changes: Any) -> SimpleNamespace:
    """The real bindings with some names replaced; None takes one away."""
    bindings = SimpleNamespace(**vars(abi.llama()))
    for name, value in changes.items():
        if value is None:
            delattr(bindings, name)
        else:
            setattr(bindings, name, value)
    return bindings


class Larger(ctypes.Structure):
    _fields_ = (("a", ctypes.c_char * 88),)


def moved_defaults() -> Any:
    params = abi.llama().llama_context_default_params()
    params.n_ubatch = 0
    return params


def test_the_installed_version_is_the_one_wanted() -> None:
    assert abi.installed_version() == abi.WANTED_BINDINGS
    abi.check(abi.llama(), abi.WANTED_BINDINGS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"llama_model_params": Larger}, "llama_model_params has 88 bytes, not 80"),
        ({"llama_batch": Larger}, "llama_batch has 88 bytes, not 56"),
        ({"llama_batch": None}, "no struct llama_batch"),
        ({"llama_memory_seq_add": None}, "no function llama_memory_seq_add"),
        ({"llama_version": lambda: b"0.6.0"}, "its llama.cpp is 0.6.0, not 0.5.0-dev"),
        (
            {"llama_context_default_params": moved_defaults},
            "llama_context_params.n_ubatch is not where it was",
        ),
    ],
)
def test_another_version_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        abi.check(stand_in(**changes), "0.4.1")
    assert str(caught.value) == (
        f"llama-cpp-python 0.4.1 is not the version that edgechat can use ({says}): "
        'pip install "llama-cpp-python==0.3.36"'
    )
    assert caught.value.code == ExitCode.UNSUPPORTED


def test_every_function_that_is_called_is_checked_for() -> None:
    called = set()
    for source in FOLDER.glob("*.py"):
        called |= set(re.findall(r"\.(llama_[a-z_0-9]+)\(", source.read_text(encoding="utf-8")))
    unchecked = called - set(abi.FUNCTIONS) - set(abi.SIZES)
    assert unchecked == {"llama_progress_callback"}  # a ctypes type, made by the bindings themselves


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="no function llama_fly"):
        abi.function("llama_fly", None)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **environment},
    )


def test_only_the_c_bindings_are_imported() -> None:
    done = run(
        "import sys\n"
        "from edgechat.runtimes.llamacpp import abi, logs\n"
        "logs.capture()\n"
        "print(sorted({'llama_cpp.llama', 'jinja2', 'diskcache', 'llama_cpp'} & set(sys.modules)))\n"
        "import llama_cpp\n"
        "print(llama_cpp.llama_cpp is abi.llama(), llama_cpp.Llama.__name__)\n"
    )
    assert done.stdout.splitlines() == ["[]", "True Llama"], done.stderr


def test_bindings_that_do_not_load(tmp_path: Path) -> None:
    done = run(
        "from edgechat.runtimes.llamacpp.backends import main\nraise SystemExit(main())",
        LLAMA_CPP_LIB_PATH=str(tmp_path),
    )
    assert done.returncode == ExitCode.UNSUPPORTED
    assert done.stdout == ""
    assert done.stderr.startswith(f"llama-cpp-python {abi.WANTED_BINDINGS} does not load here: ")
    assert len(done.stderr.splitlines()) == 1


def test_build_info_as_doctor_gets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgechat.runtimes.llamacpp.backends"],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stderr == ""
    info = json.loads(done.stdout)
    here = build_info()
    assert info["bindings"] == here.bindings == abi.WANTED_BINDINGS
    assert info["library"] == here.library == abi.WANTED_LIBRARY
    assert tuple(info["backends"]) == here.backends
    assert tuple(info["features"]) == here.features
    assert "CPU" in here.backends
    cpu = next(device for device in here.devices if device.name == "CPU")
    assert cpu.kind is DeviceKind.CPU
    assert cpu.memory_total > 2**28
    assert isinstance(here, BuildInfo)


def test_features_of_the_cpu() -> None:
    system = (
        "CUDA : ARCHS = 500,890 | USE_GRAPHS = 1 | PEER_MAX_BATCH_SIZE = 128 | "
        "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | SVE_CNT = 32 | REPACK = 1 | "
    )
    assert features(system) == ("SSE3", "AVX2", "SVE_CNT=32", "REPACK")
    assert features("") == ()
