"""What `quantize` says at the end."""

from pathlib import Path

import pytest

from edgechat.cli.quantize_layers import try_it


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_what_to_type_next(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert try_it(tmp_path, is_plain=False) == f'Try it: edgechat ask {tmp_path} "Why is the sky blue?"'
    assert try_it(tmp_path, is_plain=True).endswith(' --raw "The sky is blue because"')


def test_a_file_has_its_tokenizer_inside(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert try_it(path, is_plain=False).startswith("Try it: ")


def test_nothing_can_be_tried_without_a_tokenizer(tmp_path: Path) -> None:
    """As where a checkpoint was saved without one: GPTQ and the like need none to round by."""
    said = try_it(tmp_path, is_plain=False)
    assert said == (
        f"note: the source has no tokenizer: before you talk to {tmp_path}, put its tokenizer.json there"
    )
