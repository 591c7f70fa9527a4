"""Refusals of a server: for now, or until its configuration is changed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redis.exceptions import AuthenticationError, RedisError, ResponseError

__all__ = [
    "RETRYABLE_CODES",
    "RejectedError",
    "has_error_code",
    "is_permanent",
    "raise_lasting_errors",
]

RETRYABLE_CODES = (
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "BUSY",
)
"""The server says so before it has run anything, and may answer otherwise the next time."""


class RejectedError(RedisError):
    """A server was reached, said no, and will say so the next time."""


def has_error_code(error: object, words: Sequence[str]) -> bool:
    """Whether it is a refusal of one of these kinds."""
    return isinstance(error, RedisError) and _error_code(error) in words


def is_permanent(error: object) -> bool:
    """Whether trying again is in vain."""
    if isinstance(error, (AuthenticationError, RejectedError)):
        return True
    return isinstance(error, ResponseError) and not has_error_code(error, RETRYABLE_CODES)


@contextmanager
def raise_lasting_errors(who: str, advice: str = "") -> Iterator[None]:
    """Raises what is lasting as `RejectedError`, naming who said so.

    Args:
        who: the server, as ``sentinel at 10.0.0.7:26379``.
        advice: what to do about it.
    """
    try:
        yield
    except RejectedError:
        raise
    except (RedisError, OSError) as error:
        reason = str(error) if is_permanent(error) else _tls_reason(error)
        if reason is None:
            raise
        raise RejectedError(f"{who} said: {reason}{advice and f'; {advice}'}") from error


def _tls_reason(error: BaseException) -> str | None:
    """Why the two ends do not agree to talk; None: it is nothing of TLS, or may pass."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({found.verify_message}); see tls_ca_file"
    reason = str(found.reason or "")
    if "WRONG_VERSION" in reason:
        return f"nothing of TLS ({reason}); leave tls and rediss out, or name its TLS port"
    if "ALERT" in reason:
        return (
            f"no to the TLS handshake ({reason}); see whether it asks for a certificate of ours, "
            "tls_certificate_file, and trusts that one"
        )
    return None


def _error_code(error: RedisError) -> str:
    """redis-py takes the first word of some away and says it by the class instead."""
    status = getattr(error, "status_code", None)
    if isinstance(status, str):
        return status.split()[0]
    return _CLASSES.get(type(error).__name__) or str(error).partition(" ")[0]


_CLASSES = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "NoPermissionError": "NOPERM",
}
