"""Write the reference pages that come from code: docs/cli.md and docs/settings.md.

python docs/generate.py            write them
python docs/generate.py --check    exit with 1 where one is out of date
"""

import ast
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec

DOCS = Path(__file__).parent
SETTINGS_LEAD = """\
Settings live in `config.toml`; `edgechat doctor` says where that is on your system. Each section and each
key may be left out. Options on the command line win over the file.
"""
BELOW = {
    ("ask",): """\
`--json` prints one of two objects. Once the options are understood it is the whole result, with every key:
`text` and `tokens` hold what there is of the answer. `error` is null where the exit code is 0, and else has
that `code` and a `message`: 130 and "interrupted" after Ctrl-C. `finish_reason` is `stop` where the model or
a stop string ended the answer, `length` where a limit did, `cancelled` where it is not whole for an error.
Where the options themselves are wrong it is `{"error": {"code": 2, "message": "..."}}` alone.
So read `error` first; the other keys may be missing beside it.

Where `--max-tokens` or Ctrl-C cuts an answer in the middle of a character, which may take several tokens, the
text ends before it; `tokens` has all. Bytes that can't become a character are U+FFFD.
""",
}
"""What a help page is too short for."""
ERRORS_AS_JSON = """\
With `--json`, a command that fails prints `{"error": {"code": ..., "message": "..."}}` on stdout, with the
exit code and the message that is on stderr too; `edgechat ask` tells most errors inside its result, as said
there.
"""
STANDARD_STREAMS = """\
A reader that has enough (`edgechat ask ... | head -n 1`) ends a command at once, quietly and with 0, and its
engine with it. Where standard output can't be written for another reason, that is said on stderr: the code is
5 where the disk is full, and 2 where standard output is closed (`>&-`). A closed standard input is an empty
one. A folder as standard input (`< FOLDER`) is refused by Python itself, with 1, before edgechat begins.
"""
HEADER = "<!-- Written by docs/generate.py from the code: change it there. -->\n"


def help_page(*command: str) -> str:
    """What `edgechat COMMAND --help` prints, 100 columns wide."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", *command, "--help"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def commands() -> Iterator[tuple[str, ...]]:
    """Every command, verbs after the command that they belong to."""
    from edgechat.cli.app import COMMANDS, load_command

    for command in COMMANDS:
        yield (command.name,)
        for verb in getattr(load_command(command.name), "commands", {}):
            yield (command.name, verb)


def cli_page() -> str:
    """The reference of the command line."""
    parts = [HEADER, "# Command line\n", f"```\n{help_page()}\n```\n"]
    for command in commands():
        title = " ".join(("edgechat", *command))
        parts.append(f"## {title}\n\n```\n{help_page(*command)}\n```\n")
        if command in BELOW:
            parts.append(BELOW[command])
    parts.append(f"## Exit codes\n\n{exit_codes()}\n{ERRORS_AS_JSON}\n{STANDARD_STREAMS}")
    return "\n".join(parts)


def exit_codes() -> str:
    """The table of exit codes, from the docstrings under the enum's members."""
    from edgechat.errors import ExitCode

    meanings = dict(documented_names(ExitCode))
    rows = [f"| {code.value} | {meanings[code.name]} |" for code in ExitCode]
    return "| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def documented_names(kind: type) -> Iterator[tuple[str, str]]:
    """Each name that is assigned in the class, with the docstring under it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for at, statement in enumerate(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
        else:
            continue
        match definition.body[at + 1 : at + 2]:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                yield name, " ".join(text.split())


def settings_page() -> str:
    """The reference of the settings file."""
    from edgechat import settings

    parts = [HEADER, "# Settings\n", SETTINGS_LEAD]
    for section, keys in itertools.groupby(settings.describe(), key=lambda one: one.section):
        parts.append(f"## [{section}]\n\n| key | default | meaning |\n|---|---|---|")
        for one in keys:
            default = "" if one.default is None else f"`{msgspec.json.encode(one.default).decode()}`"
            parts.append(f"| `{one.key}` | {default} | {one.sentence} |")
        parts.append("")
    return "\n".join(parts)


def main(check: bool) -> int:
    """Write the pages, or say which are out of date.

    Returns:
        The exit code.
    """
    stale = []
    for name, page in (("cli.md", cli_page()), ("settings.md", settings_page())):
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            stale.append(name)
            if not check:
                path.write_text(page, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
