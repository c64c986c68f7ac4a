"""Nothing reaches the network while the network is not to be used."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgechat import offline
from edgechat.cli import app
from edgechat.errors import NetworkError

REFUSED = "was refused: offline, as a test asks"


@pytest.fixture
def guarded() -> Iterator[None]:
    offline.start("a test")
    try:
        yield
    finally:
        offline.stop()


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    """An address that would take a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in offline.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("guarded")
def test_every_way_out_is_closed(listener: tuple[str, int]) -> None:
    with pytest.raises(NetworkError, match=f"a connection to 127.0.0.1 {REFUSED}"):
        socket.create_connection(listener)
    with socket.socket() as one:
        with pytest.raises(NetworkError, match=REFUSED):
            one.connect(listener)
        with pytest.raises(NetworkError, match=REFUSED):
            one.connect_ex(listener)
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(NetworkError, match=REFUSED):
        one.sendto(b"x", listener)
    for look_up in (socket.gethostbyname, lambda name: socket.getaddrinfo(name, 80)):
        with pytest.raises(NetworkError, match=f"a connection to example.invalid {REFUSED}"):
            look_up("example.invalid")
    with pytest.raises(NetworkError, match=REFUSED):
        urllib.request.urlopen("http://example.invalid/")


@pytest.mark.usefixtures("guarded")
async def test_asyncio_too(listener: tuple[str, int]) -> None:
    import asyncio

    with pytest.raises(NetworkError, match=REFUSED):
        await asyncio.open_connection(*listener)


@pytest.mark.usefixtures("guarded")
def test_inside_the_machine_all_goes_on(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(address)
        server.listen()
        client.connect(address)
    first, second = socket.socketpair()
    with first, second:
        first.send(b"x")
        assert second.recv(1) == b"x"


def test_it_ends(listener: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGECHAT_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    offline.start("a test")
    assert (os.environ["EDGECHAT_OFFLINE"], os.environ["HF_HUB_OFFLINE"]) == ("1", "1")
    offline.stop()
    assert ("EDGECHAT_OFFLINE" in os.environ, os.environ["HF_HUB_OFFLINE"]) == (False, "0")
    socket.create_connection(listener).close()


@pytest.mark.parametrize(
    ("option", "environment", "why"),
    [
        (True, {}, "--offline"),
        (False, {"EDGECHAT_OFFLINE": "1"}, "EDGECHAT_OFFLINE"),
        (False, {"HF_HUB_OFFLINE": "TRUE"}, "HF_HUB_OFFLINE"),
        (False, {"EDGECHAT_OFFLINE": "0", "HF_HUB_OFFLINE": "no"}, ""),
        (False, {"HF_HUB_OFFLINE": ""}, ""),
        (False, {}, ""),
    ],
)
def test_who_asks(option: bool, environment: dict[str, str], why: str) -> None:
    assert offline.reason(option, environment) == why


def test_the_settings_ask(edgechat_home: Path) -> None:
    (edgechat_home / "config").mkdir(parents=True)
    config = edgechat_home / "config" / "config.toml"
    config.write_text("[network]\noffline = true\n")
    assert offline.reason(environment={}) == "network.offline in the settings"
    config.write_text("[network]\noffline = maybe\n")  # what reads the settings complains of it
    assert offline.reason(environment={}) == ""


@pytest.mark.usefixtures("online")
def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--offline", "models", "pull", "owner/repo"]) == 7
    assert capsys.readouterr().err == (
        "edgechat: can't pull a model offline (--offline): allow the network for this one command\n"
    )
    assert offline.active() == ""


def test_a_process_is_born_with_it(listener: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started by an offline edgechat is offline as well."""
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    code = (
        "import sys, socket\n"
        "from edgechat.cli import app\n"
        "from edgechat.library import local\n"
        f"local.list_models = lambda: socket.create_connection({listener})\n"
        "sys.exit(app.main(['models', 'ls']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr == (
        "edgechat: a connection to 127.0.0.1 was refused: offline, as EDGECHAT_OFFLINE asks\n"
    )
