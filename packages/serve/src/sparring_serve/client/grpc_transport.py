"""gRPC connections to replicas, with plain text, TLS and tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from sparring.errors import ConfigError
from sparring_cli import trace_headers
from sparring_serve.client.transport import NO_ANSWER_YET, PROBE_SECONDS, Outcome, Send
from sparring_serve.config import ClientConfig, TlsFiles
from sparring_serve.security import WatchedFile, read_token
from sparring_serve.status import SHARD_MAP_METADATA
from sparring_serve.transport_options import CHANNEL_OPTIONS
from sparring_serve.wire.messages import SERVICE

__all__ = ["AsyncGrpcTransport", "GrpcTransport"]

_Call = Any


class _Connections:
    """Channels by address, created when first needed.

    TLS files are read when a channel is created. If a server does not accept the certificate, the
    channel is created again with the current files.
    """

    def __init__(self, config: ClientConfig, module: Any) -> None:
        self._config = config
        self._module = module
        self._lock = threading.Lock()
        self._channels: dict[str, Any] = {}
        self._calls: dict[tuple[str, str], _Call] = {}
        self._token = (
            None if config.token_file is None else WatchedFile(config.token_file, read_token)
        )

    def call(self, send: Send) -> _Call:
        key = send.address, send.method
        found = self._calls.get(key)
        if found is None:
            with self._lock:
                channel = self._channels.get(send.address)
                if channel is None:
                    channel = self._channels[send.address] = self._open(send.address)
                found = self._calls[key] = channel.unary_unary(f"/{SERVICE}/{send.method}")
        return found

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        headers, token = trace_headers(), self._token
        if token is not None:
            headers = (("authorization", f"Bearer {token.value}"), *headers)
        return headers or None

    def _open(self, address: str) -> Any:
        config = self._config
        config.check_address(address, f"client of {address}")
        if config.tls is None:
            return self._module.insecure_channel(address, options=CHANNEL_OPTIONS)
        return self._module.secure_channel(
            address, _credentials(config.tls), options=CHANNEL_OPTIONS
        )

    def forget(self, address: str) -> Any:
        """Removes a channel, so that the next call creates another."""
        with self._lock:
            for key in [key for key in self._calls if key[0] == address]:
                del self._calls[key]
            return self._channels.pop(address, None)

    def take_all(self) -> list[Any]:
        with self._lock:
            channels = list(self._channels.values())
            self._channels, self._calls = {}, {}
        return channels

    def should_open_again(self, outcome: Outcome) -> bool:
        """Returns whether a call may have failed because the TLS files of its channel are outdated."""
        return self._config.tls is not None and outcome.status == "UNAVAILABLE"


def _credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    def read(path: Path | None) -> bytes | None:
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"client.tls: cannot read {path}: {error.strerror}; check the path and its permissions"
            ) from None

    return grpc.ssl_channel_credentials(
        read(tls.ca_file), read(tls.key_file), read(tls.certificate_file)
    )


class GrpcTransport:
    """`Transport` over gRPC."""

    def __init__(self, config: ClientConfig) -> None:
        self._connections = _Connections(config, grpc)

    def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]:
        metadata = self._connections.metadata
        if len(sends) == 1 and sends[0].on_late is None:
            # A blocking call is faster than a future.
            [send] = sends
            call = self._connections.call(send)
            return [
                self._ended(
                    send,
                    lambda: call(send.request, send.timeout_seconds, metadata, None, send.waits),
                )
            ]
        under_way = [
            self._connections.call(each).future(
                each.request, each.timeout_seconds, metadata, None, each.waits
            )
            for each in sends
        ]
        return self._in_turn(sends, under_way)

    def _in_turn(self, sends: Sequence[Send], under_way: Sequence[Any]) -> Iterator[Outcome]:
        """Yields outcomes in the order of the calls, so that the first rows are copied while others
        are in transit."""
        begin = time.monotonic()
        try:
            for send, each in zip(sends, under_way, strict=True):
                if send.on_late is None:
                    yield self._ended(send, each.result)
                    continue
                left = max(0.0, begin + PROBE_SECONDS - time.monotonic())
                try:
                    yield self._ended(send, partial(each.result, left))
                except grpc.FutureTimeoutError:
                    each.add_done_callback(partial(_note_late, send.on_late))
                    yield NO_ANSWER_YET
        finally:
            for send, each in zip(sends, under_way, strict=True):
                if send.on_late is None:
                    each.cancel()  # no effect on completed calls

    def _ended(self, send: Send, result: Callable[[], bytes]) -> Outcome:
        try:
            return Outcome(result())
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            outcome = _failed(error)
        if self._connections.should_open_again(outcome):
            channel = self._connections.forget(send.address)
            if channel is not None:
                channel.close()
        return outcome

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for each in self._connections.take_all():
            each.close()


class AsyncGrpcTransport:
    """`AsyncTransport` over gRPC; belongs to the event loop that first uses it."""

    def __init__(self, config: ClientConfig) -> None:
        self._connections = _Connections(config, grpc.aio)
        self._probes: set[asyncio.Task[Outcome]] = set()

    async def exchange(self, sends: Sequence[Send]) -> Sequence[Outcome]:
        metadata = self._connections.metadata
        return await asyncio.gather(
            *(
                self._one(each, metadata) if each.on_late is None else self._probe(each, metadata)
                for each in sends
            )
        )

    async def _probe(self, send: Send, metadata: tuple[tuple[str, str], ...] | None) -> Outcome:
        assert send.on_late is not None
        task = asyncio.ensure_future(self._one(send, metadata))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)
        await asyncio.wait({task}, timeout=PROBE_SECONDS)
        if task.done():
            return task.result()
        task.add_done_callback(partial(_note_late, send.on_late))
        return NO_ANSWER_YET

    async def _one(self, send: Send, metadata: tuple[tuple[str, str], ...] | None) -> Outcome:
        call = self._connections.call(send)
        try:
            answer: bytes = await call(
                send.request,
                timeout=send.timeout_seconds,
                metadata=metadata,
                wait_for_ready=send.waits,
            )
            return Outcome(answer)
        except grpc.RpcError as error:
            outcome = _failed(error)
        if self._connections.should_open_again(outcome):
            channel = self._connections.forget(send.address)
            if channel is not None:
                await channel.close()
        return outcome

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for task in self._probes:
            task.cancel()
        for each in self._connections.take_all():
            await each.close()


def _note_late(note: Callable[[], None], ended: Any) -> None:
    """Calls `note` if an attempt received a reply after its caller stopped waiting."""
    if ended.cancelled() or ended.exception() is not None:
        return
    result = ended.result()
    if not isinstance(result, Outcome) or result.answer is not None:
        note()


def _failed(error: Any) -> Outcome:
    code = getattr(error, "code", lambda: None)()
    trailing = dict(getattr(error, "trailing_metadata", tuple)() or ())
    return Outcome(
        None,
        "CANCELLED" if code is None else code.name,
        getattr(error, "details", str)() or "",
        trailing.get(SHARD_MAP_METADATA, b""),
    )
