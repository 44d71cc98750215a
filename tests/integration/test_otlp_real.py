"""A daemon with `[otlp]` and a collector on opentelemetry-proto's classes: metrics, events as logs, steps as spans."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from otlp_collector import Collector, attributes, grpc_collector, http_collector, plain

from timesyncd.client import Job, Kind
from timesyncd.config import parse
from timesyncd.daemon.daemon import Daemon
from timesyncd.driver import options_of
from timesyncd.ipc import clock_segment
from timesyncd.simulation.bed.broker import free_port

pytestmark = pytest.mark.integration

#: Patience, not an expectation.
TIMEOUT_S = 60

COLLECTORS = {"grpc": grpc_collector, "http": http_collector}


@asynccontextmanager
async def daemon(folder: Path, endpoint: str, protocol: str) -> AsyncIterator[None]:
    """A daemon without a clock source, which sends each second."""
    otlp = {"endpoint": endpoint, "protocol": protocol, "interval_s": 1}
    node = {"name": "node-a", "runtime_dir": str(folder)}
    running = Daemon(parse({"node": node, "otlp": otlp}, options_of, "test"))
    ready = asyncio.Event()
    task = asyncio.create_task(running.run(ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():
            await asyncio.sleep(0.05)


def step_of_a_job(folder: Path) -> Job:
    """A job of one rank: five steps with two synchronizations each."""
    job = Job("llama", 0, 1, 0, node="node-a", runtime_dir=folder)
    for step in range(5):
        for kind in (Kind.ALL_REDUCE, Kind.BARRIER):
            with job.meter.sync(step, kind, bytes=64):
                pass
    job.meter.announce()
    return job


@pytest.mark.parametrize("protocol", COLLECTORS)
async def test_a_collector_gets_metrics_events_and_steps(folder: Path, protocol: str) -> None:
    """By either protocol: the metrics of /metrics with units, a finding as a log record, a step with its synchronizations."""
    with COLLECTORS[protocol]() as collector:
        async with daemon(folder, collector.endpoint, protocol):
            job = step_of_a_job(folder)
            (folder / clock_segment.NAME).unlink()
            await until(lambda: collector.metrics and collector.logs and collector.spans)
            job.close()

        check_metrics(collector)
        check_log(collector)
        check_spans(collector.spans)


def check_metrics(collector: Collector) -> None:
    """Names, units and kinds; the resource names the daemon."""
    assert {key: collector.resource[key] for key in ("service.name", "service.instance.id")} == {
        "service.name": "timesyncd",
        "service.instance.id": "node-a",
    }
    info, samples = collector.metrics["timesyncd_node_info"], collector.metrics["timesyncd_samples_total"]
    [point] = info.gauge.data_points
    assert (attributes(point.attributes)["node"], point.as_double) == ("node-a", 1)
    assert samples.sum.is_monotonic
    assert (
        collector.metrics["timesyncd_bound_age_seconds"].unit == "s"
        if "timesyncd_bound_age_seconds" in collector.metrics
        else True
    )


def check_log(collector: Collector) -> None:
    """The event's identity as attributes, the finding as the body."""
    found = [record for record in collector.logs if plain(record.body).get("id") == "runtime-file-removed"]
    assert attributes(found[0].attributes)["cloudevents.event_source"] == "/cluster/node/node-a"
    assert attributes(found[0].attributes)["event.name"] == "timesyncd.finding.began"
    assert found[0].severity_text == plain(found[0].body)["severity"]
    assert found[0].time_unix_nano > 0


def check_spans(spans: list[Any]) -> None:
    """A step is a span, its synchronizations are the children, and they lie within it."""
    step = next(span for span in spans if span.name == "training step")
    children = [span for span in spans if span.parent_span_id == step.span_id]
    assert attributes(step.attributes)["timesyncd.job"] == "llama"
    assert [attributes(child.attributes)["timesyncd.kind"] for child in children] == ["all_reduce", "barrier"]
    assert {child.trace_id for child in children} == {step.trace_id}
    for child in children:
        assert step.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
        assert child.end_time_unix_nano <= step.end_time_unix_nano


async def test_a_collector_that_is_away_is_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The daemon works, reports the outage once, and the end of it once; the collector then gets everything again."""
    caplog.set_level(logging.INFO)
    port = free_port()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("otlp: ")]

    async with daemon(folder, f"http://127.0.0.1:{port}", "http"):
        await until(lines)
        with http_collector(port) as collector:
            await until(lambda: "timesyncd_node_info" in collector.metrics and len(lines()) > 1)

    assert [line.partition(f"http://127.0.0.1:{port} ")[2] for line in lines()][:2] == [
        "does not accept what this daemon sends",
        "accepts again what this daemon sends",
    ]
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []
