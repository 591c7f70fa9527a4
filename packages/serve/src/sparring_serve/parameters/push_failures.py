"""Queued pushes that could not be applied, until their clients have received the failures.

    a push fails ──► new ──(a flush)──► reported ──(a flush that names it)──► forgotten

The reply to a flush may be lost. Therefore, each flush reports the failure again until a flush
confirms it.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from sparring_serve.parameters.push_window import Token

__all__ = ["Failure", "PushFailures"]


@dataclass(slots=True)
class Failure:
    """The first failed push of a client, and the number of later failures."""

    push: int
    """Number of the push."""
    why: str
    num_more: int = 0
    name: int = field(default_factory=lambda: secrets.randbits(60) + 1)
    """Random, so that a restarted server does not use it again."""

    def __str__(self) -> str:
        more = f"; {self.num_more:,} later pushes failed, too" if self.num_more else ""
        return f"push {self.push} was queued, but not applied: {self.why}{more}"


class PushFailures:
    """Failures of all clients of a server. All methods are thread-safe.

    Args:
        max_clients: Maximum number of clients; above it, the client whose pushes failed first is
            forgotten.
    """

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._lock = threading.Lock()
        self._new: OrderedDict[str, Failure] = OrderedDict()
        self._told: OrderedDict[str, Failure] = OrderedDict()

    def add(self, token: Token, why: str) -> None:
        """Records that a push was not applied."""
        with self._lock:
            found = self._new.get(token.client)
            if found is None:
                self._keep(self._new, token.client, Failure(token.number, why))
            elif found.push != token.number:  # not a repetition after a lost reply
                found.num_more += 1

    def drop(self, token: Token) -> None:
        """Records that a push was applied, possibly after a failure."""
        with self._lock:
            found = self._new.get(token.client)
            if found is not None and found.push == token.number and not found.num_more:
                del self._new[token.client]

    def report(self, client: str, heard: int) -> Failure | None:
        """Returns the failure to report to a client; None if there is none.

        Args:
            client: Name of the client.
            heard: Name of the failure that it received last; 0 if none.
        """
        with self._lock:
            told = self._told.get(client)
            if told is not None and told.name == heard:
                del self._told[client]
                told = None
            if told is None and client in self._new:
                told = self._new.pop(client)
                self._keep(self._told, client, told)
            return told

    def _keep(self, where: OrderedDict[str, Failure], client: str, failure: Failure) -> None:
        where[client] = failure
        while len(where) > self._max_clients:
            where.popitem(last=False)
