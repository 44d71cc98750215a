"""Helpers that build metric families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily

from timesyncd.bound import Bound

Rows = Iterable[tuple[tuple[str, ...], float | None]]


def gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> GaugeMetricFamily:
    """A gauge without series for values of None: an unknown value is absent, never 0."""
    family = GaugeMetricFamily(f"timesyncd_{name}", text, labels=labels)
    for label_values, value in rows:
        if value is not None:
            family.add_metric(label_values, value)
    return family


def seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def state_rows(names: Iterable[str], actual: str | None) -> Iterator[tuple[str, float]]:
    """One series per state, 1 for the current one, so that an alert can name the state."""
    for name in names:
        yield name, float(name == actual)


def bound_seconds_at(
    bound_ns: int | None, growth_ppb: int | None, holds_for_ns: int | None, age_ns: int
) -> float | None:
    """A bound in seconds at this age; None: unknown or expired."""
    if holds_for_ns is not None and age_ns >= holds_for_ns:
        return None
    return seconds(Bound(bound_ns, growth_ppb or 0).at(age_ns))
