"""Errors of a server that are temporary, and errors that last until its configuration changes."""

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
"""Codes of errors that the server returns before it runs a command. A retry may succeed."""


class RejectedError(RedisError):
    """A server was reached and rejected the request, and will reject it again."""


def has_error_code(error: object, words: Sequence[str]) -> bool:
    """Returns whether an error of Redis has one of these codes."""
    return isinstance(error, RedisError) and _error_code(error) in words


def is_permanent(error: object) -> bool:
    """Returns whether retrying cannot succeed."""
    if isinstance(error, (AuthenticationError, RejectedError)):
        return True
    return isinstance(error, ResponseError) and not has_error_code(error, RETRYABLE_CODES)


@contextmanager
def raise_lasting_errors(who: str, advice: str = "") -> Iterator[None]:
    """Converts permanent errors to `RejectedError` with the name of the server.

    Args:
        who: the server, for example ``sentinel at 10.0.0.7:26379``.
        advice: how to fix the error.
    """
    try:
        yield
    except RejectedError:
        raise
    except (RedisError, OSError) as error:
        reason = str(error) if is_permanent(error) else _tls_reason(error)
        if reason is None:
            raise
        raise RejectedError(f"{who} replied: {reason}{advice and f'; {advice}'}") from error


def _tls_reason(error: BaseException) -> str | None:
    """Returns why the TLS handshake failed; None if TLS is not the cause or a retry may succeed."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({found.verify_message}); see tls_ca_file"
    reason = str(found.reason or "")
    if "WRONG_VERSION" in reason:
        return f"without TLS ({reason}); remove tls and rediss, or use the port for TLS"
    if "ALERT" in reason:
        return (
            f"with a rejected TLS handshake ({reason}); check whether it requires a client "
            "certificate (tls_certificate_file) and trusts that certificate"
        )
    return None


def _error_code(error: RedisError) -> str:
    """redis-py removes the code of some errors and uses a class instead."""
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
