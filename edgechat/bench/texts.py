"""The prompts that are measured with."""

from importlib.resources import files

from edgechat.records import SamplingSettings

GREEDY = SamplingSettings(temperature=0)
DRAWN = SamplingSettings(temperature=0.8, seed=7)

KINDS = {"edit": GREEDY, "quote": GREEDY, "json": GREEDY, "prose": DRAWN, "poem": DRAWN}
"""Kinds of text and how they are sampled: where there is one right answer the likeliest token is taken."""

OPENING = "Here is a long story about a ferryman, told as slowly as the river runs.\n\n"
SENTENCE = "The harbour was quiet, the boats lay still, and nobody on the quay spoke a word. "
SENTENCE_TOKENS = 18
"""About so many has SENTENCE."""
QUESTION = "What was it like in the harbour?"


def prompt(kind: str) -> str:
    """The prompt of a kind of text."""
    return files("edgechat.bench").joinpath("data", f"{kind}.txt").read_text(encoding="utf-8").rstrip()


def passage(n_tokens: int) -> str:
    """A text of about so many tokens, a few more than fewer."""
    return SENTENCE * (n_tokens // SENTENCE_TOKENS + 1)


def room(text: str, more: int) -> int:
    """Tokens of context that hold a text and so many more: no tokenizer makes more tokens than bytes."""
    n_ctx = len(text.encode()) + more
    return n_ctx + -n_ctx % 256
