"""The hub: what huggingface_hub does well (tokens, mirrors, proxies, its API), in our records and errors.

Downloads themselves are ours (fetch.py): huggingface_hub throws away what came when a download fails or is
killed. Nothing here is imported before something is pulled or searched online.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from edgechat import __version__
from edgechat.errors import EdgechatError, NetworkError, UsageError
from edgechat.library.choose import RemoteFile
from edgechat.library.fetch import Patience, Stream, Transient
from edgechat.library.hub_errors import DEFAULT_ENDPOINT, explain

REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}$")
SHA256 = re.compile(r"^[0-9a-f]{64}$")
LIST_PATIENCE = Patience(tries=3, first_wait_s=0.5, longest_wait_s=30.0)
TIMEOUT_S = 15.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one revision."""

    repository: str
    revision: str
    """The commit, so that nothing changes while it is downloaded."""
    files: tuple[RemoteFile, ...]
    licence: str


@dataclass(frozen=True, slots=True)
class Found:
    """A repository that a search found."""

    repository: str
    downloads: int
    gated: bool


class Hub:
    """A hub, or a mirror of it."""

    def __init__(self, endpoint: str = "", sleep: Callable[[float], object] | None = None) -> None:
        """Connect to nothing yet.

        Args:
            endpoint: "" for HF_ENDPOINT, or else the hub itself.
            sleep: waits so many seconds.
        """
        import time

        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self._sleep = time.sleep if sleep is None else sleep

    def listing(self, repository: str) -> Listing:
        """What a repository holds.

        Raises:
            UsageError: that is no name of a repository.
            NotFoundError: there is no such repository, or it is private.
            NetworkError: the hub can't be reached, or refuses.
        """
        if not REPOSITORY.match(repository):
            raise UsageError(f"{repository!r} is no repository: give OWNER/NAME, as in Qwen/Qwen3-4B-GGUF")
        info = self._patiently(
            lambda: self._api().model_info(repository, files_metadata=True, timeout=TIMEOUT_S), repository
        )
        files = tuple(_remote_file(one) for one in info.siblings or ())
        revision = info.sha if isinstance(info.sha, str) and info.sha else "main"
        card = info.card_data
        licence = str((card.get("license") if card is not None else "") or "")
        return Listing(repository, revision, files, licence)

    def search(self, words: str, limit: int = 20) -> list[Found]:
        """Repositories with GGUF files, most downloaded first.

        Raises:
            NetworkError: the hub can't be reached, or refuses.
        """
        # Not HfApi.list_models: its own retries keep a person waiting for a minute before they give up.
        from huggingface_hub import utils

        tools: Any = utils
        parameters: dict[str, str | int] = {
            "filter": "gguf",
            "sort": "downloads",
            "direction": -1,
            "limit": limit,
        }
        if words:
            parameters["search"] = words

        def ask() -> list[Found]:
            headers = tools.build_hf_headers(library_name="edgechat", library_version=__version__)
            response = tools.get_session().get(
                f"{self.endpoint}/api/models", params=parameters, headers=headers, timeout=TIMEOUT_S
            )
            tools.hf_raise_for_status(response)
            return [
                Found(str(one["id"]), int(one.get("downloads") or 0), bool(one.get("gated")))
                for one in response.json()
            ]

        return self._patiently(ask, "")

    @contextmanager
    def open(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[Stream]:
        """Connect to a file, from `start` on.

        Raises:
            Transient: the connection can't be made now, or breaks.
            NotFoundError: there is no such file.
            NetworkError: the hub refuses.
        """
        # What huggingface_hub.utils is documented to offer, though not declared to its type checker.
        from huggingface_hub import hf_hub_url, utils

        tools: Any = utils

        url = hf_hub_url(listing.repository, file.name, revision=listing.revision, endpoint=self.endpoint)
        headers = tools.build_hf_headers(library_name="edgechat", library_version=__version__)
        headers["Accept-Encoding"] = "identity"  # sizes and ranges are those of the file itself
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with tools.get_session().stream("GET", url, headers=headers, timeout=_timeout()) as response:
                tools.hf_raise_for_status(response)
                begins = start if response.status_code == 206 else 0
                yield Stream(begins, _total(response, begins), response.iter_raw())
        except (EdgechatError, Transient):
            raise
        except Exception as error:
            explained = explain(error, self.endpoint, listing.repository, file.name)
            if explained is error:  # none of the connection's: it is of who reads
                raise
            raise explained from error

    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, library_name="edgechat", library_version=__version__)

    def _patiently(self, ask: Callable[[], T], repository: str) -> T:
        """Ask, again if need be.

        Raises:
            EdgechatError: there is no answer.
        """
        failures = 0
        while True:
            try:
                return ask()
            except Exception as error:
                trouble = explain(error, self.endpoint, repository)
                failures += 1
                if isinstance(error, ValueError | TypeError | KeyError) and trouble is error:
                    trouble = NetworkError(f"{self.endpoint} doesn't answer as a hub does: check HF_ENDPOINT")
                if not isinstance(trouble, Transient):
                    raise trouble from error
                wait_s = LIST_PATIENCE.wait(failures) if trouble.wait_s is None else trouble.wait_s
                if failures >= LIST_PATIENCE.tries or wait_s > LIST_PATIENCE.longest_wait_s:
                    raise NetworkError(_give_up(str(trouble), trouble.wait_s, self.endpoint)) from error
                self._sleep(wait_s)


def _give_up(what: str, wait_s: float | None, endpoint: str) -> str:
    if wait_s is not None:
        return f"{what}: try again in {wait_s:.0f} s; an HF_TOKEN raises the limit"
    if "answers" in what:
        return f"{what}: try again later, or set HF_ENDPOINT to a mirror"
    return f"{what}: check the network, or HTTPS_PROXY and HF_ENDPOINT"


def _remote_file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    size = lfs.size if lfs is not None else sibling.size
    digest = lfs.sha256 if lfs is not None else None
    return RemoteFile(
        str(sibling.rfilename),
        size if isinstance(size, int) and size >= 0 else None,
        digest if isinstance(digest, str) and SHA256.match(digest) else None,
    )


def _total(response: Any, begins: int) -> int | None:
    """Size of the whole file, by the headers of an answer."""
    whole = response.headers.get("Content-Range", "").rpartition("/")[2]
    if whole.isdigit():
        return int(whole)
    length = response.headers.get("Content-Length", "")
    return begins + int(length) if length.isdigit() else None


def _timeout() -> float:
    """Longest wait for the next bytes, in seconds; HF_HUB_DOWNLOAD_TIMEOUT changes it."""
    given = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return float(given) if given.isdigit() and int(given) else TIMEOUT_S
