"""What comes is not what was promised: it is not kept, and never loaded."""

import hashlib

import pytest

from edgechat.library.local import models_dir
from edgechat.library.pull import UNFINISHED
from edgechat.library.source import load_source
from tests.edgechat.library.hub_server import HubServer, Trouble
from tests.edgechat.library.pulling import FILE, REPO, Captured, left_over, pull, target
from tests.edgechat.library.tiny_models import gguf
from tests.oracles.raw_gguf import STRING, tiny_llama


def test_a_wrong_checksum(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.claimed[FILE] = "0" * 64
    assert pull(REPO) == 7
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"edgechat: {FILE} came with a wrong checksum ({hashlib.sha256(model).hexdigest()[:12]}, not "
        "000000000000) and was removed: pull it again, and if that fails too, tell whoever runs the hub or "
        "mirror"
    )
    assert not target().exists()
    assert left_over() == []


def test_a_beginning_that_was_damaged(hub: HubServer, model: bytes, capsys: Captured) -> None:
    """As after a power cut: the length is right, the bytes are zeros."""
    hub.troubles[FILE] = Trouble(cut_after=100_000, times=1)
    hub.troubles[FILE].times = 1
    interrupted = Trouble(cut_after=0)
    hub.troubles[FILE] = interrupted
    assert pull(REPO) == 7
    (partial,) = (path for path in (models_dir() / UNFINISHED).rglob(FILE))
    partial.write_bytes(bytes(100_000))
    hub.troubles.clear()
    capsys.readouterr()
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "what was here before was damaged; it begins again" in capsys.readouterr().err


def test_a_model_that_must_not_be_loaded(hub: HubServer, capsys: Captured) -> None:
    hub.repositories[REPO] = {FILE: gguf(tiny_llama().put("general.architecture", STRING, "llama"))[:5000]}
    assert pull(REPO) == 4
    assert "is cut off" in capsys.readouterr().err
    assert not target().exists()
    assert left_over() == []


def test_a_hub_without_checksums(hub: HubServer, model: bytes, capsys: Captured) -> None:
    hub.without_checksums = True
    assert pull(REPO) == 0
    assert target().read_bytes() == model
    assert "the hub gave no checksums" in capsys.readouterr().err
    source = load_source(target())
    assert source is not None
    assert (source.verified, source.files[0].sha256) == (False, hashlib.sha256(model).hexdigest())
    assert pull(REPO) == 0
    assert len(hub.ranges(FILE)) == 1


@pytest.mark.parametrize("name", ["../../../../evil-Q4_K_M.gguf", "a/../evil-Q4_K_M.gguf", "\x1bevil.gguf"])
def test_a_hub_whose_names_lead_elsewhere(hub: HubServer, name: str, capsys: Captured) -> None:
    hub.repositories[REPO] = {name: gguf()}
    assert pull(REPO) == 3
    assert "owner/tiny-GGUF has no GGUF file" in capsys.readouterr().err
    assert hub.ranges("evil-Q4_K_M.gguf") == []
