"""Rotary positions in torch (Su et al. 2021), in the order of a head's numbers that Hugging Face uses."""

from functools import lru_cache

import torch

from models.rope_config import Rope, RopeKind, llama3_factors, yarn_factors


class Rotary:
    """The rotation of one layer's heads."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self.rope = rope
        self.size = rope.rotated(head_dim)
        scaling = rope.scaling
        self.magnitude = scaling.magnitude if scaling is not None else 1.0

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each position's angles.

        Args:
            positions: int64 [S], or [B, 1, S] where the sequences have their own.

        Returns:
            Two of float32 [..., S, size/2].
        """
        long = False
        if self.rope.scaling is not None and self.rope.scaling.kind is RopeKind.LONGROPE:
            long = int(positions.max()) + 1 > self.rope.scaling.original_context
        inverse = torch.tensor(frequencies(self.rope, self.size, long), device=positions.device)
        angles = positions[..., None].to(torch.float32) * inverse
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude

    def rotate(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotate the first `size` numbers of each head.

        Args:
            x: [B, heads, S, head_dim].
            tables: of the same S positions.
        """
        cos, sin = tables
        half = self.size // 2
        first, second = x[..., :half], x[..., half : self.size]
        parts = [first * cos - second * sin, second * cos + first * sin]
        if self.size < x.shape[-1]:
            parts.append(x[..., self.size :])
        return torch.cat(parts, dim=-1)


@lru_cache(maxsize=64)
def frequencies(rope: Rope, size: int, long: bool) -> tuple[float, ...]:
    """Radians per position of each of the size/2 pairs.

    Args:
        rope: with its scaling.
        size: how many numbers of a head are rotated.
        long: of longrope, whether the text is longer than the model's first context.
    """
    plain = [rope.theta ** (-2 * i / size) for i in range(size // 2)]
    scaling = rope.scaling
    if scaling is None:
        return tuple(plain)
    match scaling.kind:
        case RopeKind.LINEAR:
            factors = [scaling.factor] * len(plain)
        case RopeKind.LLAMA3:
            factors = llama3_factors(scaling, rope.theta, size)
        case RopeKind.YARN:
            factors = yarn_factors(scaling, rope.theta, size)
        case RopeKind.LONGROPE:
            factors = list(scaling.long_factors if long else scaling.short_factors)
    return tuple(frequency / factor for frequency, factor in zip(plain, factors, strict=True))
