"""The peer's process, scripted and on llama.cpp."""

from pathlib import Path

import pytest

from edgechat.bench.peer import Peer
from edgechat.errors import BrokenModelError, EngineCrashedError, NotFoundError
from edgechat.records import LoadSettings

pytestmark = pytest.mark.timeout(600)


async def test_it_measures_llama_cpp(starter_gguf: Path) -> None:
    peer = await Peer.start(LoadSettings(str(starter_gguf), n_ctx=256, n_sequences=1, n_threads=1))
    try:
        assert await peer.decode("Once upon a time", 4) > 0
        assert await peer.prefill("Once upon a time", 40) > 0
        widths, costs = await peer.costs(0.1)
        assert widths[0] == 1
        assert len(widths) == len(costs)
        assert min(costs) > 0
        assert await peer.decode("And again", 2) > 0
    finally:
        await peer.close()


@pytest.mark.usefixtures("scripted_engine")
async def test_a_scripted_peer() -> None:
    peer = await Peer.start(LoadSettings("scripted"))
    try:
        assert await peer.decode("count 9 =>", 5) > 0
        assert await peer.prefill("abc", 1000) > 0
        widths, _ = await peer.costs(60)
        assert widths == tuple(range(1, 17))
    finally:
        await peer.close()


async def test_no_file_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        await Peer.start(LoadSettings(str(tmp_path / "none.gguf")))
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(BrokenModelError):
        await Peer.start(LoadSettings(str(path)))


@pytest.mark.usefixtures("scripted_engine")
async def test_a_peer_that_dies() -> None:
    peer = await Peer.start(LoadSettings("die SIGKILL"))
    try:
        with pytest.raises(EngineCrashedError, match="bare llama_decode loop ended"):
            await peer.decode("x", 2)
    finally:
        await peer.close()
