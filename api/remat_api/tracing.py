"""OpenTelemetry spans of requests and of attempts at jobs. Off unless an endpoint is set; needs the extra `otel`.

A span names routes, ids and figures, as the log does, and nothing else. A caller's `traceparent` is taken up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from remat_api.settings import Settings
from remat_solver.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_provider: TracerProvider | None = None


class Note(Protocol):
    """Adds attributes to a span."""

    def __call__(self, name: str | None = None, **attributes: str | int | float) -> None:
        """`name`: a better name for the span, now that more is known. Two underscores stand for a dot."""
        ...


def configure_tracing(settings: Settings) -> None:
    """Sends spans to `settings.otlp_endpoint`, if there is one. Raises `InvalidRequest` without the extra `otel`."""
    if not settings.otlp_endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidRequest(
            "otlp_endpoint is set, and OpenTelemetry is not installed.",
            hint="pip install 'remat[otel]', or unset REMAT_OTLP_ENDPOINT.",
            field="otlp_endpoint",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "remat"}))
    exporter = OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace_with(provider)


def trace_with(provider: TracerProvider | None) -> None:
    """Makes spans go to `provider`; None ends that."""
    global _provider
    _provider = provider


def flush_traces() -> None:
    """Sends what is still held back."""
    if _provider is not None:
        _provider.force_flush()


@contextlib.contextmanager
def span(name: str, *, headers: Mapping[bytes, bytes] | None = None, **attributes: str | int) -> Iterator[Note]:
    """A span around a block; `headers` of a request may carry its parent. Two underscores stand for a dot."""
    if _provider is None:
        yield _note_nothing
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in (headers or {}).items()}
    parent = TraceContextTextMapPropagator().extract(carrier)
    tracer = _provider.get_tracer("remat_api")
    with tracer.start_as_current_span(name, context=parent, attributes=_dotted(attributes)) as current:

        def note(name: str | None = None, **more: str | int | float) -> None:
            current.set_attributes(_dotted(more))
            if name is not None:
                current.update_name(name)

        yield note


def _note_nothing(name: str | None = None, **attributes: str | int | float) -> None:
    del name, attributes


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items()}
