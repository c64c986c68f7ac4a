"""Texts that are far too long lose their middle before they are tokenized, and nothing else changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgechat.engine import lengths as lengths_module
from edgechat.engine.lengths import Lengths
from edgechat.engine.process.messages import Evicted, Generate, Note
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp.runtime import LlamaCppRuntime
from models.chat import ChatMessage
from tests.edgechat.engine.harness import GREEDY, Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime

N_CTX = 200
TEXT = " ".join(f"word-{i}" for i in range(3000))


@pytest.fixture(params=["starter_gguf", "gemma_gguf"], scope="module")
def runtime(request: pytest.FixtureRequest) -> Iterator[LlamaCppRuntime]:
    """A byte-pair vocabulary, and one of SentencePiece's."""
    path: Path = request.getfixturevalue(request.param)
    runtime = LlamaCppRuntime.load(LoadSettings(str(path), n_ctx=N_CTX, n_threads=1))
    yield runtime
    runtime.close()


def request(text: str, overflow: str = "window") -> Generate:
    return Generate(1, (ChatMessage("user", text),), overflow=overflow)  # type: ignore[arg-type]


PROSE = "".join(
    f"Page {i}: the keeper climbed {i} steps, and lit the lamp; 灯台, naïve.\n" for i in range(1500)
)
SCRIPTS = {
    "prose": PROSE,
    "one line": PROSE.replace("\n", " "),
    "Chinese": "".join(f"第{i}页看守人登上了塔，点亮了灯。" for i in range(4000)),
    "no places": "".join(f"{i},{i * i};" for i in range(8000)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_ends_have_the_same_tokens(
    name: str, runtime: LlamaCppRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths_module, "LONG", 10_000)
    text = SCRIPTS[name]
    shorter, n_cut = Lengths(runtime.tokenizer, N_CTX).cut(request(text))
    left = shorter.messages[0].content
    assert len(left) < len(text) // 4
    whole, part = runtime.tokenizer.encode(text), runtime.tokenizer.encode(left)
    assert part[:N_CTX] == whole[:N_CTX]
    assert part[-N_CTX:] == whole[-N_CTX:]
    assert 0.9 < n_cut / (len(whole) - len(part)) < 1.1


def test_what_is_not_long_or_may_not_be_cut_stays(runtime: LlamaCppRuntime) -> None:
    lengths = Lengths(runtime.tokenizer, N_CTX)
    for given in (request(PROSE), request(PROSE * 20, "refuse")):
        assert lengths.cut(given) == (given, 0)


def test_a_text_of_few_long_tokens_is_kept(runtime: LlamaCppRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_module, "LONG", 1000)
    given = request(" " * 2000)
    assert Lengths(runtime.tokenizer, N_CTX).cut(given) == (given, 0)


def test_twenty_megabytes_are_hardly_looked_at(runtime: LlamaCppRuntime) -> None:
    read: list[int] = []

    class Tokenizer:
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            read.append(len(text))
            return runtime.tokenizer.encode(text, special=special)

    shorter, n_cut = Lengths(Tokenizer(), 8192).cut(request(PROSE * 200))  # type: ignore[arg-type]
    assert len(PROSE * 200) > 2e7
    assert sum(read) < 1e6
    assert len(shorter.messages[0].content) < 1e6
    assert n_cut > 10**6


@pytest.mark.parametrize("raw", [False, True], ids=["chat", "raw"])
def test_the_model_sees_the_same(raw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for long in (10**9, 1000):
        monkeypatch.setattr(lengths_module, "LONG", long)
        bench = Bench(ScriptedRuntime(n_ctx=N_CTX))
        what = {"prompt": TEXT} if raw else {"messages": (ChatMessage("user", TEXT),)}
        bench.engine.submit(Generate(1, **what, sampling=GREEDY, max_tokens=16, overflow="window"))
        bench.run()
        (event,) = bench.of(1, Evicted)
        (note,) = bench.of(1, Note)
        assert event.about is (long == 1000)
        assert ("(about " in note.text) is event.about
        assert event.n_lost == pytest.approx(len(TEXT), rel=0.05)
        assert (event.n_lost % 100 == 0) is event.about, "no figures that it doesn't know"
        seen.append((bench.runtime.tokens(0), bench.text(1), event.n_kept, event.n_pinned, event.cut))
    assert seen[0] == seen[1]


def test_a_long_message_of_before_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_module, "LONG", 1000)
    bench = Bench(ScriptedRuntime(n_ctx=N_CTX))
    first = bench.ask(1, TEXT, conversation="a", max_tokens=8, overflow="window")
    bench.ask(2, TEXT, first, "and now?", conversation="a", max_tokens=8, overflow="window")
    assert bench.finished(2).timings.prefill_tokens < 60, "only what is new"
