"""What was measured, as `edgechat bench --json` prints it."""

from enum import StrEnum

import msgspec


class Part(StrEnum):
    """What can be measured, in the order in which it is."""

    DECODE = "decode"
    PREFILL = "prefill"
    VERIFY = "verify"
    SPECULATION = "speculation"
    WINDOW = "window"
    PREFIX = "prefix"
    MEMORY = "memory"


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second beside a peer's, medians of alternating runs."""

    tokens: int
    """Of one run."""
    runs: int
    tokens_per_s: float
    peer: str
    """What it is compared to."""
    peer_tokens_per_s: float
    over_peer: float
    """Median of the ratios of neighbouring runs."""
    gb_per_s: float | None = None
    """Bytes of the weights, times tokens per second: what decoding must read from memory at least. None where
    a token doesn't need all the weights (mixtures of experts)."""


class Verify(msgspec.Struct, frozen=True):
    """V(k): what a batch of k tokens takes, in plain steps."""

    plain_ms: float
    """One token."""
    widths: tuple[int, ...]
    over_plain: tuple[float, ...]
    """V(k) / V(1), [len(widths)]."""
    best: tuple[float, ...]
    """k / V(k): the speed-up if all tokens of the batch stood, over k plain steps. [len(widths)]"""
    peer: str = "k plain steps"


class KindOfText(msgspec.Struct, frozen=True):
    """Speculation on one kind of text."""

    kind: str
    off_tokens_per_s: float
    tokens_per_s: float
    over_off: float
    """Median of the rounds' ratios."""
    drafted: int
    accepted: int
    tokens_per_step: float
    predicted: float
    """The speed-up that the engine expected."""
    same_text: bool
    """As without drafts. Texts may part where two tokens are as likely, but for rounding."""
    reason: str
    """Why nothing was drafted at the end."""


class SpeculationResult(msgspec.Struct, frozen=True):
    """Decoding with drafts over decoding without, by kind of text."""

    draft: str
    """What drafted: "ngram", or a model's name."""
    tokens: int
    rounds: int
    kinds: tuple[KindOfText, ...]
    notes: tuple[str, ...] = ()
    """Why a draft model was left out."""
    peer: str = "the same without drafts"


class WindowResult(msgspec.Struct, frozen=True):
    """A text that is longer than the context."""

    n_ctx: int
    tokens: int
    evictions: int
    first_ms: float
    """Milliseconds per token from one eviction to the next, when the window had just filled,"""
    last_ms: float
    """and at the end; medians of some such rounds."""
    last_over_first: float
    rss_growth: float
    """Of the engine's resident memory, from the time the window had filled: 0.01 is one per cent."""
    peer: str = "the time when the window first filled"


class PrefixResult(msgspec.Struct, frozen=True):
    """Time to the first token of a conversation's next turn."""

    prompt_tokens: int
    runs: int
    cold_s: float
    next_turn_s: float
    restart_s: float
    """After a restart of the engine, with the state read from the disk; loading the model not counted."""
    cold_over_next_turn: float
    cold_over_restart: float
    peer: str = "a cold start"


class KVMemory(msgspec.Struct, frozen=True):
    """The cache in one type of number."""

    kv_type: str
    bytes_per_token: int
    total_bytes: int
    of_f16: float


class MemoryResult(msgspec.Struct, frozen=True):
    """Main memory of a loaded engine."""

    n_ctx: int
    kv: tuple[KVMemory, ...]
    """The type in use first."""
    measured_bytes: int
    """Resident memory of the engine's process after a prompt."""
    planned_bytes: int
    """What the planner says."""
    measured_over_planned: float
    peer: str = "the planner's estimate; f16"


class Report(msgspec.Struct):
    """All of it; parts that were not measured are None."""

    model: str = ""
    quantization: str = ""
    size_bytes: int = 0
    backend: str = ""
    threads: int = 0
    """At most."""
    adaptive_threads: bool = False
    quick: bool = False
    interrupted: bool = False
    warnings: list[str] = []
    decode: Speed | None = None
    prefill: Speed | None = None
    verify: Verify | None = None
    speculation: SpeculationResult | None = None
    window: WindowResult | None = None
    prefix: PrefixResult | None = None
    memory: MemoryResult | None = None
    seconds: float = 0.0
