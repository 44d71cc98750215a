"""
The exporter of a daemon: metrics at an interval, events at once, and the newest step of each job. Needs the otlp extra.

The daemon's thread fills bounded queues and never waits. Threads of the SDK, and one of this module for the metrics,
send them. A collector that is away costs what it would have received, and one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer, set_span_in_context

from timesyncd.build import this_build
from timesyncd.clocks import Clocks
from timesyncd.config.sections import OtlpSettings
from timesyncd.integrations.otlp.metrics import metrics_data
from timesyncd.integrations.otlp.steps import Span
from timesyncd.messages.fleet import CloudEvent

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.trace.export import SpanExporter
    from prometheus_client.core import Metric as Family

log = logging.getLogger(__name__)

#: A call that the collector does not answer ends after this.
TIMEOUT_S = 5

#: The end of the daemon waits so long for what is not sent yet.
CLOSE_TIMEOUT_S = 2.0

_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.ERROR,
}


class OtlpExporter:
    """Off until `run`. `families` are the metrics of one moment, `steps` the newest steps that were not given before."""

    def __init__(
        self,
        settings: OtlpSettings,
        node: str,
        clocks: Clocks,
        families: Callable[[], Iterable[Family]],
        steps: Callable[[], list[Span]],
    ) -> None:
        # The SDK logs each attempt that fails; an outage is one line here.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.dropped = 0
        self._settings = settings
        self._clocks = clocks
        self._families = families
        self._steps = steps
        self._start_ns = clocks.realtime_ns()
        self._resource = Resource.create(
            {
                "service.name": "timesyncd",
                "service.instance.id": node,
                "service.version": this_build().version,
                "host.name": node,
            }
        )
        logs, spans, self._metric_exporter = _exporters(settings)
        self._logs = LoggerProvider(resource=self._resource)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(logs))
        self._logger = self._logs.get_logger("timesyncd")
        self._traces = TracerProvider(resource=self._resource)
        self._traces.add_span_processor(BatchSpanProcessor(spans))
        self._tracer = self._traces.get_tracer("timesyncd")
        self._queue: queue.Queue[MetricsData | None] = queue.Queue(1)
        self._is_accepted = True

    async def run(self) -> None:
        threading.Thread(target=self._send_metrics, name="otlp-metrics", daemon=True).start()
        while True:
            self.tick()
            await asyncio.sleep(self._settings.interval_s)

    def tick(self) -> None:
        """Hand over the metrics of now, and the steps that are new."""
        for span in self._steps():
            emit_span(self._tracer, span)
        data = metrics_data(self._families(), self._resource, self._start_ns, self._clocks.realtime_ns())
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self.dropped += 1

    def accept_event(self, event: CloudEvent, realtime_ns: int) -> None:
        """An event that the daemon publishes, as a log record."""
        self._logger.emit(log_record(event, realtime_ns))

    async def close(self) -> None:
        """Send what waits, for at most CLOSE_TIMEOUT_S."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            for provider in (self._logs, self._traces):
                provider.shutdown()
            self._metric_exporter.shutdown()
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="otlp-close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            log.info("otlp: %s did not take everything before the end", self._settings.endpoint)

    def _send_metrics(self) -> None:
        while (data := self._queue.get()) is not None:
            is_accepted = self._is_sent(data)
            if is_accepted != self._is_accepted:
                what = "accepts again" if is_accepted else "does not accept"
                log.warning("otlp: %s %s what this daemon sends", self._settings.endpoint, what)
            self._is_accepted = is_accepted

    def _is_sent(self, data: MetricsData) -> bool:
        try:
            return self._metric_exporter.export(data, TIMEOUT_S * 1_000) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001  some versions of the SDK let errors of their HTTP library out
            log.debug("otlp: %s: %s", type(error).__name__, error)
            return False


def emit_span(tracer: Tracer, span: Span) -> None:
    """A span with its children, of which each ended already."""
    outer = tracer.start_span(span.name, start_time=span.begin_ns, attributes=span.attributes)
    context = set_span_in_context(outer)
    for child in span.children:
        inner = tracer.start_span(child.name, context, start_time=child.begin_ns, attributes=child.attributes)
        inner.end(child.end_ns)
    outer.end(span.end_ns)


def log_record(event: CloudEvent, realtime_ns: int) -> LogRecord:
    """The event as a log record: its identity as attributes, its data as the body."""
    severity = str(event.data.get("severity", "info"))
    attributes = {
        "event.name": event.type,
        "cloudevents.event_id": event.id,
        "cloudevents.event_source": event.source,
        "cloudevents.event_type": event.type,
        "cloudevents.event_spec_version": event.specversion,
    }
    if event.subject is not None:
        attributes["cloudevents.event_subject"] = event.subject
    return LogRecord(
        timestamp=realtime_ns,
        observed_timestamp=realtime_ns,
        severity_number=_SEVERITIES.get(severity, SeverityNumber.INFO),
        severity_text=severity,
        body=event.data,
        attributes=attributes,
    )


def _exporters(settings: OtlpSettings) -> tuple[LogRecordExporter, SpanExporter, MetricExporter]:
    """The protocol's three. TLS and headers are those of OpenTelemetry's environment variables."""
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans

        return (
            GrpcLogs(settings.endpoint, timeout=TIMEOUT_S),
            GrpcSpans(settings.endpoint, timeout=TIMEOUT_S),
            GrpcMetrics(settings.endpoint, timeout=TIMEOUT_S),
        )
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

    base = settings.endpoint.rstrip("/")
    return (
        HttpLogs(f"{base}/v1/logs", timeout=TIMEOUT_S),
        HttpSpans(f"{base}/v1/traces", timeout=TIMEOUT_S),
        HttpMetrics(f"{base}/v1/metrics", timeout=TIMEOUT_S),
    )
