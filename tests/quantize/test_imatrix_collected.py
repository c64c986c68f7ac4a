"""Importance matrices that we collect: torch's are what transformers' own modules are given, llama.cpp's are
torch's, and both come under llama.cpp's names."""

import re
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest

from models.errors import BrokenModelFile
from quantize import imatrix_native
from quantize.calibration import FolderTokenizer, bundled, samples
from quantize.errors import BadRequest, NativeFailure
from quantize.imatrix import Entry, ImportanceMatrix
from quantize.pipeline import Request, run
from quantize.plan import target_of
from quantize.resume import Workspace
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE
from tests.oracles.raw_checkpoint import write as write_raw

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(300)]

COUNT, LENGTH = 3, 64

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' modules and llama.cpp's tensors."""


def saved(case: str, folder: Path) -> object:
    """A tiny model of a family, with a tokenizer."""
    config = CONVERTIBLE[case]()
    if config.model_type.startswith("gemma"):
        config.vocab_size = hf_models.save_sentencepiece(folder)
    else:
        config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3)
    return hf_models.save_model(folder, config)


def tokens_of(folder: Path) -> np.ndarray:
    """The samples, int64 [COUNT, LENGTH]."""
    return samples(bundled(), FolderTokenizer(folder), count=COUNT, length=LENGTH).tokens


def by_torch(folder: Path) -> dict[str, Entry]:
    """What we collect of a folder."""
    import torch

    from models.weights import open_weights
    from quantize.imatrix_torch import collect

    told: list[float] = []
    with TemporaryDirectory() as place, open_weights(folder) as weights:
        workspace = Workspace(Path(place) / "out.gguf")
        state = workspace.begin_anew("", 1)
        tokens = torch.from_numpy(tokens_of(folder))
        entries = collect(weights, tokens, workspace, state, told=told.append)
        assert workspace.read() == state
        assert len(state.layers) == weights.config.n_layers
    assert told == sorted(told)
    assert told[-1] == 1
    return entries


def by_llama(folder: Path, place: Path) -> ImportanceMatrix:
    """What llama.cpp collects of the folder's conversion to float32."""
    model = run(Request(folder, target_of("f32"), place / "f32.gguf")).path
    output = place / "imatrix.gguf"
    told: list[imatrix_native.Told] = []
    order = imatrix_native.Order(str(model), str(output), None, COUNT, LENGTH, 1)
    imatrix_native.collect(order, told.append)
    assert [one.done for one in told] == list(range(COUNT + 1))
    assert told[-1].total == COUNT
    return ImportanceMatrix.read(output)


def by_hooks(model: object, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Sums of squares of what transformers' linear modules are given, in float64."""
    import torch

    found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(1))

    def hook(name: str) -> object:
        def see(module: object, inputs: tuple[torch.Tensor, ...]) -> None:
            rows = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            found[name] = found[name] + rows.square().sum(0).numpy()

        return see

    for name, module in model.named_modules():  # type: ignore[attr-defined]
        match = re.search(r"layers\.(\d+)\.(.+)$", name)
        if match and match[2] in NAMES:
            module.register_forward_pre_hook(hook(f"blk.{match[1]}.{NAMES[match[2]]}.weight"))
    with torch.no_grad():
        model(torch.from_numpy(tokens))  # type: ignore[operator]
    return dict(found)


DENSE = [case for case in CONVERTIBLE if "moe" not in case]


@pytest.mark.parametrize("case", DENSE)
def test_torch_sees_what_transformers_modules_are_given(case: str, tmp_path: Path) -> None:
    """Of every family, under llama.cpp's names."""
    model = saved(case, tmp_path)
    expected = by_hooks(model, tokens_of(tmp_path))
    seen = by_torch(tmp_path)
    assert set(seen) == set(expected)
    for name, sums in expected.items():
        assert seen[name].counts.tolist() == [COUNT * LENGTH]
        np.testing.assert_allclose(seen[name].sums[0], sums, rtol=2e-4, atol=1e-5 * sums.max(), err_msg=name)


FAMILIES = list({case.split()[0]: case for case in reversed(DENSE)}.values())
"""One of each, the plainest."""


@pytest.mark.parametrize("case", [*FAMILIES, "qwen3 moe", "qwen3 moe tied"])
def test_llama_cpp_sees_what_torch_does(case: str, tmp_path: Path) -> None:
    """And routes tokens to the same experts. llama.cpp keeps keys and values in float16."""
    folder = tmp_path / "model"
    folder.mkdir()
    saved(case, folder)
    expected = by_torch(folder)
    seen = by_llama(folder, tmp_path)
    assert (seen.datasets, seen.chunk_count, seen.chunk_size) == (("bundled",), COUNT, LENGTH)
    # llama.cpp multiplies with the router too, which is never quantized.
    routers = {name for name in seen.entries if "_gate_inp" in name}
    assert bool(routers) == ("moe" in case)
    assert set(seen.entries) - routers == set(expected)
    for name, entry in expected.items():
        theirs = seen.entries[name]
        if "exps" in name:
            assert len(entry.counts) > 1
            # A token on the border between two experts may go to the other one.
            assert np.abs(theirs.counts - entry.counts).max() <= 2, name
            same = theirs.counts == entry.counts
            assert same.sum() >= len(same) - 2
        else:
            assert theirs.counts.tolist() == [COUNT * LENGTH]
            same = np.array([True])
        np.testing.assert_allclose(
            theirs.sums[same], entry.sums[same], rtol=1e-2, atol=2e-3 * entry.sums.max(), err_msg=name
        )


def test_experts_are_told_apart(tmp_path: Path) -> None:
    """Each has its own sums, over the tokens that were routed to it: all of them together are each token as
    often as it has experts."""
    saved("qwen3 moe", tmp_path)
    config = CONVERTIBLE["qwen3 moe"]()
    seen = by_torch(tmp_path)
    stack = seen["blk.0.ffn_gate_exps.weight"]
    assert stack.sums.shape == (config.num_experts, config.hidden_size)
    assert stack.counts.sum() == COUNT * LENGTH * config.num_experts_per_tok
    assert len(set(stack.counts.tolist())) > 1
    np.testing.assert_array_equal(stack.sums, seen["blk.0.ffn_up_exps.weight"].sums)
    assert seen["blk.0.ffn_down_exps.weight"].sums.shape == (config.num_experts, config.moe_intermediate_size)


def test_llama_cpps_process_refuses(tmp_path: Path) -> None:
    """By the errors of our own tree: too little text, a longer window than the model has, no model."""
    model = run(Request(write_raw(tmp_path / "model"), target_of("f32"), tmp_path / "f32.gguf")).path
    text = tmp_path / "short.txt"
    text.write_text("Hello. " * 20)
    output = tmp_path / "imatrix.gguf"

    def collect(model: Path, text: Path | None, count: int, length: int) -> None:
        order = imatrix_native.Order(
            str(model), str(output), None if text is None else str(text), count, length, 1
        )
        imatrix_native.collect(order, lambda told: None)

    with pytest.raises(BadRequest, match=r"the calibration text \(short\.txt\) has \d+ tokens, enough for"):
        collect(model, text, 32, 64)
    with pytest.raises(BadRequest, match="--sequence-length 512 is more than the model's context of 128"):
        collect(model, None, 4, 512)
    with pytest.raises(NativeFailure, match=r"llama\.cpp can't load .*nowhere\.gguf: .+"):
        collect(tmp_path / "nowhere.gguf", None, 4, 64)
    assert not output.exists()


def test_a_model_that_computes_nan(tmp_path: Path) -> None:
    """Both say so, and write nothing."""
    folder = tmp_path / "model"
    saved("llama", folder)
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] *= 1e38
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BrokenModelFile, match="layer 1 computes NaN or infinity on the calibration text"):
        by_torch(folder)
    with pytest.raises(BrokenModelFile, match="computes NaN or infinity on the calibration text"):
        by_llama(folder, tmp_path)
    assert not (tmp_path / "imatrix.gguf").exists()


def test_nothing_outlives_ctrl_c(tmp_path: Path) -> None:
    """The process that collects is gone when we are interrupted."""
    model = run(Request(write_raw(tmp_path / "model"), target_of("f32"), tmp_path / "f32.gguf")).path
    order = imatrix_native.Order(str(model), str(tmp_path / "imatrix.gguf"), None, COUNT, LENGTH, 1)

    def interrupt(told: imatrix_native.Told) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imatrix_native.collect(order, interrupt)
    left = [child for child in psutil.Process().children() if "quantize.imatrix_native" in child.cmdline()]
    assert not left
