"""Which of llama.cpp's pre-tokenizers splits text as a tokenizer.json says.

llama.cpp knows each by a name and has its regular expression compiled in; tokenizer.json spells the
expression out. They are matched by what they say, not by who made the model.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import UnsupportedModel

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _SIGNS + _TAIL

# What the splitting steps say, one after the other -> the name, and whether llama.cpp takes whole words that
# are in the vocabulary without merging (`ignore_merges`); None where either is fine.
_KNOWN: dict[tuple[str, ...], tuple[tuple[str, bool], ...]] = {
    (_GPT2,): (("gpt-2", False),),
    ("digits:1", _GPT2): (("smollm", False),),
    ("digits:n", _GPT2): (("gpt-2", False),),  # its expression keeps runs of digits apart anyway
    (_LLAMA3,): (("llama-bpe", True), ("dbrx", False)),
    (_WORDS + r"|\p{N}" + _SIGNS + _TAIL,): (("qwen2", False),),
    (_CASED.replace("@", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL,): (("tekken", True),),
    (_CASED.replace("@", _SUFFIX) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL,): (("gpt-4o", False),),
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ): (("deepseek-v3", False),),
}


COMPOSES = frozenset({"qwen2", "qwen35", "command-r", "olmo", "mpt"})
"""Names whose models' own tokenizers compose characters (Unicode's NFC) before all else. llama.cpp doesn't:
whoever gives it text has to."""
# Of two names under which llama.cpp splits alike, the one whose models compose, or the one whose don't:
_COMPOSING = {"gpt-2": "olmo", "smollm": "command-r"}
_NOT_COMPOSING = {"qwen2": "deepseek-r1-qwen"}


def name_of(
    pre_tokenizer: Mapping[str, Any] | None, *, ignore_merges: bool, composes: bool, where: object
) -> str:
    """llama.cpp's name of the pre-tokenizer of a byte-level BPE tokenizer.

    Args:
        pre_tokenizer: that section of tokenizer.json.
        ignore_merges: the model section's flag.
        composes: whether characters are composed beforehand. Where llama.cpp knows the splitting under no
            name of which the same is true, the name returned is not in COMPOSES.
        where: the file, for messages.

    Raises:
        UnsupportedModel: no pre-tokenizer of llama.cpp splits like that.
    """
    steps = tuple(_steps(pre_tokenizer, where))
    names = _KNOWN.get(steps)
    if names is None:
        raise UnsupportedModel(
            f"{where}: text is split by {' and then by '.join(steps) or 'nothing'}, "
            "for which llama.cpp has no pre-tokenizer known here"
        )
    name = next((name for name, ignores in names if ignores == ignore_merges), names[0][0])
    return (_COMPOSING if composes else _NOT_COMPOSING).get(name, name)


def _steps(section: Mapping[str, Any] | None, where: object) -> Iterator[str]:
    """The splitting steps, each as the expression that it amounts to."""
    kind = section.get("type") if isinstance(section, Mapping) else None
    if section is None or kind is None:
        return
    if kind == "Sequence":
        for part in section.get("pretokenizers", ()):
            yield from _steps(part, where)
    elif kind == "ByteLevel":
        if section.get("add_prefix_space"):
            raise UnsupportedModel(
                f"{where}: a byte-level tokenizer that adds a space in front: llama.cpp has none"
            )
        if section.get("use_regex", True):
            yield _GPT2
    elif kind == "Digits":
        yield "digits:1" if section.get("individual_digits") else "digits:n"
    elif kind == "Split":
        pattern = section.get("pattern")
        text = pattern.get("Regex", pattern.get("String")) if isinstance(pattern, Mapping) else None
        if section.get("behavior") not in {"Isolated", "Removed"} or not isinstance(text, str):
            raise UnsupportedModel(f"{where}: a pre-tokenizer that splits with {section.get('behavior')!r}")
        if section.get("behavior") == "Removed" and not section.get("invert"):
            raise UnsupportedModel(f"{where}: a pre-tokenizer that drops text")
        yield _digits(text)
    else:
        raise UnsupportedModel(f"{where}: the pre-tokenizer {kind!r} is not supported")


def _digits(pattern: str) -> str:
    return "digits:1" if pattern in {r"\p{N}", r"\d"} else pattern


# --- the other way

IGNORES_MERGES = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)
"""Names under which whole words that are tokens are taken without merging."""
STARTS_WITH_BOS = IGNORES_MERGES
"""Names under which texts begin with a token where the file doesn't say."""

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_ALIASES = {
    "gpt-2": ("phi-2", "gigachat", "mellum", "mpt", "olmo", "jais"),
    "smollm": ("starcoder", "refact", "command-r", "codeshell"),
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"),
    "dbrx": ("smaug-bpe",),
    "qwen2": ("deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2"),
    "gpt-4o": ("llama4", "kanana2"),
}
"""Names under which llama.cpp splits just as under another."""
LIKE_GPT2 = frozenset(
    alike
    for steps, names in _KNOWN.items()
    if steps[-1] == _GPT2
    for name, _ in names
    for alike in (name, *_ALIASES.get(name, ()))
)
"""Names under which llama.cpp splits with GPT-2's expression, all digits apart or not."""


def steps_named(name: str, where: object) -> tuple[dict[str, Any], ...]:
    """How text is split under one of llama.cpp's names, as sections of tokenizer.json.

    Raises:
        UnsupportedModel: the name's expression is not known here.
    """
    plain = next((known for known, others in _ALIASES.items() if name in others), name)
    for steps, names in _KNOWN.items():
        if plain in {one for one, _ in names}:
            return (*(_section(step) for step in steps), dict(_BYTES))
    known = sorted({one for names in _KNOWN.values() for one, _ in names})
    raise UnsupportedModel(
        f"{where}: its pre-tokenizer {name[:64]!r} can't be made into one for transformers: "
        f"{', '.join(known)} can; give the original checkpoint's folder"
    )


def _section(step: str) -> dict[str, Any]:
    if step == "digits:1":
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
