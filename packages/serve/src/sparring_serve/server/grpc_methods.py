"""The methods of the port, as generic handlers of gRPC: bytes in, bytes out, no generated code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from sparring.errors import DeadlineError
from sparring_serve import inference
from sparring_serve.recommendation import recommend
from sparring_serve.refusal import SHARD_MAP_METADATA, Refusal, Status
from sparring_serve.security import Tokens
from sparring_serve.server.refresher import Refresher
from sparring_serve.service import LookupService, decoded, version_message
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, DescribeRequest, RefreshAnswer, RefreshRequest
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthAnswer,
    HealthRequest,
    Live,
    NoFields,
    Ready,
    ServingStatus,
)

__all__ = ["Changes", "Methods", "make_handlers"]

_log = logging.getLogger(__name__)

_Answer = Callable[[bytes, Any], bytes]


class Changes(Protocol):
    """Calls that change tables: content and seconds until the deadline → the answer."""

    def methods(self) -> Mapping[str, tuple[str, Callable[[bytes, float], bytes]]]:
        """Method → the role that it needs, and what answers it."""

    def close(self) -> None: ...


_CHANGES = ("Push", "Flush", "Save", "Load", "SavePart", "LoadPart")


def _refuse_change(name: str) -> _Answer:
    def refuse(*_: Any) -> bytes:
        raise Refusal(
            Status.UNIMPLEMENTED,
            f"{name}: this server has the role inference, whose tables are read only; send it to servers "
            "that were started with --role parameters",
            reason="role_inference",
        )

    return refuse


def _timed(answer: Callable[[bytes, float], bytes]) -> _Answer:
    return lambda content, context: answer(content, context.time_remaining())


@dataclass(frozen=True, slots=True)
class Methods:
    """The methods.

    Args:
        service: answers pulls.
        refresher: takes newer versions.
        tokens: who may call; None: everyone.
        changes: of tables that learn; None: they are read only.
    """

    service: LookupService
    refresher: Refresher
    tokens: Tokens | None = None
    changes: Changes | None = None

    def pull(self, content: bytes, context: Any) -> bytes:
        return self.service.pull(content, context.time_remaining())

    def scan(self, content: bytes, context: Any) -> bytes:
        return self.service.scan(content, context.time_remaining())

    def recommend(self, content: bytes, context: Any) -> bytes:
        return recommend(self.service, content, context.time_remaining())

    def describe(self, content: bytes, context: Any) -> bytes:
        decoded(DescribeRequest, content)
        return encode(self.service.describe())

    def refresh(self, content: bytes, context: Any) -> bytes:
        decoded(RefreshRequest, content)
        self.service.check_deadline(context.time_remaining())
        try:
            result = self.refresher.hint(context.time_remaining())
        except DeadlineError:
            raise Refusal(
                Status.DEADLINE_EXCEEDED, "the refresh goes on; ask later what is served"
            ) from None
        return encode(
            RefreshAnswer(
                version_message(self.service.tables.versions()[0]), result.is_new, result.refused
            )
        )

    def infer(self, content: bytes, context: Any) -> bytes:
        return inference.infer(self.service, content, context.time_remaining())

    def health(self, content: bytes, context: Any) -> bytes:
        request: HealthRequest = decoded(HealthRequest, content)
        if request.service not in ("", SERVICE, INFERENCE):
            raise Refusal(
                Status.NOT_FOUND, f"service {request.service!r} is not known; ask for {SERVICE!r}"
            )
        is_ready = self.service.is_ready
        return encode(
            HealthAnswer(ServingStatus.SERVING if is_ready else ServingStatus.NOT_SERVING)
        )

    def live(self, content: bytes, context: Any) -> bytes:
        decoded(NoFields, content)
        return encode(Live(True))

    def ready(self, content: bytes, context: Any) -> bytes:
        decoded(NoFields, content)
        return encode(Ready(self.service.is_ready))


def make_handlers(methods: Methods) -> list[grpc.GenericRpcHandler]:
    """Handlers of all services of the port. Probes of health need no token."""
    service, tokens = methods.service, methods.tokens
    of_models: dict[str, _Answer] = {
        "ModelInfer": methods.infer,
        "ModelMetadata": lambda content, _: inference.model_metadata(service, content),
        "ModelReady": lambda content, _: inference.model_ready(service, content),
        "ServerMetadata": lambda *_: inference.server_metadata(),
    }
    probes: dict[str, _Answer] = {"ServerLive": methods.live, "ServerReady": methods.ready}
    lookups: dict[str, _Answer] = {
        "Pull": methods.pull,
        "Scan": methods.scan,
        "Recommend": methods.recommend,
        "Describe": methods.describe,
    }
    table: dict[str, dict[str, grpc.RpcMethodHandler]] = {
        SERVICE: {
            **{name: _handler(each, tokens, "pull") for name, each in lookups.items()},
            "Refresh": _handler(methods.refresh, tokens, "admin"),
            **_changes(methods),
        },
        INFERENCE: {
            **{name: _handler(each, tokens, "pull") for name, each in of_models.items()},
            **{name: _handler(each, None, "") for name, each in probes.items()},
        },
        HEALTH: {"Check": _handler(methods.health, None, "")},
    }
    return [grpc.method_handlers_generic_handler(name, each) for name, each in table.items()]


def _changes(methods: Methods) -> dict[str, grpc.RpcMethodHandler]:
    if methods.changes is None:
        return {name: _handler(_refuse_change(name), methods.tokens, "pull") for name in _CHANGES}
    return {
        name: _handler(_timed(answer), methods.tokens, role)
        for name, (role, answer) in methods.changes.methods().items()
    }


def _handler(answer: _Answer, tokens: Tokens | None, role: str) -> grpc.RpcMethodHandler:
    def handle(content: bytes, context: Any) -> bytes:
        try:
            if tokens is not None:
                tokens.check(dict(context.invocation_metadata()), role)
            return answer(content, context)
        except Refusal as refusal:
            if refusal.shard_map:
                context.set_trailing_metadata(((SHARD_MAP_METADATA, refusal.shard_map),))
            context.abort(getattr(grpc.StatusCode, refusal.status.value), str(refusal))
        except Exception as error:
            # Of a bug the caller learns the kind, and the log of this server the rest.
            number = threading.get_ident()
            _log.exception("a call failed in thread %d", number)
            context.abort(
                grpc.StatusCode.INTERNAL,
                f"{type(error).__name__} in this server, thread {number}; its log has the traceback",
            )
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(handle)
