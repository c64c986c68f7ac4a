"""What a run that goes layer by layer can be refused for before torch is imported, which takes seconds."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from models.checkpoint import GGUFCheckpoint, open_checkpoint
from models.config import ModelConfig
from models.families import Family, family_of
from models.gguf_config import config_of, family_named
from models.json_file import read_json
from quantize.calibration import check_file, check_tokenizer, sample_length
from quantize.errors import SourceNotFound
from quantize.layer_request import LayerRequest
from quantize.matrices import layer_matrices
from quantize.output import check_folder, model_name
from quantize.recipe import Recipe, check_group_size, default_group_size


class Described(NamedTuple):
    """A model, by what its files say of it."""

    family: Family
    config: ModelConfig


class Settled(NamedTuple):
    """A request with nothing left open."""

    request: LayerRequest
    """With a group size, and an output."""
    output: Path
    """The same, absolute."""
    note: str
    """What a person should know of that; "" for nothing."""


def settle(request: LayerRequest) -> Settled:
    """Look at all that needs no weights, and decide what the request leaves open.

    Raises:
        FileNotFoundError: the source, or a part of it, is missing.
        ModelError: the source is broken, or not supported.
        QuantizeError: the request can't be done.
    """
    source = request.source
    if not source.exists():
        raise SourceNotFound(f"nothing at {source}: give a checkpoint's folder or a GGUF file")
    model = described(source)
    recipe, note = _with_group_size(request.recipe, model)
    if recipe.reads_text:
        sample_length(request.length, model.config.n_ctx)
        if request.calibration is not None and request.self_seed is None:
            check_file(request.calibration)
        if source.is_dir():
            check_tokenizer(source)
    output = (request.output or Path(f"{model_name(source)}-{recipe.label}")).absolute()
    check_folder(output, source, force=request.force)
    return Settled(replace(request, recipe=recipe, output=output), output, note)


def described(path: Path) -> Described:
    """What a checkpoint's folder, or a GGUF file, is.

    Raises:
        FileNotFoundError: it is incomplete.
        BrokenModelFile: damaged.
        UnsupportedModel: of a family or a form that is not supported.
    """
    with open_checkpoint(path) as checkpoint:
        if isinstance(checkpoint, GGUFCheckpoint):
            family = family_named(checkpoint.header)
            return Described(family, config_of(checkpoint.header, family))
    where = path / "config.json"
    raw = read_json(where)
    family = family_of(raw, where)
    return Described(family, family.read(raw, where))


def _with_group_size(recipe: Recipe, model: Described) -> tuple[Recipe, str]:
    """The recipe with a group size that fits the model, and what to say of it."""
    shapes = [
        (f"layer {index}'s {name}", *shape)
        for index in range(model.config.n_layers)
        for name, shape in layer_matrices(model, index).items()
    ]
    if recipe.group_size is not None:
        check_group_size(recipe.group_size, shapes)
        return recipe, ""
    if recipe.format == "int8":
        return replace(recipe, group_size=-1), ""
    size = default_group_size([(rows, columns) for _, rows, columns in shapes])
    note = f"groups of {size}: the largest of 128, 64 and 32 that divides every matrix" if size != 128 else ""
    return replace(recipe, group_size=size), note
