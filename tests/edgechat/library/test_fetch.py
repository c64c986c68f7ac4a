"""The policy of a download, without a network."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgechat.errors import NetworkError
from edgechat.library.fetch import Cancelled, Fetch, Patience, Stream, Transient
from edgechat.library.hub_errors import retry_after

DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()


class Server:
    """Gives the data as a list of acts says: how many bytes come before the connection ends, or an error."""

    def __init__(
        self, *acts: int | Exception, data: bytes = DATA, ranges: bool = True, total: bool = True
    ) -> None:
        self.acts = list(acts)
        self.data = data
        self.ranges = ranges
        self.total = total
        self.asked: list[int] = []

    @contextmanager
    def open(self, start: int) -> Iterator[Stream]:
        self.asked.append(start)
        act = self.acts.pop(0) if self.acts else len(self.data)
        if isinstance(act, Exception):
            raise act
        begin = start if self.ranges else 0
        piece = self.data[begin : begin + act]
        chunks = iter([piece[:100], piece[100:]])
        yield Stream(begin, len(self.data) if self.total else None, chunks)


class Heard:
    """What a download tells."""

    def __init__(self) -> None:
        self.count = self.before = 0
        self.notes: list[str] = []

    def advance(self, name: str, count: int) -> None:
        self.count += count

    def found(self, name: str, count: int) -> None:
        self.before += count
        self.count += count

    def note(self, text: str) -> None:
        self.notes.append(text)


def fetch(
    server: Server, partial: Path, *, size: int | None = len(DATA), sha256: str | None = SHA256
) -> tuple[str, Heard]:
    heard = Heard()
    patience = Patience(tries=3, first_wait_s=0.001, longest_wait_s=0.1)
    one = Fetch("m", partial, size, sha256, server.open, heard, threading.Event(), patience)
    return one.run(), heard


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return tmp_path / "partial"


def test_it_goes_on_where_it_was(partial: Path) -> None:
    server = Server(1000, Transient("not now"), 2000)
    digest, heard = fetch(server, partial)
    assert (digest, partial.read_bytes() == DATA) == (SHA256, True)
    assert server.asked == [0, 1000, 1000, 3000]
    assert heard.count == len(DATA)
    assert heard.notes == [
        "m: the connection was cut; trying again in 0 s",
        "m: not now; trying again in 0 s",
        "m: the connection was cut; trying again in 0 s",
    ]


def test_what_is_there_is_not_asked_for(partial: Path) -> None:
    partial.write_bytes(DATA[:5000])
    server = Server()
    _, heard = fetch(server, partial)
    assert (server.asked, heard.count, heard.before) == ([5000], len(DATA), 5000)
    server = Server()
    fetch(server, partial)
    assert server.asked == []  # all of it is there


def test_bytes_that_come_forgive_the_failures_before(partial: Path) -> None:
    acts: list[int | Exception] = []
    for _ in range(5):
        acts += [Transient("a"), 1000]
    fetch(Server(*acts), partial)
    with pytest.raises(NetworkError, match="m: c; what came so far is kept: pull it again later to go on"):
        fetch(Server(Transient("a"), Transient("b"), Transient("c")), partial.with_name("other"))


def test_a_server_that_asks_for_too_long_a_wait_is_left(partial: Path) -> None:
    server = Server(Transient("busy", wait_s=60))
    with pytest.raises(NetworkError, match="busy; what came so far is kept: pull it again in 60 s to go on"):
        fetch(server, partial)
    assert server.asked == [0]


def test_a_server_without_ranges_begins_again(partial: Path) -> None:
    server = Server(1000, ranges=False)
    _, heard = fetch(server, partial)
    assert (partial.read_bytes() == DATA, heard.count) == (True, len(DATA))


@pytest.mark.parametrize("total", [True, False])
def test_a_size_that_is_not_known(partial: Path, total: bool) -> None:
    digest, _ = fetch(Server(total=total), partial, size=None, sha256=None)
    assert (digest, partial.read_bytes() == DATA) == (SHA256, True)


def test_more_than_was_promised(partial: Path) -> None:
    with pytest.raises(NetworkError, match="m is longer than the 100 bytes that were promised"):
        fetch(Server(), partial, size=100)
    partial.write_bytes(DATA + b"more")
    fetch(Server(), partial)  # what was there before is too long: it begins again
    assert partial.read_bytes() == DATA


def test_a_wrong_checksum(partial: Path) -> None:
    other = DATA[:-1] + b"x"
    with pytest.raises(NetworkError, match="m came with a wrong checksum"):
        fetch(Server(data=other), partial)
    assert not partial.exists()
    partial.write_bytes(b"damaged")
    digest, heard = fetch(Server(), partial)
    assert (digest, heard.count) == (SHA256, len(DATA))
    assert heard.notes == [
        "m: 7 B are here from before; it goes on with that",
        "m: what was here before was damaged; it begins again",
    ]


def test_it_can_be_stopped(partial: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Fetch("m", partial, len(DATA), SHA256, Server().open, Heard(), stop).run()
    partial.write_bytes(DATA[:100])
    with pytest.raises(Cancelled):
        Fetch("m", partial, len(DATA), SHA256, Server().open, Heard(), stop).run()
    assert partial.read_bytes() == DATA[:100]


def test_the_waits_grow() -> None:
    patience = Patience(first_wait_s=1, longest_wait_s=10)
    assert [patience.wait(failures) for failures in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
