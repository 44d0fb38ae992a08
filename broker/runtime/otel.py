"""Traces of messages for OpenTelemetry: publish, commit and delivery, as children of the message's ``traceparent``.

    producer's span ─┬─> publish STREAM     from its sequencing to its PubAck
                     │     └─> commit       until the message is safe in the store or the journal
                     └─> deliver CONSUMER   each time that it is sent to a receiver

Only messages with the header ``traceparent`` (W3C Trace Context) that is marked as sampled get spans, so the producer
decides. A thread sends the spans by OTLP over HTTP. Its queue is bounded: spans beyond the bound are dropped, and no
message waits. ``OTEL_*`` in the environment configures it further.

Imported only if it is configured. Without it, a stream and a consumer check one attribute for each run of messages.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from broker import __version__
from broker.base.clock import Clock
from broker.storage.log.owner import BlockOwner
from broker.storage.log.stream_log import StreamLog

__all__ = ["OtelTracer", "parent_of"]

_log = logging.getLogger(__name__)

_PARENT: Final = re.compile(
    rb"\r\ntraceparent:[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^\r]*)?[ \t]*\r\n",
    re.IGNORECASE)
_STATE: Final = re.compile(rb"\r\ntracestate:[ \t]*([^\r]{1,512}?)[ \t]*\r\n", re.IGNORECASE)
_SAMPLED: Final = 1
_CLOSE_SECONDS: Final = 5.0


def parent_of(block: bytes) -> SpanContext | None:
    """Return the span that a header block names as the message's parent; None if there is none or it is not sampled.

    Source: W3C Trace Context, section 3.2: version ff and ids of zeros are invalid; a later version may have more.
    """
    found = _PARENT.search(block)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version.lower() == b"ff" or (version == b"00" and more) or not int(flags, 16) & _SAMPLED:
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    state = _STATE.search(block)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(_SAMPLED),
                       trace_state=TraceState.from_header([state[1].decode("latin-1")]) if state else None)


class OtelTracer:
    """The spans of one broker (``broker.jetstream.bus.MessageTracer``).

    Args: ``processor`` receives ended spans; default: a thread that sends them to ``endpoint``.
    """

    def __init__(self, endpoint: str, server_name: str, clock: Clock, processor: SpanProcessor | None = None) -> None:
        resource = Resource.create({SERVICE_NAME: "jetblock", SERVICE_VERSION: __version__,
                                    "service.instance.id": server_name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("jetblock", __version__)
        self._clock = clock

    def published(self, account: str, stream: BlockOwner, name: str, log: StreamLog, first_seq: int,
                  subjects: Sequence[bytes], hlens: Sequence[int], bodies: Sequence[bytes]) -> None:
        spans: list[Span] = []
        for seq, (subject, hlen, body) in enumerate(zip(subjects, hlens, bodies, strict=True), first_seq):
            parent = parent_of(body[:hlen]) if hlen else None
            if parent is None:
                continue
            now_ns = self._clock.now_ns()
            published = self._start(f"publish {name}", parent, SpanKind.SERVER, now_ns, account, name, subject, seq)
            commit = self._tracer.start_span("commit", set_span_in_context(published), SpanKind.INTERNAL,
                                             start_time=now_ns)
            spans += (commit, published)
        if spans:
            log.wait_safe(self._end, spans, of=stream)

    def delivered(self, account: str, stream: str, consumer: str, began_ns: int, seqs: Sequence[int],
                  subjects: Sequence[bytes], hlens: Sequence[int], bodies: Sequence[bytes],
                  counts: Sequence[int] | None) -> None:
        for at, hlen in enumerate(hlens):
            parent = parent_of(bodies[at][:hlen]) if hlen else None
            if parent is None:
                continue
            span = self._start(f"deliver {stream} {consumer}", parent, SpanKind.PRODUCER, began_ns, account, stream,
                               subjects[at], seqs[at])
            span.set_attribute("messaging.consumer.group.name", consumer)
            span.set_attribute("jetblock.delivery", 1 if counts is None else counts[at])
            self._end([span])

    async def close(self) -> None:
        """Send what waits, for some seconds at most."""
        def flush() -> None:
            self._provider.force_flush(int(_CLOSE_SECONDS * 500))
            self._provider.shutdown()

        try:
            await asyncio.wait_for(asyncio.to_thread(flush), _CLOSE_SECONDS)
        except TimeoutError:
            _log.warning("the last traces could not be sent")

    def _start(self, name: str, parent: SpanContext, kind: SpanKind, at_ns: int, account: str, stream: str,
               subject: bytes, seq: int) -> Span:
        attributes: dict[str, Any] = {
            "messaging.system": "nats", "messaging.destination.name": subject.decode("utf-8", "replace"),
            "messaging.operation.name": name.partition(" ")[0], "jetblock.account": account, "jetblock.stream": stream,
            "jetblock.sequence": seq}
        return self._tracer.start_span(name, set_span_in_context(NonRecordingSpan(parent)), kind, attributes,
                                       start_time=at_ns)

    def _end(self, spans: Sequence[Span]) -> None:
        now_ns = self._clock.now_ns()
        for span in spans:
            span.end(max(now_ns, getattr(span, "start_time", now_ns) or now_ns))


def _exporter(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
