"""Staying offline: while it is asked for, no code of this process can reach the network.

It is asked for by `--offline`, by EDGECHAT_OFFLINE or HF_HUB_OFFLINE in the environment, or by
`network.offline` in the settings. A guard on the interpreter's audit events (PEP 578) then refuses every
connection and every look-up of a name, whoever tries; processes that are started inherit it. What happens
inside the machine (pipes, Unix sockets) is not its business.
"""

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from edgechat.errors import EdgechatError, NetworkError

VARIABLES = ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE")
FALSE = frozenset({"", "0", "false", "no", "off"})

# Each of these events is raised before anything leaves the process.
_CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOK_UPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})


class _Guard:
    """The audit hook. One that is installed can't be removed, so it is told whether to act."""

    def __init__(self) -> None:
        self.reason = ""
        """What asked to stay offline; "" while the network may be used."""
        self.before: dict[str, str | None] = {}
        """Variables that were changed, as they were."""
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            self._installed = True
            sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.reason or not event.startswith("socket."):
            return
        if event in _LOOK_UPS:
            raise NetworkError(self._refusal(arguments[0]))
        if event in _CONNECTIONS and arguments[0].family in (socket.AF_INET, socket.AF_INET6):
            address = arguments[1]
            raise NetworkError(self._refusal(address[0] if isinstance(address, tuple) else address))

    def _refusal(self, host: object) -> str:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        return f"a connection to {name} was refused: offline, as {self.reason} asks"


_guard = _Guard()


def reason(option: bool = False, environment: Mapping[str, str] | None = None) -> str:
    """What asks to stay offline, in a word to show; "" if nothing does.

    Args:
        option: `--offline` was given.
        environment: None for that of this process.
    """
    if option:
        return "--offline"
    env = os.environ if environment is None else environment
    for name in VARIABLES:
        if env.get(name, "").strip().casefold() not in FALSE:
            return name
    return "network.offline in the settings" if _set_in_settings() else ""


def start(why: str) -> None:
    """Refuse the network to this process, and to those that it starts from now on; `why` is shown."""
    for name in VARIABLES:  # the second is for whoever asks huggingface_hub itself
        _guard.before.setdefault(name, os.environ.get(name))
        os.environ[name] = "1"
    _guard.reason = why
    _guard.install()


def stop() -> None:
    """Let this process use the network again, as before `start`."""
    _guard.reason = ""
    for name, value in _guard.before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _guard.before.clear()


def active() -> str:
    """What asked this process to stay offline; "" while it may use the network."""
    return _guard.reason


def require_network(what: str) -> None:
    """Refuse to begin what needs the network.

    Args:
        what: what was going to be done, such as "pull a model".

    Raises:
        NetworkError: this process is to stay offline.
    """
    why = _guard.reason or reason()
    if why:
        raise NetworkError(f"can't {what} offline ({why}): allow the network for this one command")


def _set_in_settings() -> bool:
    """Whether the settings ask for it; settings that can't be read are complained of elsewhere."""
    from edgechat import paths

    try:
        if not paths.config_file().exists():
            return False  # the usual case, at no cost: a command's start waits for this
        from edgechat import settings

        return settings.load().network.offline
    except EdgechatError:
        return False
