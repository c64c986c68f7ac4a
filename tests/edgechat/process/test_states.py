"""Conversations outlive the engine's process."""

import asyncio
import stat
from pathlib import Path

import pytest

from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Delta, Finished, Generate
from edgechat.engine.process.supervisor import EngineSupervisor
from edgechat.records import LoadSettings, SamplingSettings
from models.chat import ChatMessage

pytestmark = pytest.mark.usefixtures("scripted_engine")

GREEDY = SamplingSettings(temperature=0)
LONG = "say " + "x" * 300


def settings(folder: Path) -> LoadSettings:
    return LoadSettings(
        "model", state_folder=str(folder), state_memory_bytes=10_000_000, state_disk_bytes=10_000_000
    )


def request(*contents: str) -> Generate:
    messages = tuple(
        ChatMessage("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)
    )
    return Generate(0, messages, sampling=GREEDY, conversation="chat-1")


async def finished(engine: EngineClient | EngineSupervisor, asked: Generate) -> tuple[str, Finished]:
    text = ""
    async for event in engine.generate(asked):
        if isinstance(event, Delta):
            text += event.text
        if isinstance(event, Finished):
            return text, event
    raise AssertionError("no end")


async def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    client = await EngineClient.start(settings(folder))
    answer, first = await finished(client, request(LONG))
    await client.close()
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    client = await EngineClient.start(settings(folder))
    text, second = await finished(client, request(LONG, answer, "say more"))
    await client.close()
    assert text == "more"
    assert second.timings.cached_tokens == first.n_context
    assert second.timings.prefill_tokens == len("say more") + 4  # <|end|> <|user|> ... <|end|> <|assistant|>


async def test_an_idle_engine_saves_by_itself(tmp_path: Path) -> None:
    client = await EngineClient.start(settings(tmp_path))
    answer, _ = await finished(client, request(LONG))
    async with asyncio.timeout(60):
        while not list(tmp_path.glob("*.state")):
            await asyncio.sleep(0.05)
    _, second = await finished(client, request(LONG, answer, "say more"))
    assert second.timings.prefill_tokens < 20
    await client.close()


async def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    engine = EngineSupervisor(settings(tmp_path))
    await finished(engine, request(LONG))
    engine.forget("chat-1")
    await engine.close()
    assert list(tmp_path.iterdir()) == []
    await finished(engine, request(LONG))
    await engine.close()
    assert len(list(tmp_path.iterdir())) == 1
    engine.forget("chat-1")  # with no engine running
    assert list(tmp_path.iterdir()) == []
