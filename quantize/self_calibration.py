"""Calibration text that the model writes itself (Liu et al. 2023, LLM-QAT): no text is needed that it might
not have been trained on. It is sampled at temperature 1, from openings in several languages and code, half of
them in the chat template; the same seed gives the same text, on the same machine with as many threads.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.chat import ChatMessage
from models.config import ModelConfig
from models.errors import UnsupportedModel
from quantize import child
from quantize.calibration import FolderTokenizer, Samples, evenly, windows
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


def parallel(config: ModelConfig, length: int) -> int:
    """How many texts of `length` tokens are written at once."""
    per_text = length * kv_bytes_per_token(config)
    return max(1, min(MAX_PARALLEL, KV_BYTES // per_text))


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Of keys and values of all layers, in float16."""
    return 2 * config.n_layers * config.kv_size * HALF


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
    kinds = _openings(tokenizer, length)
    n_chat = count // 2 if len(kinds) > 1 else 0
    # A window more of each, since the last text of each may end early.
    wanted = [(count - n_chat + 1) * length, (n_chat + 1) * length][: len(kinds)]
    job: dict[str, Any] = {
        "openings": kinds,
        "wanted": wanted,
        "length": length,
        "seed": seed,
        "parallel": parallel(source.weights.config, length),
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
    streams = [windows((tokens for kind, tokens in texts if kind == k), length) for k in range(len(kinds))]
    taken = [evenly(streams[0], count - n_chat)]
    if n_chat:
        taken.append(evenly(streams[1], n_chat))
    tokens = np.concatenate(taken)
    return Samples(tokens, n_chat, f"{NAME}, seed {seed}", hashlib.sha256(tokens.tobytes()).hexdigest())


def _convert(folder: Path, path: Path) -> None:
    from quantize.pipeline import Request, run
    from quantize.plan import target_of

    try:
        run(Request(folder, target_of("q8_0"), path))
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"--calibration self has llama.cpp run the model, which it can't: {error}"
        ) from None


def _openings(tokenizer: FolderTokenizer, length: int) -> list[list[list[int]]]:
    """Of plain text, and of conversations where there is a chat template."""
    kinds = [[tokenizer.encode(text, special=True) for text in BEGINNINGS]]
    if tokenizer.template is not None:
        rendered = [
            tokenizer.template.render((ChatMessage("user", text),), add_generation_prompt=True).text
            for text in QUESTIONS
        ]
        kinds.append([tokenizer.encode(text, special=False) for text in rendered])
    for openings in kinds:
        openings[:] = [one for one in openings if 0 < len(one) < length]
    if not all(kinds):
        raise BadRequest(
            f"--sequence-length {length} is shorter than every opening of --calibration self: give more"
        )
    return kinds
