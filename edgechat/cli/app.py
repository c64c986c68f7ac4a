"""The command line as a whole: which commands there are.

A command is a module of this folder with a Typer app named `app`: one function, or several where the
command has verbs. It is listed in COMMANDS, and imported only when it is called, so that
`edgechat --help` costs nothing. A command raises; how that reaches the shell is decided in failures.py
alone. To end with a code without a message, a command raises `typer.Exit(code)`.
"""

import contextlib
import importlib
import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
import typer.core
from typer.exceptions import TyperException

from edgechat.cli import failures
from edgechat.cli.help_types import in_words
from edgechat.cli.output import json_objects
from edgechat.errors import ExitCode, UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """One command, without its module."""

    name: str
    module: str
    help: str
    """One line."""


COMMANDS = (
    Command("chat", "edgechat.cli.chat", "Talk to a model in the terminal."),
    Command("ask", "edgechat.cli.ask", "Answer one prompt, for pipes and scripts."),
    Command("models", "edgechat.cli.models", "Find, pull, list, show, plan, verify and remove models."),
    Command("quantize", "edgechat.cli.quantize", "Turn a checkpoint into a model that runs here."),
    Command("eval", "edgechat.cli.eval", "Measure a model's perplexity on a text."),
    Command("bench", "edgechat.cli.bench", "Measure a model's speed on this machine, beside its peers."),
    Command("doctor", "edgechat.cli.doctor", "Say what this machine can do, and what is amiss."),
)


class LazyGroup(typer.core.TyperGroup):
    """Commands that are imported when they are called, and not to be listed."""

    def __init__(self, **attributes: Any) -> None:
        """List every command by its name and its line of help alone."""
        super().__init__(**attributes)
        for command in COMMANDS:
            self.add_command(typer.core.TyperCommand(command.name, help=command.help))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The options before the command.

        Raises:
            UsageError: one of them is a command's own, with what to type.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            from edgechat.cli import hints

            option = getattr(error, "option_name", None)
            if option and (hint := hints.instead_of_option(option, given, _options())):
                raise UsageError(hint) from error
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments name, imported.

        Raises:
            UsageError: it is a model, a question or another program's word for one, with what to type.
        """
        try:
            name, listed, rest = super().resolve_command(ctx, args)
        except TyperException as error:
            from edgechat.cli import hints

            if hint := hints.instead_of_word(args[0], args[1:]):
                raise UsageError(hint) from error
            raise
        return name, listed if name is None else load_command(name), rest

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Read the options, some of which print; a reader that went away is told from other trouble."""
        with failures.told_from_gone_readers():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run, and tell a reader that went away from other trouble, which Typer does not."""
        with failures.told_from_gone_readers():
            return super().invoke(ctx)


def _options() -> Iterator[tuple[str, set[str]]]:
    """Each command's name, and its options, as they are typed; those of its verbs are none of its own."""
    for command in COMMANDS:
        parameters = load_command(command.name).params
        yield command.name, {option for one in parameters for option in (*one.opts, *one.secondary_opts)}


def load_command(name: str) -> Any:
    """Import a command's module.

    Returns:
        A Typer command or group.
    """
    (command,) = (one for one in COMMANDS if one.name == name)
    module_app: typer.Typer = importlib.import_module(command.module).app
    # Whatever each says of itself, all help pages look alike, and completion is the whole program's.
    module_app.rich_markup_mode = None
    module_app._add_completion = False
    loaded = typer.main.get_command(module_app)
    loaded.name = name
    in_words(loaded)
    return loaded


def _print_version(wanted: bool) -> None:
    if wanted:
        from edgechat import __version__

        typer.echo(f"edgechat {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.callback(epilog="`edgechat` alone opens the chat with the starter model.")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    stay_offline: Annotated[
        bool, typer.Option("--offline", help="Open no network connection whatever happens.")
    ] = False,
) -> None:
    """Run a language model on the machine in front of you, offline."""
    from edgechat import offline

    if why := offline.reason(stay_offline):
        offline.start(why)


def main(arguments: Sequence[str]) -> int:
    """Run the command line.

    Args:
        arguments: what follows the program's name.

    Returns:
        What to answer to the shell.
    """
    if not arguments:
        arguments = ["chat"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--help"]
    printed = json_objects()
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="edgechat", standalone_mode=False)
        if code == ExitCode.INTERRUPTED:  # Typer makes it of an interrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
    except BaseException as error:
        as_json = wants_json(arguments) and json_objects() == printed
        code = failures.report(error, as_json=as_json, arguments=arguments)
    finally:
        _allow_network()
    return code if isinstance(code, int) else 0


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, be it right or wrong in all else."""
    return "--json" in itertools.takewhile(lambda word: word != "--", arguments)


def _allow_network() -> None:
    """Take back what `--offline` asked for: a process may run several command lines, as tests do."""
    if "edgechat.offline" in sys.modules:
        sys.modules["edgechat.offline"].stop()


def run() -> NoReturn:
    """Run the command line on the process's own arguments, and end.

    While a command runs, Ctrl-C is an exception, so that it can clean up; afterwards it is ending anyway.
    """
    before = signal.getsignal(signal.SIGINT)
    code: int = ExitCode.INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt):  # between the lines of ours
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(sys.argv[1:])
    with contextlib.suppress(KeyboardInterrupt):
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
