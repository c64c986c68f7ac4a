"""Causal attention with grouped queries, windows and soft caps."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from models.config import ModelConfig, QueryNorm
from models.linear import Linears
from models.norm import RMSNorm
from models.rope import Rotary

MAX_SCORES = 2**24
"""Products of queries and keys that are held at once, where they are held at all: 64 MiB in float32."""


LEAST_ROWS = 128
"""Queries with a short window that are taken together."""


class KeyValueCache(Protocol):
    """What earlier calls left behind: the keys and values of the positions before these."""

    def extend(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the new ones, [B, kv_heads, S, head_dim], and give back all, [B, kv_heads, L, head_dim]."""
        ...


class Attention:
    """The attention of one layer."""

    def __init__(self, config: ModelConfig, index: int, weights: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.index = index
        self.window = config.sliding_window if config.sliding_layers[index] else None
        rope = config.local_rope if self.window is not None and config.local_rope else config.rope
        self.rotary = Rotary(rope, config.head_dim) if config.rotary_layers[index] else None
        self.norms: dict[str, RMSNorm] = {}
        if config.layout.query_norm is not QueryNorm.NONE:
            self.norms = {
                name: RMSNorm(
                    weights[f"self_attn.{name}.weight"],
                    config.norm_eps,
                    adds_one=config.layout.norm_adds_one,
                )
                for name in ("q_norm", "k_norm")
            }

    def groups(self) -> list[list[str]]:
        """Its matrices; those of a group see the same input."""
        first = ["qkv_proj"] if self.config.layout.fused else ["q_proj", "k_proj", "v_proj"]
        return [[f"self_attn.{name}" for name in group] for group in (first, ["o_proj"])]

    def names(self) -> list[str]:
        """Its matrices, in the order in which they multiply."""
        return [name for group in self.groups() for name in group]

    def forward(
        self, linears: Linears, x: torch.Tensor, positions: torch.Tensor, cache: KeyValueCache | None = None
    ) -> torch.Tensor:
        """[B, S, D] to [B, S, D].

        Args:
            linears: of the layer.
            x: its input, normed.
            positions: int64 [S], or [B, S].
            cache: where there were positions before these.
        """
        config = self.config
        first, [last] = self.groups()
        if config.layout.fused:
            sizes = [config.q_size, config.kv_size, config.kv_size]
            queries, keys, values = linears.apply(first[0], x).split(sizes, dim=-1)
        else:
            queries, keys, values = (linears.apply(name, x) for name in first)
        queries, keys = self._heads(queries, "q_norm"), self._heads(keys, "k_norm")
        values = self._heads(values)
        if self.rotary is not None:
            tables = self.rotary.tables(positions if positions.ndim == 1 else positions[:, None])
            queries, keys = self.rotary.rotate(queries, tables), self.rotary.rotate(keys, tables)
        if cache is not None:
            keys, values = cache.extend(self.index, keys, values)
        mixed = attend(
            queries,
            keys,
            values,
            scale=config.score_scale,
            window=self.window,
            soft_cap=config.attention_soft_cap,
        )
        return linears.apply(last, mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor, norm: str = "") -> torch.Tensor:
        """[B, S, heads * head_dim] to [B, heads, S, head_dim], normed where the family does so."""
        kind = self.config.layout.query_norm if norm else QueryNorm.NONE
        if kind is QueryNorm.WHOLE:
            x = self.norms[norm](x)
        x = x.unflatten(-1, (-1, self.config.head_dim))
        if kind is QueryNorm.HEAD:
            x = self.norms[norm](x)
        return x.transpose(1, 2)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """softmax(queries keys^T scale) values, where no query sees what comes after it.

    Args:
        queries: [B, heads, S, head_dim]; they are the last S of the L positions.
        keys: [B, kv_heads, L, head_dim]; each serves heads/kv_heads queries.
        values: the same.
        scale: of the scores.
        window: how many positions a query sees, itself among them; None: all.
        soft_cap: scores s become cap tanh(s/cap).

    Returns:
        [B, heads, S, head_dim].
    """
    n_queries, n_keys = queries.shape[2], keys.shape[2]
    if window is not None and window >= n_keys:
        window = None
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if window is None and soft_cap is None and n_queries == n_keys:
        return sdpa(queries, keys, values, is_causal=True, scale=scale, enable_gqa=True)
    parts = []
    for start, stop, first in _blocks(queries, n_keys, window, soft_cap):
        last = n_keys - n_queries + stop
        q, k, v = queries[:, :, start:stop], keys[:, :, first:last], values[:, :, first:last]
        mask = _mask(stop - start, last - first, window, queries.device)
        if soft_cap is None:
            parts.append(sdpa(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True))
        else:
            parts.append(_capped(q, k, v, mask, scale=scale, cap=soft_cap))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _blocks(
    queries: torch.Tensor, n_keys: int, window: int | None, soft_cap: float | None
) -> Iterator[tuple[int, int, int]]:
    """Queries [start, stop) and the first key that they see, in pieces that keep the scores small.

    With a window, a piece as long as it wastes half of its products, and shorter ones cost more calls.
    """
    batch, heads, n_queries, _ = queries.shape
    rows = n_queries
    if soft_cap is not None:
        rows = max(1, MAX_SCORES // (batch * heads * min(n_keys, 2 * (window or n_keys))))
    if window is not None:
        rows = min(rows, max(window, LEAST_ROWS))
    for start in range(0, n_queries, rows):
        before = n_keys - n_queries + start
        first = 0 if window is None else max(0, before - window + 1)
        yield start, min(start + rows, n_queries), first


def _mask(n_queries: int, n_keys: int, window: int | None, device: object) -> torch.Tensor | None:
    """What each of the last `n_queries` of `n_keys` positions sees: bool [n_queries, n_keys]; None: all."""
    if n_queries == 1 and (window is None or window >= n_keys):
        return None
    query = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
    key = torch.arange(n_keys, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _capped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """Attention with soft-capped scores, which torch has no kernel for."""
    batch, heads, length, size = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(batch, groups, heads // groups, length, size) * (scale / cap)
    scores = torch.matmul(grouped, keys[:, :, None].transpose(-1, -2))  # [B, G, heads/G, S, L]
    scores = scores.tanh_().mul_(cap)
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf"))
    mixed = torch.matmul(scores.softmax(dim=-1), values[:, :, None])
    return mixed.reshape(batch, heads, length, size)
