"""Limits of single calls and of the bytes of all concurrent calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparring_serve.status import Status, StatusError

__all__ = ["Admission", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request.

    Args:
        max_ids: Maximum number of ids per call, over all tables.
        max_tables: Maximum number of tables per call.
        max_bytes: Maximum size of a request, and of a reply.
        max_deadline_seconds: Maximum deadline; calls with longer deadlines are rejected.
        max_queries: Maximum number of queries per call for recommendations.
        max_k: Maximum number of rows per query.
    """

    max_ids: int = 1_000_000
    max_tables: int = 1_024
    max_bytes: int = 64 << 20
    max_deadline_seconds: float = 10.0
    max_queries: int = 1_024
    max_k: int = 1_000


class Admission:
    """Admits calls as long as their total size is within a limit.

    Args:
        max_bytes: Maximum size of the requests and replies of all concurrent calls.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes_in_flight = 0
        self._lock = threading.Lock()

    @contextmanager
    def of(self, num_bytes: int) -> Iterator[None]:
        """Counts the bytes of a call while it runs.

        Raises:
            StatusError: The limit would be exceeded. A single call is always admitted.
        """
        with self._lock:
            before = self.bytes_in_flight
            if before and before + num_bytes > self.max_bytes:
                raise StatusError(
                    Status.RESOURCE_EXHAUSTED,
                    f"a call of {num_bytes:,} bytes was rejected: {before:,} of {self.max_bytes:,} "
                    "bytes are in flight; use another replica, or retry later",
                    reason="bytes_in_flight",
                )
            self.bytes_in_flight = before + num_bytes
        try:
            yield
        finally:
            with self._lock:
                self.bytes_in_flight -= num_bytes
