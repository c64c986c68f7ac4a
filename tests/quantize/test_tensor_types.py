"""Types for single tensors: what people write, which tensors are meant, and what can't be."""

import ctypes

import pytest

from models.ggml_types import BLOCKS, GGMLType
from quantize.errors import BadRequest
from quantize.formats.gguf import OutputTensor
from quantize.tensor_types import (
    NEED_IMATRIX,
    TYPES,
    Override,
    Part,
    fallbacks,
    override,
    part_override,
    resolve,
)

SHAPES = {
    "token_embd.weight": (300, 64),
    "blk.0.attn_norm.weight": (64,),
    "blk.0.attn_q.weight": (64, 64),
    "blk.0.attn_v.weight": (32, 64),
    "blk.0.ffn_down.weight": (64, 256),
    "blk.0.ffn_gate_inp.weight": (4, 64),
    "blk.11.attn_q.weight": (64, 64),
    "blk.11.ffn_down.weight": (64, 256),
}
TENSORS = {name: OutputTensor(name, shape, GGMLType.F16) for name, shape in SHAPES.items()}
QUANTIZED = frozenset(name for name in SHAPES if "norm" not in name and "gate_inp" not in name)


def chosen(*overrides: Override, weighted: bool = False, **more: tuple[int, ...]) -> dict[str, str]:
    """What each tensor becomes."""
    extra = {f"{name}.weight": shape for name, shape in more.items()}
    tensors = TENSORS | {name: OutputTensor(name, shape, GGMLType.F16) for name, shape in extra.items()}
    found = resolve(overrides, tensors, QUANTIZED | set(extra), lambda name: weighted)
    return {name: kind.name for name, kind in found.items()}


def test_names_are_llama_cpps_own() -> None:
    """Each type that can be asked for, by the library's own word, with its block."""
    from llama_cpp import _ctypes_extensions, _ggml

    library = _ctypes_extensions.load_shared_library("ggml-base", _ggml.libggml_base_path)
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    for name, kind in TYPES.items():
        assert library.ggml_type_name(int(kind)).decode().lower() == name
        assert (library.ggml_blck_size(int(kind)), library.ggml_type_size(int(kind))) == BLOCKS[kind]
        if library.ggml_quantize_requires_imatrix(int(kind)):
            assert kind in NEED_IMATRIX


def test_patterns() -> None:
    """Searched for in the names, in any case; the first that matches counts."""
    assert chosen(override("ATTN_Q=Q8_0")) == {"blk.0.attn_q.weight": "Q8_0", "blk.11.attn_q.weight": "Q8_0"}
    assert chosen(override(r"blk\.(0|1)\..*down=q6-k"), override("ffn_down=Q4_K")) == {
        "blk.0.ffn_down.weight": "Q6_K",
        "blk.11.ffn_down.weight": "Q4_K",
    }
    assert chosen(override(r"blk\.0\.attn=q5_1")) == {
        "blk.0.attn_q.weight": "Q5_1",
        "blk.0.attn_v.weight": "Q5_1",
    }


def test_shortcuts_go_first() -> None:
    """The output matrix is the embedding where there is no other; both are named whatever patterns say."""
    output = part_override(Part.OUTPUT, "q6_k")
    embedding = part_override(Part.EMBEDDING, "q8_0")
    every = override(".=q4_0")
    assert chosen(output)["token_embd.weight"] == "Q6_K"
    assert chosen(output, output=(300, 64)) == {"output.weight": "Q6_K"}
    found = chosen(every, embedding, output, output=(300, 64), per_layer_token_embd=(300, 256))
    assert found["output.weight"] == "Q6_K"
    assert (found["token_embd.weight"], found["per_layer_token_embd.weight"]) == ("Q8_0", "Q8_0")
    assert {kind for name, kind in found.items() if name.startswith("blk")} == {"Q4_0"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attn_q", "give a pattern and a type, such as attn_v=q8_0"),
        ("=q8_0", "give a pattern and a type"),
        ("attn_q=", "give a pattern and a type"),
        ("attn_q=q9", "there is no type 'q9': give one of f32, f16"),
        ("attn_q=q8_1", "there is no type 'q8_1'"),
        ("attn_q=q4_k_m", "that is a mix for whole files .*; a tensor's is q4_k"),
        ("(=q8_0", "is no regular expression"),
    ],
)
def test_what_is_wrong_by_itself(text: str, message: str) -> None:
    """Is refused before a file is looked at."""
    with pytest.raises(BadRequest, match=message):
        override(text)
    with pytest.raises(BadRequest, match="--output-tensor-type: there is no type 'x'"):
        part_override(Part.OUTPUT, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "attn_k=q8_0",
            r"--tensor-type attn_k=q8_0 matches no tensor: there are attn_q\.weight, attn_v\.weight, "
            r"ffn_down\.weight, token_embd\.weight$",
        ),
        ("norm=q8_0", r"blk\.0\.attn_norm\.weight is not quantized: llama\.cpp leaves such"),
        ("gate_inp|norm=q8_0", r"and 1 more is not quantized"),
        ("attn_q=iq2_xs", r"needs an importance matrix, and there is none of blk\.0\.attn_q"),
        ("attn_q=q1_0", r"blk\.0\.attn_q\.weight has rows of 64, which blocks of 128 don't fill"),
    ],
)
def test_what_does_not_go_with_the_model(text: str, message: str) -> None:
    """Is refused with what there is."""
    with pytest.raises(BadRequest, match=message):
        chosen(override(text))
    assert chosen(override("ffn_down=iq2_xs"), weighted=True)["blk.0.ffn_down.weight"] == "IQ2_XS"
    assert chosen(override("attn_q=nvfp4"))["blk.0.attn_q.weight"] == "NVFP4"


def test_what_became_of_rows_that_do_not_fit() -> None:
    """A few by name, the others counted."""
    wanted = {f"blk.{i}.attn_q.weight": GGMLType.Q4_K for i in range(9)} | {"output.weight": GGMLType.Q6_K}
    became = dict.fromkeys(wanted, GGMLType.Q5_0) | {"output.weight": GGMLType.Q6_K}
    (note,) = fallbacks(wanted, became)
    assert note.startswith("blk.0.attn_q.weight became Q5_0 (Q4_K needs rows of 256), blk.1.")
    assert note.endswith("3 more likewise")
    assert fallbacks({"output.weight": GGMLType.Q6_K}, became) == ()
