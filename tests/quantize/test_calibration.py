"""Samples: from which text, in which form, and that no held-out text is among them."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from models.chat import ChatMessage
from models.errors import UnsupportedModel
from quantize.calibration import (
    FolderTokenizer,
    Texts,
    bundled,
    folder_template,
    from_file,
    sample_length,
    samples,
)
from quantize.errors import BadRequest


class Letters(FolderTokenizer):
    """A token for each character; conversations are marked with their roles' first letters."""

    def __init__(self, *, template: bool = True) -> None:
        from models.chat_template.template import ChatTemplate

        source = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
        self.template = ChatTemplate(source) if template else None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Code points; 0 begins a text."""
        return [*([0] if special else []), *map(ord, text)]


def test_half_plain_half_chat_evenly_from_all_of_it() -> None:
    """Windows follow each other; the conversations are in the template and have no further beginning."""
    texts = Texts("x", ("a" * 63, "b" * 63, "c" * 63), ((ChatMessage("user", "u" * 61),),) * 3)
    found = samples(texts, Letters(), count=4, length=32)
    assert found.tokens.shape == (4, 32)
    assert found.n_chat == 2
    assert found.tokens[0].tolist() == [0, *[ord("a")] * 31]
    assert found.tokens[1].tolist() == [ord("b")] * 32
    assert found.tokens[2].tolist() == [*map(ord, "<u>"), *[ord("u")] * 29]
    assert found.sha256 == texts.sha256


def test_without_a_template_all_is_plain() -> None:
    """A base model sees conversations as text."""
    texts = Texts("x", ("a" * 39,), ((ChatMessage("user", "q" * 20), ChatMessage("assistant", "r" * 18)),))
    found = samples(texts, Letters(template=False), count=2, length=40)
    assert found.n_chat == 0
    assert found.tokens[1].tolist()[1:] == [*map(ord, "q" * 20 + "\n\n" + "r" * 17)]


def test_more_of_one_kind_where_the_other_is_short() -> None:
    """A text file has no conversations, and that is enough."""
    found = samples(Texts("x", ("a" * 200,), ()), Letters(), count=6, length=32)
    assert (found.n_chat, len(found.tokens)) == (0, 6)


def test_too_little_text_is_said_with_what_would_do() -> None:
    """Tokens that are there, and how many samples they make."""
    with pytest.raises(BadRequest, match="has 101 tokens, enough for 3 of the 8 samples of 32 tokens: give "
                                         "--samples 3, or more text"):  # fmt: skip
        samples(Texts("x", ("a" * 100,), ()), Letters(), count=8, length=32)


def test_the_bundled_mix_is_enough_for_the_default_and_always_the_same() -> None:
    """Many languages, code and conversations; the hash is part of receipts."""
    texts = bundled()
    assert len(texts.documents) == 5
    assert len(texts.conversations) > 100
    characters = sum(map(len, texts.documents))
    assert characters > 100_000
    roles = {message.role for conversation in texts.conversations for message in conversation}
    assert roles == {"system", "user", "assistant"}
    assert texts.sha256 == bundled().sha256
    everything = "".join(texts.documents) + "".join(
        m.content for conversation in texts.conversations for m in conversation
    )
    for word in ("Alice", "Gregor", "Candide", "Quijote", "def ", "```python", "明日", "Объясни"):
        assert word in everything, word
    assert len(texts.documents[0]) * 2 < len(everything)


def test_nothing_of_the_held_out_text_is_in_the_mix() -> None:
    """No eight words in a row."""
    held_out = files("quantize").joinpath("data", "eval.txt").read_text(encoding="utf-8").split()
    folder = files("quantize").joinpath("data", "calibration")
    runs = {tuple(held_out[i : i + 8]) for i in range(len(held_out) - 7)}
    for path in folder.iterdir():
        if path.name.endswith((".txt", ".jsonl")):
            words = path.read_text(encoding="utf-8").split()
            assert not runs & {tuple(words[i : i + 8]) for i in range(len(words) - 7)}, path.name


def test_a_sample_is_no_longer_than_the_context() -> None:
    """Unasked it is shortened; what was asked for is refused."""
    assert [sample_length(None, context) for context in (0, 256, 512, 8192)] == [512, 256, 512, 512]
    assert [sample_length(wanted, 256) for wanted in (16, 256)] == [16, 256]
    assert sample_length(4096, 0) == 4096
    with pytest.raises(
        BadRequest, match="--sequence-length 257 is more than the model's context of 256 tokens"
    ):
        sample_length(257, 256)


def test_files_of_ones_own(tmp_path: Path) -> None:
    """Text, texts by line, conversations by line."""
    plain = tmp_path / "a.txt"
    plain.write_text("Hello.\n\nWorld.")
    assert from_file(plain).documents == ("Hello.\n\nWorld.",)
    lines = tmp_path / "b.jsonl"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    lines.write_text(json.dumps({"text": "one"}) + "\n\n" + json.dumps({"messages": turns}) + "\n")
    found = from_file(lines)
    assert found.documents == ("one",)
    assert found.conversations == ((ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello")),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"  \n", "is empty"),
        ("a.txt", b"caf\xe9", r"not a UTF-8 text \(byte 3\)"),
        ("a.jsonl", b'{"text": "x"}\n{', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n' + b"[" * 50_000, "line 2 is not JSON"),
        ("a.jsonl", b'{"text": ' + b"1" * 5_000 + b"}", "line 1 is not JSON"),
        ("a.jsonl", b'{"txt": "x"}', "line 1 has neither a text nor messages"),
        ("a.jsonl", b'{"messages": [{"role": "boss", "content": "x"}]}', "line 1 has neither"),
    ],
)
def test_files_that_are_of_no_use(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    """Where, and what belongs there."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        from_file(path)


@pytest.mark.oracle
def test_a_folders_tokenizer_is_that_of_transformers(tiny_folder: Path, tmp_path: Path) -> None:
    """Token by token; without tokenizer.json it is said what is missing."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tiny_folder)
    ours = FolderTokenizer(tiny_folder)
    text = "The quick brown fox, 1234, 你好 and café"
    assert ours.encode(text, special=True) == theirs(text)["input_ids"]
    assert ours.template is not None
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    rendered = ours.template.render(
        [ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello")], add_generation_prompt=False
    ).text
    assert rendered == theirs.apply_chat_template(turns, tokenize=False)
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json: download the rest"):
        FolderTokenizer(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(UnsupportedModel, match=r"has no tokenizer\.json, .*: save it with transformers"):
        FolderTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
        ("", ""),
        ("{{", "the chat template can't be compiled"),
        ("{{ raise_exception('no') }}", "the chat template can't be rendered: no"),
        ("Hi!", "the chat template leaves the person's message out"),
    ],
)
def test_a_folders_template(source: str, trouble: str, tmp_path: Path) -> None:
    """One that can't be used is told of, and calibration goes on without."""
    (tmp_path / "chat_template.jinja").write_text(source)
    template, found = folder_template(tmp_path)
    assert found.startswith(trouble)
    assert bool(found) == bool(trouble)
    assert (template is not None) is (bool(source) and not trouble)
