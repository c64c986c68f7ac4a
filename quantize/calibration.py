"""The text that a model is run over to see what its matrices' inputs look like.

Half of the samples are plain text, half are conversations in the model's own chat template. Everything is
joined, cut into windows of one length, and as many windows as were asked for are taken evenly from all of it,
so that few samples too are of every kind.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from models.chat import ChatMessage
from models.chat_template.template import ChatTemplate
from models.chat_template.usable import usable_template
from models.errors import UnsupportedModel, UnsupportedTemplate
from models.json_file import optional_json
from quantize.errors import BadRequest, SourceNotFound, to_install

SAMPLES = 128
LENGTH = 512
MIN_LENGTH = 16

PLAIN = ("english.txt", "german.txt", "code.txt", "french.txt", "spanish.txt")
CHAT = "chat.jsonl"
PASSAGE = 900
"""Characters of a passage that a conversation is about."""

MAX_FILE_BYTES = 64 * 2**20

Conversation = tuple[ChatMessage, ...]
Tokens = npt.NDArray[np.int64]

ASK = (
    "Continue this text:\n\n{}",
    "Please go on from here.\n\n{}",
    "Here is the beginning of a passage. Write what comes next.\n\n{}",
    "What follows after this?\n\n{}",
)


@dataclass(frozen=True, slots=True)
class Texts:
    """What there is to take samples from."""

    name: str
    documents: tuple[str, ...]
    conversations: tuple[Conversation, ...]

    @property
    def sha256(self) -> str:
        """Of all of it."""
        turns = [[(m.role, m.content) for m in conversation] for conversation in self.conversations]
        return hashlib.sha256(json.dumps([self.documents, turns]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Samples:
    """Windows of tokens."""

    tokens: Tokens
    """[N, S]."""
    n_chat: int
    """How many of them are in the chat template."""
    source: str
    sha256: str
    """Of the text."""


class TextTokenizer(Protocol):
    """What samples are made with."""

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; `special`: with those that every text begins or ends with."""
        ...


class FolderTokenizer:
    """The tokenizer of a checkpoint's folder, as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            UnsupportedModel: there is no tokenizer.json, or the library that reads it.
        """
        path = check_tokenizer(folder)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UnsupportedModel(
                f"calibration needs the package tokenizers: {to_install('torch')}"
            ) from None
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a plain Exception
            raise UnsupportedModel(f"{path} can't be read: {error}") from None
        self.template, self.template_trouble = folder_template(folder)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; `special`: with those that every text begins or ends with."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids


def check_tokenizer(folder: Path) -> Path:
    """The file of a checkpoint's tokenizer.

    Raises:
        FileNotFoundError: there is none.
        UnsupportedModel: there is one in another form.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        if not (folder / "tokenizer.model").is_file():
            raise FileNotFoundError(f"{folder} has no tokenizer.json: download the rest")
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json, which calibration needs: save it with transformers"
        )
    return path


def folder_template(folder: Path) -> tuple[ChatTemplate | None, str]:
    """The chat template of a checkpoint's folder, and why it can't be used; "" where it can or there is none.

    Raises:
        BrokenModelFile: tokenizer_config.json is no JSON.
    """
    config = optional_json(folder / "tokenizer_config.json")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {str(one.get("name")): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    path = folder / "chat_template.jinja"
    if path.is_file():
        source = path.read_text(encoding="utf-8", errors="replace")
    if not isinstance(source, str) or not source.strip():
        return None, ""
    special = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        special[name] = token if isinstance(token, str) else None
    try:
        return usable_template(source, bos=special["bos_token"], eos=special["eos_token"]), ""
    except UnsupportedTemplate as error:
        return None, str(error)


def bundled() -> Texts:
    """The mix that comes with edgechat: quantize/data/calibration/README.md says where it is from.

    The first half of each text is read as it is; of the second half conversations are made.
    """
    folder = files("quantize").joinpath("data", "calibration")
    documents, passages = [], []
    for name in PLAIN:
        text = folder.joinpath(name).read_text(encoding="utf-8")
        middle = text.index("\n\n", len(text) // 2)
        documents.append(text[:middle])
        passages += _passages(text[middle:].strip("\n"))
    written = _conversations(folder.joinpath(CHAT).read_text(encoding="utf-8"), CHAT)[1]
    made = [
        (ChatMessage("user", ASK[i % len(ASK)].format(first)), ChatMessage("assistant", rest))
        for i, (first, rest) in enumerate(passages)
    ]
    return Texts("bundled", tuple(documents), tuple(_mixed(written, made)))


def _passages(text: str) -> list[tuple[str, str]]:
    """Pieces of whole lines, each in two."""
    found: list[tuple[str, str]] = []
    lines: list[str] = []
    size = 0
    for line in text.split("\n"):
        lines.append(line)
        size += len(line) + 1
        if size >= PASSAGE:
            whole = "\n".join(lines).strip("\n")
            middle = whole.find(" ", len(whole) // 3)
            if middle > 0:
                found.append((whole[:middle], whole[middle + 1 :]))
            lines, size = [], 0
    return found


def _mixed(few: Sequence[Conversation], many: Sequence[Conversation]) -> list[Conversation]:
    """Both in their order, the few spread evenly among the many."""
    places = [(i + 0.5) / len(few) for i in range(len(few))] + [i / len(many) for i in range(len(many))]
    both = [*few, *many]
    return [both[i] for i in sorted(range(len(both)), key=lambda i: places[i])]


def check_file(path: Path) -> None:
    """Refuse what can't be a calibration text, without reading it.

    Raises:
        SourceNotFound: there is no such file.
        BadRequest: it is too long.
    """
    if not path.is_file():
        raise SourceNotFound(f"no file at {path}: --calibration takes a .txt or a .jsonl file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadRequest(f"{path} is longer than {MAX_FILE_BYTES >> 20} MiB: a thousandth of it will do")


def from_file(path: Path) -> Texts:
    """A text file, or one JSON object a line: {"text": ...} or {"messages": [{"role", "content"}, ...]}.

    Raises:
        SourceNotFound: there is no such file.
        BadRequest: it is empty, too long, or not what it should be.
    """
    check_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not a UTF-8 text (byte {error.start}): convert it first") from None
    if not text.strip():
        raise BadRequest(f"{path} is empty: there is nothing to calibrate with")
    if path.suffix.lower() not in {".jsonl", ".ndjson"}:
        return Texts(path.name, (text,), ())
    documents, conversations = _conversations(text, str(path))
    return Texts(path.name, tuple(documents), tuple(conversations))


def _conversations(text: str, name: str) -> tuple[list[str], list[Conversation]]:
    documents, conversations = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise BadRequest(f"{name}, line {number} is not JSON: {what}") from None
        if isinstance(record, dict) and isinstance(record.get("text"), str):
            documents.append(record["text"])
        elif isinstance(record, dict) and _is_conversation(record.get("messages")):
            turns = record["messages"]
            conversations.append(tuple(ChatMessage(turn["role"], turn["content"]) for turn in turns))
        else:
            raise BadRequest(
                f"{name}, line {number} has neither a text nor messages: "
                '{"text": "..."} or {"messages": [{"role": "user", "content": "..."}]} belongs there'
            )
    return documents, conversations


def _is_conversation(turns: Any) -> bool:
    return isinstance(turns, list) and all(
        isinstance(turn, dict)
        and turn.get("role") in {"system", "user", "assistant"}
        and isinstance(turn.get("content"), str)
        for turn in turns
    )


def sample_length(wanted: int | None, context: int) -> int:
    """Tokens of a sample.

    Args:
        wanted: by a person; None: as usual, or the model's context where that is shorter.
        context: tokens that the model can read at once; 0: unknown.

    Raises:
        BadRequest: more than that is wanted.
    """
    if wanted is None:
        return min(LENGTH, context or LENGTH)
    if wanted > context > 0:
        raise BadRequest(f"--sequence-length {wanted} is more than the model's context of {context} tokens")
    return wanted


def samples(texts: Texts, tokenizer: TextTokenizer, *, count: int = SAMPLES, length: int = LENGTH) -> Samples:
    """Take samples.

    Args:
        texts: to take them from.
        tokenizer: of the model.
        count: how many windows.
        length: tokens of each.

    Raises:
        BadRequest: there is not enough text.
    """
    if count < 1 or length < MIN_LENGTH:
        raise BadRequest(f"{count} samples of {length} tokens: at least 1 of {MIN_LENGTH} belongs there")
    plain = [tokenizer.encode(text, special=True) for text in texts.documents]
    chat: list[list[int]] = []
    for conversation in texts.conversations:
        if tokenizer.template is None:
            plain.append(tokenizer.encode("\n\n".join(m.content for m in conversation), special=True))
        else:
            rendered = tokenizer.template.render(conversation, add_generation_prompt=False).text
            chat.append(tokenizer.encode(rendered, special=False))
    streams = [windows(plain, length), windows(chat, length)]
    available = sum(len(stream) for stream in streams)
    if available < count:
        advice = f"give --samples {available}, or more text" if available else "give more text"
        raise BadRequest(
            f"the calibration text ({texts.name}) has {sum(map(len, plain)) + sum(map(len, chat))} tokens, "
            f"enough for {available} of the {count} samples of {length} tokens: {advice}"
        )
    n_chat = min(len(streams[1]), max(count // 2, count - len(streams[0])))
    taken = [*evenly(streams[0], count - n_chat), *evenly(streams[1], n_chat)]
    return Samples(np.stack(taken), n_chat, texts.name, texts.sha256)


def windows(documents: Iterable[Sequence[int]], length: int) -> Tokens:
    """[W, length] of all documents, one after the other."""
    joined = np.array([token for document in documents for token in document], np.int64)
    n = len(joined) // length
    return joined[: n * length].reshape(n, length)


def evenly(available: Tokens, count: int) -> Tokens:
    """`count` of the windows, from all of them: [count, length]."""
    return available[[i * len(available) // count for i in range(count)]]
