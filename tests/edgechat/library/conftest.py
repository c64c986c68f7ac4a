"""A hub on loopback, and models for it."""

from collections.abc import Iterator

import pytest

from edgechat import offline
from tests.edgechat.library.hub_server import HubServer, running
from tests.edgechat.library.pulling import FILE, REPO
from tests.edgechat.library.tiny_models import gguf


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub, to which HF_ENDPOINT leads; the network may be used, and failures are soon forgiven."""
    import huggingface_hub.constants

    from edgechat.library import hub as hub_module
    from edgechat.library import pull as pull_module
    from edgechat.library.fetch import Patience

    for name in (*offline.VARIABLES, "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        pull_module, "Patience", lambda: Patience(tries=3, first_wait_s=0.01, longest_wait_s=0.5)
    )
    monkeypatch.setattr(hub_module, "LIST_PATIENCE", Patience(tries=3, first_wait_s=0.01, longest_wait_s=0.5))
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
    huggingface_hub.close_session()


@pytest.fixture
def model(hub: HubServer) -> bytes:
    """The one model of the hub's one repository."""
    data = gguf()
    hub.repositories[REPO] = {"README.md": b"#", FILE: data, "mmproj-tiny-F16.gguf": b"not a model"}
    return data
