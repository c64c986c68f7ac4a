import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from edgechat import errors
from edgechat.engine.process import supervisor as module
from edgechat.engine.process.messages import Delta, Generate
from edgechat.engine.process.obituary import EngineDied
from edgechat.engine.process.supervisor import SAFE_MODE_NOTE, EngineSupervisor, State
from edgechat.records import LoadSettings, SamplingSettings
from models.chat import ChatMessage

pytestmark = pytest.mark.usefixtures("scripted_engine")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


def ask(text):
    return Generate(0, messages=(ChatMessage("user", text),), sampling=SamplingSettings(temperature=0))


async def answer(engine, text):
    return "".join([event.text async for event in engine.generate(ask(text)) if isinstance(event, Delta)])


async def read_and_kill(engine, parts, pids, after):
    """Read an answer; kill -9 the engine once there are more than `after` characters."""
    async for event in engine.generate(ask("slow 0.02;count 100000")):
        if isinstance(event, Delta):
            parts.append(event.text)
            if len("".join(parts)) > after and not pids:
                pids.append(engine.pid)
                os.kill(engine.pid, signal.SIGKILL)


async def dies(engine, text="die SIGKILL at 3;count 9"):
    with pytest.raises(EngineDied) as raised:
        await answer(engine, text)
    return str(raised.value)


@asynccontextmanager
async def supervised(path="model", **hooks):
    engine = EngineSupervisor(LoadSettings(path=path), **hooks)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_twenty_times_in_mid_answer_it_keeps_the_part_and_answers_the_next():
    async with supervised() as engine:
        for i in range(20):
            parts, pids = [], []
            with pytest.raises(EngineDied) as raised:
                await read_and_kill(engine, parts, pids, after=i)
            text = "".join(parts)
            assert str(raised.value) == "the engine was killed (SIGKILL)"
            assert "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18".startswith(text[:20])
            assert len(text) > i
            assert await answer(engine, f"say still here {i}") == f"still here {i}"
            assert engine.pid not in pids
            assert engine.deaths == 0
        assert not engine.safe_mode


async def test_it_restarts_by_itself_at_once():
    states = []
    async with supervised(on_state=states.append) as engine:
        await engine.start()
        first = engine.pid
        await dies(engine)
        for _ in range(1000):
            if engine.state is State.READY and engine.pid not in {first, None}:
                break
            await asyncio.sleep(0.05)
        assert engine.pid not in {first, None}
    assert states == [State.LOADING, State.READY, State.LOADING, State.READY, State.STOPPED]


async def test_a_death_between_answers_is_told_and_mended():
    notes = []
    async with supervised(on_note=notes.append) as engine:
        await engine.start()
        os.kill(engine.pid, signal.SIGKILL)
        while not notes:
            await asyncio.sleep(0.02)
        assert notes == ["the engine was killed (SIGKILL); it was started again"]
        assert await answer(engine, "say hi") == "hi"


async def test_three_deaths_in_a_row_are_safe_mode_and_three_more_the_end():
    notes = []
    async with supervised(on_note=notes.append) as engine:
        await engine.start()
        assert engine.info.n_gpu_layers == -1
        for _ in range(2):
            await dies(engine)
        assert not engine.safe_mode
        await dies(engine)
        assert engine.safe_mode
        assert await answer(engine, "say careful") == "careful"
        assert notes == [SAFE_MODE_NOTE]
        assert engine.info.n_gpu_layers == 0
        for _ in range(3):
            assert await dies(engine) == "the engine was killed (SIGKILL)"
        assert engine.state is State.GIVEN_UP
        assert await dies(engine) == "the engine was killed (SIGKILL) (6 times in a row: given up)"
        # whoever asks for it begins anew
        await engine.start()
        assert await answer(engine, "say anew") == "anew"
        assert engine.deaths == 0
        assert engine.info.n_gpu_layers == -1


async def test_giving_up_between_answers_is_told():
    notes = []
    async with supervised(on_note=notes.append) as engine:
        await engine.start()
        while engine.state is not State.GIVEN_UP:
            pid = engine.pid
            if engine.state is State.READY and pid is not None:
                os.kill(pid, signal.SIGKILL)
                while engine.pid == pid:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)
        assert notes == [
            "the engine was killed (SIGKILL); it was started again",
            SAFE_MODE_NOTE,
            "the engine was killed (SIGKILL); the next question starts it again",
        ]
        assert engine.deaths == 6
        await engine.start()
        assert await answer(engine, "say hi") == "hi"


async def test_an_answer_in_between_forgives_the_deaths():
    async with supervised() as engine:
        for _ in range(4):
            await dies(engine)
            assert await answer(engine, "say alive") == "alive"
        assert not engine.safe_mode


async def test_a_model_that_loads_in_safe_mode_only():
    notes = []
    async with supervised("die SIGABRT unless safe", on_note=notes.append) as engine:
        assert await answer(engine, "say made it") == "made it"
        assert engine.info.n_gpu_layers == 0
    assert notes[0].startswith("the engine crashed (SIGABRT) while it loaded the model: ")
    assert notes[0].endswith("; trying again")
    assert notes[1] == SAFE_MODE_NOTE


async def test_a_model_that_never_loads_is_given_up():
    async with supervised("exit 9") as engine:
        assert (await dies(engine)).startswith(
            "the engine ended with exit code 9 while it loaded the model; its log: "
        )
        assert engine.deaths == 6


async def test_another_cpus_build_is_not_tried_again():
    async with supervised("die SIGILL") as engine:
        assert "CMAKE_ARGS" in await dies(engine)
        assert engine.deaths == 1
        assert "CMAKE_ARGS" in await dies(engine)
        assert engine.deaths == 1
        with pytest.raises(EngineDied, match="CMAKE_ARGS"):
            await engine.start()
        assert (engine.deaths, engine.state) == (1, State.GIVEN_UP)


async def test_a_model_that_loads_at_last(tmp_path):
    """As after other programs were closed, whose memory was missing."""
    path = tmp_path / "exit 9 until there"
    async with supervised(str(path)) as engine:
        for _ in range(2):
            with pytest.raises(EngineDied, match="exit code 9"):
                await engine.start()
            assert engine.state is State.GIVEN_UP
        path.touch()
        await engine.start()
        assert await answer(engine, "say hi") == "hi"


async def test_a_refused_model_is_no_death():
    async with supervised("refuse") as engine:
        for _ in range(2):
            with pytest.raises(errors.ResourceError, match="12 GB"):
                await answer(engine, "say hi")
        assert engine.deaths == 0


async def test_closing_cancels_what_runs():
    async with supervised() as engine:
        task = asyncio.create_task(answer(engine, "slow 0.01;count 9999"))
        while engine.info is None:
            await asyncio.sleep(0.02)
        await engine.close()
        with pytest.raises(errors.EngineCrashedError, match="closed"):
            await task
        assert await answer(engine, "say hi") == "hi"


async def test_closing_while_it_loads():
    async with supervised("hang") as engine:
        task = asyncio.create_task(answer(engine, "say hi"))
        await asyncio.sleep(0.5)
        await engine.close()
        with pytest.raises(errors.EngineCrashedError, match="closed"):
            await task
