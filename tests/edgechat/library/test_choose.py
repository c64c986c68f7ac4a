"""Which files of a repository make a model, and which model is meant."""

import pytest

from edgechat.errors import NotFoundError
from edgechat.library.choose import RemoteFile, ambiguous, candidates, choose, quantization_of


def _files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, size, None) for size, name in enumerate(names, start=1)]


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("SmolLM2.Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-f16.gguf", "F16"),
        ("m-BF16-00001-of-00002.gguf", "BF16"),
        ("Q6_K/m.gguf", "Q6_K"),
        ("Q6_K/m-Q5_K_S.gguf", "Q5_K_S"),
        ("Q4-model.gguf", ""),
        ("m.gguf", ""),
    ],
)
def test_quantizations(name: str, quantization: str) -> None:
    assert quantization_of(name) == quantization


def test_candidates() -> None:
    found = candidates(
        _files(
            "README.md", "a-Q8_0.gguf", "mmproj-a-F16.gguf", "a-mmproj-bf16.gguf", "imatrix.gguf",
            "b-Q4_0-00002-of-00002.gguf", "b-Q4_0-00001-of-00002.gguf", "c-00001-of-00003.gguf", "a.bin",
        )
    )  # fmt: skip
    assert [([file.name for file in one.files], one.quantization, one.size) for one in found] == [
        (["a-Q8_0.gguf"], "Q8_0", 2),
        (["b-Q4_0-00001-of-00002.gguf", "b-Q4_0-00002-of-00002.gguf"], "Q4_0", 13),
    ]


def _chosen(wanted: str, recommended: str, *names: str) -> str | None:
    chosen = choose(candidates(_files(*names)), wanted, recommended)
    return None if chosen is None else chosen.files[0].name


@pytest.mark.parametrize(
    ("wanted", "recommended", "names", "expected"),
    [
        ("", "", ("a-Q2_K.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf"), "a-Q4_K_M.gguf"),
        ("", "q8_0", ("a-Q2_K.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf"), "a-Q8_0.gguf"),
        ("", "q6_k", ("a-Q2_K.gguf", "a-Q4_K_M.gguf"), "a-Q4_K_M.gguf"),
        ("", "", ("only.gguf",), "only.gguf"),
        ("", "", ("a-Q2_K.gguf", "a-Q8_0.gguf"), None),
        ("", "", ("a-Q4_K_M.gguf", "b-Q4_K_M.gguf"), None),
        ("q4-k-m", "", ("a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf"), "a-Q4_K_M.gguf"),
        ("q4_k_m", "", ("a-UD-Q4_K_M.gguf", "a-Q8_0.gguf"), "a-UD-Q4_K_M.gguf"),
        ("ud-q4_k_xl", "", ("a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf"), "a-UD-Q4_K_XL.gguf"),
        ("B-q4_k_m.GGUF", "", ("a-Q4_K_M.gguf", "b-Q4_K_M.gguf"), "b-Q4_K_M.gguf"),
        ("x/b.gguf", "", ("x/b.gguf", "y/b.gguf"), "x/b.gguf"),
        ("b.gguf", "", ("x/b.gguf", "y/b.gguf"), None),
    ],
)
def test_choices(wanted: str, recommended: str, names: tuple[str, ...], expected: str | None) -> None:
    assert _chosen(wanted, recommended, *names) == expected


def test_what_is_not_there() -> None:
    with pytest.raises(
        NotFoundError, match=r"^there is no q5_k_m: choose one of Q4_0 \(1 B\), x\.gguf \(2 B\)$"
    ):
        _chosen("q5_k_m", "", "a-Q4_0.gguf", "x.gguf")


def test_what_to_say_where_nobody_can_be_asked() -> None:
    same = candidates(_files("a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q8_0.gguf"))
    assert str(ambiguous(same, "o/r", "q4_k_m")) == (
        "o/r has 2 models: name a file, as in o/r:a-Q4_K_M.gguf (a-Q4_K_M.gguf, b-Q4_K_M.gguf)"
    )
    assert str(ambiguous(candidates(_files("a-Q2_K.gguf", "a-Q8_0.gguf")), "o/r", "")) == (
        "o/r has 2 models: choose, as in o/r:q2_k (Q2_K (1 B), Q8_0 (2 B))"
    )
