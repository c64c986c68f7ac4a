"""The records that cross the border between the engine's process and everything else.

They are msgspec structs, so that what comes out of the pipe is checked against their types.
"""

from enum import StrEnum
from typing import Literal

import msgspec

KVType = Literal["f16", "q8_0", "q4_0"]


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string was met."""
    LENGTH = "length"
    """The limit on tokens, or the end of the context, was reached."""
    CANCELLED = "cancelled"
    """The person stopped it."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a runtime can do with the model that it holds: asked before use, never assumed."""

    shift: bool
    """`evict` works: the positions of what stays can be moved."""
    rollback: int
    """How many tokens `truncate` may forget; -1 for any number."""
    fork: bool
    """`fork` shares a prefix of any length."""
    hidden_states: bool = False


class ModelInfo(msgspec.Struct, frozen=True):
    """A loaded model, and how it was loaded."""

    name: str
    path: str
    architecture: str
    quantization: str
    """As llama.cpp names the file's type, such as "Q4_K - Medium"."""
    n_vocab: int
    n_layers: int
    n_ctx_train: int
    """Tokens of context that the model was trained on."""
    n_ctx: int
    """Tokens of context that this engine was loaded with."""
    n_params: int
    size_bytes: int
    """Bytes of the weights."""
    kv_bytes_per_token: int
    eog_ids: tuple[int, ...]
    """Every token that ends the model's turn."""
    chat_template: str | None
    """Jinja source; None for a base model, which gets plain completion."""
    can: Capabilities
    backend: str
    """What the layers run on: "CPU", "CUDA0 (NVIDIA H200)", ..."""
    n_gpu_layers: int
    n_threads: int
    fingerprint: str
    """Identifies the file's weights and vocabulary: the key of saved states."""
    mapped: bool = True
    """Whether weights in main memory are pages of their file."""
    n_swa: int = 0
    """Tokens that a layer with a sliding window of its own sees; 0 where all layers see all. After an
    eviction such a model's cache is computed anew and not shifted: it then says what it would have said."""


class LoadSettings(msgspec.Struct, frozen=True):
    """What a model is loaded with."""

    path: str
    n_ctx: int = 0
    """Tokens of context, shared by all sequences; 0: what the model was trained on, at most 8192."""
    n_batch: int = 512
    """Most tokens in one decode."""
    n_sequences: int = 4
    """Most sequences at once."""
    n_threads: int = 0
    """0: as many as the machine has physical cores."""
    n_gpu_layers: int = -1
    """-1: all that fit."""
    kv_type: KVType = "f16"
    use_mmap: bool | None = None
    """Whether the weights are pages of their file. None: unless there is plenty of memory, and huge pages to
    read them into, which make decoding faster."""
    state_folder: str = ""
    """Where the states of conversations are kept between runs; "" keeps them in memory only."""
    state_memory_bytes: int = 0
    """Memory for the states of idle conversations; 0 keeps none."""
    state_disk_bytes: int = 0
    """Disk for states in `state_folder`; 0 keeps none."""
    draft: str = ""
    """What drafts tokens that the model then verifies: "ngram" for the conversation's own words, the path of
    a smaller model of the same vocabulary, which drafts beside the words, or "" or "off" for nothing."""
    draft_must_pay: bool = False
    """The draft model was found, not named: without a word it is left out where it can't make answers
    faster."""
    n_draft_max: int = 15
    """Most tokens that are drafted for one step."""
    cost_folder: str = ""
    """Where the measured times of batches are kept between runs; "" measures at each load."""
    fixed: tuple[str, ...] = ()
    """Fields that the person chose: where memory is short they are honoured or refused, never changed. A
    context other than 0 always is."""

    def __post_init__(self) -> None:
        """Refuse what no engine could be loaded with.

        Raises:
            ValueError: a number is out of its range.
        """
        if self.n_ctx < 0 or self.n_ctx > 2**24:
            raise ValueError(f"context of {self.n_ctx} tokens: give 0 (automatic) to {2**24}")
        if not 1 <= self.n_sequences <= 64:
            raise ValueError(f"{self.n_sequences} sequences: give 1 to 64")
        if not 32 <= self.n_batch <= 4096:
            raise ValueError(f"batch of {self.n_batch} tokens: give 32 to 4096")
        if not 0 <= self.n_threads <= 512:
            raise ValueError(f"{self.n_threads} threads: give 0 (automatic) to 512")
        if not 1 <= self.n_draft_max <= 15:
            raise ValueError(f"{self.n_draft_max} drafts a step: give 1 to 15")


class Grammar(msgspec.Struct, frozen=True):
    """What an answer's text must be."""

    text: str
    kind: Literal["json_schema", "gbnf"]
    """"gbnf": llama.cpp's grammars, or Lark's as llguidance has them."""


class SamplingSettings(msgspec.Struct, frozen=True):
    """How the next token is drawn. Defaults are llama.cpp's own."""

    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int = 40
    """0 keeps all."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    """How many of the last tokens the penalties look at."""
    seed: int | None = None
    """None draws one; the same seed gives the same text."""

    def __post_init__(self) -> None:
        """Refuse what is outside its range.

        Raises:
            ValueError: a setting is out of its range.
        """
        ranges = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 2**31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 10.0),
            "presence_penalty": (-10.0, 10.0),
            "frequency_penalty": (-10.0, 10.0),
            "penalty_last_n": (0, 2**20),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise ValueError(f"{name.replace('_', '-')} of {value}: give {low} to {high}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ValueError(f"seed of {self.seed}: give 0 to 2^64-1")


class Timings(msgspec.Struct, frozen=True):
    """How long one answer took. Seconds by the engine's monotonic clock."""

    load_s: float
    """Loading the model; 0 where it was loaded before."""
    ttft_s: float
    """From the request's arrival in the engine to its first token."""
    prefill_tokens: int
    """Prompt tokens computed; those that a cached prefix spared are not among them."""
    prefill_s: float
    decode_tokens: int
    decode_s: float
    tokens_per_s: float
    """decode_tokens / decode_s, without the first token, which prefill paid for; 0 below two tokens."""
    cached_tokens: int = 0
    """Prompt tokens that a cached prefix spared."""


class Speculation(msgspec.Struct, frozen=True):
    """What drafting and verifying did for one answer."""

    steps: int
    """Batches of the model, those without drafts included."""
    tokens: int
    drafted: int
    """Tokens that were drafted and verified."""
    accepted: int
    """Of those, the ones that stood."""
    tokens_per_step: float
    """1 is plain decoding."""
    speedup: float
    """Tokens per second over plain decoding's."""
    predicted: float
    """The same, as it was expected before each step."""
    reason: str = ""
    """Why nothing was drafted at the end; empty while something was."""
