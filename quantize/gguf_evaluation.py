"""How far a GGUF file is from what it was made of, for its receipt: perplexity, divergence, and the error of
each layer's weights, both models seen through our decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import UnsupportedModel
from quantize.errors import to_install
from quantize.layer_request import free_memory
from quantize.receipt import figures, mean_error

if TYPE_CHECKING:
    from models.weights import Weights

DIGITS = 3
"""Of an error in a receipt."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found."""

    figures: dict[str, Any]
    """As every receipt has them under "evaluation"."""
    layers: list[dict[str, Any]]
    """Each matrix's mean square error over its mean square, by layer, as in the receipts of folders."""

    @property
    def layer_errors(self) -> list[float]:
        """The mean of each layer's matrices."""
        return [float(f"{mean_error([layer]):.{DIGITS}g}") for layer in self.layers if layer["matrices"]]

    @property
    def mean_error(self) -> float:
        """Over all matrices."""
        return mean_error(self.layers)


def check_possible(source: Path) -> None:
    """See, before the work, that the comparison can be made after it.

    Args:
        source: a checkpoint's folder, or a GGUF file.

    Raises:
        UnsupportedModel: it can't; the message says why.
        ModelError: the source is damaged.
    """
    try:
        import tokenizers  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        raise UnsupportedModel(f"comparing needs torch and tokenizers: {to_install('torch')}") from None
    from quantize.calibration import check_tokenizer
    from quantize.source import open_source

    with open_source(source) as opened:
        check_tokenizer(opened.folder)


def evaluate(
    source: Path,
    result: Path,
    told: Callable[[float], None] = lambda share: None,
    *,
    free_memory: Callable[[], int] = free_memory,
) -> Evaluation:
    """Compare a file with its source on the held-out text.

    Args:
        source: a checkpoint's folder, or a GGUF file.
        result: the file.
        told: of the share that is done.
        free_memory: tells how many bytes this process may take.

    Raises:
        ModelError: one is damaged or not supported.
        NotEnoughMemory: with the numbers.
        QuantizeError: they don't compare.
    """
    import hashlib

    import torch

    from models.weights import open_weights
    from quantize.calibration import FolderTokenizer
    from quantize.compare import WINDOW, check_comparable, compare, held_out, windows_of
    from quantize.layer_plan import check_comparison
    from quantize.source import open_source

    text = held_out()
    with open_source(source) as opened, open_weights(result) as after, torch.no_grad():
        before = opened.weights
        check_comparable(before, after)
        window = min(WINDOW, before.config.n_ctx)
        tokens = windows_of(text, FolderTokenizer(opened.folder), window)
        check_comparison(opened, tokens.numel(), free_memory())
        found = compare(before, after, tokens, told=lambda share: told(0.9 * share))
        layers = weight_errors(before, after, lambda share: told(0.9 + 0.1 * share))
    of = {"text": "bundled", "text_sha256": hashlib.sha256(text.encode()).hexdigest()}
    return Evaluation({**of, **figures(found)}, layers)


def weight_errors(
    before: "Weights", after: "Weights", told: Callable[[float], None] = lambda share: None
) -> list[dict[str, Any]]:
    """The mean square error of each layer's matrices, over their mean square."""
    n_layers = before.config.n_layers
    layers = []
    for index in range(n_layers):
        was, now = before.layer(index), after.layer(index)
        matrices = []
        for name, weight in was.items():
            if weight.ndim < 2:
                continue
            size = float(weight.square().sum())
            error = float((now.pop(name) - weight).square_().sum())
            matrices.append({"name": name.removesuffix(".weight"), "error": error / size if size else 0.0})
        layers.append({"layer": index, "matrices": matrices})
        told((index + 1) / n_layers)
    return layers
