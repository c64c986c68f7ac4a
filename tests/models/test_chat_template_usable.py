"""Templates that can be used, and those with which every chat would fail."""

import random
from pathlib import Path

import pytest

from models.chat_template.usable import template_trouble, usable_template
from models.errors import UnsupportedTemplate
from models.gguf import read_header
from tests.oracles.raw_gguf import STRING, tiny_llama

SOUND = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("source", [SOUND, "{% for m in messages %}{{ m.content|upper }}{% endfor %}"])
def test_one_that_shows_the_question(source: str) -> None:
    assert usable_template(source, bos="<s>", eos=None).source == source


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for m in messages %}", "the chat template can't be compiled"),
        ("{{ raise_exception('no') }}", "the chat template can't be rendered: no"),
        ("{{ messages[0].role }}", "the chat template leaves the person's message out"),
        (random.Random(1).randbytes(1000).decode("utf-8", "replace"), "the chat template "),
    ],
)
def test_one_that_is_of_no_use(source: str, why: str) -> None:
    with pytest.raises(UnsupportedTemplate, match=f"^{why}"):
        usable_template(source, bos=None, eos=None)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ bos_token + messages[0].content }}", ""),
        ("", ""),
        ("{{", "the chat template can't be compiled"),
    ],
)
def test_of_a_file(source: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    file = tiny_llama().put("tokenizer.chat_template", STRING, source)
    path.write_bytes(file.header() + file.data())
    found = template_trouble(read_header(path))
    assert found.startswith(why)
    assert bool(found) == bool(why)
