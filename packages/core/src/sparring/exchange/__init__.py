"""The exchange between ranks: rows from their owners, gradients to them."""

from sparring.exchange.counters import ExchangeCounters, MessageKind, WireBytes
from sparring.exchange.device_exchange import DeviceExchange
from sparring.exchange.device_requests import (
    DevicePulled,
    DevicePullRequest,
    DevicePushed,
    DevicePushRequest,
)
from sparring.exchange.options import ExchangeOptions, Schedule, WireDtype
from sparring.exchange.record import ChangedKeys, PullRecord
from sparring.exchange.refreshing import Refreshed
from sparring.exchange.requests import OwnedGradients, Pulled, PullRequest, PushRequest
from sparring.exchange.ring import RingExchange

__all__ = [
    "ChangedKeys",
    "DeviceExchange",
    "DevicePullRequest",
    "DevicePulled",
    "DevicePushRequest",
    "DevicePushed",
    "ExchangeCounters",
    "ExchangeOptions",
    "MessageKind",
    "OwnedGradients",
    "PullRecord",
    "PullRequest",
    "Pulled",
    "PushRequest",
    "Refreshed",
    "RingExchange",
    "Schedule",
    "WireBytes",
    "WireDtype",
]
