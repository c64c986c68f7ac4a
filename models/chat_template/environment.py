"""Jinja's immutable sandbox with what transformers gives to a chat template."""

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer

from models.chat_template.budget import NEW_ELEMENT, REFERENCE, OverBudget, current
from models.chat_template.operations import (
    FILTER_CHECKS,
    before_format,
    before_join,
    before_method,
    before_operator,
)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model itself wrote; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> Any:
        return caller()


class _TemplateNamespace(Namespace):
    """A namespace without private attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # it may hold itself


class _DictGlobal:
    """`dict(...)` and `dict.fromkeys(...)`, and no type to climb from."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no private name: {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it: Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    current().expect_text(16 * n * max)
    return generate_lorem_ipsum(n, html, min, max)


class _Formatter(SandboxedFormatter):
    """`"...".format(...)` that makes no text larger than the budget allows."""

    def format_field(self, value: Any, format_spec: str) -> str:
        before_format(current(), value, format_spec)
        return current().made(cast(str, super().format_field(value, format_spec)))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        current().weigh(value)
        return current().made(super().convert_field(value, conversion))


class _Watched(NodeTransformer):
    """Adds to a template's tree the calls that account for what has no hook in Jinja."""

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered(self.generic_visit(node), "_made")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _filtered(self.generic_visit(node), "_made")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        visited = self.generic_visit(node)
        return _filtered(visited, "_made") if node.ctx == "load" else visited

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        visited = self.generic_visit(node)
        return _filtered(visited, "_made") if isinstance(node.arg, nodes.Slice) else visited

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(part, "_joins") for part in node.nodes]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("count_turn"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return node


def _filtered(node: Any, name: str) -> nodes.Filter:
    filtered = nodes.Filter(node, name, [], [], None, None)
    filtered.lineno = node.lineno
    return filtered


def _made(value: Any) -> Any:
    return current().made(value)


def _joins(value: Any) -> Any:
    return current().made(_as_text(value))


def _as_text(value: Any) -> Any:
    """What is printed for a value. Text stays as it is, so that text marked as safe stays marked."""
    if isinstance(value, str):
        return value
    current().weigh(value)
    return current().made(str(value))


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """What chat templates are compiled and rendered in, on a thread that has a budget."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
            finalize=self._printed,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _checked(name, function) for name, function in self.filters.items()}
        self.filters |= {"_made": _made, "_joins": _joins}
        self.globals["lipsum"] = _lipsum
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        self.globals["dict"] = _DictGlobal()
        self.globals["namespace"] = _TemplateNamespace

    def template(self, source: str, max_nodes: int) -> Template:
        """Compile `source`.

        Raises:
            jinja2.TemplateError: it is no template.
            OverBudget: it has more than `max_nodes` nodes.
        """
        tree = self.parse(source)
        if sum(1 for _ in tree.find_all(nodes.Node)) > max_nodes:
            raise OverBudget(f"it has more than {max_nodes} parts")
        tree = _Watched().visit(tree)
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def count_turn(self) -> None:
        """Account for what one turn of a loop may leave behind in a buffer."""
        current().spend(NEW_ELEMENT)

    def concat(self, parts: Iterable[str]) -> str:
        """The text of a macro or a block."""
        collected = parts if isinstance(parts, list) else list(parts)
        current().expect_text(sum(map(len, collected)))
        return current().made("".join(collected))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, where it isn't too much."""
        before_operator(current(), operator, left, right)
        return current().made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`function(...)`, where it isn't too much."""
        owner = getattr(function, "__self__", None) if isinstance(function, BuiltinMethodType) else None
        if owner is None:
            return current().made(super().call(context, function, *args, **kwargs))
        name = function.__name__
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            args = (before_join(current(), owner, args[0]),)
        before_method(current(), owner, name, args, kwargs)
        return current().made(super().call(context, function, *args, **kwargs), new_elements=True)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse the attribute at once: nobody asks for it without a purpose."""
        raise SecurityError(f"it asks for {attribute!r} of a {type(obj).__name__}, which is not allowed")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format` and `format_map` of a text, made safe."""
        if super().wrap_str_format(value) is None:
            return None
        text, is_map = value.__self__, value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            if is_map:
                (kwargs,), args = args, ()
            return type(text)(_Formatter(self).vformat(text, args, kwargs))  # type: ignore[no-any-return]

        return formatted

    @staticmethod
    def _printed(value: Any) -> Any:
        current().spend(2 * REFERENCE)
        return _as_text(value)


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its check before and its account after."""
    check = FILTER_CHECKS.get(name)
    n_passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # the environment or a context comes first

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        if check is not None:
            passed, (value, *others) = args[:n_passed], args[n_passed:]
            args = (*passed, check(budget, value, *others, **kwargs), *others)
        return budget.made(function(*args, **kwargs), new_elements=True)

    return checked
