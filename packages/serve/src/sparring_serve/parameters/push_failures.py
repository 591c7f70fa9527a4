"""Pushes that were queued and could not be applied, until their clients have heard of them.

    a push fails ──► new ──(a flush)──► told ──(a flush that names it)──► forgotten

The answer of a flush may be lost. So what was told is told again by each flush, until one says that it
came.
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
    """The first push of a client that failed, and how many failed after it."""

    push: int
    """Its number."""
    why: str
    num_more: int = 0
    name: int = field(default_factory=lambda: secrets.randbits(60) + 1)
    """Drawn, so that a server that starts again gives it to no other."""

    def __str__(self) -> str:
        more = f"; {self.num_more:,} later ones failed, too" if self.num_more else ""
        return f"push {self.push} was queued, and not applied: {self.why}{more}"


class PushFailures:
    """Failures of all clients of a server. Any thread may call any method.

    Args:
        most_clients: past it the client whose pushes failed first is forgotten.
    """

    def __init__(self, most_clients: int) -> None:
        self._most_clients = most_clients
        self._lock = threading.Lock()
        self._new: OrderedDict[str, Failure] = OrderedDict()
        self._told: OrderedDict[str, Failure] = OrderedDict()

    def add(self, token: Token, why: str) -> None:
        """Notes that a push was not applied."""
        with self._lock:
            found = self._new.get(token.client)
            if found is None:
                self._keep(self._new, token.client, Failure(token.number, why))
            elif found.push != token.number:  # one whose answer was lost was sent again
                found.num_more += 1

    def drop(self, token: Token) -> None:
        """Notes that a push was applied, perhaps after it failed."""
        with self._lock:
            found = self._new.get(token.client)
            if found is not None and found.push == token.number and not found.num_more:
                del self._new[token.client]

    def report(self, client: str, heard: int) -> Failure | None:
        """The failure that a client is to be told; None: there is none.

        Args:
            client: that asks.
            heard: name of the failure that it was told last; 0: none.
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
        while len(where) > self._most_clients:
            where.popitem(last=False)
