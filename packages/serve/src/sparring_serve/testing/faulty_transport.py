"""A transport without a network, with injected failures and a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparring_serve.client.transport import NO_ANSWER_YET, PROBE_SECONDS, Outcome, Send
from sparring_serve.model_parts import read_model
from sparring_serve.parameters.service import ParameterService
from sparring_serve.recommendation import recommend
from sparring_serve.service import LookupService
from sparring_serve.status import StatusError
from sparring_serve.wire.fields import encode

__all__ = ["FaultyTransport", "TransportClock"]


@dataclass(slots=True)
class TransportClock:
    """Simulated time in seconds, which the transport advances."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class FaultyTransport:
    """Replicas that are services in this process.

    Args:
        services: Service per address.
        fault: Returns the fault of an attempt: ``""`` for none; ``cut``: the connection fails
            immediately; ``hang``: there is never a reply; ``lost``: the call is executed, but the
            reply is lost; ``damaged``: the reply is truncated; ``busy``: the call is rejected because
            the server is overloaded.
        clock: Clock. The fault ``hang`` advances it to the end of the attempt.
    """

    def __init__(
        self,
        services: Mapping[str, LookupService | ParameterService],
        fault: Callable[[Send], str] = lambda _: "",
        clock: TransportClock | None = None,
    ) -> None:
        self.services = services
        self.fault = fault
        self.clock = TransportClock() if clock is None else clock
        self.sent: list[Send] = []
        self.is_closed = False

    def exchange(self, sends: Sequence[Send]) -> Sequence[Outcome]:
        begin = self.clock.now
        ends, outcomes = [begin], []
        for each in sends:
            outcome, seconds = self._one(each)
            outcomes.append(outcome)
            ends.append(begin + seconds)
        self.clock.now = max(ends)
        return outcomes

    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def close(self) -> None:
        self.is_closed = True

    def _answer(self, service: LookupService | ParameterService, send: Send) -> bytes:
        lookups = service if isinstance(service, LookupService) else service.lookups
        if send.method == "Describe":
            return encode(lookups.describe())
        if send.method == "Pull":
            return lookups.pull(send.request, send.timeout_seconds)
        if send.method == "Scan":
            return lookups.scan(send.request, send.timeout_seconds)
        if send.method == "Recommend":
            return recommend(lookups, send.request, send.timeout_seconds)
        if send.method == "ReadModel":
            return read_model(lookups, send.request, send.timeout_seconds)
        assert not isinstance(service, LookupService)
        _, answer = service.methods()[send.method]
        return answer(send.request, send.timeout_seconds)

    def _one(self, send: Send) -> tuple[Outcome, float]:
        self.sent.append(send)
        fault = self.fault(send)
        if fault == "cut" or send.address not in self.services:
            if send.waits:
                return Outcome(None, "DEADLINE_EXCEEDED", "deadline"), send.timeout_seconds
            return Outcome(None, "UNAVAILABLE", "connection refused"), 0.001
        if fault == "busy":
            return Outcome(None, "RESOURCE_EXHAUSTED", "too much in flight"), 0.001
        if fault == "hang":
            if send.on_late is not None:
                return NO_ANSWER_YET, min(PROBE_SECONDS, send.timeout_seconds)
            return Outcome(None, "DEADLINE_EXCEEDED", "deadline"), send.timeout_seconds
        service = self.services[send.address]
        try:
            answer = self._answer(service, send)
        except StatusError as refusal:
            return Outcome(None, refusal.status.value, str(refusal), refusal.shard_map), 0.001
        if fault == "lost":
            return Outcome(None, "UNAVAILABLE", "connection reset"), 0.001
        return Outcome(answer[:-1] if fault == "damaged" else answer), 0.001
