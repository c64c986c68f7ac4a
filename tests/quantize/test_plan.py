"""Types and their names; whether a run fits on the disk."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest

from models.ggml_types import GGMLType
from quantize.errors import BadRequest, NotEnoughDisk
from quantize.plan import TARGETS, USABLE, check_disk, human, target_of


def test_numbers_are_llama_cpps_own() -> None:
    """Each type's number in the file, by the bindings' constants."""
    for name, target in TARGETS.items():
        kind = name.upper()
        constant = "LLAMA_FTYPE_ALL_F32" if name == "f32" else f"LLAMA_FTYPE_MOSTLY_{kind}"
        assert getattr(llama_cpp, constant) == target.ftype, name
    assert {name: target.direct for name, target in TARGETS.items() if target.direct is not None} == {
        "f32": GGMLType.F32,
        "f16": GGMLType.F16,
        "bf16": GGMLType.BF16,
        "q8_0": GGMLType.Q8_0,
    }


def test_names_are_read_as_people_write_them() -> None:
    """In either case, with either dash."""
    assert target_of("Q4_K_M") is target_of("q4-k-m") is TARGETS["q4_k_m"]
    assert target_of("Q4_K_M").label == "Q4_K_M"
    assert target_of("q4_K") is TARGETS["q4_k_m"]


def test_all_types_are_there() -> None:
    """Each type of file that llama.cpp names, but NVFP4: it has no default type for that one."""
    prefix = "LLAMA_FTYPE_MOSTLY_"
    theirs = {name.removeprefix(prefix).lower() for name in dir(llama_cpp) if name.startswith(prefix)}
    assert set(TARGETS) == (theirs | {"f32"}) - {"nvfp4"}


def test_what_there_is_not() -> None:
    """An unknown type lists the known."""
    with pytest.raises(BadRequest, match="there is no type 'q9': give one of f32, f16") as caught:
        target_of("q9")
    assert all(name in str(caught.value) for name in TARGETS)
    assert target_of("IQ2-XS").needs_imatrix
    assert "iq2_xs" not in USABLE


def test_a_full_disk_is_said_in_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is needed, for what, what is free, and how much is missing."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    check_disk(tmp_path, 600_000, 400_000)
    with pytest.raises(NotEnoughDisk) as caught:
        check_disk(tmp_path, 2_000_000_000, 3_500_000)
    assert str(caught.value) == (
        f"{tmp_path}: 2.00 GB needed (2.00 GB for the result and 3.5 MB on the way), 1 MB free: "
        "make room for 2.00 GB, or give another place with -o"
    )
    assert [human(n) for n in (0, 999, 1500, 269_060_381)] == ["0 B", "999 B", "1.5 kB", "269 MB"]
    assert [human(n) for n in (10**9, 999_990_000_000, 999_999_000_000, 10**14)] == [
        "1.00 GB", "999.99 GB", "1.00 TB", "100.00 TB",
    ]  # fmt: skip
