"""gRPC methods of the port as a generic handler: bytes in, bytes out, without generated code.

gRPC calls a method when the headers of a call have arrived. The method checks the token and the
deadline, reads the message itself, and then waits until fewer than `server.threads` calls are
answered, so that calls without a message delay no others. Health probes have separate threads.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc

from sparring.errors import DeadlineError
from sparring_cli import server_span
from sparring_serve import inference
from sparring_serve.model_parts import read_model
from sparring_serve.recommendation import recommend
from sparring_serve.security import Tokens, check_local
from sparring_serve.server.audit import AUDITED, AuditLine
from sparring_serve.server.call_lane import CallLane
from sparring_serve.server.call_watch import CallWatch
from sparring_serve.server.refresher import Refresher
from sparring_serve.server.silent_calls import SLOW_SECONDS
from sparring_serve.service import LookupService, decode_request, version_message
from sparring_serve.status import SHARD_MAP_METADATA, Status, StatusError
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, DescribeRequest, RefreshReply, RefreshRequest
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthReply,
    HealthRequest,
    Live,
    NoFields,
    Ready,
    ServingStatus,
)

__all__ = [
    "Changes",
    "Method",
    "Methods",
    "make_handler",
    "make_probe_handler",
    "make_method_table",
]

_log = logging.getLogger(__name__)

_Answer = Callable[[bytes, Any], bytes]
_CheckDeadline = Callable[[float], None]
_NoteRejected = Callable[[str, float], None]

_PROBE_MESSAGE_SECONDS = 1.0
"""Maximum time to wait for the message of a health probe."""


class Changes(Protocol):
    """Handler of calls that change tables: takes content and the seconds until the deadline, returns
    the reply."""

    def methods(self) -> Mapping[str, tuple[str, Callable[[bytes, float], bytes]]]:
        """Returns, per method, the role that it needs and the function that answers it."""

    def check_deadline(self, method: str, remaining_seconds: float) -> None:
        """Raises `StatusError` if the deadline of a call is missing or too long."""

    def resign(self) -> None:
        """Lets another replica lead. Called when replies no longer reach clients, although calls in
        progress may still run."""

    def close(self) -> None: ...


_LIVENESS = "liveness"
"""Service name of a health check that only tests whether the server replies, not whether it is
ready.
"""

_CHANGES = (
    "Push",
    "Flush",
    "Save",
    "Load",
    "SavePart",
    "LoadPart",
    "Replicate",
    "Move",
    "MovePart",
)


def _refuse_change(name: str) -> _Answer:
    def refuse(*_: Any) -> bytes:
        raise StatusError(
            Status.UNIMPLEMENTED,
            f"{name}: this server has the role inference, which is read-only; call servers that were "
            "started with --role parameters",
            reason="role_inference",
        )

    return refuse


def _timed(answer: Callable[[bytes, float], bytes]) -> _Answer:
    return lambda content, context: answer(content, context.time_remaining())


@dataclass(frozen=True, slots=True)
class Methods:
    """The methods of the port.

    Args:
        service: Answers lookups.
        refresher: Switches to newer versions.
        tokens: Tokens of callers; None: everyone may look up, and callers on this machine may do
            everything.
        changes: Handler of changes of trainable tables; None: the tables are read-only.
        watch: Tracks the calls that occupy threads of `calls`.
        calls: Threads of all calls except health probes.
        probes: Threads of health probes.
        rejections: Threads that reject calls if `calls` or `probes` is full.
    """

    service: LookupService
    refresher: Refresher
    tokens: Tokens | None = None
    changes: Changes | None = None
    watch: CallWatch = field(default_factory=CallWatch)
    calls: CallLane = field(default_factory=lambda: CallLane("calls", 1, 16))
    probes: CallLane = field(default_factory=lambda: CallLane("probes", 1, 16))
    rejections: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def pull(self, content: bytes, context: Any) -> bytes:
        waited = self.watch.waited_seconds()
        return self.service.pull(content, context.time_remaining(), waited_seconds=waited)

    def scan(self, content: bytes, context: Any) -> bytes:
        return self.service.scan(content, context.time_remaining())

    def read_model(self, content: bytes, context: Any) -> bytes:
        return read_model(self.service, content, context.time_remaining())

    def recommend(self, content: bytes, context: Any) -> bytes:
        waited = self.watch.waited_seconds()
        return recommend(self.service, content, context.time_remaining(), waited_seconds=waited)

    def describe(self, content: bytes, context: Any) -> bytes:
        decode_request(DescribeRequest, content)
        return encode(self.service.describe())

    def refresh(self, content: bytes, context: Any) -> bytes:
        if self.changes is not None:
            raise StatusError(
                Status.UNIMPLEMENTED,
                "Refresh: this server has the role parameters, whose rows have no versions to switch "
                "to; call servers of the role inference",
                reason="role_parameters",
            )
        decode_request(RefreshRequest, content)
        self.service.check_deadline(context.time_remaining())
        try:
            result = self.refresher.hint(context.time_remaining())
        except DeadlineError:
            raise StatusError(
                Status.DEADLINE_EXCEEDED,
                "the refresh continues after the deadline; call Describe later for the served version",
            ) from None
        return encode(
            RefreshReply(
                version_message(self.service.tables.versions()[0]), result.is_new, result.refused
            )
        )

    def infer(self, content: bytes, context: Any) -> bytes:
        waited = self.watch.waited_seconds()
        return inference.infer(
            self.service, content, context.time_remaining(), waited_seconds=waited
        )

    def health(self, content: bytes, context: Any) -> bytes:
        request: HealthRequest = decode_request(HealthRequest, content)
        if request.service == _LIVENESS:
            return encode(HealthReply(ServingStatus.SERVING))
        if request.service not in ("", SERVICE, INFERENCE):
            raise StatusError(
                Status.NOT_FOUND, f"unknown service {request.service!r}; use {SERVICE!r}"
            )
        is_ready = self.service.is_ready
        return encode(HealthReply(ServingStatus.SERVING if is_ready else ServingStatus.NOT_SERVING))

    def live(self, content: bytes, context: Any) -> bytes:
        decode_request(NoFields, content)
        return encode(Live(True))

    def ready(self, content: bytes, context: Any) -> bytes:
        decode_request(NoFields, content)
        return encode(Ready(self.service.is_ready))


def make_method_table(methods: Methods) -> dict[str, Method]:
    """Returns all methods of the port by path. Health probes need no token."""
    service, metrics = methods.service, methods.service.metrics

    def note_pull(code: str, seconds: float) -> None:
        metrics.note_pull(("",), code, (0, 0), seconds)

    def note_recommend(code: str, seconds: float) -> None:
        metrics.note_recommend("", code, 0, seconds)

    deadline = service.check_deadline
    handlers = {
        f"/{SERVICE}/Pull": Method(methods.pull, "pull", deadline, note_pull),
        f"/{SERVICE}/Scan": Method(methods.scan, "pull", deadline),
        f"/{SERVICE}/ReadModel": Method(methods.read_model, "pull", deadline),
        f"/{SERVICE}/Recommend": Method(methods.recommend, "pull", deadline, note_recommend),
        f"/{SERVICE}/Describe": Method(methods.describe, "pull"),
        f"/{SERVICE}/Refresh": Method(methods.refresh, "admin", deadline),
        **{f"/{SERVICE}/{name}": each for name, each in _changes(methods).items()},
        f"/{INFERENCE}/ModelInfer": Method(methods.infer, "pull", None, note_pull),
        f"/{INFERENCE}/ModelMetadata": Method(
            lambda content, _: inference.model_metadata(service, content), "pull"
        ),
        f"/{INFERENCE}/ModelReady": Method(
            lambda content, _: inference.model_ready(service, content), "pull"
        ),
        f"/{INFERENCE}/ServerMetadata": Method(lambda *_: inference.server_metadata(), "pull"),
        f"/{INFERENCE}/ServerLive": Method(methods.live),
        f"/{INFERENCE}/ServerReady": Method(methods.ready),
        f"/{HEALTH}/Check": Method(methods.health),
    }
    return handlers


def make_handler(methods: Methods) -> grpc.GenericRpcHandler:
    """Returns the handler of all services of the port."""
    return _Handlers(methods, make_method_table(methods))


def make_probe_handler(methods: Methods) -> grpc.GenericRpcHandler:
    """Returns a handler of only the probes, which need no token."""
    table = make_method_table(methods)
    return _Handlers(methods, {path: each for path, each in table.items() if not each.role})


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the port."""

    answer: _Answer
    role: str = ""
    """Role that it needs; empty for probes, which need none."""
    check_deadline: _CheckDeadline | None = None
    """Rejects invalid deadlines; None accepts calls without a deadline, whose message must arrive
    soon."""
    note_rejected: _NoteRejected | None = None
    """Counts a call that is rejected before its message is read, with its status and duration."""


def _changes(methods: Methods) -> dict[str, Method]:
    changes = methods.changes
    if changes is None:
        return {name: Method(_refuse_change(name), "pull") for name in _CHANGES}
    return {
        name: Method(_timed(answer), role, partial(changes.check_deadline, name))
        for name, (role, answer) in changes.methods().items()
    }


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Finds the method of a call when its headers arrive."""

    def __init__(self, methods: Methods, table: Mapping[str, Method]) -> None:
        self._methods, self._table = methods, table

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        method = self._table.get(details.method)
        if method is None:
            return None
        methods = self._methods
        lane = methods.calls if method.role else methods.probes
        call = _Call(methods, method, details.method.rpartition("/")[2], time.monotonic(), lane)
        # grpc runs a handler on the threads in this attribute.
        behavior: Any
        if lane.open():
            behavior = partial(_in_lane, call)
            behavior.experimental_thread_pool = lane.threads
        else:
            behavior = partial(_reject, call)
            behavior.experimental_thread_pool = methods.rejections
        return grpc.stream_unary_rpc_method_handler(behavior)


def _in_lane(call: _Call, messages: Iterator[bytes], context: Any) -> bytes:
    try:
        return call.handle(messages, context)
    finally:
        call.lane.close_call()


def _reject(call: _Call, _: Iterator[bytes], context: Any) -> bytes:
    refusal = call.refuse_another()
    return call.abort(refusal, context)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call."""

    methods: Methods
    method: Method
    name: str
    arrived: float
    """Time of `time.monotonic` at which its headers arrived."""
    lane: CallLane

    def handle(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Answers the call."""
        audit = AuditLine(self.name, context) if self.name in AUDITED else None
        outcome, answer = "failed", b""
        try:
            with server_span(
                f"server {self.name}",
                context.invocation_metadata,
                {"sparring.shard": self.methods.service.position.shard},
            ):
                answer = self._answer(messages, context, audit)
            outcome = "done"
            return answer
        except StatusError as refusal:
            outcome = refusal.status.value
            self.abort(refusal, context)
        except _CallEndedError:
            outcome = "CANCELLED"
            context.abort(grpc.StatusCode.CANCELLED, "the call ended before its message arrived")
        except Exception as error:
            # The caller receives only the type of the exception; the log contains the traceback.
            number = threading.get_ident()
            _log.exception("a call failed in thread %d", number)
            context.abort(
                grpc.StatusCode.INTERNAL,
                f"{type(error).__name__} in this server, thread {number}; its log has the traceback",
            )
        finally:
            if audit is not None:
                audit.write(outcome, answer)
        raise AssertionError("abort raises")

    def _answer(self, messages: Iterator[bytes], context: Any, audit: AuditLine | None) -> bytes:
        method = self.method
        try:
            client = self._check_caller(context, audit)
            seconds = context.time_remaining()
            if method.check_deadline is not None:
                method.check_deadline(seconds)
        except StatusError as refusal:
            self.count(refusal)
            raise
        content = self._message(messages, context)
        received = time.monotonic()
        if audit is not None:
            audit.note_request(content)
        with self._turn(context) as seconds, ExitStack() as stack:
            if method.role:
                stack.enter_context(self.methods.watch.call(received, seconds))
            quotas = self.methods.service.quotas
            if quotas is not None and client:
                stack.enter_context(quotas.call(client))
            return method.answer(content, context)

    @contextmanager
    def _turn(self, context: Any) -> Iterator[float]:
        """Waits until this call may be answered, and yields the seconds until its deadline.

        Raises:
            StatusError: Too many calls wait already, or the deadline has passed.
            _CallEndedError: The call was cancelled.
        """
        lane = self.lane
        if not lane.enter():
            raise self.refuse_another()
        try:
            if not lane.begin(context.time_remaining()):
                refusal = StatusError(
                    Status.DEADLINE_EXCEEDED,
                    "the deadline passed before the call began; increase it, or increase server.threads",
                    reason="deadline_exceeded",
                )
                self.count(refusal)
                raise refusal
            try:
                if not context.is_active():
                    self._note("CANCELLED")
                    raise _CallEndedError
                yield context.time_remaining()
            finally:
                lane.end()
        finally:
            lane.leave()

    def refuse_another(self) -> StatusError:
        """Counts and returns the rejection of a call that would be one too many."""
        refusal = StatusError(
            Status.RESOURCE_EXHAUSTED,
            f"{self.name}: this server already answers or queues {self.lane.max_calls} calls (16 per "
            "thread of server.threads); use another replica, retry later, or increase server.threads",
            reason="calls",
        )
        self.count(refusal)
        return refusal

    def _check_caller(self, context: Any, audit: AuditLine | None) -> str:
        """Returns the name of a client that has a quota; empty if it has none."""
        role, tokens = self.method.role, self.methods.tokens
        if role and tokens is not None:
            caller = tokens.check(dict(context.invocation_metadata()), role)
            if audit is not None:
                audit.note_caller(str(caller))
            if self.methods.service.quotas is not None and caller.role != "admin":
                self.methods.service.quotas.admit(caller.client)
                return caller.client
        elif role not in ("", "pull"):
            check_local(context.peer(), role)
        return ""

    def _message(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Waits for the message of the call, until its deadline.

        Raises:
            StatusError: The caller sent no message.
            _CallEndedError: The call ended before its message arrived.
        """
        with ExitStack() as stack:
            call = stack.enter_context(self.lane.silent.wait(context.peer(), context.cancel))
            seconds = math.inf if call.may_be_slow else SLOW_SECONDS
            if self.method.check_deadline is None:  # it may have no deadline
                limits = self.methods.service.limits
                longest = (
                    limits.max_deadline_seconds if self.method.role else _PROBE_MESSAGE_SECONDS
                )
                seconds = min(seconds, longest)
            if seconds < math.inf:
                timer = threading.Timer(seconds, call.end)
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            try:
                return next(messages)
            except StopIteration:
                # The messages also end when the call has been cancelled or its deadline has passed.
                has_ended = (
                    call.is_ended or context.time_remaining() <= 0 or not context.is_active()
                )
            except grpc.RpcError:
                has_ended = True
        if has_ended:
            self._note("CANCELLED")
            raise _CallEndedError
        refusal = StatusError(
            Status.INVALID_ARGUMENT,
            f"{self.name}: the call has no message; send one request",
            reason="no_message",
        )
        self.count(refusal)
        raise refusal

    def count(self, refusal: StatusError) -> None:
        """Counts a call that is rejected before its method runs."""
        self.methods.service.metrics.count_rejected(refusal.reason)
        self._note(refusal.status.value)

    def _note(self, code: str) -> None:
        if self.method.note_rejected is not None:
            waited = self.methods.watch.waited_seconds() or time.monotonic() - self.arrived
            self.method.note_rejected(code, waited)

    @staticmethod
    def abort(refusal: StatusError, context: Any) -> bytes:
        """Ends the call with a status; always raises, because gRPC does."""
        if refusal.shard_map:
            context.set_trailing_metadata(((SHARD_MAP_METADATA, refusal.shard_map),))
        context.abort(getattr(grpc.StatusCode, refusal.status.value), str(refusal))
        raise AssertionError("abort raises")


class _CallEndedError(Exception):
    """The caller disconnected, or its deadline passed, before the message arrived."""
