"""Advice for a model that doesn't fit: a smaller quantization, and a smaller one indeed."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from edgechat.library import estimate
from edgechat.library.ladder import MIB
from edgechat.library.needs import Available, Needs
from edgechat.library.smaller import smaller_quantization


@pytest.mark.parametrize(("ram", "expected"), [(2000, "q3_k_m"), (440, "q3_k_m"), (411, "q2_k"), (300, "")])
def test_never_of_as_many_bits(gemma_gguf: Path, ram: int, expected: str) -> None:
    """Half of this Q4_K_M model is a table in Q8_0: in Q6_K throughout it would be smaller, too."""
    parts = estimate.read_parts(gemma_gguf)
    weights = sum(tensor.n_elements for tensor in parts[0].tensors)
    size = sum(tensor.n_bytes for tensor in parts[0].tensors)
    needs = Needs(engine=50 * MIB, weights=size, repacked=0, cold=0, kv=0, compute=0, output=0)
    plan = SimpleNamespace(needs=needs, available=Available(ram * MIB))
    found = smaller_quantization(parts, plan)  # type: ignore[arg-type]
    assert found.partition(" ")[0] == expected
    three = int(weights * 4.0 / 8)
    if expected == "q3_k_m":
        assert found == f"q3_k_m (about {three / 1e6:.1f} MB)"


def test_half_precision_may_become_anything(gemma_gguf: Path) -> None:
    parts = estimate.read_parts(gemma_gguf)
    header = parts[0]
    header = msgspec.structs.replace(header) if isinstance(header, msgspec.Struct) else header
    header.metadata["general.file_type"] = 1  # F16
    size = 2 * sum(tensor.n_elements for tensor in header.tensors)
    needs = Needs(engine=50 * MIB, weights=size, repacked=0, cold=0, kv=0, compute=0, output=0)
    plan = SimpleNamespace(needs=needs, available=Available(2000 * MIB))
    assert smaller_quantization([header], plan).startswith("q6_k")  # type: ignore[arg-type]
