"""Limits of one call, and the bytes of all calls under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparring_serve.status import Status, StatusError

__all__ = ["Admission", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request.

    Args:
        most_ids: of one call, over all tables.
        most_tables: of one call.
        most_bytes: of a request, and of an answer.
        most_deadline_seconds: a longer deadline is refused.
        most_queries: of a call for recommendations.
        most_k: rows for each of them.
    """

    most_ids: int = 1_000_000
    most_tables: int = 1_024
    most_bytes: int = 64 << 20
    most_deadline_seconds: float = 10.0
    most_queries: int = 1_024
    most_k: int = 1_000


class Admission:
    """Lets calls in while their bytes fit.

    Args:
        most_bytes: of requests and answers of all calls under way.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes_in_flight = 0
        self._lock = threading.Lock()

    @contextmanager
    def of(self, num_bytes: int) -> Iterator[None]:
        """Counts a call's bytes while it runs.

        Raises:
            Refusal: there is no room now. A call that is alone is always let in.
        """
        with self._lock:
            before = self.bytes_in_flight
            if before and before + num_bytes > self.most_bytes:
                raise StatusError(
                    Status.RESOURCE_EXHAUSTED,
                    f"a call of {num_bytes:,} bytes: {before:,} of {self.most_bytes:,} bytes are in "
                    "flight; ask another replica, or later",
                    reason="bytes_in_flight",
                )
            self.bytes_in_flight = before + num_bytes
        try:
            yield
        finally:
            with self._lock:
                self.bytes_in_flight -= num_bytes
