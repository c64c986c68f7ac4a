"""What a quantization was and what it cost: `edgechat-receipt.json`, beside the weights."""

import hashlib
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import safetensors
from models.sizes import bits_per_weight

if TYPE_CHECKING:
    from models.weights import Weights
    from quantize.calibration import FolderTokenizer, Samples
    from quantize.compare import Comparison
    from quantize.layer_request import LayerRequest
    from quantize.resume import LayerRecord, State
    from quantize.source import Source

NAME = "edgechat-receipt.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """All of it. Numbers that are unknown are None."""

    source: dict[str, Any]
    """Name, hash of its files, and bytes."""
    recipe: dict[str, Any]
    calibration: dict[str, Any] | None
    """Where the samples are from, their hash, how many and how long; None: no text was read."""
    versions: dict[str, str]
    architecture: str
    parameters: int
    bytes: int
    """Of the weights."""
    bits_per_weight: float
    seconds: float
    """Of this run; after --resume those of the earlier runs' layers are added."""
    peak_memory: int
    """Bytes of the whole process, of the last run where it was resumed."""
    device: str
    """That computed it: "cpu", "cuda" or "mps"."""
    threads: int
    """On the CPU."""
    error_of: str
    """"outputs" or "weights": what the layers' errors are of."""
    layers: list[dict[str, Any]]
    """Each matrix's mean square error over its mean square."""
    evaluation: dict[str, Any] | None

    def record(self) -> dict[str, Any]:
        """As it is stored, without NaN and infinity."""
        found: dict[str, Any] = _plain({"version": VERSION, **asdict(self)})
        return found

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(self.record(), indent=2, ensure_ascii=False) + "\n"

    @property
    def mean_error(self) -> float:
        """Over all matrices."""
        return mean_error(self.layers)

    @property
    def keeping_inputs(self) -> tuple[int, int]:
        """How many matrices keep their inputs in 16 bits though the scheme rounds others, and of how many."""
        kept = [bool(matrix.get("keeps_inputs")) for layer in self.layers for matrix in layer["matrices"]]
        return sum(kept), len(kept)

    @property
    def rescued(self) -> list[str]:
        """Matrices that went otherwise than planned, and how."""
        return [
            f"layer {layer['layer']} {matrix['name']}: {matrix['note']}"
            for layer in self.layers
            for matrix in layer["matrices"]
            if matrix.get("note")
        ]


def mean_error(layers: Sequence[Mapping[str, Any]]) -> float:
    """Over all matrices of all layers, as receipts have them; 0.0: there are none."""
    errors = [matrix["error"] for layer in layers for matrix in layer["matrices"]]
    return sum(errors) / len(errors) if errors else 0.0


def _plain(value: Any) -> Any:
    """Without NaN and infinity, which JSON doesn't have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """A result's receipt as it is stored; None: there is none that can be read."""
    try:
        record = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def make_receipt(
    request: "LayerRequest",
    source: "Source",
    result: Path,
    state: "State",
    found: "Samples | None",
    *,
    begun: float,
    tokenizer: "FolderTokenizer | None",
    evaluating: Callable[[float], None],
) -> Receipt:
    """The receipt of a finished result, which is read back and compared with its source.

    Args:
        request: what was asked for.
        source: of the run.
        result: the result's folder.
        state: the layers.
        found: the samples.
        begun: when this run began, by the monotonic clock.
        tokenizer: for the text that is compared on; None: nothing is compared.
        evaluating: told of the share of the comparison that is done.
    """
    evaluation = None
    if tokenizer is not None:
        evaluation = _evaluated(request, source.weights, result, tokenizer, evaluating)
    stored = source.weights.checkpoint.tensors.values()
    n_parameters = sum(tensor.n_elements for tensor in stored)
    n_bytes = sum(path.stat().st_size for path in result.glob("*.safetensors"))
    earlier = sum(layer.seconds for layer in state.layers if layer.index < state.resumed)
    return Receipt(
        source={
            "name": source.path.resolve().name,
            "sha256": hash_of(source.path),
            "bytes": sum(tensor.n_bytes for tensor in stored),
            "types": source.stored_types,
        },
        recipe=request.recipe.record(),
        calibration=None
        if found is None
        else {
            "text": found.source,
            "sha256": found.sha256,
            "samples": len(found.tokens),
            "length": int(found.tokens.shape[1]),
            "chat_samples": found.n_chat,
        },
        versions=_versions(),
        architecture=source.weights.config.architecture,
        parameters=n_parameters,
        bytes=n_bytes,
        bits_per_weight=round(bits_per_weight(_stored(result), n_parameters), 4),
        seconds=round(time.monotonic() - begun + earlier, 3),
        peak_memory=peak_memory(),
        device=request.device,
        threads=state.threads,
        error_of="outputs" if request.recipe.reads_text else "weights",
        layers=[_layer(layer) for layer in state.layers],
        evaluation=evaluation,
    )


def _stored(folder: Path) -> list[safetensors.Entry]:
    """All tensors of a folder, as they are stored."""
    files = folder.glob("*.safetensors")
    return [entry for path in files for entry in safetensors.read_header(path).values()]


def _layer(layer: "LayerRecord") -> dict[str, Any]:
    matrices = [
        {
            "name": one.name,
            "error": one.error,
            **({"note": one.note} if one.note else {}),
            **({"keeps_inputs": True} if one.keeps_inputs else {}),
        }
        for one in layer.matrices
    ]
    return {"layer": layer.index, "seconds": layer.seconds, "matrices": matrices}


def _evaluated(
    request: "LayerRequest",
    weights: "Weights",
    result: Path,
    tokenizer: "FolderTokenizer",
    told: Callable[[float], None],
) -> dict[str, Any]:
    from models.weights import open_weights
    from quantize.compare import WINDOW, compare, held_out, windows_of

    text = held_out()
    window = min(WINDOW, weights.config.n_ctx)
    tokens = windows_of(text, tokenizer, window)
    with open_weights(result) as written:
        found = compare(weights, written, tokens, device=request.device, told=told)
    return {"text": "bundled", "text_sha256": hashlib.sha256(text.encode()).hexdigest(), **figures(found)}


def figures(found: "Comparison") -> dict[str, Any]:
    """A comparison as it is told."""
    return {
        "tokens": found.n_tokens,
        "window": found.window,
        "source_perplexity": found.source.value,
        "perplexity": found.result.value,
        "mean_kl": found.mean_kl,
        "p99_kl": found.p99_kl,
        "top1": found.top1,
    }


def hash_of(source: Path) -> str:
    """Of a file as sha256sum has it; of a checkpoint's folder: of its configuration's and weights' names and
    contents, in order of the names."""
    if source.is_file():
        return _digest(source)
    digest = hashlib.sha256()
    for path in sorted([source / "config.json", *source.glob("*.safetensors")]):
        digest.update(f"{path.name}\0{_digest(path)}\n".encode())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def peak_memory() -> int:
    """The most memory that this process had, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _versions() -> dict[str, str]:
    import numpy
    import torch

    from quantize.layers import quantizer

    return {
        "edgechat": quantizer().partition(":")[2],
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
