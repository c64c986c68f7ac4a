"""`edgechat models pull` where hubs and networks behave as badly as they do."""

import pytest

from edgechat.library import pull as pull_module
from tests.edgechat.library.hub_server import HubServer, Trouble
from tests.edgechat.library.pulling import FILE, REPO, Captured, pull, target


@pytest.mark.usefixtures("model")
def test_a_connection_that_is_cut(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=3)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert hub.ranges(FILE) == ["", "100000-", "200000-", "300000-"]
    assert hub.sent == len(model)  # nothing came twice
    assert "the connection was cut; trying again" in capsys.readouterr().err


@pytest.mark.usefixtures("model")
def test_a_connection_that_gives_up_keeps_what_came(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.troubles[FILE] = Trouble(cut_after=0)
    hub.troubles[FILE].times = -1
    assert pull(REPO) == 7
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE}: the connection was cut; what came so far is kept: pull it again later to go on"
    )
    assert not target().exists()
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model


@pytest.mark.usefixtures("model")
def test_a_server_that_ignores_ranges(hub: HubServer, model: bytes) -> None:
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    hub.troubles[FILE].ignores_range = True
    hub.troubles[FILE].times = 2
    hub.troubles[FILE].cut_after = 200_000
    assert pull(REPO) == 0
    assert target().read_bytes() == model


@pytest.mark.usefixtures("model")
def test_silence(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    hub.troubles[FILE] = Trouble(silent_after=65_536, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "doesn't answer; trying again" in capsys.readouterr().err


@pytest.mark.usefixtures("model")
def test_slow_bytes(hub: HubServer, model: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A byte now and then keeps a connection alive for ever: another may be faster."""
    from edgechat.library.fetch import Patience

    monkeypatch.setattr(
        pull_module, "Patience", lambda: Patience(first_wait_s=0.01, stall_s=0.3, stall_bytes=1000)
    )
    hub.troubles[FILE] = Trouble(rate=50, times=1)
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "bytes came in 0 s; trying again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "trouble", "code", "message"),
    [
        ("list", Trouble(404, {"X-Error-Code": "RepoNotFound"}), 3, "has no repository owner/tiny-GGUF, or"),
        ("list", Trouble(401), 3, "has no repository owner/tiny-GGUF, or it is private"),
        ("list", Trouble(404), 3, "answers 404 Not Found for owner/tiny-GGUF: check its name"),
        ("list", Trouble(403), 7, "answers 403 Forbidden for owner/tiny-GGUF: set HF_TOKEN to a token that"),
        ("list", Trouble(403, {"X-Error-Code": "GatedRepo"}), 7, "is gated: accept its terms at http"),
        ("list", Trouble(429, {"Retry-After": "120"}), 7, "(429): try again in 120 s; an HF_TOKEN raises"),
        ("list", Trouble(500), 7, "answers 500: try again later, or set HF_ENDPOINT to a mirror"),
        ("list", Trouble(503), 7, "answers 503: try again later"),
        ("list", Trouble(418), 7, "answers 418 I'm a Teapot for owner/tiny-GGUF: see whether it opens"),
        (FILE, Trouble(401, {"X-Error-Code": "GatedRepo"}), 7, "is gated: accept its terms at http"),
        (FILE, Trouble(403, {"X-Error-Code": "GatedRepo"}), 7, "then set HF_TOKEN to a token of that"),
        (FILE, Trouble(404, {"X-Error-Code": "EntryNotFound"}), 3, f"has no file {FILE}: pull again, as it"),
        (FILE, Trouble(429, {"Retry-After": "3600"}), 7,
         "is rate limiting (429); what came so far is kept: pull it again in 3600 s to go on"),
        (FILE, Trouble(502), 7, "answers 502; what came so far is kept: pull it again later to go on"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_refusals(
    hub: HubServer, where: str, trouble: Trouble, *, code: int, message: str, capsys: Captured
) -> None:
    hub.troubles[where] = trouble
    assert pull(REPO) == code
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("edgechat: ")
    assert message in last
    assert not target().exists()


@pytest.mark.parametrize("where", ["list", FILE])
@pytest.mark.usefixtures("model")
def test_a_token_that_is_refused(
    hub: HubServer, where: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.troubles[where] = Trouble(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
    assert pull(REPO) == 7
    assert "HF_TOKEN is not valid; set a new one, or unset it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "trouble"),
    [
        ("list", Trouble(429, {"Retry-After": "0"}, times=1)),
        ("list", Trouble(503, times=2)),
        (FILE, Trouble(429, {"Retry-After": "0"}, times=2)),
        (FILE, Trouble(429, {"RateLimit": '"resolvers";r=0;t=0'}, times=1)),
        (FILE, Trouble(500, times=2)),
        (FILE, Trouble(504, times=1)),
    ],
)
def test_trouble_that_passes(hub: HubServer, model: bytes, where: str, trouble: Trouble) -> None:
    hub.troubles[where] = trouble
    assert pull(REPO) == 0
    assert target().read_bytes() == model


def test_nobody_there(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert pull(REPO) == 7
    err = capsys.readouterr().err
    assert err.startswith("edgechat: http://127.0.0.1:1 can't be reached (")
    assert err.endswith("check the network, or HTTPS_PROXY and HF_ENDPOINT\n")
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    assert pull(REPO) == 2
    assert "HF_ENDPOINT is 'hub.example': give an address" in capsys.readouterr().err


@pytest.mark.usefixtures("model")
def test_a_full_disk(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(
        pull_module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**8)
    )
    assert pull(REPO) == 5
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE} takes 330.4 kB more, and {target().parent} has 100.0 MB free: free some space, "
        "or choose a smaller quantization"
    )
