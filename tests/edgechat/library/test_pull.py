"""`edgechat models pull` from a hub on loopback where all is well, and which file it takes."""

import hashlib
import json
from pathlib import Path

import pytest

from edgechat.library.local import list_models
from edgechat.library.source import load_source
from tests.edgechat.library.hub_server import COMMIT, HubServer
from tests.edgechat.library.pulling import FILE, PART_1, PART_2, REPO, Captured, left_over, pull, target
from tests.edgechat.library.tiny_models import gguf, split_gguf
from tests.oracles.raw_gguf import STRING, tiny_llama


def test_a_model(hub: HubServer, model: bytes, capsys: Captured) -> None:
    assert pull(REPO) == 0
    out, err = capsys.readouterr()
    assert out == f"{target()}\n"
    assert err.splitlines() == [
        f"{REPO}: Q4_K_M (330.4 kB), apache-2.0",
        "tiny-Q4_K_M pulled (330.4 kB, checksums are right): edgechat chat tiny-Q4_K_M",
    ]
    assert target().read_bytes() == model
    source = load_source(target())
    assert source is not None
    assert (source.repository, source.revision, source.endpoint) == (REPO, COMMIT, hub.endpoint)
    assert [(one.name, one.size, one.sha256) for one in source.files] == [
        (FILE, len(model), hashlib.sha256(model).hexdigest())
    ]
    assert (source.verified, source.licence) == (True, "apache-2.0")
    assert left_over() == []
    assert [one.name for one in list_models()] == ["starter", "tiny-Q4_K_M"]


@pytest.mark.usefixtures("model")
def test_again_asks_for_no_file(hub: HubServer, capsys: Captured) -> None:
    assert pull(REPO) == 0
    asked = len(hub.ranges(FILE))
    capsys.readouterr()
    assert pull(REPO, "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"] == [
        {
            "name": "tiny-Q4_K_M", "path": str(target()), "size_bytes": 330400,
            "was_here": True, "verified": True,
        }
    ]  # fmt: skip
    assert len(hub.ranges(FILE)) == asked == 1


@pytest.mark.usefixtures("model")
def test_a_newer_one_takes_its_place(hub: HubServer) -> None:
    assert pull(REPO) == 0
    hub.repositories[REPO][FILE] = newer = gguf(tiny_llama().put("general.name", STRING, "Newer"))
    assert pull(REPO) == 0
    assert target().read_bytes() == newer


def test_a_split_model_comes_wholly(hub: HubServer) -> None:
    first, second = split_gguf()
    hub.repositories[REPO] = {f"Q8_0/{PART_1}": first, f"Q8_0/{PART_2}": second}
    assert pull(f"{REPO}:q8_0") == 0
    assert (target(PART_1).read_bytes(), target(PART_2).read_bytes()) == (first, second)
    (model,) = (one for one in list_models() if one.name != "starter")
    assert (model.name, model.size_bytes) == ("tiny-Q8_0", len(first) + len(second))


@pytest.mark.usefixtures("model")
def test_an_alias_and_its_draft(hub: HubServer, capsys: Captured) -> None:
    hub.repositories["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": gguf(), "Qwen3-4B-Q8_0.gguf": b"no"}
    hub.repositories["Qwen/Qwen3-0.6B-GGUF"] = {"Qwen3-0.6B-Q8_0.gguf": gguf()}
    assert pull("qwen3-4b", "--draft", "--quiet") == 0
    out, err = capsys.readouterr()
    assert [Path(line).name for line in out.splitlines()] == ["Qwen3-4B-Q4_K_M.gguf", "Qwen3-0.6B-Q8_0.gguf"]
    assert err == ""
    assert pull(REPO, "--draft") == 3
    assert capsys.readouterr().err == (
        "edgechat: no draft is known for owner/tiny-GGUF: pull a small model of the same family yourself\n"
    )


@pytest.mark.parametrize(
    "reference",
    [
        f"{REPO}:Q4_K_M", f"{REPO}:q4-k-m", f"{REPO}:{FILE}", f"hf.co/{REPO}", f"https://huggingface.co/{REPO}",
        f"https://huggingface.co/{REPO}/resolve/main/{FILE}?download=true",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_ways_to_name_it(reference: str, hub: HubServer) -> None:
    hub.repositories[REPO]["tiny-Q8_0.gguf"] = gguf()
    assert pull(reference) == 0
    assert target().is_file()


@pytest.mark.usefixtures("model")
def test_the_token_and_the_mirror(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull(REPO) == 0
    assert set(hub.tokens) == {"Bearer hf_secret"}


@pytest.mark.usefixtures("model")
def test_a_proxy_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A hub that only the proxy can find; ours answers whatever it is asked, as a proxy would."""
    import huggingface_hub

    huggingface_hub.close_session()
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert pull(REPO) == 0
    assert target().is_file()
    capsys.readouterr()


def test_what_another_program_has_is_linked(
    hub: HubServer, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(model).hexdigest()
    blob = tmp_path / "hub" / "models--owner--tiny-GGUF" / "blobs" / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(model)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert pull(REPO) == 0
    assert (target().is_symlink(), target().resolve()) == (True, blob)
    assert hub.ranges(FILE) == []
    assert pull(REPO) == 0  # it is here


@pytest.mark.usefixtures("model")
def test_what_is_not_there(hub: HubServer, capsys: Captured) -> None:
    hub.repositories[REPO]["tiny-Q8_0.gguf"] = gguf()
    hub.repositories["owner/checkpoint"] = {"model.safetensors": b"", "config.json": b""}
    hub.repositories["owner/empty"] = {"README.md": b""}
    for reference, code, message in (
        (f"{REPO}:q2_k", 3, f"{REPO}: there is no q2_k: choose one of Q4_K_M (330.4 kB), Q8_0 (330.4 kB)"),
        ("owner/checkpoint", 6, "owner/checkpoint is a checkpoint without GGUF files"),
        ("owner/empty", 3, "owner/empty has no GGUF file"),
        ("qwen3-4", 3, "the catalog has no 'qwen3-4'; did you mean qwen3-4b"),
        ("owner/a b", 2, "'owner/a b' is no repository: give OWNER/NAME"),
    ):
        assert pull(reference) == code
        assert message in capsys.readouterr().err


def test_a_choice_that_is_open(hub: HubServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPO] = {"tiny-Q8_0.gguf": gguf(), "tiny-Q6_K.gguf": gguf()}
    assert pull(REPO) == 2
    assert capsys.readouterr().err == (
        f"edgechat: {REPO} has 2 models: choose, as in {REPO}:q6_k (Q6_K (330.4 kB), Q8_0 (330.4 kB))\n"
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 2)
    assert pull(REPO) == 0
    assert target("tiny-Q8_0.gguf").is_file()
