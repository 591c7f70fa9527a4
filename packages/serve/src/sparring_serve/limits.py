"""Limits of single calls and of the bytes of all concurrent calls, and quotas of clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparring_serve.metrics import ServingMetrics
from sparring_serve.status import Status, StatusError

__all__ = ["Admission", "Limits", "Quotas"]


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


@dataclass(slots=True)
class _Bucket:
    rate: float
    unit: str
    option: str
    level: float
    filled: float
    """Time at which `level` was computed."""

    def fill(self, now: float) -> None:
        self.level = min(self.rate, self.level + (now - self.filled) * self.rate)
        self.filled = now


class Quotas:
    """Quotas of the clients of a server, by token buckets. All methods are thread-safe.

    A bucket contains what a client may use in one second, and is refilled continuously. A call is
    admitted unless one of the client's buckets is empty. It takes 1 from the bucket of calls at once. Its
    ids are known only later and are taken then, so that the bucket may become negative: a call with many
    ids is admitted, and the next calls wait for the refill.

    Args:
        calls_per_second: Maximum rate of calls of each client; None: no limit.
        ids_per_second: Maximum rate of ids of each client; None: no limit.
        metrics: Counts calls and ids by client. The file of tokens limits the number of clients.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        calls_per_second: float | None,
        ids_per_second: float | None,
        metrics: ServingMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = (
            (calls_per_second, "calls", "server.quota.calls_per_second"),
            (ids_per_second, "ids", "server.quota.ids_per_second"),
        )
        self._metrics, self._clock = metrics, clock
        self._lock = threading.Lock()
        self._buckets: dict[str, list[_Bucket]] = {}
        self._calling = threading.local()

    def admit(self, client: str) -> None:
        """Counts a call.

        Raises:
            StatusError: RESOURCE_EXHAUSTED if a quota of the client is used up.
        """
        with self._lock:
            now = self._clock()
            buckets = self._of(client, now)
            for each in buckets:
                each.fill(now)
            empty = max(buckets, key=lambda each: -each.level / each.rate, default=None)
            is_admitted = empty is None or empty.level > 0
            if is_admitted:
                for each in buckets:
                    each.level -= each.unit == "calls"
        self._metrics.count_client_call(client, is_admitted=is_admitted)
        if not is_admitted:
            assert empty is not None
            seconds = max(-empty.level / empty.rate, 0.001)
            raise StatusError(
                Status.RESOURCE_EXHAUSTED,
                f"client {client} has used its quota of {empty.rate:g} {empty.unit} per second; retry "
                f"after {seconds:.3g} s, send fewer {empty.unit}, or increase {empty.option} of this "
                "server",
                reason="quota",
            )

    @contextmanager
    def call(self, client: str) -> Iterator[None]:
        """Makes `charge` count ids of this client, on this thread in the block."""
        self._calling.client = client
        try:
            yield
        finally:
            self._calling.client = None

    def charge(self, num_ids: int) -> None:
        """Counts ids of the call that this thread answers."""
        client = getattr(self._calling, "client", None)
        if client is None or not num_ids:
            return
        with self._lock:
            for each in self._of(client, self._clock()):
                each.level -= num_ids if each.unit == "ids" else 0
        self._metrics.count_client_ids(client, num_ids)

    def _of(self, client: str, now: float) -> list[_Bucket]:
        found = self._buckets.get(client)
        if found is None:
            found = self._buckets[client] = [
                _Bucket(rate, unit, option, rate, now)
                for rate, unit, option in self._rates
                if rate is not None
            ]
        return found
