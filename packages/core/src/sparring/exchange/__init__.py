"""The exchange between ranks: rows from their owners, gradients to them."""

from sparring.exchange.counters import ExchangeCounters, MessageKind, WireBytes
from sparring.exchange.options import ExchangeOptions, Schedule, WireDtype
from sparring.exchange.requests import OwnedGradients, Pulled, PullRequest, PushRequest
from sparring.exchange.ring import RingExchange

__all__ = [
    "ExchangeCounters",
    "ExchangeOptions",
    "MessageKind",
    "OwnedGradients",
    "PullRequest",
    "Pulled",
    "PushRequest",
    "RingExchange",
    "Schedule",
    "WireBytes",
    "WireDtype",
]
