"""Summaries of models, against the gguf package's reader."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

from edgechat.library.inspect import ModelSummary, kv_bytes_per_token, summarize, template_family
from models.errors import BrokenModelFile
from models.gguf import read_header
from tests.oracles.raw_gguf import ARRAY, STRING, U16, U32, File, array, tiny_llama


def test_the_starter(starter_gguf: Path) -> None:
    assert summarize(starter_gguf, "starter") == ModelSummary(
        name="starter",
        path=str(starter_gguf),
        title="Smollm2 135M 8k Lc100K Mix1 Ep2",
        architecture="llama",
        parameters=134_515_008,
        quantization="Q4_1",
        bits_per_weight=8 * 96_576_768 / 134_515_008,
        size_bytes=98_362_432,
        n_ctx_train=8192,
        n_layers=30,
        kv_bytes_per_token=2 * 30 * 3 * (64 + 64),
        n_experts=0,
        has_template=True,
        template_family="ChatML",
        tokenizer="gpt2 (smollm)",
        vocab_size=49_152,
        licence="apache-2.0",
        receipt=None,
    )


def test_the_starters_weights_equal_the_readers(starter_gguf: Path) -> None:
    _assert_weights(starter_gguf)


def test_gemma(gemma_gguf: Path) -> None:
    summary = summarize(gemma_gguf)
    assert (summary.parameters, summary.size_bytes, summary.quantization) == (
        268_098_176,
        253_113_024,
        "Q4_K - Medium",
    )
    assert (summary.n_layers, summary.kv_bytes_per_token) == (18, 2 * 18 * 1 * (256 + 256))
    assert (summary.has_template, summary.template_family, summary.tokenizer) == (False, "", "llama")
    assert (summary.vocab_size, summary.n_ctx_train, summary.licence) == (262_144, 32_768, "gemma")
    _assert_weights(gemma_gguf)


def _assert_weights(path: Path) -> None:
    tensors: list[Any] = gguf.GGUFReader(path).tensors
    summary = summarize(path)
    assert summary.parameters == sum(int(tensor.n_elements) for tensor in tensors)
    assert summary.bits_per_weight == pytest.approx(
        8 * sum(int(t.n_bytes) for t in tensors) / summary.parameters
    )


def _write(path: Path, file: File) -> Path:
    path.write_bytes(file.header() + file.data())
    return path


def test_a_type_that_the_file_does_not_name(tmp_path: Path) -> None:
    summary = summarize(_write(tmp_path / "m.gguf", tiny_llama()))
    assert (summary.name, summary.quantization, summary.bits_per_weight) == ("m", "F32 (guessed)", 32.0)


def test_hostile_numbers_are_refused(tmp_path: Path) -> None:
    """They would give sums that no JSON number holds."""
    file = tiny_llama().put("llama.attention.key_length", U32, 2**32 - 1)
    with pytest.raises(BrokenModelFile, match=r"attention\.key_length"):
        summarize(_write(tmp_path / "m.gguf", file))
    header = read_header(_write(tmp_path / "m.gguf", tiny_llama().put("llama.block_count", U32, 2**32 - 1)))
    assert kv_bytes_per_token(header) == 2 * 512 * 2 * (16 + 16)


def test_heads_that_differ_by_layer(tmp_path: Path) -> None:
    file = tiny_llama().put("llama.attention.head_count_kv", ARRAY, array(U32, [4, 2]))
    header = read_header(_write(tmp_path / "m.gguf", file))
    assert kv_bytes_per_token(header) == 2 * (4 + 2) * (16 + 16)


def test_no_attention_takes_no_memory(tmp_path: Path) -> None:
    header = read_header(_write(tmp_path / "m.gguf", tiny_llama().drop("llama.attention.head_count")))
    assert kv_bytes_per_token(header) == 0


def test_parts_count_together(tmp_path: Path) -> None:
    whole = tiny_llama()
    expected = summarize(_write(tmp_path / "whole.gguf", whole))
    first, second = tiny_llama(), File().put("split.no", U16, 1)
    first.tensors, second.tensors = whole.tensors[:7], whole.tensors[7:]
    one = _write(tmp_path / "m-00001-of-00002.gguf", first)
    two = _write(tmp_path / "m-00002-of-00002.gguf", second)
    summary = summarize(one)
    assert (summary.name, summary.parameters) == ("m", expected.parameters)
    assert summary.size_bytes == one.stat().st_size + two.stat().st_size


def test_a_receipt_beside_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.gguf", tiny_llama())
    (tmp_path / "edgechat-receipt.json").write_text(json.dumps({"method": "q4_k_m"}))
    assert summarize(path).receipt == {"method": "q4_k_m"}
    for damaged in ("[1]", "{", ""):
        (tmp_path / "edgechat-receipt.json").write_text(damaged)
        assert summarize(path).receipt is None


def test_no_weights(tmp_path: Path) -> None:
    file = tiny_llama()
    file.tensors = []
    with pytest.raises(BrokenModelFile, match="has no weights in it"):
        summarize(_write(tmp_path / "m.gguf", file))


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("", ""),
        ("{{ messages }}", "other"),
        ("<|im_start|>user", "ChatML"),
        ("<start_of_turn>model", "Gemma"),
        ("<|start_header_id|>user<|end_header_id|>", "Llama 3"),
        ("[INST] <<SYS>>", "Llama 2"),
        ("[INST] [/INST]", "Mistral"),
        ("<|user|>x<|end|>", "Phi 3"),
        ("<|user|>", "Zephyr"),
        ("<｜User｜>", "DeepSeek"),
        ("<|start|>assistant<|channel|>final", "Harmony"),
    ],
)
def test_families_of_templates(template: str, family: str) -> None:
    assert template_family(template) == family


def test_neither_numpy_nor_native_code(starter_gguf: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edgechat.library.inspect import summarize; "
        f"from models.verify import verify_gguf; verify_gguf({str(starter_gguf)!r}); "
        f"summarize(Path({str(starter_gguf)!r})); "
        "print(sorted({'numpy', 'llama_cpp', 'gguf', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_text_of_another_type_is_no_text(tmp_path: Path) -> None:
    file = tiny_llama().put("general.license", U32, 1).put("tokenizer.chat_template", STRING, "")
    summary = summarize(_write(tmp_path / "m.gguf", file))
    assert (summary.licence, summary.has_template) == ("", False)
