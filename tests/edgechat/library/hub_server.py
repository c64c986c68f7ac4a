"""A hub on loopback that behaves as well or as badly as a test wants.

It speaks as much of the hub's HTTP as a download needs: the list of a repository's files, and the files
themselves with ranges. `Trouble` says what goes wrong, where, and how often.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 16 * 1024


@dataclass
class Trouble:
    """What goes wrong with requests for one thing."""

    status: int = 0
    """Answered instead of what was asked for."""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int = -1
    """The connection ends after so many bytes of the body."""
    rate: float = 0
    """Bytes a second; 0: as fast as it goes."""
    silent_after: int = -1
    """No byte more comes after so many, but the connection stays."""
    gate: threading.Event | None = None
    """The silence ends when this is set."""
    ignores_range: bool = False
    times: int = -1
    """How many requests it befalls; -1: all."""


@dataclass
class HubServer:
    """What the hub holds, what goes wrong there, and what it was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    """Checksums that are claimed of files instead of the right ones."""
    without_checksums: bool = False
    troubles: dict[str, Trouble] = field(default_factory=dict)
    """By a file's name, or "list" for the list of files."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of every request."""
    tokens: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of files."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""

    def trouble(self, name: str) -> Trouble:
        """What befalls a request for `name`."""
        with self.lock:
            trouble = self.troubles.get(name)
            if trouble is None or trouble.times == 0:
                return Trouble()
            if trouble.times > 0:
                trouble.times -= 1
            return trouble

    def ranges(self, name: str) -> list[str]:
        """The ranges that were asked of a file; "" for all of it."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith("/" + name)]

    def listing(self, repository: str) -> dict[str, object]:
        """What the hub's API says of a repository."""
        siblings = []
        for name, data in self.repositories[repository].items():
            digest = self.claimed.get(name, hashlib.sha256(data).hexdigest())
            entry: dict[str, object] = {"rfilename": name}
            if not self.without_checksums:
                entry |= {"size": len(data), "blobId": "0" * 40}
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 135}
            siblings.append(entry)
        return {
            "_id": "1", "id": repository, "modelId": repository, "sha": COMMIT, "private": False,
            "gated": False, "downloads": 7, "likes": 0, "tags": ["gguf"], "siblings": siblings,
            "cardData": {"license": "apache-2.0"},
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        hub = self.hub
        with hub.lock:
            hub.requests.append((self.command, path, self.headers.get("Range", "").removeprefix("bytes=")))
            hub.tokens.append(self.headers.get("Authorization", ""))
        if path == "/api/models":
            self._search(parse_qs(parts.query))
        elif path.startswith("/api/models/"):
            self._list("/".join(path.split("/")[3:5]))
        elif "/resolve/" in path:
            repository, _, rest = path.removeprefix("/").partition("/resolve/")
            self._file(repository, rest.partition("/")[2])
        else:
            self._error(404, {})

    def _search(self, query: dict[str, list[str]]) -> None:
        trouble = self.hub.trouble("search")
        if trouble.status:
            self._error(trouble.status, trouble.headers)
            return
        words = query.get("search", [""])[0].casefold()
        found = [self.hub.listing(name) for name in self.hub.repositories if words in name.casefold()]
        self._json(found)

    def _list(self, repository: str) -> None:
        trouble = self.hub.trouble("list")
        if trouble.status:
            self._error(trouble.status, trouble.headers)
        elif repository not in self.hub.repositories:
            self._error(404, {"X-Error-Code": "RepoNotFound"})
        else:
            self._json(self.hub.listing(repository))

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, repository: str, name: str) -> None:
        data = self.hub.repositories.get(repository, {}).get(name)
        trouble = self.hub.trouble(PurePosixPath(name).name)
        if trouble.status:
            self._error(trouble.status, trouble.headers)
            return
        if data is None:
            self._error(404, {"X-Error-Code": "EntryNotFound"})
            return
        start = 0
        asked = self.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
        if asked and not trouble.ignores_range:
            start = int(asked)
            if start >= len(data):
                self._error(416, {"Content-Range": f"bytes */{len(data)}"})
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            self._body(data[start:], trouble)

    def _body(self, data: bytes, trouble: Trouble) -> None:
        end = len(data) if trouble.cut_after < 0 else min(len(data), trouble.cut_after)
        at = 0
        piece = PIECE if not trouble.rate else max(1, int(trouble.rate / 10))
        while at < end and not self.hub.stopped.is_set():
            if 0 <= trouble.silent_after <= at:
                (trouble.gate or self.hub.stopped).wait(120)
                if trouble.gate is None:
                    break
            try:
                self.wfile.write(data[at : min(end, at + piece)])
                self.wfile.flush()
            except OSError:
                break
            with self.hub.lock:
                self.hub.sent += min(end, at + piece) - at
            at += piece
            if trouble.rate:
                time.sleep(0.1)
        if at < len(data):
            self.close_connection = True

    def _error(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""


@contextmanager
def running() -> Iterator[HubServer]:
    """A hub at `endpoint`."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
