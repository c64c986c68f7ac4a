"""The models of other programs, each in a cache as that program would leave it."""

import json
from pathlib import Path

import pytest

from edgechat.errors import UsageError
from edgechat.library import places
from edgechat.library.local import list_models, model_name, models_dir
from edgechat.library.places import Place, Program, places_of_others
from edgechat.library.resolve import resolve, resolve_model
from tests.edgechat.library.tiny_models import gguf

A, B, C = "a" * 64, "b" * 64, "c" * 64


def write(path: Path, data: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def found(program: Program) -> dict[str, Path]:
    return {model.name: model.path for model in list_models() if model.program is program}


def hugging_face(
    folder: Path, repository: str, commit: str, files: dict[str, str], main: bool = True
) -> Path:
    """A repository in the cache; `files` are names and the blobs that they lead to."""
    root = folder / f"models--{repository.replace('/', '--')}"
    for name, blob in files.items():
        if not (root / "blobs" / blob).exists():
            write(root / "blobs" / blob, blob.encode())
        link = root / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(*[".."] * (2 + name.count("/")), "blobs", blob))
    if main:
        write(root / "refs" / "main", commit.encode())
    return root


def ollama(folder: Path, name: str, weights: str, *others: str, registry: str = "registry.ollama.ai") -> Path:
    """A model of ollama's: a manifest, and blobs named by their hash."""
    layers = [{"mediaType": places.OLLAMA_MODEL, "digest": f"sha256:{weights}", "size": 1}]
    layers += [{"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{o}"} for o in others]
    for digest in (weights, *others):
        if not (folder / "blobs" / f"sha256-{digest}").exists():
            write(folder / "blobs" / f"sha256-{digest}", gguf() if digest == weights else b"text")
    manifest = {"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": layers}
    return write(folder / "manifests" / registry / name, json.dumps(manifest).encode())


def test_hugging_face(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    root = hugging_face(hub, "owner/m", "2" * 40, {"m-Q4.gguf": A, "mmproj-m.gguf": C, "sub/m-Q8.gguf": B})
    hugging_face(hub, "owner/m", "1" * 40, {"m-Q4.gguf": A, "m-old.gguf": C}, main=False)
    write(hub / "datasets--owner--d" / "snapshots" / "1" / "x.gguf")
    assert found(Program.HUGGING_FACE) == {
        "m-Q4": root / "snapshots" / ("2" * 40) / "m-Q4.gguf",
        "m-Q8": root / "snapshots" / ("2" * 40) / "sub" / "m-Q8.gguf",
        "m-old": root / "snapshots" / ("1" * 40) / "m-old.gguf",
    }


@pytest.mark.parametrize(
    ("variable", "value", "folder"),
    [
        ("HF_HOME", "x", "x/hub"),
        ("HF_HUB_CACHE", "y", "y"),
        ("HUGGINGFACE_HUB_CACHE", "z", "z"),
        ("XDG_CACHE_HOME", "c", "c/huggingface/hub"),
    ],
)
def test_hugging_face_elsewhere(
    home: Path, variable: str, value: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(home / value))
    hugging_face(home / folder, "owner/m", "1" * 40, {"m.gguf": A})
    assert list(found(Program.HUGGING_FACE)) == ["m"]


def test_llama_cpp(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / ".cache" / "llama.cpp"
    write(folder / "ggml-org_m_m-Q4.gguf")
    write(folder / "ggml-org_m_m-Q4.gguf.json")
    write(folder / "big-00001-of-00002.gguf", b"12")
    write(folder / "big-00002-of-00002.gguf", b"345")
    assert list(found(Program.LLAMA_CPP)) == ["big", "ggml-org_m_m-Q4"]
    assert [model.size_bytes for model in list_models() if model.name == "big"] == [5]
    monkeypatch.setenv("LLAMA_CACHE", str(home / "moved"))
    write(home / "moved" / "other.gguf")
    assert list(found(Program.LLAMA_CPP)) == ["other"]


def test_ollama(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / ".ollama" / "models"
    ollama(folder, "library/llama3.2/1b", A, C)
    ollama(folder, "someone/mine/latest", B, C)
    ollama(folder, "owner/repo/q4", C, registry="hf.co")
    write(folder / "manifests" / "registry.ollama.ai" / "library" / "broken" / "1", b"{")
    write(folder / "manifests" / "registry.ollama.ai" / "library" / "gone" / "1", b'{"layers": []}')
    assert found(Program.OLLAMA) == {
        "hf.co/owner/repo:q4": folder / "blobs" / f"sha256-{C}",
        "llama3.2:1b": folder / "blobs" / f"sha256-{A}",
        "someone/mine:latest": folder / "blobs" / f"sha256-{B}",
    }
    assert resolve("llama3.2:1b") == resolve("llama3.2") == folder / "blobs" / f"sha256-{A}"
    assert resolve("someone/mine:latest") == folder / "blobs" / f"sha256-{B}"
    assert model_name(resolve("llama3.2")) == "llama3.2:1b"
    assert resolve_model("llama3.2").program is Program.OLLAMA
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "moved"))
    ollama(home / "moved", "library/x/y", A)
    assert list(found(Program.OLLAMA)) == ["x:y"]


def test_ollama_as_a_service(home: Path) -> None:
    ollama(places.OLLAMA_SYSTEM, "library/x/y", A)
    assert list(found(Program.OLLAMA)) == ["x:y"]


def test_a_manifest_that_leads_elsewhere(home: Path) -> None:
    folder = home / ".ollama" / "models"
    write(home / ".ollama" / "secret", gguf())
    layers = [{"mediaType": places.OLLAMA_MODEL, "digest": "sha256:../../secret"}]
    write(folder / "manifests" / "r" / "library" / "x" / "y", json.dumps({"layers": layers}).encode())
    assert found(Program.OLLAMA) == {}


def test_lm_studio(home: Path) -> None:
    write(home / ".lmstudio" / "models" / "owner" / "m-GGUF" / "m-Q4.gguf")
    write(home / ".cache" / "lm-studio" / "models" / "owner" / "old" / "old.gguf", b"GGUF2")
    assert list(found(Program.LM_STUDIO)) == ["m-Q4", "old"]
    write(home / ".lmstudio" / "settings.json", json.dumps({"downloadsFolder": str(home / "big")}).encode())
    write(home / "big" / "owner" / "m" / "moved.gguf")
    assert list(found(Program.LM_STUDIO)) == ["moved", "old"]
    write(home / ".lmstudio-home-pointer", str(home / "elsewhere").encode())
    write(home / "elsewhere" / "models" / "o" / "m" / "pointed.gguf")
    assert list(found(Program.LM_STUDIO)) == ["old", "pointed"]


def test_each_file_is_listed_once(home: Path) -> None:
    real = write(home / ".lmstudio" / "models" / "o" / "m" / "m.gguf")
    (home / ".cache" / "llama.cpp").mkdir(parents=True)
    (home / ".cache" / "llama.cpp" / "same.gguf").hardlink_to(real)
    models_dir().mkdir(parents=True)
    (models_dir() / "linked.gguf").symlink_to(real)
    assert [(model.name, model.program) for model in list_models()][1:] == [("linked", Program.EDGECHAT)]


def test_ours_comes_before_what_another_calls_the_same(home: Path) -> None:
    write(home / ".lmstudio" / "models" / "o" / "m" / "m.gguf")
    ours = write(models_dir() / "m.gguf", b"ours")
    assert resolve("m") == ours
    write(home / ".cache" / "llama.cpp" / "n.gguf")
    write(home / ".lmstudio" / "models" / "o" / "n" / "n.gguf")
    with pytest.raises(UsageError, match="could be 2 models"):
        resolve("n")


def test_the_settings_leave_them_out(home: Path, edgechat_home: Path) -> None:
    write(home / ".lmstudio" / "models" / "o" / "m" / "m.gguf")
    assert found(Program.LM_STUDIO)
    write(edgechat_home / "config" / "config.toml", b"[models]\nother_programs = false\n")
    assert not found(Program.LM_STUDIO)


def test_what_cannot_be_read_is_no_failure(home: Path) -> None:
    write(home / ".ollama" / "models" / "manifests", b"a file")
    write(home / ".cache" / "huggingface" / "hub", b"a file")
    write(home / ".lmstudio" / "settings.json", b"\xff")
    write(home / ".lmstudio-home-pointer", b"\xff")
    assert [model.name for model in list_models()] == ["starter"]


def test_on_a_mac(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.platform, "system", lambda: "Darwin")
    assert Place(Program.LLAMA_CPP, home / "Library" / "Caches" / "llama.cpp") in places_of_others()
