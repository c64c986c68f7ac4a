"""The catalog holds what its schema says, and is searched."""

import json
from pathlib import Path

import pytest

from edgechat import hardware
from edgechat.cli import app
from edgechat.hardware import MARGIN, Memory
from edgechat.library import catalog
from edgechat.library.catalog import BITS, CatalogModel, parse_catalog
from edgechat.library.fit import by_rule, fit
from edgechat.library.inspect import number
from edgechat.library.ladder import Verdict
from edgechat.library.local import models_dir
from edgechat.library.needs import Available
from edgechat.library.plan import plan
from edgechat.records import LoadSettings
from models.gguf import read_header
from tests.edgechat.library.hub_server import HubServer, Trouble

Captured = pytest.CaptureFixture[str]
ENTRY = """\
[[model]]
alias = "a"
title = "A"
family = "f"
repository = "owner/a"
parameters = 1.5
"""


def test_it_is_valid() -> None:
    models = catalog.catalog()
    assert len(models) >= 40
    assert len({model.repository for model in models}) == len(models)
    for model in models:
        assert model.quantization in BITS, model.alias
        assert model.active < model.parameters, model.alias
        if model.draft:
            draft = catalog.find(model.draft)
            assert draft is not None
            assert draft.parameters < model.parameters / 2, model.alias
            assert draft.family == model.family, model.alias


def test_sizes_that_are_known_agree_with_the_estimate() -> None:
    """Some files hold their table of embeddings twice."""
    for model in catalog.catalog():
        if model.size_bytes:
            estimate = model.parameters * 1e9 * BITS[model.quantization] / 8
            assert estimate == pytest.approx(model.size_bytes, rel=0.2), model.alias


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[model]", "Expected"),
        (ENTRY.replace("alias", "name"), "unknown field `name`"),
        (ENTRY.replace('"a"', '"A b"'), "alias"),
        (ENTRY.replace('"owner/a"', '"a"'), "repository"),
        (ENTRY.replace("1.5", "0"), "parameters"),
        (ENTRY.replace("1.5", '"1.5"'), "parameters"),
        (ENTRY + ENTRY, "an alias comes twice"),
        (ENTRY + 'draft = "b"\n', "a: its draft b is not in the catalog"),
        (ENTRY + 'draft = "a"\n', "its draft a is not in the catalog"),
    ],
)
def test_what_is_wrong_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_catalog(text)
    assert parse_catalog(ENTRY)[0].download_bytes == int(1.5e9 * 4.9 / 8)


def _search(capsys: Captured, *arguments: str) -> list[str]:
    assert app.main(["models", "search", *arguments]) == 0
    return [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]


def test_search(capsys: Captured) -> None:
    assert len(_search(capsys)) == len(catalog.catalog())
    assert _search(capsys, "qwen2.5", "CODE") == [
        "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "qwen2.5-coder-7b",
    ]  # fmt: skip
    assert _search(capsys, "--family", "Llama3") == ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"]
    assert _search(capsys, "no-such-thing") == []
    assert app.main(["models", "search", "--family", "none"]) == 2
    assert "there is no family 'none': deepseek-r1, " in capsys.readouterr().err


def test_search_of_what_fits(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "memory", lambda: Memory(8 * 10**9, 4 * 10**9))
    found = _search(capsys, "--fits")
    assert "qwen3.5-4b" in found
    assert "qwen3.5-9b" not in found
    assert app.main(["models", "search", "qwen3.5-9b", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["models"]
    assert (entry["fits"], entry["download_bytes"], entry["model"]["repository"]) == (
        False, 5_680_522_464, "unsloth/Qwen3.5-9B-GGUF",
    )  # fmt: skip


def test_a_row(capsys: Captured) -> None:
    assert app.main(["models", "search", "llama-3.2-3b"]) == 0
    assert capsys.readouterr().out.split("\t")[:3] == ["llama-3.2-3b", "3.21B", "2.0 GB"]


def test_search_online(hub: HubServer, capsys: Captured) -> None:
    hub.repositories |= {"owner/tiny-GGUF": {}, "owner/other": {}}
    assert app.main(["models", "search", "--online", "TINY"]) == 0
    assert capsys.readouterr().out == "owner/tiny-GGUF\t7\t\n"
    hub.troubles["search"] = Trouble(500)
    assert app.main(["models", "search", "--online", "--json"]) == 7
    assert "answers 500: try again later" in capsys.readouterr().err


def test_search_online_offline(capsys: Captured) -> None:
    assert app.main(["models", "search", "--online"]) == 7
    assert "can't search the hub offline (HF_HUB_OFFLINE)" in capsys.readouterr().err


def test_an_unusual_quantization_has_no_size() -> None:
    model = CatalogModel("a", "A", "f", "o/a", 1.0, quantization="q9")
    assert model.download_bytes is None
    assert fit(model, Available(10**12)) is None


@pytest.mark.parametrize("name", ["starter_gguf", "gemma_gguf"])
def test_the_rule_of_thumb_agrees_with_the_planner(name: str, request: pytest.FixtureRequest) -> None:
    """Within a quarter of what llama.cpp itself says."""
    path = request.getfixturevalue(name)
    header = read_header(path)
    model = CatalogModel(
        "a", "A", "f", "o/a",
        parameters=sum(tensor.n_elements for tensor in header.tensors) / 1e9,
        context=number(header, "context_length"),
        size_bytes=path.stat().st_size,
    )  # fmt: skip
    report = plan(path, LoadSettings(str(path)))
    assert report.exact
    rule = by_rule(model, Available(10**12))
    assert rule is not None
    assert 0.75 < rule.needs / report.asked_needs.held < 1.34


def test_what_is_here_is_planned(starter_gguf: Path) -> None:
    model = CatalogModel("a", "A", "f", "owner/name", 70.0, size_bytes=40 * 10**9, quantization="q4_1")
    assert not fit(model, Available(4 * 10**9)).fits
    folder = models_dir() / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "a-Q8_0.gguf").symlink_to(starter_gguf)
    assert not fit(model, Available(4 * 10**9)).fits
    (folder / "a-Q4_1.gguf").symlink_to(starter_gguf)
    found = fit(model, Available(4 * 10**9))
    assert found.verdict is Verdict.FITS
    planned = plan(starter_gguf, LoadSettings(str(starter_gguf)), exact=False)
    assert found.needs == planned.asked_needs.held
    assert fit(model, Available(found.needs + MARGIN - 1)).verdict is Verdict.WITH_SETTINGS
    assert fit(model, Available(MARGIN)).verdict is Verdict.DOES_NOT
