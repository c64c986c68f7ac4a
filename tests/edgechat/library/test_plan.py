"""`edgechat models plan`, the report behind it, and a load where memory is short."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from edgechat.cli.app import main
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Finished, Generate
from edgechat.errors import ExitCode, ResourceError
from edgechat.library import plan as library
from edgechat.library.dry_run import DryRunProcess
from edgechat.library.ladder import MIB, Verdict
from edgechat.library.needs import Available
from edgechat.records import LoadSettings, ModelInfo, SamplingSettings

PLENTY = Available(ram=8 * 2**30)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets what the commands and the engines of this test may take."""
    return monkeypatch


def test_a_plan_of_the_starter(starter_gguf: Path) -> None:
    report = library.plan(starter_gguf, LoadSettings(str(starter_gguf)), available=PLENTY)
    assert report.verdict is Verdict.FITS
    assert report.exact
    assert report.asked == report.planned
    assert report.planned.ctx == 8192
    # 30 layers, 3 heads of 64, keys and values, two bytes each
    assert abs(report.needs.kv - 8192 * 30 * 3 * 64 * 2 * 2) < 0.01 * MIB
    assert report.peak == report.held == report.needs.peak
    assert library.line(report).startswith(("fits: 3", "fits: 4"))  # with AMX its copies, too
    assert library.line(report).endswith(" with 8,192 tokens of context, 8.6 GB free")


def test_the_estimate_comes_to_the_same_verdicts(starter_gguf: Path) -> None:
    for ram in (300, 440, 520, 600, 700):
        asked = LoadSettings(str(starter_gguf))
        exact = library.plan(starter_gguf, asked, available=Available(ram * MIB))
        guess = library.plan(starter_gguf, asked, available=Available(ram * MIB), exact=False)
        assert not guess.exact
        assert exact.verdict == guess.verdict
        assert exact.planned.kv_type == guess.planned.kv_type
        assert abs(exact.planned.ctx - guess.planned.ctx) <= 1024


def test_where_llama_cpp_gives_no_answer_it_is_estimated(
    starter_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgechat.library.dry_run.MODULE", "edgechat.no_such_module")
    report = library.plan(starter_gguf, LoadSettings(str(starter_gguf)), available=PLENTY)
    assert not report.exact
    assert library.line(report).startswith(("fits: about 3", "fits: about 4"))


def test_a_draft_model_is_planned_too(starter_gguf: Path) -> None:
    asked = LoadSettings(str(starter_gguf))
    alone = library.plan(starter_gguf, asked, available=PLENTY, exact=False)
    both = library.plan(starter_gguf, asked, draft=starter_gguf, available=PLENTY, exact=False)
    assert both.asked.draft
    assert both.needs.draft > 250 * MIB
    assert both.held == alone.held + both.needs.draft
    short = library.plan(starter_gguf, asked, draft=starter_gguf, available=Available(560 * MIB), exact=False)
    assert short.verdict is Verdict.WITH_SETTINGS
    assert not short.planned.draft
    assert "no draft model" in short.steps


def test_what_a_result_takes_to_run(starter_gguf: Path) -> None:
    assert library.to_run(starter_gguf).startswith(("to run, it fits: about 3", "to run, it fits: about 4"))


def test_the_command_prints_one_table(capsys: pytest.CaptureFixture[str], limit: pytest.MonkeyPatch) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", "4G")
    assert main(["models", "plan", "starter", "--ctx", "2048", "--kv-type", "q8_0"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    rows = [row.split("\t") for row in captured.out.splitlines()]
    assert rows[0] == ["settings", "2,048 tokens, q8_0, batch 512"]
    assert ["context", "25.1 MB"] in rows
    assert ["free now, less a margin", "4.1 GB"] in rows
    assert rows[-1][0].startswith("fits: 2")


def test_the_command_says_what_gives_way(
    capsys: pytest.CaptureFixture[str], limit: pytest.MonkeyPatch
) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", "350M")
    assert main(["models", "plan", "starter"]) == 0
    captured = capsys.readouterr()
    assert "settings\t8,192 tokens, f16, batch 512\t8,192 tokens, q8_0, batch 512" in captured.out
    assert "fits with these settings: " in captured.out
    assert captured.err == "gives way: the context's memory in q8_0 instead of f16\n"


def test_what_does_not_fit_ends_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], limit: pytest.MonkeyPatch
) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", "260M")
    assert (
        main(["models", "plan", "starter", "--ctx", "8192", "--kv-type", "f16", "--json"])
        == ExitCode.RESOURCES
    )
    report = msgspec.json.decode(capsys.readouterr().out, type=library.PlanReport)
    assert report.verdict is Verdict.DOES_NOT
    assert not report.fits
    assert report.planned.kv_type == "f16"  # it was asked for
    context = int(report.remedy.rpartition("--ctx ")[2])
    assert main(["models", "plan", "starter", "--ctx", str(context), "--kv-type", "f16"]) == 0


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["models", "plan", str(tmp_path / "none.gguf")]) == ExitCode.NOT_FOUND
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model at all")
    assert main(["models", "plan", str(broken)]) == ExitCode.BROKEN_MODEL


async def loaded(settings: LoadSettings) -> tuple[ModelInfo, tuple[str, ...], int]:
    """An engine's model, its notes, and how many tokens it answered."""
    info, notes, tokens, _ = await measured(settings, "Once upon a time")
    return info, notes, tokens


async def measured(settings: LoadSettings, prompt: str) -> tuple[ModelInfo, tuple[str, ...], int, str]:
    """The same, and what the system says of its process at the end, where it is Linux."""
    client = await EngineClient.start(settings)
    status = Path(f"/proc/{client.pid}/status")
    tokens = 0
    try:
        request = Generate(id=0, prompt=prompt, max_tokens=3, sampling=SamplingSettings(temperature=0))
        async for event in client.generate(request):
            if isinstance(event, Finished):
                tokens = len(event.tokens)
        return client.info, client.notes, tokens, status.read_text() if status.exists() else ""
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("free", "steps"),
    [
        ("2G", ()),
        ("320M", ("q8_0",)),
        ("204M", ("q8_0", "batches of 128", "tokens of context")),
    ],
)
def test_an_engine_goes_down_the_ladder_and_says_so(
    free: str, steps: tuple[str, ...], starter_gguf: Path, limit: pytest.MonkeyPatch
) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", free)
    settings = LoadSettings(str(starter_gguf), n_threads=1)
    info, notes, tokens = asyncio.run(loaded(settings))
    assert tokens == 3
    said = " ".join(note for note in notes if note.startswith("memory is short"))
    assert bool(said) == bool(steps)
    assert all(step in said for step in steps)
    assert (info.n_ctx < 8192) == ("tokens of context" in steps)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("mib", [204, 320, 400])
def test_a_limit_is_made_use_of_and_kept(mib: int, starter_gguf: Path, limit: pytest.MonkeyPatch) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", f"{mib}M")
    settings = LoadSettings(str(starter_gguf), n_threads=1, n_sequences=1)
    info, _, _, status = asyncio.run(measured(settings, "Once upon a time, there was a house. " * 70))
    most = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    with DryRunProcess(starter_gguf) as dry:
        needs = dry.ask(settings).needs
    assert needs is not None
    # Pages of the file that were copied for AMX the system takes back: they are no burden. What copying
    # leaves of the heap in pieces is not planned.
    assert most - needs.cold <= mib * MIB + (needs.cold and 4 * MIB)
    assert info.n_ctx >= {204: 1792, 320: 8192, 400: 8192}[mib]


def test_an_engine_refuses_what_it_would_swap_for(starter_gguf: Path, limit: pytest.MonkeyPatch) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", "150M")
    with pytest.raises(ResourceError, match="can be taken"):
        asyncio.run(loaded(LoadSettings(str(starter_gguf), n_threads=1)))


def test_a_context_that_was_asked_for_is_refused_with_the_one_that_fits(
    starter_gguf: Path, limit: pytest.MonkeyPatch
) -> None:
    limit.setenv("EDGECHAT_MEMORY_LIMIT", "204M")
    with pytest.raises(ResourceError, match=r"try --ctx \d+$") as caught:
        asyncio.run(loaded(LoadSettings(str(starter_gguf), n_ctx=8192, n_threads=1)))
    context = int(str(caught.value).rpartition(" ")[2])
    info, _, tokens = asyncio.run(loaded(LoadSettings(str(starter_gguf), n_ctx=context, n_threads=1)))
    assert (info.n_ctx, tokens) == (context, 3)


def test_a_draft_model_that_has_no_room_is_dropped(starter_gguf: Path, limit: pytest.MonkeyPatch) -> None:
    from edgechat.runtimes.llamacpp.fit import to_memory

    settings = LoadSettings(str(starter_gguf), draft=str(starter_gguf), use_mmap=True)
    chosen, note = to_memory(settings, starter_gguf, Available(10 * 2**30))
    assert (chosen, note) == (settings, "")
    chosen, note = to_memory(settings, starter_gguf, Available(480 * MIB))
    assert chosen.draft == ""
    assert "no draft model" in note
