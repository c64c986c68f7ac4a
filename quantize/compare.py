"""How far a quantized model is from its source: perplexity of both, Kullback-Leibler divergence, and how
often both think the same token the likeliest.

Windows and scored tokens are those of llama.cpp's perplexity tool, and of `edgechat eval`: each window's
second half. Both models run through our decoder, layer by layer, the result as it was written: one whose
activations are rounded while it runs (W8A8) has them rounded here too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from models.activation_rounding import ActivationRounding
from models.decoder import Decoder
from models.json_file import optional_json
from models.weights import Weights, open_weights
from quantize.batches import batches
from quantize.devices import usable_cores
from quantize.errors import BadRequest
from quantize.evaluate import Perplexity
from quantize.heap import give_back
from quantize.layer_request import free_memory
from quantize.methods.int8 import RoundedInputs

if TYPE_CHECKING:
    from quantize.calibration import FolderTokenizer

WINDOW = 512
SCORED_LOGITS = 2**22
"""That are in memory at once, of each model: 16 MiB."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model against its source on a text."""

    source: Perplexity
    result: Perplexity
    mean_kl: float
    """Mean over tokens of sum p log(p/q), in nats; p is the source."""
    p99_kl: float
    """99 of 100 tokens have less."""
    top1: float
    """Share of tokens where both think the same the likeliest."""
    n_tokens: int
    window: int


def held_out() -> str:
    """The text that results are measured on; no calibration reads it."""
    return files("quantize").joinpath("data", "eval.txt").read_text(encoding="utf-8")


def check_comparable(source: Weights, result: Weights) -> None:
    """Refuse models of different vocabularies.

    Raises:
        BadRequest: their numbers of tokens differ.
    """
    before, after = source.config.vocab_size, result.config.vocab_size
    if before != after:
        raise BadRequest(
            f"{result.checkpoint.path} has {after} tokens, {source.checkpoint.path} has {before}: "
            "only models of one vocabulary compare"
        )


def compare_paths(
    source: Path,
    result: Path,
    text: str,
    *,
    length: int = WINDOW,
    told: Callable[[float], None],
    free_memory: Callable[[], int] = free_memory,
    threads: int = 0,
) -> Comparison:
    """Compare two models on a text.

    Args:
        source: a folder in safetensors, or a GGUF file; its tokenizer is taken.
        result: another of the same vocabulary.
        text: to compare on.
        length: tokens of a window.
        told: of the share that is done.
        free_memory: tells how many bytes this process may take.
        threads: 0: as many as there are cores for us.

    Raises:
        FileNotFoundError: one is not there, or incomplete.
        ModelError: one is broken, or not supported.
        NotEnoughMemory: with the numbers.
        BadRequest: they don't compare, or the text is too short.
    """
    from quantize.calibration import FolderTokenizer
    from quantize.layer_plan import check_comparison
    from quantize.source import open_source

    with open_source(source) as opened, open_weights(result) as after, torch.no_grad():
        check_comparable(opened.weights, after)
        tokens = windows_of(text, FolderTokenizer(opened.folder), length)
        check_comparison(opened, tokens.numel(), free_memory())
        torch.set_num_threads(threads or usable_cores())
        return compare(opened.weights, after, tokens, told=told)


def windows_of(text: str, tokenizer: "FolderTokenizer", length: int) -> torch.Tensor:
    """Whole windows of a text's tokens: int64 [N, length].

    Raises:
        BadRequest: the text is shorter than one.
    """
    tokens = tokenizer.encode(text, special=True)
    count = len(tokens) // length
    if not count:
        raise BadRequest(f"the text has {len(tokens)} tokens, less than one window of {length}")
    return torch.tensor(tokens[: count * length]).reshape(count, length)


def compare(
    source: Weights,
    result: Weights,
    tokens: torch.Tensor,
    *,
    device: str = "cpu",
    known: torch.Tensor | None = None,
    told: Callable[[float], None] = lambda share: None,
) -> Comparison:
    """Compare on windows of tokens.

    Args:
        source: the model that was quantized.
        result: what came of it.
        tokens: int64 [N, S].
        device: where it is computed.
        known: the source's `last_states` of these tokens, where somebody has them.
        told: of the share that is done.
    """
    if known is None:
        known = last_states(source, tokens, device, lambda share: told(share * 0.4))
    states = [known, last_states(result, tokens, device, lambda share: told(0.4 + share * 0.4))]
    give_back()
    length = tokens.shape[1]
    first = length // 2
    # The state at a position tells the next token.
    rows = [state[:, first - 1 : -1].reshape(-1, state.shape[-1]) for state in states]
    wanted = tokens[:, first:].reshape(-1).to(device)
    outputs = [Decoder(weights, device).output() for weights in (source, result)]
    scores = (Perplexity(), Perplexity())
    divergences, agreed = [], 0
    n_vocab = source.config.vocab_size
    step = max(16, SCORED_LOGITS // n_vocab)
    # The largest numbers of a comparison: in one place, for pieces that come and go leave holes.
    rooms = [torch.empty((step, n_vocab), device=device) for _ in outputs]
    for start in range(0, len(wanted), step):
        part = slice(start, start + step)
        p, q = (
            _log_softmax_(output.logits(row[part].to(device), out=room[: len(row[part])]))
            for output, row, room in zip(outputs, rows, rooms, strict=True)
        )
        scores = (scores[0] + _scored(p, wanted[part]), scores[1] + _scored(q, wanted[part]))
        agreed += int((p.argmax(-1) == q.argmax(-1)).sum())
        torch.sub(p, q, out=q)
        divergences.append(p.exp_().mul_(q).sum(-1).double().clamp(min=0).cpu())
        told(0.8 + 0.2 * min(1.0, (start + step) / len(wanted)))
    divergence = torch.cat(divergences)
    return Comparison(
        source=scores[0],
        result=scores[1],
        mean_kl=divergence.mean().item(),
        p99_kl=divergence.quantile(0.99).item(),
        top1=agreed / len(wanted),
        n_tokens=len(wanted),
        window=length,
    )


def _log_softmax_(logits: torch.Tensor) -> torch.Tensor:
    """In place, of [T, V]."""
    return logits.sub_(logits.logsumexp(-1, keepdim=True))


def _scored(logs: torch.Tensor, wanted: torch.Tensor) -> Perplexity:
    """Of log-probabilities [T, V] and the tokens that came, [T]."""
    losses = -logs.gather(1, wanted[:, None]).double()
    return Perplexity(losses.sum().item(), losses.square().sum().item(), len(wanted))


def last_states(
    weights: Weights,
    tokens: torch.Tensor,
    device: str = "cpu",
    told: Callable[[float], None] = lambda share: None,
) -> torch.Tensor:
    """What the last layer leaves: float32 [N, S, D] on the CPU."""
    decoder = Decoder(weights, device)
    hidden = decoder.embed(tokens).cpu()
    positions = torch.arange(tokens.shape[1], device=device)
    n_layers = weights.config.n_layers
    rounds = _rounding(weights)
    for index in range(n_layers):
        layer = decoder.layer(index)
        for name, matrix in layer.linears.items():
            if rounds(f"model.layers.{index}.{name}"):
                layer.linears[name] = RoundedInputs(matrix)
        for part in (slice(*batch) for batch in batches(tokens)):
            hidden[part] = layer.forward(hidden[part].to(device), positions).cpu()
        del layer
        told((index + 1) / n_layers)
    return hidden


def _rounding(weights: Weights) -> Callable[[str], bool]:
    """Whether a checkpoint's readers round what goes into a matrix, token by token, to eight bits; by the
    name that the checkpoint has for it."""
    path = weights.checkpoint.path
    settings = optional_json(path / "config.json").get("quantization_config") if path.is_dir() else None
    found = ActivationRounding(settings if isinstance(settings, dict) else {})
    names = weights.names
    return lambda plain: found.rounds(plain if names is None else names.name(plain))
