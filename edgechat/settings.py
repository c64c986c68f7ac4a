"""The person's settings, from config.toml.

Each field's description is a sentence for the person; the documentation is generated from them.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from edgechat.errors import UsageError
from edgechat.records import KVType, LoadSettings, SamplingSettings


class ChatSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[chat]: the terminal app."""

    model: Annotated[str, Meta(description="Model that is used where none is named.")] = "starter"
    theme: Annotated[Literal["dark", "light"], Meta(description="Colours of the terminal app.")] = "dark"
    system_prompt: Annotated[
        str | None,
        Meta(description='System prompt of new conversations; left out: the model\'s own, "": none at all.'),
    ] = None


class SamplingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[sampling]: how the next token is drawn."""

    temperature: Annotated[
        float, Meta(ge=0, le=100, description="Higher is more varied; 0 takes the likeliest token.")
    ] = 0.8
    top_k: Annotated[
        int, Meta(ge=0, le=2**31, description="Keep this many of the likeliest tokens; 0 keeps all.")
    ] = 40
    top_p: Annotated[
        float, Meta(ge=0, le=1, description="Keep the likeliest tokens up to this share of probability.")
    ] = 0.95
    min_p: Annotated[
        float, Meta(ge=0, le=1, description="Drop tokens less likely than this share of the likeliest.")
    ] = 0.05
    repetition_penalty: Annotated[
        float, Meta(ge=0.01, le=10, description="Above 1, tokens that were used become less likely.")
    ] = 1.0
    max_tokens: Annotated[
        int, Meta(ge=0, le=2**31, description="Longest answer in tokens; 0 for no limit but the context.")
    ] = 0

    def settings(self, **changed: Any) -> SamplingSettings:
        """As the engine takes them, with what the command line gives in place of the file's.

        Args:
            changed: fields of SamplingSettings; None leaves the file's value.

        Raises:
            UsageError: a value is out of its range.
        """
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "max_tokens"}
        values |= {name: value for name, value in changed.items() if value is not None}
        try:
            return SamplingSettings(**values)
        except ValueError as error:
            raise UsageError(str(error)) from error


class EngineSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[engine]: how a model is loaded."""

    ctx: Annotated[
        int,
        Meta(ge=0, le=2**24, description="Tokens of context; 0 for the model's own, at most 8192."),
    ] = 0
    threads: Annotated[
        int, Meta(ge=0, le=512, description="Threads; 0 for the machine's physical cores.")
    ] = 0
    gpu_layers: Annotated[
        int, Meta(ge=-1, le=2**31 - 1, description="Layers on the GPU; -1 for all that fit.")
    ] = -1
    kv_type: Annotated[
        KVType, Meta(description="Type of the context's memory; q8_0 halves it at a small cost in quality.")
    ] = "f16"
    draft: Annotated[
        str,
        Meta(
            description="What drafts tokens ahead: off, ngram (words of the conversation), auto (also a "
            "smaller model of the same vocabulary, where one is found and pays), or a model's name or path."
        ),
    ] = "auto"
    summarize: Annotated[
        bool,
        Meta(
            description="When the context is full, the model sums up what leaves it, and goes on with that."
        ),
    ] = False

    def load(self, path: Path, **changed: Any) -> LoadSettings:
        """As the engine takes them, with what the command line gives in place of the file's.

        Args:
            path: the model.
            changed: fields of LoadSettings; None leaves the file's value.

        Raises:
            UsageError: a value is out of its range.
            NotFoundError: there is no such draft model.
        """
        from edgechat import paths
        from edgechat.library.draft import draft_for

        values: dict[str, Any] = {
            "n_ctx": self.ctx,
            "n_threads": self.threads,
            "n_gpu_layers": self.gpu_layers,
            "kv_type": self.kv_type,
        }
        given = {name: value for name, value in changed.items() if value is not None}
        draft, must_pay = draft_for(given.pop("draft", self.draft), path)
        values |= {
            "draft": draft,
            "draft_must_pay": must_pay,
            "cost_folder": str(paths.cache_dir() / "costs"),
        }
        fixed = tuple(name for name in ("kv_type", "n_batch", "n_gpu_layers") if name in given)
        try:
            return LoadSettings(path=str(path), fixed=fixed, **values | given)
        except ValueError as error:
            raise UsageError(str(error)) from error


class CacheSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[cache]: what is kept so that it need not be computed again."""

    memory_mb: Annotated[
        int, Meta(ge=0, le=2**20, description="Memory for the states of idle conversations, in MiB.")
    ] = 512
    disk_mb: Annotated[
        int, Meta(ge=0, le=2**24, description="Disk for the states of closed conversations, in MiB.")
    ] = 2048


class ModelsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[models]: where models are."""

    folders: Annotated[
        tuple[str, ...], Meta(description="Further folders whose GGUF files are found by name.")
    ] = ()
    other_programs: Annotated[
        bool,
        Meta(description="Use models of Hugging Face, llama.cpp, ollama and LM Studio where they lie."),
    ] = True


class NetworkSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[network]: what may be asked of the network."""

    offline: Annotated[
        bool, Meta(description="Never open a network connection, not even to pull a model.")
    ] = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of config.toml; each section and each key may be left out."""

    chat: ChatSection = ChatSection()
    sampling: SamplingSection = SamplingSection()
    engine: EngineSection = EngineSection()
    cache: CacheSection = CacheSection()
    models: ModelsSection = ModelsSection()
    network: NetworkSection = NetworkSection()


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One key of config.toml, for the documentation."""

    section: str
    key: str
    default: object
    sentence: str


def load(path: Path | None = None) -> Settings:
    """The settings in a file; the defaults where there is none.

    Args:
        path: None for the person's own config.toml.

    Raises:
        UsageError: the file can't be read, or something in it is unknown or of a wrong type.
    """
    from edgechat import paths

    path = paths.config_file() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: can't be read, it is not UTF-8") from error
    return parse(text, str(path))


def parse(text: str, where: str) -> Settings:
    """The settings in a TOML text.

    Args:
        text: TOML.
        where: the file's name, for errors.

    Raises:
        UsageError: one line that names the file, its line and the key.
    """
    try:
        return msgspec.convert(tomllib.loads(text), Settings)
    except tomllib.TOMLDecodeError as error:
        what, place = _without_place(str(error), text)
        raise UsageError(f"{where}, line {place}: {what[:1].lower()}{what[1:]}") from error
    except msgspec.ValidationError as error:
        key, what = _plain(str(error))
        line = _line_of(key, text)
        raise UsageError(f"{where}{f', line {line}' if line else ''}: {what}") from error


def describe() -> Iterator[SettingDescription]:
    """Every key, in the file's order."""
    for section, kind in get_type_hints(Settings).items():
        hints = get_type_hints(kind, include_extras=True)
        for key, default in zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True):
            (meta,) = hints[key].__metadata__
            yield SettingDescription(section, key, default, meta.description)


def _without_place(message: str, text: str) -> tuple[str, int]:
    """tomllib's message without where that is, and the line; without one it is the last."""
    found = re.fullmatch(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL)
    last = max(len(text.rstrip().splitlines()), 1)
    return (message, last) if found is None else (found[1], int(found[2] or last))


def _line_of(key: str, text: str) -> int | None:
    """The line that sets a key such as "engine.ctx", or else the one that its section begins with."""
    section, at = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^]]+?)\s*\]", line):
            name = section = header[1]
        elif assigned := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            name = f"{section}.{assigned[1]}".lstrip(".")
        else:
            continue
        name = re.sub(r"[\"' ]", "", name)
        if name == key:
            return number
        if at is None and key.startswith(f"{name}."):
            at = number
    return at


def _plain(message: str) -> tuple[str, str]:
    """The key that msgspec's message is about, and the message with it first."""
    what, _, where = message.partition(" - at `$")
    key = re.sub(r"\[.*", "", where.strip("`").lstrip("."))
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    if unknown:
        name = f"{key}.{unknown[1]}" if key else unknown[1]
        known = (
            [f"{one.section}.{one.key}" for one in describe()] if key else list(Settings.__struct_fields__)
        )
        close = difflib.get_close_matches(name, known, n=1)
        return name, f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else "")
    if what.startswith("Invalid enum value"):
        what += f", give {' or '.join(_allowed(key))}"
    elif plain := _wanted(key, what):
        what = plain
    return key, f"{key}: {what[:1].lower()}{what[1:]}"


KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "bool": "true or false",
    "array": "a list in brackets",
    "object": "a section",
}
BOUNDS = {">=": "of at least", "<=": "of at most"}


def _wanted(key: str, message: str) -> str:
    """msgspec's message on a value, in words: "give a whole number, not a text in quotes"."""
    found = re.fullmatch(r"Expected `(\w+)(?: \| null)?`(?:, got `(\w+)`| ([<>]=) ([-\d.]+))", message)
    if found is None or found[1] not in KINDS:
        return ""
    kind, got, bound, limit = found.groups()
    wanted = f"give {KINDS[kind]}{' of MiB' if key.endswith('_mb') else ''}"
    if got is not None:
        return f"{wanted}, not {KINDS.get(got, 'anything else')}"
    return f"{wanted} {BOUNDS[bound]} {limit.removesuffix('.0')}"


def _allowed(key: str) -> tuple[str, ...]:
    """The values of a key that takes a few."""
    section, _, name = key.partition(".")
    kind = get_type_hints(get_type_hints(Settings)[section])[name]
    return tuple(str(value) for value in get_args(kind))
