import asyncio
import io
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.process import frames, messages
from edgechat.engine.process.frames import (
    MAX_FRAME_BYTES,
    AsyncReader,
    BlockingReader,
    BlockingWriter,
    FrameError,
    pack,
)
from edgechat.engine.process.messages import Cancel, Delta, Generate, Load, Request, Shutdown
from edgechat.records import LoadSettings, SamplingSettings
from models.chat import ChatMessage

chat_messages = st.builds(
    ChatMessage, role=st.sampled_from(["system", "user", "assistant"]), content=st.text(max_size=50)
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(
        Generate,
        id=st.integers(0, 2**31),
        messages=st.lists(chat_messages, max_size=4).map(tuple),
        prompt=st.text(max_size=50),
        sampling=st.builds(SamplingSettings, temperature=st.floats(0, 100), seed=st.integers(0, 2**64 - 1)),
        stop=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        max_tokens=st.integers(0, 2**31),
        ignore_eog=st.booleans(),
        conversation=st.text(max_size=10),
    ),
    st.builds(Cancel, id=st.integers(0, 2**31)),
    st.builds(Load, settings=st.builds(LoadSettings, path=st.text(max_size=20))),
    st.just(Shutdown()),
)


@given(st.lists(requests, max_size=5))
def test_requests_come_out_as_they_went_in(sent):
    reader = BlockingReader(io.BytesIO(b"".join(map(pack, sent))))
    received = list(iter(reader.read, None))
    assert received == sent
    assert [type(one) for one in received] == [type(one) for one in sent]


def test_a_frame_is_four_bytes_of_length_and_messagepack():
    frame = pack(Cancel(7))
    assert frame[:4] == struct.pack(">I", len(frame) - 4)
    assert msgspec.msgpack.decode(frame[4:]) == {"type": "Cancel", "id": 7}


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_refused_and_never_anything_else(garbage):
    reader = BlockingReader(io.BytesIO(garbage))
    with pytest.raises(FrameError):
        list(iter(reader.read, None))


@given(st.binary(max_size=60))
def test_a_body_that_is_no_message_is_refused(body):
    frame = len(body).to_bytes(4, "big") + body
    with pytest.raises(FrameError, match="no message"):
        BlockingReader(io.BytesIO(frame)).read()


def test_a_record_out_of_its_range_is_refused():
    body = msgspec.msgpack.encode({"type": "Load", "settings": {"path": "x", "n_batch": 1}})
    with pytest.raises(FrameError, match="batch of 1 tokens"):
        BlockingReader(io.BytesIO(len(body).to_bytes(4, "big") + body)).read()


@given(st.data())
def test_a_stream_cut_inside_a_frame_is_refused(data):
    frame = pack(Generate(1, prompt="hello"))
    cut = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(FrameError, match="ends inside"):
        BlockingReader(io.BytesIO(frame[:cut])).read()


class Untouched(io.BytesIO):
    """A file of which a body must not be read."""

    def read(self, size=-1, /):
        assert size is not None
        assert size <= 4, f"{size} bytes were asked for"
        return super().read(size)


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_over_the_cap_is_refused_before_memory_is_taken(length):
    with pytest.raises(FrameError, match=f"frame of {length} bytes"):
        BlockingReader(Untouched(length.to_bytes(4, "big") + b"x" * 16)).read()


def test_a_message_over_the_cap_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    assert messages.MAX_FRAME_BYTES == 64 * 2**20
    with pytest.raises(FrameError, match="at most 100"):
        pack(Generate(1, prompt="x" * 100))


@given(st.lists(st.text(max_size=40), max_size=6), st.integers(1, 7))
def test_events_come_out_of_any_chopping(texts, size):
    sent = [Delta(i, text, i) for i, text in enumerate(texts)]
    buffer = io.BytesIO()
    writer = BlockingWriter(buffer)
    for event in sent:
        writer.write(event)
    data = buffer.getvalue()

    async def receive():
        stream = asyncio.StreamReader()
        reader = AsyncReader(stream)
        for at in range(0, len(data), size):
            stream.feed_data(data[at : at + size])
        stream.feed_eof()
        received = []
        while (event := await reader.read()) is not None:
            received.append(event)
        return received

    assert asyncio.run(receive()) == sent


async def test_the_client_takes_half_a_frame_for_the_end():
    stream = asyncio.StreamReader()
    stream.feed_data(pack(Delta(1, "a", 1)) + pack(Delta(1, "b", 2))[:-1])
    stream.feed_eof()
    reader = AsyncReader(stream)
    assert await reader.read() == Delta(1, "a", 1)
    assert await reader.read() is None


async def test_the_client_refuses_what_is_no_event():
    stream = asyncio.StreamReader()
    stream.feed_data(pack(Cancel(1)))
    with pytest.raises(FrameError):
        await AsyncReader(stream).read()
