"""Each step of a training is one trace of OpenTelemetry, with its stages as spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'sparring-train[otel]'")
pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from sparring_cli import use_tracer_provider
from sparring_testing.fixtures.runs import train_run

CONFIG = """
threads: 1
data: {kind: synthetic_criteo, samples: 96, test_samples: 64, batch_size: 32, max_ids: 40}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
storage: {backend: memory}
"""


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    yield
    use_tracer_provider(None)


def run(sampler: Sampler) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use_tracer_provider(provider)
    train_run(CONFIG)
    return exporter


def test_each_step_is_a_trace_with_its_stages() -> None:
    spans = run(ALWAYS_ON).get_finished_spans()
    steps = [each for each in spans if each.name == "step"]
    assert [each.attributes["sparring.step"] for each in steps] == [1, 2, 3]
    assert len({each.context.trace_id for each in steps}) == 3
    by_id = {each.context.span_id: each for each in spans}
    for step in steps:
        inner = [
            each
            for each in spans
            if each.context.trace_id == step.context.trace_id and each is not step
        ]
        assert {"look up", "forward", "backward", "apply"} <= {each.name for each in inner}
        for each in inner:
            outer = by_id[each.parent.span_id]
            assert outer.start_time <= each.start_time <= each.end_time <= outer.end_time
        parents = {each.name: by_id[each.parent.span_id].name for each in inner}
        assert parents["forward"] == "step"


def test_a_sampler_leaves_out_steps() -> None:
    assert run(ALWAYS_OFF).get_finished_spans() == ()
