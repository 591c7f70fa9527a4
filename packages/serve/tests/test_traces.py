"""Calls of a client and their answers by servers are one trace of OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'sparring-serve[otel]'")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sparring.errors import PluginError
from sparring_cli import tracer, use_tracer_provider
from sparring_serve import (
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    ShardReplicas,
)
from sparring_serve.testing.memory_servers import open_memory_server

VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED")


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use_tracer_provider(provider)
    yield exporter
    use_tracer_provider(None)


def pull_once(targets: Any, *, is_async: bool) -> None:
    config, ids = ClientConfig(deadline_seconds=30), {"item": np.arange(100)}

    async def pull() -> None:
        async with AsyncLookupClient(targets, config) as client:
            await client.pull(ids)

    if is_async:
        asyncio.run(pull())
        return
    with LookupClient(targets, config) as client:
        client.pull(ids)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lookup_is_one_trace_over_client_and_shards(
    spans: InMemorySpanExporter, is_async: bool
) -> None:
    first, second = (open_memory_server(shard=each, shards=2) for each in range(2))
    with first, second:
        targets = ShardReplicas(((first.address,), (second.address,)))
        pull_once(targets, is_async=is_async)
    found = spans.get_finished_spans()
    [root] = [each for each in found if each.name == "client pull"]
    answers = [each for each in found if each.name == "server Pull"]
    assert root.parent is None
    assert {each.attributes["sparring.shard"] for each in answers} == {0, 1}
    for each in answers:
        assert each.context.trace_id == root.context.trace_id
        assert each.parent.span_id == root.context.span_id
        assert root.start_time <= each.start_time <= each.end_time


def test_nothing_is_traced_without_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    use_tracer_provider(None)
    assert tracer() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    use_tracer_provider(None)
    assert tracer() is None


def test_an_unknown_exporter_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    use_tracer_provider(None)
    try:
        with pytest.raises(PluginError, match="expected otlp, console or none"):
            tracer()
        with pytest.raises(PluginError, match="expected otlp, console or none"):
            open_memory_server()
        with pytest.raises(PluginError, match="expected otlp, console or none"):
            LookupClient("127.0.0.1:1")
    finally:
        monkeypatch.undo()
        use_tracer_provider(None)
