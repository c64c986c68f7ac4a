"""What operators, formats, methods and filters would make, estimated before they make it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from models.chat_template.budget import MAX_BITS, NEW_ELEMENT, Budget, OverBudget

_MAX_DIGITS = 6
"""Digits of a width or a precision in a format."""
_MAX_ROUND = 1000
_SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000"
_WIDE = frozenset({"center", "ljust", "rjust", "zfill", "to_bytes"})


def before_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Refuse an operation between two values whose result would be too large.

    Raises:
        OverBudget: it would be.
    """
    if operator == "*":
        _before_product(budget, left, right)
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
            _expect_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        before_percent(budget, left, right)
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        budget.expect_text(len(left) + len(right))


def _before_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _expect_bits(left.bit_length() + right.bit_length())
        return
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            # an element that prints as nothing still takes its place
            weight = budget.weigh(sequence)
            budget.expect_text((weight.chars + weight.items) * max(count, 0))


def _expect_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise OverBudget("it makes a number of too many digits")


def before_percent(budget: Budget, template: str, values: Any) -> None:
    """The same for `template % values`.

    Raises:
        OverBudget: the text would be too long, or its length is among the values.
    """
    fields = width = 0
    at = template.find("%")
    while at >= 0:
        at += 1
        if template.startswith("(", at):
            at = template.find(")", at) + 1
            if at == 0:
                break
        start = at
        while at < len(template) and template[at] in "#0- +.*123456789":
            at += 1
        if at - start > 4 * _MAX_DIGITS or "*" in template[start:at]:
            raise OverBudget("it formats with a width that is too large")
        fields += 1
        width += sum(map(_number, re.findall(r"\d+", template[start:at])))
        at = template.find("%", at + 1)
    budget.expect_text(len(template) + width + fields * budget.weigh(values).chars)


def before_format(budget: Budget, value: Any, spec: str) -> None:
    """The same for `format(value, spec)`.

    Raises:
        OverBudget: the text would be too long.
    """
    if len(spec) > 100:
        raise OverBudget("it formats with a width that is too large")
    budget.expect_text(sum(map(_number, re.findall(r"\d+", spec))) + budget.weigh(value).chars)


def _number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise OverBudget("it formats with a width that is too large")
    return int(digits)


def before_method(budget: Budget, owner: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """The same for a method of a text, a list, a dict or a number.

    Raises:
        OverBudget: the result would be too large.
    """
    if name in _WIDE:
        budget.expect_text(
            max((size for size in (*args, *kwargs.values()) if isinstance(size, int)), default=0)
        )
    if isinstance(owner, str):
        if name == "replace" and len(args) >= 2:
            before_replace(budget, owner, args[0], args[1])
        elif name == "translate" and args and isinstance(args[0], dict):
            longest = max((len(text) for text in args[0].values() if isinstance(text, str)), default=1)
            budget.expect_text(len(owner) * max(longest, 1))
        elif name == "expandtabs":
            size = next((size for size in (*args, *kwargs.values()) if isinstance(size, int)), 8)
            budget.expect_text(len(owner) + owner.count("\t") * max(size, 0))
        elif name in {"split", "rsplit", "splitlines"}:
            separator = next((text for text in (*args, kwargs.get("sep")) if isinstance(text, str)), "")
            separators = [separator] if separator else _SPACES
            budget.spend(NEW_ELEMENT * (1 + sum(owner.count(text) for text in separators)))


def before_replace(budget: Budget, text: str, old: Any, new: Any) -> None:
    """The same for `text.replace(old, new)`.

    Raises:
        OverBudget: the text would be too long.
    """
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        budget.expect_text(len(text) + text.count(old) * (len(new) - len(old)))


def before_join(budget: Budget, separator: Any, values: Iterable[Any]) -> Sequence[Any]:
    """The same for `separator.join(values)`, and the values as a list.

    Raises:
        OverBudget: the text would be too long.
    """
    collected = budget.collect(values)
    budget.expect_text(budget.weigh(collected).chars + len(collected) * len(str(separator)))
    return collected


# Filters. Each takes the budget, the filtered value and the filter's other arguments, and gives the value
# that the filter is called with: an iterator can be looked at only once.

Check = Callable[..., Any]


def _printed(budget: Budget, value: Any, *_: Any, **__: Any) -> Any:
    budget.weigh(value)
    return value


def _in_words(budget: Budget, value: Any, *_: Any, **__: Any) -> Any:
    budget.spend(32 * budget.weigh(value).chars)
    return value


def _collected(budget: Budget, value: Any, *_: Any, **__: Any) -> Any:
    if isinstance(value, str):
        budget.spend(NEW_ELEMENT * len(value))
        return value
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return value
    return budget.collect(value)


def _center(budget: Budget, value: Any, width: int = 80) -> Any:
    budget.expect_text(width)
    return _printed(budget, value)


def _indent(budget: Budget, value: Any, width: int | str = 4, *_: Any, **__: Any) -> Any:
    text = str(_printed(budget, value))
    lines = 1 + sum(text.count(end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    budget.expect_text(len(text) + lines * (len(width) if isinstance(width, str) else width))
    return value


def _wordwrap(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
    between = args[2] if len(args) > 2 else kwargs.get("wrapstring")
    budget.expect_text(len(str(_in_words(budget, value))) * len(between or " "))
    return value


def _pieces(budget: Budget, value: Any, number: int, *_: Any, **__: Any) -> Any:
    budget.spend(NEW_ELEMENT * max(number, 0))
    return _collected(budget, value)


def _round(budget: Budget, value: Any, precision: int = 0, *_: Any, **__: Any) -> Any:
    if abs(precision) > _MAX_ROUND:
        raise OverBudget("it rounds to too many digits")
    return value


def _format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
    before_percent(budget, str(_printed(budget, value)), kwargs or args)
    return value


def _replace(budget: Budget, value: Any, old: Any, new: Any, *_: Any, **__: Any) -> Any:
    text = str(_printed(budget, value))
    before_replace(budget, text, str(_printed(budget, old)), str(_printed(budget, new)))
    return value


def _join(budget: Budget, value: Any, d: Any = "", *_: Any, **__: Any) -> Any:
    return before_join(budget, _printed(budget, d), value)


def _sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    values = budget.collect(value)
    if not isinstance(start, int | float):  # each step copies all before it
        budget.spend(len(values) * (budget.weigh(values).items + budget.weigh(start).items))
    return values


def _tojson(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
    _, indent, separators, *_ = (*args, None, None, None)
    indent, separators = kwargs.get("indent", indent), kwargs.get("separators", separators)
    weight = budget.weigh(value)
    step = len(indent) if isinstance(indent, str) else (indent or 0)
    budget.expect_text(weight.chars + weight.items * (weight.depth * step + budget.weigh(separators).chars))
    return value


FILTER_CHECKS: dict[str, Check] = {
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
    "wordwrap": _wordwrap,
    **dict.fromkeys(("batch", "slice"), _pieces),
    **dict.fromkeys(("striptags", "title", "urlize", "wordcount"), _in_words),
    **dict.fromkeys(("groupby", "list", "max", "min", "reverse", "sort", "unique"), _collected),
    **dict.fromkeys(("capitalize", "e", "escape", "filesizeformat", "float", "forceescape", "int"), _printed),
    **dict.fromkeys(("lower", "pprint", "string", "trim", "truncate", "upper", "urlencode"), _printed),
    "xmlattr": _printed,
}
"""The others give no more than they get: attr, count, default, dictsort, first, items, map, select, ..."""
