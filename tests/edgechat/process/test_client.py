import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from edgechat import errors
from edgechat.engine.process.client import EngineClient, EngineClosed
from edgechat.engine.process.messages import Delta, Finished, Generate, Note, Prefilled, Refused
from edgechat.engine.process.obituary import EngineDied
from edgechat.engine.process.spawn import KEPT_LOGS, spawn_host
from edgechat.paths import log_dir
from edgechat.records import FinishReason, LoadSettings, SamplingSettings
from models.chat import ChatMessage

pytestmark = pytest.mark.usefixtures("scripted_engine")

GREEDY = SamplingSettings(temperature=0)


def ask(text, **fields):
    return Generate(0, messages=(ChatMessage("user", text),), sampling=GREEDY, **fields)


@asynccontextmanager
async def running(path="model", **settings):
    client = await EngineClient.start(LoadSettings(path=path, **settings))
    try:
        yield client
    finally:
        await client.close()


async def collect(answer):
    events = [event async for event in answer]
    return "".join(event.text for event in events if isinstance(event, Delta)), events


async def read_into(parts, answer):
    async for event in answer:
        if isinstance(event, Delta):
            parts.append(event.text)


def gone(pid, within_s=20.0):
    """Whether a process has ended, also where nobody took leave of it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


async def test_an_answer_streams_and_ends_with_its_tokens():
    seen = []
    client = await EngineClient.start(LoadSettings(path="model", n_ctx=500), on_progress=seen.append)
    try:
        assert seen[-1] == 1.0
        assert client.info.name == "scripted"
        assert client.info.n_ctx == 500
        assert client.notes == ()
        text, events = await collect(client.generate(ask("say Grüße 🌍")))
    finally:
        await client.close()
    assert text == "Grüße 🌍"
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.STOP
    assert bytes(finished.tokens) == "Grüße 🌍".encode()
    assert any(isinstance(event, Prefilled) for event in events)
    assert gone(client.pid, 0.1)


async def test_several_answers_at_once_each_get_their_own_events():
    async with running() as client:
        texts = [f"say answer number {i}" for i in range(10)]
        results = await asyncio.gather(*(collect(client.generate(ask(text))) for text in texts))
    assert [text for text, _ in results] == [f"answer number {i}" for i in range(10)]
    for _, events in results:
        assert len({event.id for event in events}) == 1


async def test_a_cancelled_answer_ends_with_its_finished():
    async with running() as client:
        answer = client.generate(ask("slow 0.005;count 100000"))
        events = []
        async for event in answer:
            events.append(event)
            if isinstance(event, Delta):
                answer.cancel()
        assert events[-1].reason is FinishReason.CANCELLED
        assert (await collect(client.generate(ask("say next"))))[0] == "next"


async def test_leaving_the_loop_ends_the_request():
    async with running(n_sequences=1) as client:
        async for event in client.generate(ask("slow 0.005;count 100000")):
            if isinstance(event, Delta):
                break
        # the only sequence is free again, else this would wait for the first to end
        assert (await collect(client.generate(ask("say next"))))[0] == "next"


async def test_cancelling_the_task_ends_the_request():
    async with running(n_sequences=1) as client:
        task = asyncio.create_task(collect(client.generate(ask("slow 0.005;count 100000"))))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await collect(client.generate(ask("say next"))))[0] == "next"


async def test_an_answer_cancelled_before_it_began():
    async with running() as client:
        answer = client.generate(ask("slow 0.005;count 100000"))
        answer.cancel()
        _, events = await collect(answer)
        assert events[-1].reason is FinishReason.CANCELLED


async def test_a_refusal_is_an_event_and_the_engine_goes_on():
    async with running(n_ctx=64) as client:
        _, events = await collect(client.generate(ask("x" * 100)))
        assert isinstance(events[-1], Refused)
        assert events[-1].code == errors.ExitCode.USAGE
        assert (await collect(client.generate(ask("say on"))))[0] == "on"


async def test_a_base_model_says_so_of_a_conversation_and_not_of_plain_text():
    async with running("base") as client:
        assert client.info.chat_template is None
        text, events = await collect(client.generate(Generate(0, prompt="say hi=>", sampling=GREEDY)))
        assert text == "hi"
        assert not any(isinstance(event, Note) for event in events)
        _, events = await collect(client.generate(ask("hi", max_tokens=2)))
        (note,) = (event for event in events if isinstance(event, Note))
        assert note.kind == "no_template"


async def test_what_native_code_prints_goes_to_the_log(capfd):
    async with running() as client:
        text, _ = await collect(client.generate(ask("print NATIVE NOISE;say quiet")))
        assert text == "quiet"
    assert capfd.readouterr() == ("", "")
    (log,) = log_dir().glob("engine-*.log")
    assert log.read_text().count("NATIVE NOISE") == 2
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("die SIGKILL at 20", "the engine was killed (SIGKILL)"),
        (
            "die SIGABRT at 20",
            "the engine crashed (SIGABRT): /src/ggml/src/ggml.c:123: GGML_ASSERT(n_tokens > 0) failed",
        ),
        ("exit 3 at 20", "the engine ended with exit code 3"),
        ("exit 0 at 20", "the engine ended by itself"),
    ],
)
async def test_a_death_is_told_in_one_line_within_a_second(command, line):
    async with running() as client:
        parts = []
        with pytest.raises(EngineDied) as raised:
            await read_into(parts, client.generate(ask(f"slow 0.05;{command};count 1000")))
        text = "".join(parts)
        assert str(raised.value).startswith(line)
        assert "\n" not in str(raised.value)
        assert "0 1 2 3 4 5 6 7 8 9 ".startswith(text)
        assert text
        assert raised.value.code == errors.ExitCode.ENGINE_CRASHED
        assert not client.alive
        with pytest.raises(EngineDied):
            await collect(client.generate(ask("say more")))


async def test_a_segmentation_fault_names_the_log():
    async with running() as client:
        with pytest.raises(EngineDied, match=r"crashed \(SIGSEGV\); its log: .*engine-"):
            await collect(client.generate(ask("die SIGSEGV at 1;count 9")))
    (log,) = log_dir().glob("engine-*.log")
    assert "Segmentation fault" in log.read_text()


async def test_every_running_answer_learns_of_the_death():
    async with running() as client:
        tasks = [asyncio.create_task(collect(client.generate(ask("slow 0.01;count 9999")))) for _ in range(6)]
        await asyncio.sleep(0.2)
        os.kill(client.pid, signal.SIGKILL)
        started = time.monotonic()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - started < 10
    assert [type(result) for result in results] == [EngineDied] * 6


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("die SIGABRT", r"crashed \(SIGABRT\) while it loaded the model: .*GGML_ASSERT"),
        ("die SIGKILL", r"killed \(SIGKILL\) while it loaded the model"),
        ("exit 7", "exit code 7 while it loaded the model"),
        ("die SIGILL", "another CPU.*CMAKE_ARGS"),
    ],
)
async def test_a_death_during_the_load(path, line):
    with pytest.raises(EngineDied, match=line):
        await EngineClient.start(LoadSettings(path=path))


async def test_an_error_of_the_load_keeps_its_class_and_words():
    with pytest.raises(errors.ResourceError, match="needs 12 GB and 3 GB are free"):
        await EngineClient.start(LoadSettings(path="refuse"))


async def test_a_bug_during_the_load_is_one_line_and_a_trace_in_the_log():
    with pytest.raises(errors.EdgechatError, match="ZeroDivisionError: division by zero") as raised:
        await EngineClient.start(LoadSettings(path="bug"))
    assert raised.value.code == errors.ExitCode.BUG
    (log,) = log_dir().glob("engine-*.log")
    assert str(raised.value).endswith(f"; its log: {log}")
    assert "Traceback" in log.read_text()


async def test_a_cancelled_load_leaves_no_process():
    host = spawn_host()
    task = asyncio.create_task(EngineClient.start(LoadSettings(path="hang"), host=host))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.process.returncode is not None


async def test_a_text_is_scored_window_by_window():
    seen = []
    async with running() as client:
        scores = await client.score("abcdefgh" * 4, 8, on_window=seen.append)
        assert (await collect(client.generate(ask("say after"))))[0] == "after"
    assert scores.n_text_tokens == 32
    assert tuple(seen) == scores.windows
    assert [(w.done, w.total, w.n_tokens) for w in scores.windows] == [(i, 4, 3) for i in range(1, 5)]
    # the scripted model echoes: after "abcde" it is as sure of "a" as can be, and so wrong by 200 nats
    assert all(window.nll == pytest.approx(3 * 200.0) for window in scores.windows)


async def test_a_text_too_short_to_score():
    async with running() as client:
        with pytest.raises(errors.UsageError, match="too short"):
            await client.score("abc", 8)


async def test_a_callback_that_fails_does_not_leave_everyone_waiting():
    def fail(progress):
        raise KeyError(progress)

    with pytest.raises(EngineDied, match="KeyError"):
        await EngineClient.start(LoadSettings(path="model"), on_progress=fail)


async def test_closing_ends_what_runs():
    async with running() as client:
        task = asyncio.create_task(collect(client.generate(ask("slow 0.005;count 9999"))))
        await asyncio.sleep(0.2)
        await client.close()
        with pytest.raises(EngineClosed):
            await task
        with pytest.raises(EngineClosed):
            await collect(client.generate(ask("say hi")))
        await client.close()  # twice is once
    assert gone(client.pid, 0.1)


async def test_a_process_that_will_not_leave_is_killed(monkeypatch):
    monkeypatch.setattr("edgechat.engine.process.client.GRACE_S", 0.3)
    async with running() as client:
        task = asyncio.create_task(collect(client.generate(ask("hang at 1;count 9"))))
        await asyncio.sleep(0.3)
        os.kill(client.pid, signal.SIGSTOP)  # now it does not even see the end of its input
        await client.close()
        with pytest.raises(EngineClosed):
            await task
    assert gone(client.pid, 0.1)


async def test_a_hung_engine_is_ended():
    async with running() as client:
        client._watchdog.interval_s, client._watchdog.silence_s = 0.2, 1.0
        client._watchdog._longest_gap_s = 0.0
        client._watching.cancel()
        client._watching = asyncio.create_task(client._watch())
        with pytest.raises(EngineDied, match="stopped answering"):
            await collect(client.generate(ask("hang at 3;count 9")))


async def test_interrupts_are_not_for_the_engine():
    async with running() as client:
        task = asyncio.create_task(collect(client.generate(ask("slow 0.01;count 20"))))
        await asyncio.sleep(0.1)
        os.kill(client.pid, signal.SIGINT)
        text, _ = await task
        assert text.endswith("18 19 ")
        assert os.getsid(client.pid) != os.getsid(0)


async def test_a_host_that_is_sent_garbage_leaves():
    host = spawn_host()
    host.process.stdin.write(b"\xff\xff\xff\xff garbage")
    host.process.stdin.flush()
    assert await asyncio.to_thread(host.process.wait, 60) == errors.ExitCode.BUG
    assert "at most" in host.log.read_text()
    host.discard()


def test_a_host_ends_with_the_end_of_its_input():
    host = spawn_host()
    host.process.stdin.close()
    assert host.process.wait(60) == 0
    host.discard()


ORPHAN = """
import asyncio, os, sys
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Generate
from edgechat.records import LoadSettings

async def main():
    client = await EngineClient.start(LoadSettings(path="model"))
    async for event in client.generate(Generate(0, prompt=sys.argv[1])):
        print(client.pid, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("work", ["slow 0.01;count 9999=>", "hang at 1;count 9=>"])
def test_a_killed_client_leaves_no_engine(work):
    client = subprocess.Popen([sys.executable, "-c", ORPHAN, work], stdout=subprocess.PIPE)
    pid = int(client.stdout.readline())
    assert psutil.pid_exists(pid)
    client.kill()
    client.wait()
    client.stdout.close()
    assert gone(pid)


async def test_old_logs_are_removed():
    for i in range(30):
        (log_dir() / f"engine-1-{i}.log").write_text("old")
    async with running():
        assert len(list(log_dir().glob("engine-*.log"))) == KEPT_LOGS


async def test_a_host_is_not_led_astray_by_the_folder_it_starts_in(tmp_path, monkeypatch):
    for name in ("models", "msgspec", "queue", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    async with running() as client:
        assert (await collect(client.generate(ask("say home"))))[0] == "home"
