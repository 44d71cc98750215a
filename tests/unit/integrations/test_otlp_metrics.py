"""The metrics of /metrics as OpenTelemetry's data: the same names, values and labels."""

from __future__ import annotations

import math
from typing import Any

from fake_clocks import FakeClocks
from opentelemetry.sdk.metrics.export import Histogram, Sum
from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families
from snapshots import EVERYTHING, NOW_NS

from timesyncd.integrations.otlp.metrics import metrics_data
from timesyncd.metrics.exposition import Metrics, families

START_NS = NOW_NS - 5


def by_name() -> dict[str, Any]:
    data = metrics_data(families(EVERYTHING, NOW_NS), Resource.get_empty(), START_NS, NOW_NS)
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def test_every_series_of_a_scrape_is_there() -> None:
    """Each gauge and counter has the same series with the same value; none is left out or added."""
    text = Metrics(lambda: EVERYTHING, FakeClocks(real_ns=NOW_NS)).render().decode()
    scraped = {
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.type != "histogram" and sample.name.startswith("timesyncd_")
    }
    sent = {
        (name, frozenset(point.attributes.items()), float(point.value))
        for name, metric in by_name().items()
        if not isinstance(metric.data, Histogram)
        for point in metric.data.data_points
    }

    assert sent == scraped


def test_counters_count_since_the_start() -> None:
    """A counter is a monotonic sum with its begin; a gauge has none. Both are of now."""
    metrics = by_name()
    [samples] = metrics["timesyncd_samples_total"].data.data_points
    [alignment] = metrics["timesyncd_fleet_alignment_seconds"].data.data_points

    assert isinstance(metrics["timesyncd_samples_total"].data, Sum)
    assert (samples.start_time_unix_nano, samples.time_unix_nano) == (START_NS, NOW_NS)
    assert (alignment.start_time_unix_nano, alignment.time_unix_nano) == (None, NOW_NS)
    assert metrics["timesyncd_fleet_alignment_seconds"].unit == "s"


def test_a_histogram_counts_between_its_bounds() -> None:
    """OpenTelemetry's buckets are not cumulative; the last one has no bound, and they add up to the count."""
    [point] = by_name()["timesyncd_message_lag_seconds"].data.data_points

    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert sum(point.bucket_counts) == point.count > 0
    assert math.inf not in point.explicit_bounds
