"""Spans of OpenTelemetry, for calls of services and steps of a training.

Off unless the environment variables of OpenTelemetry choose an exporter, or a program calls
`use_tracer_provider`. If it is off, `tracer` returns None and nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sparring.errors import PluginError

__all__ = ["call_span", "server_span", "trace_headers", "tracer", "use_tracer_provider"]

_VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)

_found: list[Any] = []
"""Contains the tracer, or None if tracing is off; empty before the first call of `tracer`."""

_making = threading.Lock()


def use_tracer_provider(provider: Any) -> None:
    """Sends the spans of this process to a provider; None returns to the environment variables.

    Args:
        provider: an ``opentelemetry.sdk.trace.TracerProvider``.
    """
    _found[:] = [] if provider is None else [provider.get_tracer("sparring")]


def tracer() -> Any:
    """Returns the tracer of OpenTelemetry; None if tracing is off.

    Raises:
        PluginError: the environment chooses an exporter that is not installed or not supported.
    """
    if not _found:
        # Threads of a server make their first calls together, and one exporter is enough.
        with _making:
            if not _found:
                _found.append(_make_tracer() if _is_chosen(os.environ) else None)
    return _found[0]


def call_span(name: str) -> AbstractContextManager[Any]:
    """Returns a context manager that records a call of a service during its block."""
    found = tracer()
    if found is None:
        return nullcontext()
    from opentelemetry.trace import SpanKind

    span: AbstractContextManager[Any] = found.start_as_current_span(name, kind=SpanKind.CLIENT)
    return span


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Returns the header ``traceparent`` of the current span; empty if tracing is off."""
    if tracer() is None:
        return ()
    from opentelemetry.propagate import inject

    headers: dict[str, str] = {}
    inject(headers)
    return tuple(headers.items())


def server_span(
    name: str, headers: Callable[[], Any], attributes: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    """Returns a context manager that records the answer of a server, as a part of the caller's trace.

    Args:
        name: name of the span.
        headers: returns pairs of name and value of the call.
        attributes: values of the span.
    """
    found = tracer()
    if found is None:
        return nullcontext()
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    texts = {key: value for key, value in headers() if isinstance(value, str)}
    span: AbstractContextManager[Any] = found.start_as_current_span(
        name, context=extract(texts), kind=SpanKind.SERVER, attributes=attributes
    )
    return span


def _is_chosen(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(each) for each in _VARIABLES)


def _make_tracer() -> Any:
    chosen = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if chosen not in ("otlp", "console"):
        raise PluginError(
            f"OTEL_TRACES_EXPORTER: found {chosen!r}, expected otlp, console or none; set one of them"
        )
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        if chosen == "console":
            exporter: Any = ConsoleSpanExporter()
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
    except ImportError as error:
        raise PluginError(
            "the environment sets OTEL_ variables, but OpenTelemetry is not installed; run: pip install "
            "'sparring-cli[otel]', or set OTEL_SDK_DISABLED=true"
        ) from error
    # The provider reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER.
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider.get_tracer("sparring")
