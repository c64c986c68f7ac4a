"""Real models: the same tensors, the same tokens and the same text as in transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.pipeline import Request, run
from quantize.plan import target_of
from tests.oracles.hf_models import SCRIPTS
from tests.oracles.llama_reference import Reference, loaded

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(3000)]

PROMPT = "The capital of France is"
TEXTS = [SCRIPTS, *SCRIPTS.split("\n"), " ", "  ", "a", " a", "\n", "\t", "\r\n\r\n"]
N_GREEDY = 64


@pytest.fixture(scope="module")
def smollm2_f16(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _converted(smollm2_folder, "f16", tmp_path_factory)


@pytest.fixture(scope="module")
def gemma_f16(gemma_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _converted(gemma_folder, "f16", tmp_path_factory)


def _converted(folder: Path, kind: str, factory: pytest.TempPathFactory) -> Path:
    return run(Request(folder, target_of(kind), factory.mktemp("converted"))).path


def _their_name(name: str, *, gemma: bool) -> str:
    """The Hugging Face name of a GGUF tensor, written out here once more on purpose."""
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "token_embd": "embed_tokens",
        "output_norm": "norm",
    }
    *block, part, suffix = name.split(".")
    layer = f"layers.{block[1]}." if block else ""
    return f"model.{layer}{parts[part]}.{suffix}"


def _compare_tensors(folder: Path, path: Path, *, heads: tuple[int, int], gemma: bool, exact: Any) -> None:
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import load_file

    theirs = load_file(folder / "model.safetensors")
    ours = GGUFReader(path).tensors
    assert len(ours) == len(theirs)
    for tensor in ours:
        source = theirs[_their_name(tensor.name, gemma=gemma)]
        if source.ndim == 1:
            expected = source.float() + 1 if gemma else source.float()
            assert torch.equal(torch.from_numpy(np.array(tensor.data)), expected), tensor.name
            continue
        got = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        if not gemma and any(tensor.name.endswith(f"attn_{letter}.weight") for letter in "qk"):
            n = heads[tensor.name.endswith("attn_k.weight")]
            # Back from pairs of neighbours to two halves.
            got = got.reshape(n, -1, 2, got.shape[1]).transpose(1, 2).reshape(got.shape)
        assert torch.equal(got, exact(source)), tensor.name


def _compare_tokens(folder: Path, reference: Reference) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert reference.tokenize(text) == tokenizer(text, add_special_tokens=False)["input_ids"], text
        assert reference.tokenize(text, add_special=True) == tokenizer(text)["input_ids"], text
    ids = tokenizer(SCRIPTS, add_special_tokens=False)["input_ids"]
    assert reference.text(ids) == SCRIPTS


def _compare_greedy_text(folder: Path, reference: Reference) -> None:
    """Their first 64 tokens are ours too; where one is not, both were all but equally likely."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        model.generation_config.eos_token_id = None
        output = model.generate(torch.tensor([ids]), max_new_tokens=N_GREEDY, do_sample=False)[0].tolist()
        theirs = model(torch.tensor([output])).logits[0].numpy()
    assert len(output) == len(ids) + N_GREEDY
    ours = reference.logits(output)
    for position in range(len(ids) - 1, len(output) - 1):
        row = theirs[position]
        chosen = int(ours[position].argmax())
        gap = row[output[position + 1]] - row[chosen]
        assert gap < 0.02 * np.abs(row).max(), f"position {position}: {gap} between the two tokens"
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


def test_smollm2_in_f16(smollm2_folder: Path, smollm2_f16: Path) -> None:
    """Every number as torch rounds it; tokens and greedy text as in transformers."""
    import torch

    _compare_tensors(
        smollm2_folder,
        smollm2_f16,
        heads=(9, 3),
        gemma=False,
        exact=lambda tensor: tensor.to(torch.float16).float(),
    )
    with loaded(smollm2_f16) as reference:
        _compare_tokens(smollm2_folder, reference)
        _compare_greedy_text(smollm2_folder, reference)


def test_smollm2_in_bf16_and_f32(smollm2_folder: Path, tmp_path: Path) -> None:
    """Every number bit by bit."""
    for kind in ("bf16", "f32"):
        path = run(Request(smollm2_folder, target_of(kind), tmp_path)).path
        _compare_tensors(smollm2_folder, path, heads=(9, 3), gemma=False, exact=lambda tensor: tensor.float())
        path.unlink()


def test_smollm2_keeps_its_template_and_its_special_tokens(smollm2_folder: Path, smollm2_f16: Path) -> None:
    """Chat template, begin, end and padding; the end of the turn ends the answer."""
    from gguf import GGUFReader

    fields = GGUFReader(smollm2_f16).fields
    template = (smollm2_folder / "chat_template.jinja").read_text()
    assert fields["tokenizer.chat_template"].contents() == template
    ids = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos", "padding")]
    assert ids == [1, 2, 2]
    assert fields["general.size_label"].contents() == "135M"
    assert fields["general.file_type"].contents() == 1
    with loaded(smollm2_f16, 64) as reference:
        assert reference.is_eog(2)


def test_gemma_in_f16(gemma_folder: Path, gemma_f16: Path) -> None:
    """Norms are one more than stored; tokens, byte tokens and white space as in transformers."""
    import torch

    _compare_tensors(
        gemma_folder,
        gemma_f16,
        heads=(4, 1),
        gemma=True,
        exact=lambda tensor: tensor.to(torch.float16).float(),
    )
    with loaded(gemma_f16) as reference:
        _compare_tokens(gemma_folder, reference)
        _compare_greedy_text(gemma_folder, reference)


def test_transformers_reads_the_result_back(smollm2_folder: Path, smollm2_f16: Path, tmp_path: Path) -> None:
    """Round trip: our file through transformers' GGUF reader gives the checkpoint we began with."""
    import torch
    from safetensors.torch import load_file

    from tests.oracles.make_checkpoint import made

    bf16 = run(Request(smollm2_folder, target_of("bf16"), tmp_path)).path
    again = made(bf16, tmp_path / "again")
    before = load_file(smollm2_folder / "model.safetensors")
    after = load_file(again / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
