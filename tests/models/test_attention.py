"""Attention in blocks, with windows and soft caps, against its definition in float64."""

import itertools
from typing import Any

import pytest

pytestmark = pytest.mark.oracle


def by_definition(q: Any, k: Any, v: Any, *, scale: float, window: int | None, cap: float | None) -> Any:
    """Query by query and key by key, in float64."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    batch, heads, n_queries, _ = q.shape
    n_keys, share = k.shape[2], heads // k.shape[1]
    result = torch.zeros_like(q)
    for b, h, i in itertools.product(range(batch), range(heads), range(n_queries)):
        position = n_keys - n_queries + i
        first = 0 if window is None else max(0, position - window + 1)
        keys = k[b, h // share, first : position + 1]
        scores = keys @ q[b, h, i] * scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        result[b, h, i] = scores.softmax(0) @ v[b, h // share, first : position + 1]
    return result


@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("n_queries", [1, 3, 20, 40])
@pytest.mark.parametrize("most", [1, 300, 2**24])
def test_attention_is_what_it_is_defined_as(
    window: int | None, cap: float | None, n_queries: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the blocks."""
    import torch

    from models import attention

    torch.set_num_threads(1)
    monkeypatch.setattr(attention, "MAX_SCORES", most)
    monkeypatch.setattr(attention, "LEAST_ROWS", 4)
    random = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, n_queries, 8, generator=random)
    k, v = (torch.randn(2, 2, 40, 8, generator=random) for _ in range(2))
    seen = attention.attend(q, k, v, scale=0.5, window=window, soft_cap=cap)
    expected = by_definition(q, k, v, scale=0.5, window=window, cap=cap)
    assert torch.allclose(seen.double(), expected, atol=1e-5)
