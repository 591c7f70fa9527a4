"""Push tokens: records which pushes of each client were applied, so that each is applied at most
once.

A token consists of the client's name and a number that increases with each push. The last `WIDTH`
numbers of each client are known individually. Older pushes are rejected, because it is unknown
whether they were applied.

    numbers   … forgotten │ known individually │
                          └─ newest - WIDTH    └─ newest

When partitions move from another shard, some pushes in flight were applied to them, but not yet to the
rest of this shard, or the other way around. The window stores these partitions per push.
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
    ahead: dict[int, set[int]] = field(default_factory=dict)
    """Pushes that were not applied, except to these partitions."""
    behind: dict[int, set[int]] = field(default_factory=dict)
    """Pushes that were applied, except to these partitions."""

    def is_applied(self, number: int) -> bool:
        return number <= self.newest and number not in self.missing

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
            self.ahead = {each: of for each, of in self.ahead.items() if each > oldest}
            self.behind = {each: of for each, of in self.behind.items() if each > oldest}
        else:
            self.missing.discard(number)
        self.ahead.pop(number, None)
        self.behind.pop(number, None)

    def saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "newest": self.newest,
            "missing": sorted(self.missing),
            "in_part": sorted(self.in_part),
        }
        for name in ("ahead", "behind"):
            if of := getattr(self, name):
                saved[name] = [[number, sorted(each)] for number, each in of.items()]
        return saved

    @classmethod
    def of(cls, saved: dict[str, Any]) -> _Window:
        exceptions = [
            {number: set(each) for number, each in saved.get(name, ())}
            for name in ("ahead", "behind")
        ]
        return cls(saved["newest"], set(saved["missing"]), set(saved["in_part"]), *exceptions)

    def join(self, other: _Window, partitions: range) -> None:
        """Adds what another shard knows of `partitions`, which moved here."""
        self._forget(other.newest - WIDTH)
        either = self.newest, other.newest
        differing = set(range(max(1, self.newest - WIDTH + 1), other.newest - WIDTH + 1))
        differing.update(range(max(1, min(either) + 1, max(either) - WIDTH + 1), max(either) + 1))
        for each in (self, other):
            differing.update(each.missing, each.in_part, each.ahead, each.behind)
        for number in differing:
            verdict, theirs = self.verdict(number), other.verdict(number)
            if Verdict.IN_PART in (verdict, theirs):
                self.in_part.add(number)
            elif theirs == Verdict.FORGOTTEN and verdict != Verdict.FORGOTTEN:
                self.in_part.add(number)  # unknown for the partitions that moved
            elif verdict == Verdict.NEW:
                self._except(self.ahead, number, other.applied_to(number, partitions))
            elif verdict == Verdict.APPLIED:
                applied = other.applied_to(number, partitions)
                self._except(self.behind, number, set(partitions) - applied)

    def _forget(self, newest: int) -> None:
        """Treats numbers up to `newest` as unknown, except those that are known here."""
        if newest > self.newest:
            known = self.newest
            self.add(newest)
            unknown = set(range(max(known, newest - WIDTH) + 1, newest + 1))
            self.missing -= unknown
            self.in_part |= unknown

    def applied_to(self, number: int, partitions: range) -> set[int]:
        if self.is_applied(number):
            return set(partitions) - self.behind.get(number, set())
        return self.ahead.get(number, set()) & set(partitions)

    @staticmethod
    def _except(of: dict[int, set[int]], number: int, partitions: set[int]) -> None:
        if partitions:
            of.setdefault(number, set()).update(partitions)

    def leave(self, partitions: set[int]) -> None:
        """Forgets the exceptions of partitions that moved to another shard."""
        for of in (self.ahead, self.behind):
            for number in list(of):
                of[number] -= partitions
                if not of[number]:
                    del of[number]


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

    def applied_before(self, token: Token) -> set[int]:
        """Returns the partitions to which a new push was applied before they moved here."""
        window = self._windows.get(token.client)
        return set() if window is None else window.ahead.get(token.number, set())

    def missing_from(self, token: Token) -> set[int]:
        """Returns the partitions to which an applied push was not applied before they moved here."""
        window = self._windows.get(token.client)
        return set() if window is None else window.behind.get(token.number, set())

    def join(self, saved: dict[str, Any], partitions: range) -> None:
        """Adds the pushes that another shard had applied to partitions that move here.

        Args:
            saved: Result of `saved` of that shard, when it stopped updating the partitions.
            partitions: The partitions.
        """
        for client, each in saved.items():
            own = self._windows.setdefault(client, _Window())
            if own.saved() != each:
                own.join(_Window.of(each), partitions)
        for client, window in self._windows.items():
            if client not in saved:
                window.join(_Window(), partitions)

    def keep(self, partitions: range) -> None:
        """Forgets the exceptions of all other partitions."""
        for window in self._windows.values():
            for of in (window.ahead, window.behind):
                window.leave({each for found in of.values() for each in found} - set(partitions))

    def leave(self, partitions: set[int]) -> None:
        """Forgets the exceptions of partitions that moved to another shard."""
        for window in self._windows.values():
            window.leave(partitions)

    def newest(self) -> dict[str, int]:
        """Returns the newest push per client."""
        return {client: each.newest for client, each in self._windows.items()}

    def saved(self) -> dict[str, Any]:
        """Returns the state as JSON values, for a snapshot."""
        return {client: each.saved() for client, each in self._windows.items()}

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Loads the states of all shards that had keys of this shard.

        A push that only some of them applied is known in part, because applying it again would update
        some keys twice.
        """
        self._windows.clear()
        if len(saved) == 1:
            self._windows.update({client: _Window.of(each) for client, each in saved[0].items()})
            return
        clients = dict.fromkeys(client for each in saved for client in each)
        for client in clients:
            known = [
                each.get(client, {"newest": 0, "missing": [], "in_part": []}) for each in saved
            ]
            ahead = [number for each in known for number, _ in each.get("ahead", ())]
            newest = max([*ahead, *(each["newest"] for each in known)])
            window = self._windows[client] = _Window(newest)
            for number in range(max(1, newest - WIDTH + 1), newest + 1):
                are_in = [
                    number <= each["newest"] and number not in each["missing"] for each in known
                ]
                is_mixed = any(
                    number in each["in_part"] or number in dict(each.get(name, ()))
                    for each in known
                    for name in ("ahead", "behind")
                )
                if is_mixed or any(are_in) != all(are_in):
                    window.in_part.add(number)
                elif not all(are_in):
                    window.missing.add(number)
