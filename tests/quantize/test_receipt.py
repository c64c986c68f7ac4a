"""The comparison with the source, by another way of computing it; and what the receipt says."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import safetensors

from quantize.layers import LayerRequest, run
from quantize.receipt import hash_of, read_receipt
from quantize.recipe import Recipe

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def made(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result with its receipt."""
    output = tmp_path_factory.mktemp("receipt") / "out"
    request = LayerRequest(tiny_folder, Recipe(bits=3), output, samples=4, length=32, threads=1)
    return run(request).path


def test_figures_are_those_that_transformers_logits_give(made: Path, tiny_folder: Path) -> None:
    """Perplexities, mean and 99th percentile of the divergence, agreement: in float64, over whole logits."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.weights import open_weights
    from quantize.calibration import FolderTokenizer
    from quantize.compare import compare, windows_of
    from tests.oracles import hf_models

    text = " ".join(["The dog sleeps in the sun, and we'll see 1234 of them."] * 40)
    tokens = windows_of(text, FolderTokenizer(tiny_folder), 64)[:5]
    with open_weights(tiny_folder) as source, open_weights(made) as result:
        found = compare(source, result, tokens)
        model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
        before = np.stack([hf_models.logits(model, row.tolist()) for row in tokens]).astype(np.float64)
        with torch.no_grad():
            for index in range(result.config.n_layers):
                for name, tensor in result.layer(index).items():
                    model.get_parameter(f"model.layers.{index}.{name}").copy_(tensor)
        after = np.stack([hf_models.logits(model, row.tolist()) for row in tokens]).astype(np.float64)
    wanted = tokens[:, 32:].numpy()
    log_p, log_q = (_log_softmax(logits[:, 31:-1]) for logits in (before, after))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    assert found.n_tokens == 5 * 32
    assert found.source.value == pytest.approx(_perplexity(log_p, wanted), rel=1e-4)
    assert found.result.value == pytest.approx(_perplexity(log_q, wanted), rel=1e-4)
    assert found.mean_kl == pytest.approx(divergence.mean(), rel=1e-2)
    assert found.p99_kl == pytest.approx(np.quantile(divergence, 0.99), rel=1e-2)
    assert found.top1 == pytest.approx((log_p.argmax(-1) == log_q.argmax(-1)).mean(), abs=0.01)
    assert found.mean_kl > 1e-3


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 50_000])
def test_one_that_cant_be_read_is_none(text: str, tmp_path: Path) -> None:
    """However it is broken."""
    (tmp_path / "edgechat-receipt.json").write_text(text)
    assert read_receipt(tmp_path) is None


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _perplexity(logs: np.ndarray, wanted: np.ndarray) -> float:
    return math.exp(-np.take_along_axis(logs, wanted[..., None], -1).mean())


def test_a_model_compared_with_itself(tiny_folder: Path) -> None:
    """No divergence, full agreement."""
    from models.weights import open_weights
    from quantize.calibration import FolderTokenizer
    from quantize.compare import compare, held_out, windows_of

    tokens = windows_of(held_out(), FolderTokenizer(tiny_folder), 32)[:4]
    with open_weights(tiny_folder) as one, open_weights(tiny_folder) as two:
        found = compare(one, two, tokens)
    assert (found.mean_kl, found.p99_kl, found.top1) == (0.0, 0.0, 1.0)
    assert found.source == found.result


def test_what_it_says(made: Path, tiny_folder: Path) -> None:
    """Source, settings, calibration, versions, sizes, errors of each matrix, the comparison."""
    record = read_receipt(made)
    assert record is not None
    assert record["version"] == 1
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        inner = hashlib.sha256((tiny_folder / name).read_bytes()).hexdigest()
        digest.update(f"{name}\0{inner}\n".encode())
    assert record["source"]["sha256"] == digest.hexdigest() == hash_of(tiny_folder)
    assert record["source"]["name"] == "tiny"
    assert record["recipe"]["bits"] == 3
    assert record["recipe"]["group_size"] == 64
    assert record["recipe"].keys() == {
        *("format", "method", "bits", "group_size", "symmetric", "order", "damping", "checkpoint_format")
    }
    assert (record["device"], record["threads"]) == ("cpu", 1)
    assert (record["calibration"]["samples"], record["calibration"]["length"]) == (4, 32)
    assert len(record["calibration"]["sha256"]) == 64
    assert record["bytes"] == (made / "model.safetensors").stat().st_size
    with safetensors.safe_open(made / "model.safetensors", "pt") as file:  # without the header
        n_bytes = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118 - no dict
    assert record["bits_per_weight"] == pytest.approx(8 * n_bytes / record["parameters"], abs=1e-4)
    assert {"edgechat", "torch", "python"} <= record["versions"].keys()
    assert [layer["layer"] for layer in record["layers"]] == [0, 1, 2, 3]
    for layer in record["layers"]:
        assert len(layer["matrices"]) == 7
        assert all(0 < matrix["error"] < 0.2 for matrix in layer["matrices"])
    assert record["error_of"] == "outputs"
    assert record["evaluation"]["source_perplexity"] > 1
    assert record["evaluation"]["mean_kl"] > 0
    assert record["peak_memory"] > 10**8
    assert "NaN" not in json.dumps(record)
