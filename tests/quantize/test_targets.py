"""Which types tensors could have, what can be reached, and that the best mix within the room is chosen."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ggml_types import BLOCKS, GGMLType
from quantize.budget import Budget, bpw_budget, size_budget
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor
from quantize.measure import Measured
from quantize.shares import shares
from quantize.targets import candidates, file_type, groups_of, problem, solve

HEADER = 1000


def names(columns: int, kind: GGMLType = GGMLType.BF16, *, weighted: bool = False) -> list[str]:
    """The candidates of a tensor with such rows."""
    tensor = OutputTensor("x", (8, columns), kind)
    return [one.name for one in candidates(tensor, weighted=weighted)]


def test_candidates_fit_the_rows() -> None:
    """K types for blocks of 256, the others for 32, the source's own where nothing fits."""
    k = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"]
    assert names(512) == [*k, "BF16"]
    assert names(576) == ["Q4_0", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"]
    assert names(100) == ["BF16"]
    i = {"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"}
    assert set(names(512, weighted=True)) == {*k, "BF16", *i}
    assert names(576, weighted=True) == names(576)
    assert names(512, GGMLType.F32)[-1] == "BF16"
    assert names(512, GGMLType.F16)[-1] == "F16"
    assert names(512, GGMLType.Q4_1) == ["Q2_K", "Q3_K", "Q4_K", "Q4_1"]  # nothing gets better by more bits
    for columns in (512, 576):
        bits = [BLOCKS[GGMLType[name]].bits_per_weight for name in names(columns, weighted=True)]
        assert bits == sorted(bits)


def model(n_layers: int = 3) -> list[OutputTensor]:
    """Tensors of a small model in BF16, with a norm in F32."""
    tensors = [OutputTensor("token_embd.weight", (100, 512), GGMLType.BF16)]
    for i in range(n_layers):
        tensors += [
            OutputTensor(f"blk.{i}.attn_norm.weight", (500,), GGMLType.F32),
            OutputTensor(f"blk.{i}.attn_q.weight", (512, 512), GGMLType.BF16),
            OutputTensor(f"blk.{i}.ffn_down.weight", (64, 96), GGMLType.BF16),
        ]
    return tensors


TENSORS = model()
MATRICES = frozenset(tensor.name for tensor in TENSORS if len(tensor.shape) == 2)


def stated(budget: Budget, settled: dict[str, GGMLType] | None = None):  # type: ignore[no-untyped-def]
    return problem(
        budget,
        TENSORS,
        quantized=MATRICES,
        settled=settled or {},
        weighted=lambda name: False,
        header_bytes=HEADER,
    )


def bytes_of(types: dict[str, GGMLType], *, padded: bool) -> int:
    """Of all tensors, computed by hand."""
    total = 0
    for tensor in TENSORS:
        block = BLOCKS[types.get(tensor.name, tensor.type)]
        n_bytes = tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) > 1 else 1)
        n_bytes = n_bytes // block.elements * block.n_bytes
        total += (n_bytes + 31) // 32 * 32 if padded else n_bytes
    return total


def test_the_limits_are_said() -> None:
    """To the byte, and what is said can be reached."""
    least = dict.fromkeys(MATRICES, GGMLType.Q2_K)
    least |= {name: GGMLType.Q4_0 for name in MATRICES if "ffn_down" in name}
    n_least = 1024 + bytes_of(least, padded=True)
    n_most = 1024 + bytes_of({}, padded=True)
    stated(Budget(n_bytes=n_least))
    stated(Budget(n_bytes=n_most))
    with pytest.raises(BadRequest, match=rf"is too small: .* \({n_least} bytes\) is the least"):
        stated(Budget(n_bytes=n_least - 1))
    with pytest.raises(BadRequest, match=rf"more than the source has: .* \({n_most} bytes\) keeps all"):
        stated(Budget(n_bytes=n_most + 1))
    with pytest.raises(BadRequest, match=r"--target-bpw 1bpw is too small: (\d\.\d\d) bits") as caught:
        stated(bpw_budget(1))
    stated(bpw_budget(float(str(caught.value).split(": ")[1].split()[0])))
    with pytest.raises(BadRequest, match=r"--target-size 1kB is too small"):
        stated(size_budget("1kB"))


def measured_of(errors: dict[str, dict[GGMLType, float]], groups: tuple[tuple[str, ...], ...]) -> Measured:
    """As if a disturbance of 0.01 had cost 0.01 nats in each group and tensor."""
    return Measured(errors, dict.fromkeys(MATRICES, 0.01), [0.01 * len(group) for group in groups])


costs = st.lists(st.floats(0, 1), min_size=7, max_size=7)


@given(st.lists(costs, min_size=7, max_size=7), st.floats(0, 1), st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_room_is_always_kept(drawn: list[list[float]], share: float, in_bits: bool) -> None:
    """Whatever the errors; in the file's bytes, and in the bits of the weights."""
    least, most = stated_limits(in_bits)
    room = least + share * (most - least)
    budget = bpw_budget(room) if in_bits else Budget(n_bytes=int(room))
    found = stated(budget)
    errors = {
        name: dict(zip(found.candidates[name], one, strict=True))
        for name, one in zip(sorted(MATRICES), drawn, strict=True)
    }
    groups = groups_of(sorted(MATRICES))
    mix = solve(found, measured_of(errors, groups), groups)
    assert mix.types.keys() == MATRICES
    if in_bits:
        n_weights = sum(tensor.n_elements for tensor in TENSORS)
        assert 8 * bytes_of(dict(mix.types), padded=False) / n_weights <= room
    else:
        assert 1024 + bytes_of(dict(mix.types), padded=True) <= int(room)
    assert mix.expected_divergence == pytest.approx(
        sum(errors[name][kind] for name, kind in mix.types.items())
    )


def stated_limits(in_bits: bool) -> tuple[float, float]:
    """The least and the most."""
    least = dict.fromkeys(MATRICES, GGMLType.Q2_K)
    least |= {name: GGMLType.Q4_0 for name in MATRICES if "ffn_down" in name}
    if not in_bits:
        return 1024 + bytes_of(least, padded=True), 1024 + bytes_of({}, padded=True)
    n_weights = sum(tensor.n_elements for tensor in TENSORS)
    return tuple(8 * bytes_of(types, padded=False) / n_weights + 1e-9 for types in (least, {}))  # type: ignore[return-value]


def test_it_is_the_best_mix() -> None:
    """Against all combinations of a few tensors, with costs that follow the groups' divergences."""
    settled = {name: GGMLType.Q4_0 for name in MATRICES if "ffn_down" in name}
    budget = bpw_budget(5)
    found = stated(budget, settled)
    open_names = [name for name in sorted(MATRICES) if name not in settled]
    groups = groups_of(open_names)
    errors = {
        name: {kind: (i + 1) * 4.0**-j for j, kind in enumerate(found.candidates[name])}
        for i, name in enumerate(open_names)
    }
    divergences = [0.3, 0.05, 0.01, 0.2][: len(groups)]
    measured = Measured(errors, dict.fromkeys(open_names, 0.02), divergences)
    mix = solve(found, measured, groups)
    weight = {
        name: divergence / (0.02 * len(group))
        for group, divergence in zip(groups, divergences, strict=True)
        for name in group
    }
    best = min(
        sum(weight[name] * errors[name][kind] for name, kind in zip(open_names, kinds, strict=True))
        for kinds in itertools.product(*(found.candidates[name] for name in open_names))
        if bytes_of(dict(zip(open_names, kinds, strict=True)) | settled, padded=False) <= found.room
    )
    assert mix.expected_divergence == pytest.approx(best)
    assert {name: mix.types[name] for name in settled} == settled


def test_groups() -> None:
    """Of one kind and of neighbouring layers; each tensor in one."""
    tensors = [f"blk.{i}.{kind}.weight" for i in range(12) for kind in ("attn_q", "ffn_up")]
    groups = groups_of([*tensors, "token_embd.weight"], 9)
    assert len(groups) == 9
    assert sorted(name for group in groups for name in group) == sorted([*tensors, "token_embd.weight"])
    assert ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight") in groups
    assert ("token_embd.weight",) in groups
    assert len(groups_of(tensors, 1)) == 2


def test_what_a_mix_is_called() -> None:
    """By the type of most of its weights, with llama.cpp's own number; and how it is listed."""
    import llama_cpp

    tensors = [
        OutputTensor("a", (4, 512), GGMLType.Q3_K),
        OutputTensor("b", (8, 512), GGMLType.IQ4_XS),
        OutputTensor("c", (4, 512), GGMLType.Q3_K),
        OutputTensor("d", (8, 512), GGMLType.Q3_K),
        OutputTensor("e", (512,), GGMLType.F32),
    ]
    assert file_type(tensors) == llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_M
    assert [(one.type, one.n_tensors, one.n_bytes) for one in shares(tensors)] == [
        ("Q3_K", 3, 3520),
        ("IQ4_XS", 1, 2176),
        ("F32", 1, 2048),
    ]
