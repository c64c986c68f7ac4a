"""The weights of a decoder as torch tensors, part by part, under Hugging Face's names from any file."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from models.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint, StoredTensor, open_checkpoint
from models.closing import Closing
from models.config import ModelConfig
from models.errors import BrokenModelFile
from models.families import Change, Family, TensorRule, family_of
from models.ggml_types import GGMLType
from models.gguf_config import config_of, family_named
from models.json_file import read_json
from models.tensor_names import TensorNames

CHUNK_ELEMENTS = 2**22
"""Numbers of the embedding that are read at once."""

ALIGNMENT = 64

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Weights(Closing):
    """A checkpoint, its family and its config; what is asked for is read then."""

    def __init__(self, checkpoint: Checkpoint, family: Family, config: ModelConfig) -> None:
        self.checkpoint = checkpoint
        self.family = family
        self.config = config
        self.names = (
            None
            if isinstance(checkpoint, GGUFCheckpoint)
            else TensorNames(checkpoint.path, checkpoint.tensors)
        )
        head = "output.weight" if self.names is None else self.names.name(HEAD)
        self.tied = config.tied and head not in checkpoint.tensors
        """The output matrix is the embedding."""

    def check(self) -> None:
        """See by the files' headers that all tensors are there.

        Raises:
            BrokenModelFile: one is missing, or of a wrong shape.
        """
        for rule in self.family.tensors(self.config, tied=self.tied):
            if self.names is None:
                self._stored(rule.source, rule.target, rule.shape)
                continue
            for name in rule.sources:
                self.names.checked(name, rule.source_shape)

    def layer(self, index: int, device: str = "cpu") -> dict[str, torch.Tensor]:
        """One decoder layer: {"self_attn.q_proj.weight": float32 [out, in], ...}.

        Raises:
            BrokenModelFile: a tensor is missing, of a wrong shape, or holds NaN or infinity.
            UnsupportedModel: a tensor's type can't be read.
        """
        prefix = f"model.layers.{index}."
        tensors: dict[str, torch.Tensor] = {}
        for rule in self.family.layer(self.config, index):
            for name, values in self._tensors(rule).items():
                tensors[name.removeprefix(prefix)] = values.to(device)
        return tensors

    def final_norm(self, device: str = "cpu") -> torch.Tensor:
        """The weight of the norm before the output matrix: float32 [D]."""
        rule = next(
            rule for rule in self.family.tensors(self.config, tied=True) if rule.source == "model.norm.weight"
        )
        return self._tensors(rule)[rule.source].to(device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings of tokens as they are stored: float32 [..., D] on the CPU. They are read in parts.

        Args:
            tokens: int64 [...].
        """
        stored = self._matrix(EMBEDDING, "token_embd.weight")
        wanted = tokens.cpu().unique()
        step = max(1, CHUNK_ELEMENTS // stored.columns)
        parts = []
        for start in range(0, stored.n_rows, step):
            inside = wanted[(wanted >= start) & (wanted < start + step)]
            if len(inside):
                first, last = int(inside[0]), int(inside[-1])
                rows = _floats(self.checkpoint, stored, first, last + 1)
                parts.append(rows[inside - first])
        table = torch.cat(parts)
        return table[torch.searchsorted(wanted, tokens.cpu())]

    def head(self) -> torch.Tensor:
        """The output matrix [V, D] on the CPU: in 16 bits where it is stored so, else in float32."""
        if self.tied:
            stored = self._matrix(EMBEDDING, "token_embd.weight")
        else:
            stored = self._matrix(HEAD, "output.weight")
        return _finite(_plain(self.checkpoint, stored), stored)

    def close(self) -> None:
        """Close the files."""
        self.checkpoint.close()

    def _matrix(self, source: str, target: str) -> StoredTensor:
        return self._stored(source, target, (self.config.vocab_size, self.config.hidden_size))

    def _stored(self, source: str, target: str, shape: tuple[int, ...]) -> StoredTensor:
        if self.names is not None:
            return self.names.checked(source, shape)
        stored = self.checkpoint.tensors.get(target)
        if stored is None:
            raise BrokenModelFile(f"{self.checkpoint.path} is damaged: get it again (it lacks {target})")
        if stored.shape != shape:
            raise BrokenModelFile(
                f"{self.checkpoint.path} is damaged: get it again ({target} has the shape "
                f"{list(stored.shape)}, not {list(shape)} as its metadata say)"
            )
        return stored

    def _tensors(self, rule: TensorRule) -> dict[str, torch.Tensor]:
        """What a rule stands for, under the names of a checkpoint."""
        if self.names is not None:
            shape = rule.source_shape
            found = {}
            for name in rule.sources:
                stored = self.names.checked(name, shape)
                found[name] = _finite(_floats(self.checkpoint, stored).reshape(shape), stored)
            return found
        stored = self._stored(rule.source, rule.target, rule.shape)
        values = undone(_finite(_floats(self.checkpoint, stored).reshape(rule.shape), stored), rule)
        return dict(zip(rule.parts, values, strict=True)) if rule.parts else {rule.source: values}


def undone(values: torch.Tensor, rule: TensorRule) -> torch.Tensor:
    """From llama.cpp's layout to Hugging Face's."""
    if rule.factor != 1.0:
        values = values / rule.factor
    if rule.change is Change.ADD_ONE:
        return values - 1
    if rule.change is Change.INTERLEAVE:
        rows = values.reshape(rule.heads, -1, 2, math.prod(rule.shape[1:]))  # [heads, d/2, 2, columns]
        return rows.transpose(1, 2).reshape(rule.shape)
    return values


def _floats(
    checkpoint: Checkpoint, stored: StoredTensor, start: int = 0, stop: int | None = None
) -> torch.Tensor:
    values = _plain(checkpoint, stored, start, stop).to(torch.float32)
    # numpy's memory begins anywhere, torch's at a multiple of 64; how its kernels group their sums depends on
    # that, and the same weights should give the same bits each time.
    return values if values.data_ptr() % ALIGNMENT == 0 else values.clone()


def _plain(
    checkpoint: Checkpoint, stored: StoredTensor, start: int = 0, stop: int | None = None
) -> torch.Tensor:
    """Rows as they are stored if torch has their type, else in float32: [rows, columns]."""
    if stored.type in {GGMLType.BF16, GGMLType.F16}:
        raw: npt.NDArray[np.generic] = checkpoint.stored_rows(stored.name, start, stop)
        bits = torch.from_numpy(raw.view(np.int16))
        return bits.view(torch.bfloat16 if stored.type is GGMLType.BF16 else torch.float16)
    return torch.from_numpy(checkpoint.rows(stored.name, start, stop))


def _finite(values: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    # In parts, because torch makes a float32 copy of what it sums.
    for part in rows.split(max(1, CHUNK_ELEMENTS // max(1, rows.shape[1]))):
        # The sum of finite numbers is finite, but for overflow: then each is looked at.
        if not bool(part.sum(dtype=torch.float32).isfinite()) and not bool(part.isfinite().all()):
            raise BrokenModelFile(
                f"{stored.file} is damaged: get the checkpoint again ({stored.name} holds NaN or infinity)"
            )
    return values


def open_weights(path: Path) -> Weights:
    """Open a folder in safetensors, or a GGUF file.

    Raises:
        FileNotFoundError: nothing there, or it is incomplete.
        BrokenModelFile: damaged.
        UnsupportedModel: of a family or a form that is not supported.
    """
    checkpoint = open_checkpoint(path)
    if isinstance(checkpoint, GGUFCheckpoint):
        family = family_named(checkpoint.header)
        return Weights(checkpoint, family, config_of(checkpoint.header, family))
    return _from_folder(path, checkpoint)


def _from_folder(path: Path, checkpoint: SafetensorsCheckpoint) -> Weights:
    where = path / "config.json"
    raw: Mapping[str, object] = read_json(where)
    family = family_of(raw, where)
    return Weights(checkpoint, family, family.read(raw, where))
