"""Loading what drafts, on llama.cpp with models of a few hundred tokens: refusals have their reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgechat.engine.process.draft_loading import best_speedup, load_drafter
from edgechat.engine.speculation.cost import CostTable
from edgechat.engine.speculation.measuring import TYPICAL
from edgechat.records import Capabilities, LoadSettings
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from tests.edgechat.scripted_runtime import ScriptedRuntime
from tests.oracles.raw_gguf import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, tokenizer in (("target", "gpt2"), ("same", "gpt2"), ("other", "llama")):
        file = tiny_llama(tokenizer, "qwen2" if tokenizer == "gpt2" else "llama")
        (folder / f"{name}.gguf").write_bytes(file.header() + file.data())
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(50))
    return folder


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[LlamaCppRuntime]:
    runtime = LlamaCppRuntime.load(settings(folder))
    yield runtime
    runtime.close()


def settings(folder: Path, draft: str = "", **options: object) -> LoadSettings:
    path = str(folder / f"{draft}.gguf") if draft not in ("", "off", "ngram") else draft
    return LoadSettings(
        str(folder / "target.gguf"), n_ctx=256, n_sequences=2, n_threads=1, draft=path, **options
    )


def test_words_need_no_model(folder: Path, runtime: LlamaCppRuntime, tmp_path: Path) -> None:
    drafting = load_drafter(settings(folder, "ngram", cost_folder=str(tmp_path / "costs")), runtime)
    assert drafting.notes == ()
    assert drafting.drafter is not None
    assert drafting.drafter.model is None
    assert len(list((tmp_path / "costs").iterdir())) == 1
    assert all(runtime.length(sequence) == 0 for sequence in range(2))


@pytest.mark.parametrize("word", ["", "off"])
def test_off_is_off(folder: Path, runtime: LlamaCppRuntime, word: str) -> None:
    assert load_drafter(settings(folder, word), runtime).drafter is None


def test_a_model_of_the_same_vocabulary_drafts(folder: Path, runtime: LlamaCppRuntime) -> None:
    drafting = load_drafter(settings(folder, "same"), runtime)
    assert drafting.drafter is not None
    model = drafting.drafter.model
    assert model is not None
    assert model.step_s > 0
    assert model.runtime.n_ctx >= 256
    assert model.runtime.n_sequences == 2
    # As large as the target: it can hardly pay, and this is said at once.
    assert all("faster on this machine" in note for note in drafting.notes)
    model.runtime.close()


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("other", "its tokenizer is llama, not gpt2"),
        ("broken", "broken.gguf"),
        ("missing", "missing.gguf"),
    ],
)
def test_one_that_can_not_be_used_is_refused_with_the_reason(
    folder: Path, runtime: LlamaCppRuntime, draft: str, said: str
) -> None:
    drafting = load_drafter(settings(folder, draft), runtime)
    assert drafting.drafter is not None  # the words remain
    assert drafting.drafter.model is None
    (note,) = drafting.notes
    assert note.startswith(f"{draft} can't draft for Tiny: ")
    assert said in note
    assert "\n" not in note
    found = load_drafter(settings(folder, draft, draft_must_pay=True), runtime)
    assert found.drafter is not None
    assert found.notes == ()


def test_one_that_was_found_and_can_not_pay_is_left_out(folder: Path, runtime: LlamaCppRuntime) -> None:
    drafting = load_drafter(settings(folder, "target", draft_must_pay=True), runtime)
    assert drafting.drafter is not None
    assert drafting.drafter.model is None or best_speedup(
        drafting.drafter.cost.table, drafting.drafter.model.step_s, 0.8
    ) >= 1.1  # fmt: skip


def test_what_can_not_go_back_is_not_drafted_for(folder: Path) -> None:
    recurrent = ScriptedRuntime(can=Capabilities(shift=False, rollback=0, fork=False))
    assert load_drafter(settings(folder, "ngram"), recurrent).drafter is None
    drafting = load_drafter(settings(folder, "same"), recurrent)
    assert drafting.drafter is None
    assert "can't take tokens back" in drafting.notes[0]
    short = ScriptedRuntime(can=Capabilities(shift=False, rollback=3, fork=False))
    drafter = load_drafter(settings(folder, "ngram"), short).drafter
    assert drafter is not None
    assert drafter.longest == 3


def test_what_drafting_could_give() -> None:
    """By hand: V(2) = 1.4, so one draft of which 80% stand gives 1.8 tokens in 1.4 + d steps, and so on."""
    table = CostTable((1, 2, 3), (0.1, 0.14, 0.19))
    assert best_speedup(table, 0.0, 0.8) == pytest.approx(1.8 / 1.4)
    assert best_speedup(table, 0.03, 0.8) == pytest.approx(1.8 / 1.7)
    assert best_speedup(table, 0.0, 1.0) == pytest.approx(3 / 1.9)
    usual = CostTable(tuple(range(1, 17)), tuple(TYPICAL))
    assert best_speedup(usual, 0.45, 0.8) < 1 < best_speedup(usual, 0.05, 0.8)
