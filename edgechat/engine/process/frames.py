"""Frames: four bytes of length (big-endian), then one message in MessagePack.

The host reads and writes with blocking files, the client with asyncio; both sides refuse a frame whose
length is over the cap before they take memory for it.
"""

import threading
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from edgechat.engine.process.messages import MAX_FRAME_BYTES, Event, Message, Request

if TYPE_CHECKING:
    import asyncio

Incoming = TypeVar("Incoming")

PREFIX_BYTES = 4

_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """The other side sent what is no frame of ours: the connection is of no more use."""


def pack(message: Message) -> bytes:
    """A message as a frame.

    Raises:
        FrameError: the message is too large.
    """
    frame = bytearray(PREFIX_BYTES)
    _encoder.encode_into(message, frame, PREFIX_BYTES)
    length = len(frame) - PREFIX_BYTES
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes: at most {MAX_FRAME_BYTES} can be sent")
    frame[:PREFIX_BYTES] = length.to_bytes(PREFIX_BYTES, "big")
    return bytes(frame)


class Decoder(Generic[Incoming]):
    """Frames' bodies to messages of one direction."""

    def __init__(self, kinds: Any) -> None:
        """`kinds`: Request or Event."""
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(kinds)

    def length(self, prefix: bytes) -> int:
        """Bytes of body that follow the prefix.

        Raises:
            FrameError: over the cap.
        """
        length = int.from_bytes(prefix, "big")
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes: at most {MAX_FRAME_BYTES} are accepted")
        return length

    def message(self, body: bytes) -> Incoming:
        """The message in a body.

        Raises:
            FrameError: it is none of this direction's messages.
        """
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, ValueError) as error:  # ValueError: a record refused its values
            raise FrameError(f"a frame that is no message: {error}") from error


class BlockingReader:
    """Requests from a file; the host's side."""

    def __init__(self, file: IO[bytes]) -> None:
        """`file`: binary, blocking, buffered."""
        self._file = file
        self._decoder: Decoder[Request] = Decoder(Request)

    def read(self) -> Request | None:
        """The next request; None at the end of the file.

        Raises:
            FrameError: what came is no request.
        """
        prefix = self._file.read(PREFIX_BYTES)
        if not prefix:
            return None
        if len(prefix) < PREFIX_BYTES:
            raise FrameError("the stream ends inside a frame's length")
        length = self._decoder.length(prefix)
        body = self._file.read(length)
        if len(body) < length:
            raise FrameError("the stream ends inside a frame")
        return self._decoder.message(body)


class BlockingWriter:
    """Events to a file, from any thread; the host's side."""

    def __init__(self, file: IO[bytes]) -> None:
        """`file`: binary, blocking, buffered."""
        self._file = file
        self._lock = threading.Lock()

    def write(self, event: Message) -> None:
        """Send a whole frame.

        Raises:
            OSError: nobody reads.
        """
        frame = pack(event)
        with self._lock:
            self._file.write(frame)
            self._file.flush()


class AsyncReader:
    """Events from a stream; the client's side."""

    def __init__(self, stream: "asyncio.StreamReader") -> None:
        """`stream`: the host's standard output."""
        self._stream = stream
        self._decoder: Decoder[Event] = Decoder(Event)

    async def read(self) -> Event | None:
        """The next event; None at the end of the stream, also where it ends inside a frame.

        A process that was killed may leave half a frame behind: that is its end, not a fault of the frame.

        Raises:
            FrameError: what came is no event.
        """
        import asyncio

        try:
            prefix = await self._stream.readexactly(PREFIX_BYTES)
            body = await self._stream.readexactly(self._decoder.length(prefix))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return self._decoder.message(body)


class AsyncWriter:
    """Requests to a stream; the client's side."""

    def __init__(self, stream: "asyncio.WriteTransport") -> None:
        """`stream`: the host's standard input."""
        self._stream = stream

    def write(self, request: Message) -> None:
        """Send a frame without waiting; what a dead process can't take is dropped.

        Raises:
            FrameError: the message is too large.
        """
        frame = pack(request)
        if not self._stream.is_closing():
            self._stream.write(frame)

    def close(self) -> None:
        """Send the end of the stream."""
        self._stream.close()
