"""Calibration text that the model writes itself (Liu et al. 2023, LLM-QAT): no text is needed that it might
not have been trained on. It is sampled at temperature 1, from openings in several languages and code, half of
them in the chat template; the same seed gives the same text, on the same machine with as many threads.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.chat import ChatMessage
from models.config import ModelConfig
from models.errors import UnsupportedModel
from quantize import child
from quantize.calibration import FolderTokenizer, Samples, TextTokenizer, evenly, windows
from quantize.errors import BadRequest
from quantize.openings import BEGINNINGS, QUESTIONS
from quantize.partial import partial

if TYPE_CHECKING:
    from quantize.source import Source

NAME = "self"
MAX_PARALLEL = 32
"""Texts that are written at once: more fill the cores no better."""
KV_BYTES = 512 * 2**20
"""That keys and values of all of them may take."""
HALF = 2


def parallel(kv_bytes: int, length: int) -> int:
    """How many texts of `length` tokens are written at once; a token's keys and values take `kv_bytes`."""
    return max(1, min(MAX_PARALLEL, KV_BYTES // (length * max(1, kv_bytes))))


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Of keys and values of all layers, in float16."""
    return 2 * config.n_layers * config.kv_size * HALF


@dataclass(frozen=True, slots=True)
class Asked:
    """What a model shall write, and what becomes of it."""

    openings: list[list[list[int]]]
    """Tokens that texts begin with: of plain text, and of conversations where there is a chat template."""
    count: int
    """Of samples."""
    length: int
    """Tokens of each."""

    @classmethod
    def of(cls, tokenizer: TextTokenizer, count: int, length: int) -> "Asked":
        """
        Raises:
            BadRequest: `length` is too short for every opening.
        """
        return cls(_openings(tokenizer, length), count, length)

    @property
    def n_chat(self) -> int:
        """How many samples are of conversations."""
        return self.count // 2 if len(self.openings) > 1 else 0

    @property
    def wanted(self) -> list[int]:
        """Tokens of each kind: a sample more of each, since the last text of each may end early."""
        counts = [self.count - self.n_chat, self.n_chat][: len(self.openings)]
        return [(count + 1) * self.length for count in counts]

    def taken(self, texts: Sequence[tuple[int, Sequence[int]]], seed: int) -> Samples:
        """The samples, of texts (kind, tokens)."""
        streams = [
            windows((tokens for kind, tokens in texts if kind == k), self.length)
            for k in range(len(self.openings))
        ]
        taken = [evenly(streams[0], self.count - self.n_chat)]
        if self.n_chat:
            taken.append(evenly(streams[1], self.n_chat))
        tokens = np.concatenate(taken)
        digest = hashlib.sha256(tokens.tobytes()).hexdigest()
        return Samples(tokens, self.n_chat, f"{NAME}, seed {seed}", digest)


def written(
    source: "Source",
    tokenizer: FolderTokenizer,
    output: Path,
    *,
    count: int,
    length: int,
    seed: int,
    threads: int,
    told: Callable[[float], None] = lambda share: None,
) -> Samples:
    """Have the model write samples. A folder is converted to Q8_0 for that time, beside the output.

    Args:
        source: the model.
        tokenizer: of the model.
        output: of the run.
        count: how many windows.
        length: tokens of each.
        seed: of the texts.
        threads: of llama.cpp's.
        told: of the share that is written.

    Raises:
        UnsupportedModel: llama.cpp can't run the model.
        NativeFailure: llama.cpp refused or crashed.
    """
    asked = Asked.of(tokenizer, count, length)
    job: dict[str, Any] = {
        "openings": asked.openings,
        "wanted": asked.wanted,
        "length": length,
        "seed": seed,
        "parallel": parallel(kv_bytes_per_token(source.weights.config), length),
        "threads": threads,
    }
    texts: list[tuple[int, list[int]]] = []

    def hear(message: child.Message) -> None:
        if "share" in message:
            told(message["share"])
        texts.extend((kind, tokens) for kind, tokens in message.get("texts", ()))

    def run(path: Path) -> None:
        child.run("quantize.sample_native", {"model": str(path), **job}, hear, doing=f"run {source.path}")

    if source.path.is_file():
        run(source.path)
    else:
        with partial(output) as path:
            _convert(source.path, path)
            run(path)
    return asked.taken(texts, seed)


def _convert(folder: Path, path: Path) -> None:
    from quantize.pipeline import Request, run
    from quantize.plan import target_of

    try:
        run(Request(folder, target_of("q8_0"), path))
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"--calibration self has llama.cpp run the model, which it can't: {error}"
        ) from None


def _openings(tokenizer: TextTokenizer, length: int) -> list[list[list[int]]]:
    """Of plain text, and of conversations where there is a chat template."""
    kinds = [[tokenizer.encode(text, special=True) for text in BEGINNINGS]]
    if tokenizer.template is not None:
        rendered = [
            tokenizer.template.render((ChatMessage("user", text),), add_generation_prompt=True).text
            for text in QUESTIONS
        ]
        if any(rendered):  # a template may render nothing of a lone question
            kinds.append([tokenizer.encode(text, special=False) for text in rendered])
    for openings in kinds:
        openings[:] = [one for one in openings if 0 < len(one) < length]
    if not all(kinds):
        raise BadRequest(
            f"--sequence-length {length} is shorter than every opening of --calibration self: give more"
        )
    return kinds
