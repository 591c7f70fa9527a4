"""Bytes that this rank's exchanges put on the wire, by kind of message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["ExchangeCounters", "MessageKind", "WireBytes"]


class MessageKind(Enum):
    """The messages of an exchange; see ``docs/explanation/ring-exchange.md``."""

    HEADERS = "headers"
    """The first message of each exchange: a rank's position, and the number of rows it wants."""
    KEYS = "keys"
    ROWS = "rows"
    """Rows, and whether each was found."""
    GRADIENTS = "gradients"
    """Gradients and their keys."""
    COUNTS = "counts"
    """The counts of tables for which headers have no room. Their bytes count as those of headers."""


@dataclass(slots=True)
class WireBytes:
    """Bytes of messages, as they are handed to the collective: a transport adds its own."""

    headers: int = 0
    keys: int = 0
    rows: int = 0
    gradients: int = 0

    def add(self, kind: MessageKind, num_bytes: int) -> None:
        name = (MessageKind.HEADERS if kind is MessageKind.COUNTS else kind).value
        setattr(self, name, getattr(self, name) + num_bytes)

    @property
    def total(self) -> int:
        """All of them."""
        return self.headers + self.keys + self.rows + self.gradients

    def __add__(self, other: WireBytes) -> WireBytes:
        return WireBytes(
            self.headers + other.headers,
            self.keys + other.keys,
            self.rows + other.rows,
            self.gradients + other.gradients,
        )


@dataclass(slots=True)
class ExchangeCounters:
    """Bytes sent to and received from other ranks since the exchange was made."""

    wire_bytes_sent: WireBytes = field(default_factory=WireBytes)
    wire_bytes_received: WireBytes = field(default_factory=WireBytes)
    num_messages_sent: int = 0
