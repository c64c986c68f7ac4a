"""A checkpoint's tensors under the plain decoder's names, whatever part of a larger model it is."""

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint import StoredTensor
from models.errors import BrokenModelFile, UnsupportedModel

PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""What the decoder's names begin with; the longer ones where it is a part of a model that also sees."""


class TensorNames:
    """Hugging Face's plain names, such as "model.norm.weight", and the tensors that they stand for."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
        """
        Raises:
            BrokenModelFile: there is no embedding.
        """
        self.folder = folder
        self.tensors = tensors
        found = [prefix for prefix in PREFIXES if f"{prefix}embed_tokens.weight" in tensors]
        if not found:
            raise BrokenModelFile(f"{folder} has no tensor model.embed_tokens.weight: no complete checkpoint")
        self.prefix = found[0]

    def name(self, plain: str) -> str:
        """As the checkpoint has it."""
        if plain.startswith("model."):
            return self.prefix + plain.removeprefix("model.")
        for candidate in (plain, f"language_model.{plain}"):
            if candidate in self.tensors:
                return candidate
        return plain

    def has(self, plain: str) -> bool:
        """Whether the checkpoint has it."""
        return self.name(plain) in self.tensors

    def checked(self, plain: str, shape: tuple[int, ...]) -> StoredTensor:
        """The tensor, which must have this shape and a type that can be read.

        Raises:
            BrokenModelFile: it is missing, or has another shape.
            UnsupportedModel: it is of another type.
        """
        stored = self.tensors.get(self.name(plain))
        if stored is None:
            raise BrokenModelFile(
                f"{self.folder} is not whole: download the checkpoint again (the tensor {plain} is missing)"
            )
        if stored.shape != shape:
            raise BrokenModelFile(
                f"{stored.file}: {stored.name} has the shape {list(stored.shape)}, config.json makes it "
                f"{list(shape)}: the files don't belong together"
            )
        if stored.dtype not in {"F32", "F16", "BF16"}:
            raise UnsupportedModel(
                f"{stored.file}: {stored.name} is of type {stored.dtype}: F32, F16 and BF16 are supported"
            )
        return stored
