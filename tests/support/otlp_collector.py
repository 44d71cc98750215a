"""A collector that speaks OTLP by gRPC and by HTTP, on opentelemetry-proto's own classes, and keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def plain(value: Any) -> Any:
    """A protobuf AnyValue as Python's."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {pair.key: plain(pair.value) for pair in value.kvlist_value.values}
    if kind == "array_value":
        return [plain(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in pairs}


@dataclass
class Collector:
    """What arrived, as protobuf messages, and the resource of the last request. `endpoint` is its address."""

    endpoint: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    logs: list[Any] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)

    def add_metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            self.resource = attributes(resource.resource.attributes)
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def add_logs(self, request: Any) -> None:
        for resource in request.resource_logs:
            self.resource = attributes(resource.resource.attributes)
            self.logs += [record for scope in resource.scope_logs for record in scope.log_records]

    def add_spans(self, request: Any) -> None:
        for resource in request.resource_spans:
            self.resource = attributes(resource.resource.attributes)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def grpc_collector(port: int = 0) -> Iterator[Collector]:
    collector = Collector()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.add_metrics(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    class Logs(logs_service_pb2_grpc.LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.add_logs(request)
            return logs_service_pb2.ExportLogsServiceResponse()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.add_spans(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), server)  # type: ignore[no-untyped-call]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def http_collector(port: int = 0) -> Iterator[Collector]:
    collector = Collector()
    kinds: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "/v1/metrics": (metrics_service_pb2.ExportMetricsServiceRequest, collector.add_metrics),
        "/v1/logs": (logs_service_pb2.ExportLogsServiceRequest, collector.add_logs),
        "/v1/traces": (trace_service_pb2.ExportTraceServiceRequest, collector.add_spans),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request_type, add = kinds[self.path]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            add(request_type.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
