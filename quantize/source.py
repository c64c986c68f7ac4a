"""What is quantized layer by layer: a checkpoint's folder, or a GGUF file seen as one."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import GGUFCheckpoint, open_checkpoint
from models.packed import PackedCheckpoint
from models.verify import verify_gguf
from quantize.output import model_name
from quantize.remarks import AGAIN

if TYPE_CHECKING:
    from models.weights import Weights

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class Source:
    """A model, open."""

    path: Path
    """What was given."""
    folder: Path
    """With config.json and the tokenizer: `path`, or what was made of a GGUF file's metadata."""
    weights: "Weights"
    """Under Hugging Face's names."""
    notes: tuple[str, ...]
    """What a person should know of it."""

    @property
    def name(self) -> str:
        """The model's name, without the type that a GGUF file's name ends in."""
        return model_name(self.path)

    @property
    def stored_types(self) -> list[str]:
        """The types of its tensors, as its files call them."""
        checkpoint = self.weights.checkpoint
        if isinstance(checkpoint, PackedCheckpoint) and checkpoint.packed:
            return sorted({packed.layout.value for packed in checkpoint.packed.values()})
        return getattr(checkpoint, "quantized", None) or sorted(
            {one.dtype for one in checkpoint.tensors.values()}
        )


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a folder in safetensors, or a GGUF file, for the time of a run.

    Raises:
        FileNotFoundError: nothing there, or it is incomplete.
        BrokenModelFile: damaged.
        UnsupportedModel: of a family or a form that is not supported, or a GGUF file whose tokenizer can't be
            made into one for transformers.
    """
    from models.weights import open_weights

    if path.is_dir():
        with open_weights(path) as weights:
            checkpoint = weights.checkpoint
            packed = isinstance(checkpoint, PackedCheckpoint) and bool(checkpoint.packed)
            yield Source(path, path, weights, (AGAIN,) if packed else ())
        return
    with open_checkpoint(path) as opened, tempfile.TemporaryDirectory(prefix="edgechat-") as folder:
        if not isinstance(opened, GGUFCheckpoint):  # open_checkpoint gives the other kind for folders only
            raise TypeError(f"{path} is no GGUF file")
        yield _of_gguf(opened, Path(folder))


def _of_gguf(checkpoint: GGUFCheckpoint, folder: Path) -> Source:
    from models.gguf_config import config_of, family_named
    from models.gguf_to_config import hugging_face_config
    from models.gguf_to_tokenizer import tokenizer_files
    from models.gguf_view import GGUFView
    from models.weights import Weights

    header = verify_gguf(checkpoint.path)
    family = family_named(header)
    config = config_of(header, family)
    view = GGUFView(checkpoint, family, config)
    files = {
        "config.json": hugging_face_config(header, family, view.dtype.name),
        **tokenizer_files(header),
    }
    generation = files["generation_config.json"]
    # None where there is none: families assume ids of their own where config.json is silent.
    files["config.json"] |= {key: generation.get(key) for key in TOKEN_IDS}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    notes: tuple[str, ...] = ()
    if view.quantized:
        notes = (f"the source is dequantized from {', '.join(view.quantized)}: {AGAIN}",)
    return Source(checkpoint.path, folder, Weights(view, family, config), notes)
