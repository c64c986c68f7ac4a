"""Attention by the fused kernel or product by product: which, and that both compute the same."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from edgechat.errors import UnsupportedError
from edgechat.library.estimate import scores_batch
from edgechat.records import KVType, LoadSettings
from edgechat.runtimes.base import Chunk, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime, abi, attention
from edgechat.runtimes.llamacpp.attention import AUTO, OFF, ON, Attention, attention_for, evenly


@pytest.mark.parametrize(
    ("n_ctx", "n_heads", "n_tokens"),
    [
        (8192, 9, 128),  # 36 MiB
        (16_384, 9, 96),  # 113 would fit, in steps of 32
        (8192, 32, 64),
        (16_384, 32, 0),  # 32 alone would fit
        (2**20, 1, 0),
        (512, 0, 128),
    ],
)
def test_scores_take_64_mib_at_most(n_ctx: int, n_heads: int, n_tokens: int) -> None:
    assert scores_batch(n_ctx, n_heads) == n_tokens
    assert 4 * n_ctx * n_heads * n_tokens <= 64 * 2**20


@pytest.mark.parametrize(
    ("faster", "kv_type", "n_heads", "on_gpu", "found"),
    [
        (True, "f16", 9, False, Attention(OFF, 96)),
        (False, "f16", 9, False, Attention(AUTO, 512)),
        (True, "f16", 9, True, Attention(AUTO, 512)),
        (True, "f16", 64, False, Attention(AUTO, 512)),
        (True, "q8_0", 9, False, Attention(ON, 512)),
    ],
)
def test_which_it_is(
    monkeypatch: pytest.MonkeyPatch,
    *,
    faster: bool,
    kv_type: KVType,
    n_heads: int,
    on_gpu: bool,
    found: Attention,
) -> None:
    """By measurement where both can be: values in fewer bits need the fused kernel, and long contexts have no
    room for scores."""
    monkeypatch.setattr(attention, "products_are_faster", lambda: faster)
    settings = LoadSettings("m", kv_type=kv_type, n_sequences=2)
    assert attention_for(settings, 8192, n_heads, 512, on_gpu=on_gpu) == found


@pytest.mark.parametrize(
    ("n_ubatch", "n_sequences", "found"),
    [(128, 2, 128), (128, 3, 96), (128, 4, 128), (96, 2, 96), (64, 3, 63), (128, 5, 125), (128, 200, 200)],
)
def test_batches_that_sequences_share_evenly(n_ubatch: int, n_sequences: int, found: int) -> None:
    assert evenly(n_ubatch, n_sequences) == found


def test_the_trial_computes_the_same_in_both_ways() -> None:
    """The mean of equal values is that value; the fused kernel adds up 1,024 numbers in float16."""
    abi.llama()
    trial = attention._Trial()
    try:
        found = []
        for result in (trial.fused(), trial.products()):
            assert trial.seconds(result) > 0
            size = trial._bytes(result)
            raw = ctypes.string_at(trial._data(result), size)
            found.append(np.frombuffer(raw, np.float32))
    finally:
        trial.close()
    value = np.frombuffer(b"\x3c\x3c", np.float16)[0]
    for values, within in zip(found, (0.1, 1e-3), strict=True):
        assert values.shape == (attention.WIDTH * attention.HEADS,)
        assert values == pytest.approx(float(value), rel=within)


def test_another_ggml_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without these functions: llama.cpp decides."""

    def nothing(name: str, *_: object) -> None:
        raise UnsupportedError(f"llama.cpp has no function {name}")

    monkeypatch.setattr(abi, "function", nothing)
    assert attention.products_are_faster.__wrapped__() is False


def test_both_ways_continue_a_text_alike(
    starter_gguf: Path, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a prompt, token by token, in small batches, and after an eviction; a state of one is none of the
    other's."""
    settings = LoadSettings(str(starter_gguf), n_ctx=512, n_batch=256, n_sequences=1, n_threads=2)
    found: list[list[np.ndarray]] = []
    states: list[bytes] = []
    for faster in (True, False):
        monkeypatch.setattr(attention, "products_are_faster", lambda faster=faster: faster)
        runtime = LlamaCppRuntime.load(settings)
        try:
            rows = [runtime.decode([Chunk(0, prose[:200], 0)])[0].copy()]
            rows += [runtime.decode([Chunk(0, prose[at : at + 1], at)])[0].copy() for at in range(200, 204)]
            rows += list(runtime.decode([Chunk(0, prose[204:220], 204, Wanted.ALL)]).copy())
            runtime.evict(0, 4, 68)
            rows.append(runtime.decode([Chunk(0, prose[220:221], 156)])[0].copy())
            found.append(rows)
            states.append(runtime.export_state(0))
            if not faster:
                with pytest.raises(ValueError, match="a saved state of other context settings"):
                    runtime.import_state(0, states[0])
        finally:
            runtime.close()
    log_p, log_q = (log_softmax(np.array(rows, np.float64)) for rows in found)
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    assert divergence.shape == (22,)
    assert divergence.mean() < 0.01
    assert divergence.max() < 0.05


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
