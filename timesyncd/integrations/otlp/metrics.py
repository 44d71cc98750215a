"""The metrics that /metrics serves, as OpenTelemetry's data, by the same names. Needs the otlp extra."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

SCOPE = InstrumentationScope("timesyncd")

#: By the end of a Prometheus name, which stays: a collector does not add a unit that a name has.
_UNITS = {"seconds": "s", "ratio": "1", "bytes": "By", "celsius": "Cel", "volts": "V"}


def metrics_data(families: Iterable[Family], resource: Resource, start_ns: int, now_ns: int) -> MetricsData:
    """All families at one moment; `start_ns`: since when the counters count. Both are CLOCK_REALTIME."""
    metrics = [_metric(family, start_ns, now_ns) for family in families if family.samples]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(SCOPE, metrics, "")], "")])


def _metric(family: Family, start_ns: int, now_ns: int) -> Metric:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    if family.type == "histogram":
        return Metric(name, family.documentation, unit, _histogram(family, start_ns, now_ns))
    is_counter = family.type == "counter"
    points = [
        NumberDataPoint(dict(sample.labels), start_ns if is_counter else None, now_ns, sample.value)  # type: ignore[arg-type]
        for sample in family.samples
    ]
    data = Sum(points, AggregationTemporality.CUMULATIVE, True) if is_counter else Gauge(points)
    return Metric(name, family.documentation, unit, data)


def _histogram(family: Family, start_ns: int, now_ns: int) -> Histogram:
    """Prometheus counts what is at most a bound, OpenTelemetry what lies between two."""
    buckets: dict[tuple[tuple[str, str], ...], dict[float, float]] = defaultdict(dict)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        if sample.name.endswith("_bucket"):
            buckets[labels][float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, counted in buckets.items():
        bounds = sorted(counted)
        below = [int(counted[bound]) for bound in bounds]
        between = [count - before for count, before in zip(below, [0, *below])]
        finite = [bound for bound in bounds if bound != math.inf]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=start_ns,
                time_unix_nano=now_ns,
                count=below[-1],
                sum=sums.get(labels, 0),
                bucket_counts=between,
                explicit_bounds=finite,
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return Histogram(points, AggregationTemporality.CUMULATIVE)
