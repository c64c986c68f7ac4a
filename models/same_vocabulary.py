"""Whether two models share a vocabulary, from their headers alone: no native code, no weights."""

from models.gguf import GGUFHeader, LazyArray

TOKENS = "tokenizer.ggml.tokens"
MOST_DIFFERENT = 128
"""Files of one family pad their vocabularies to different sizes."""
FIRST = 5
"""Tokens before this one are control tokens, which families name as they like."""


def vocabulary_difference(model: GGUFHeader, other: GGUFHeader) -> str:
    """Why tokens of `other` can't stand for those of `model`: a clause; "" where they can.

    Raises:
        BrokenModelFile: a file has changed since its header was read.
    """
    kinds = [header.metadata.get("tokenizer.ggml.model") for header in (model, other)]
    if kinds[0] != kinds[1]:
        return f"its tokenizer is {kinds[1]}, not {kinds[0]}"
    arrays = [header.metadata.get(TOKENS) for header in (model, other)]
    mine, its = arrays
    if not isinstance(mine, LazyArray) or not isinstance(its, LazyArray):
        return "a file has no vocabulary"
    if abs(len(mine) - len(its)) > MOST_DIFFERENT:
        return f"it has {len(its):,} tokens, not {len(mine):,}"
    if len(mine) == len(its) and mine.n_bytes == its.n_bytes and mine.raw() == its.raw():
        return _special(model, other)
    pairs = zip(mine.read_bytes(), its.read_bytes(), strict=False)
    for token, (here, there) in enumerate(pairs):
        if here != there and token >= FIRST:
            texts = (text.decode("utf-8", "replace") for text in (there, here))
            return "its token {} is {!r}, not {!r}".format(token, *texts)
    return _special(model, other)


def _special(model: GGUFHeader, other: GGUFHeader) -> str:
    """Ends of texts must be the same: a draft that ends is judged by the target's end."""
    key = "tokenizer.ggml.eos_token_id"
    here, there = model.metadata.get(key), other.metadata.get(key)
    if here is not None and there is not None and here != there:
        return f"its texts end with token {there}, not {here}"
    return ""
