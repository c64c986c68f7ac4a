"""What the errors of huggingface_hub and of its connections mean for a person."""

import re
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from edgechat.errors import EdgechatError, NetworkError, NotFoundError, UsageError
from edgechat.library.fetch import Transient

DEFAULT_ENDPOINT = "https://huggingface.co"
MAYBE_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
RESET_IN = re.compile(r"\bt=(\d+)")  # draft-ietf-httpapi-ratelimit-headers


def explain(error: Exception, endpoint: str, repository: str, file: str = "") -> Exception:
    """What went wrong: Transient, or an error of ours; the error itself where it is neither's.

    Args:
        error: what was raised.
        endpoint: the hub's address.
        repository: what was asked for.
        file: which of its files.
    """
    from huggingface_hub import errors

    place = f"{endpoint}/{repository}"
    meanings: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[EdgechatError], str], ...] = (
        (errors.HFValidationError, UsageError, f"{repository!r} is no repository: give OWNER/NAME"),
        (
            errors.OfflineModeIsEnabled,
            NetworkError,
            "huggingface_hub is offline (HF_HUB_OFFLINE): unset it for this one command",
        ),
        (
            errors.GatedRepoError,
            NetworkError,
            f"{repository} is gated: accept its terms at {place}, then set HF_TOKEN to a token of that "
            "account and pull again",
        ),
        (
            errors.RepositoryNotFoundError,
            NotFoundError,
            _missing(endpoint, repository),
        ),
        (
            (errors.EntryNotFoundError, errors.RevisionNotFoundError),
            NotFoundError,
            f"{place} has no file {file}: pull again, as it may have been renamed",
        ),
    )
    if isinstance(error, EdgechatError):
        return error
    for kinds, ours, message in meanings:
        if isinstance(error, kinds):
            return ours(message)
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(error, endpoint, repository)
    return _connection(error, endpoint)


def _missing(endpoint: str, repository: str) -> str:
    return (
        f"{endpoint} has no repository {repository}, or it is private: find its name with "
        "`edgechat models search --online`, or set HF_TOKEN"
    )


def _refused(error: Any, endpoint: str, repository: str) -> Exception:
    """What a status of HTTP means that is none of the hub's own errors."""
    status = error.response.status_code
    if status in MAYBE_LATER:
        said = "is rate limiting (429)" if status == 429 else f"answers {status}"
        return Transient(f"{endpoint} {said}", retry_after(error.response.headers))
    if status == 416:
        return Transient("the server has less of the file than came before")
    if status == 401 and not error.response.request.headers.get("Authorization"):
        return NotFoundError(_missing(endpoint, repository))  # the hub tells strangers no more
    remedies = {
        401: (NetworkError, "HF_TOKEN is not valid; set a new one, or unset it"),
        403: (NetworkError, "set HF_TOKEN to a token that may read it"),
        404: (NotFoundError, "check its name"),
    }
    kind, remedy = remedies.get(status, (NetworkError, "see whether it opens in a browser"))
    return kind(f"{endpoint} answers {status} {error.response.reason_phrase} for {repository}: {remedy}")


def _connection(error: Exception, endpoint: str) -> Exception:
    """What an error of the connection means; the error itself where it is none."""
    import httpx2

    causes = _causes(error)
    for cause in causes:  # what the guard of `edgechat.offline` refused
        if isinstance(cause, EdgechatError):
            return cause
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return NetworkError(
            f"the certificate of {endpoint} is not trusted: check the clock, or set SSL_CERT_FILE to the "
            "certificate of the proxy that stands between"
        )
    meanings: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Exception], ...] = (
        (
            httpx2.ProxyError,
            NetworkError(f"the proxy refuses ({error}): check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"),
        ),
        (
            (httpx2.UnsupportedProtocol, httpx2.InvalidURL),
            UsageError(f"HF_ENDPOINT is {endpoint!r}: give an address, as in {DEFAULT_ENDPOINT}"),
        ),
        (httpx2.ConnectError, Transient(f"{endpoint} can't be reached ({error})")),
        (httpx2.TimeoutException, Transient(f"{endpoint} doesn't answer")),
        (httpx2.TransportError, Transient("the connection was cut")),
    )
    return next((meaning for kinds, meaning in meanings if isinstance(error, kinds)), error)


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def retry_after(headers: Any) -> float | None:
    """Seconds that a server asks to wait: a number, a date, or a `RateLimit`; None if it doesn't say."""
    given = headers.get("Retry-After", "").strip()
    if given.isdigit():
        return float(given)
    if given:
        try:
            return max(0.0, (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None
    reset = RESET_IN.search(headers.get("RateLimit", ""))
    return float(reset[1]) if reset else None
