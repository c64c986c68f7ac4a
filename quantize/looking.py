"""What is seen while the samples go through a layer, and what of it is kept."""

from collections import deque
from collections.abc import Callable

import torch

from models.decoder import DecoderLayer
from models.mlp import GatedMLP
from quantize.layer_method import Inputs
from quantize.methods.hessian import Hessian
from quantize.methods.sampling import TokenSample


class Kept:
    """What was made of each batch, for the second time that it is needed: kept, or made again.

    It lies in one block, which the next matrix uses again: pieces that come and go would leave the heap full
    of holes, and the peak a matter of chance.
    """

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor], room: torch.Tensor | None) -> None:
        """
        Args:
            make: [B, S, D] of the hidden states to what is needed.
            room: float32 [n]; what doesn't fit there is made again.
        """
        self._make = make
        self._room = room
        self._used = 0
        self._found: deque[torch.Tensor | None] = deque()

    def make(self, hidden: torch.Tensor) -> torch.Tensor:
        """For the first time."""
        x = self._make(hidden)
        place = None
        if self._room is not None and self._used + x.numel() <= len(self._room):
            place = self._room[self._used : self._used + x.numel()].view(x.shape).copy_(x)
            self._used += x.numel()
        self._found.append(place)
        return x

    def take(self, hidden: torch.Tensor) -> torch.Tensor:
        """For the last time, in the same order of batches."""
        found = self._found.popleft()
        return self._make(hidden) if found is None else found


class SeenAll(Exception):
    """The last matrix's input is seen: what it would make of it nobody needs."""


class Observer:
    """Collects what goes into each matrix."""

    def __init__(self, layer: DecoderLayer, device: str, *, magnitudes: bool, sampled: bool = False) -> None:
        self.device = device
        self.magnitudes = magnitudes
        self.groups = layer.groups
        self.leaders = {group[0] for group in layer.groups}
        """Those of a group are given the same: one of them is looked at."""
        self.hessians: dict[str, Hessian] = {}
        self.sampled = sampled
        self.samples: dict[str, TokenSample] = {}
        self.states = TokenSample()
        """What goes into the layer, of the same tokens."""
        self.final = layer.groups[-1][0] if isinstance(layer.mlp, GatedMLP) else ""

    def begins(self, hidden: torch.Tensor) -> None:
        """Be told what goes into the layer next, [B, S, D]."""
        if self.sampled:
            self.states.add(hidden)

    def observe(self, name: str, x: torch.Tensor) -> None:
        """Count an input."""
        if name in self.leaders:
            if name not in self.hessians:
                self.hessians[name] = Hessian(x.shape[-1], device=self.device, magnitudes=self.magnitudes)
            self.hessians[name].add(x)
            if self.sampled:
                self.samples.setdefault(name, TokenSample()).add(x)
        if name == self.final:
            raise SeenAll

    def inputs(self) -> list[Inputs]:
        """All matrices by what they are given."""
        return [self._inputs_of(tuple(group)) for group in self.groups]

    def _inputs_of(self, names: tuple[str, ...]) -> Inputs:
        sample = self.samples.pop(names[0], None)
        hessian, tokens = self.hessians.pop(names[0], None), None if sample is None else sample.tokens()
        return Inputs(names, hessian, tokens, self.states.tokens())
