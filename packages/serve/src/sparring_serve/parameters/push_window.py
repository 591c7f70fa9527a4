"""Push tokens: records which pushes of each client were applied, so that each is applied at most
once.

A token consists of the client's name and a number that increases with each push. The last `WIDTH`
numbers of each client are known individually. Older pushes are rejected, because it is unknown
whether they were applied.

    numbers   … forgotten │ known individually │
                          └─ newest - WIDTH    └─ newest
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

__all__ = ["WIDTH", "PushWindows", "Token", "Verdict"]

WIDTH = 1024
"""Number of pushes of a client that are known individually: more than it has in flight at a time."""


@dataclass(frozen=True, slots=True)
class Token:
    """Identifies a push: the client that sent it, and its number."""

    client: str
    number: int


class Verdict:
    """State of a token."""

    NEW = "new"
    APPLIED = "applied"
    FORGOTTEN = "forgotten"
    IN_PART = "in part"


@dataclass(slots=True)
class _Window:
    newest: int = 0
    missing: set[int] = field(default_factory=set)
    """Numbers in the window that were not applied."""
    in_part: set[int] = field(default_factory=set)
    """Numbers of pushes that a snapshot with other shards contained only in part."""

    def verdict(self, number: int) -> str:
        if number <= self.newest - WIDTH:
            return Verdict.FORGOTTEN
        if number in self.in_part:
            return Verdict.IN_PART
        return Verdict.NEW if number > self.newest or number in self.missing else Verdict.APPLIED

    def add(self, number: int) -> None:
        if number > self.newest:
            begin = max(self.newest + 1, number - WIDTH + 1)
            self.missing.update(range(begin, number))
            self.newest = number
            oldest = number - WIDTH
            self.missing = {each for each in self.missing if each > oldest}
            self.in_part = {each for each in self.in_part if each > oldest}
        else:
            self.missing.discard(number)


class PushWindows:
    """Applied pushes of the clients of one shard. Not thread-safe.

    Args:
        max_clients: Maximum number of clients; above it, the client that pushed least recently is
            forgotten.
    """

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def verdict(self, token: Token) -> str:
        """Returns the `Verdict` of a token."""
        window = self._windows.get(token.client)
        return Verdict.NEW if window is None else window.verdict(token.number)

    def add(self, token: Token) -> None:
        """Records that a push was applied."""
        window = self._windows.get(token.client)
        if window is None:
            # Lower numbers than the first were not applied here, because clients start at 1.
            window = self._windows[token.client] = _Window()
            while len(self._windows) > self._max_clients:
                self._windows.popitem(last=False)
        self._windows.move_to_end(token.client)
        window.add(token.number)

    def add_part(self, token: Token) -> None:
        """Records that a push changed only some of its tables."""
        self.add(token)
        self._windows[token.client].in_part.add(token.number)

    def newest(self) -> dict[str, int]:
        """Returns the newest push per client."""
        return {client: each.newest for client, each in self._windows.items()}

    def saved(self) -> dict[str, Any]:
        """Returns the state as JSON values, for a snapshot."""
        return {
            client: {
                "newest": each.newest,
                "missing": sorted(each.missing),
                "in_part": sorted(each.in_part),
            }
            for client, each in self._windows.items()
        }

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Loads the states of all shards that had keys of this shard.

        A push that only some of them applied is known in part, because applying it again would update
        some keys twice.
        """
        self._windows.clear()
        clients = dict.fromkeys(client for each in saved for client in each)
        for client in clients:
            known = [
                each.get(client, {"newest": 0, "missing": [], "in_part": []}) for each in saved
            ]
            newest = max(each["newest"] for each in known)
            window = self._windows[client] = _Window(newest)
            for number in range(max(1, newest - WIDTH + 1), newest + 1):
                are_in = [
                    number <= each["newest"] and number not in each["missing"] for each in known
                ]
                if any(number in each["in_part"] for each in known) or any(are_in) != all(are_in):
                    window.in_part.add(number)
                elif not all(are_in):
                    window.missing.add(number)
