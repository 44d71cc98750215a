"""Prometheus: one scrape shows what stands now, in base units, and nothing that is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from timesyncd.clocks import NS_PER_S, FakeClocks
from timesyncd.driver import PollReport
from timesyncd.messages import FindingMessage, GrandmasterState, JobState, NodeState
from timesyncd.metrics import COUNTER_HELP, Counters, Metrics, Snapshot

RECORDED: dict[str, list[Any]] = json.loads((Path(__file__).parents[1] / "recordings" / "view.json").read_text())
NODE = NodeState.model_validate(RECORDED["nodes"][0])
FULL = Snapshot(
    node=NODE,
    polls=[PollReport("ptp", 0, 310_000, None, 0), PollReport("gm-a", 0, 2 * NS_PER_S, "no answer", 3)],
    grandmasters=[GrandmasterState.model_validate(item) for item in RECORDED["grandmasters"]],
    jobs=[JobState.model_validate(item) for item in RECORDED["jobs"]],
    findings=[FindingMessage.model_validate(item) for item in RECORDED["findings"]],
    mqtt_connected=True,
    counters=Counters(samples_total=17),
)

Key = tuple[str, frozenset[tuple[str, str]]]


def scrape(snapshot: Snapshot, real_ns: int = NODE.published_realtime_ns) -> dict[Key, float]:
    """What a Prometheus server would store, without the process's own metrics."""
    text = Metrics(lambda: snapshot, FakeClocks(real_ns=real_ns)).render().decode()
    return {
        (sample.name.removeprefix("timesyncd_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("timesyncd_")
    }


def key(metric: str, **labels: str) -> Key:
    return metric, frozenset(labels.items())


def names(scraped: dict[Key, float]) -> set[str]:
    return {name for name, _ in scraped}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (key("offset_seconds", source="ptp"), -412e-9),
        (key("path_delay_seconds", source="ptp"), 20_874e-9),
        (key("frequency_ratio", source="ptp"), -1_830e-9),
        (key("poll_duration_seconds", source="ptp"), 310e-6),
        (key("poll_success", source="ptp"), 1),
        (key("poll_success", source="gm-a"), 0),
        (key("poll_failures_in_row", source="gm-a"), 3),
        (key("bound_term_seconds", node="trainer-01", term="path_delay"), 21_060e-9),
        (key("port_state", source="ptp", state="SLAVE"), 1),
        (key("port_state", source="ptp", state="LISTENING"), 0),
        (key("grandmaster_reachable", grandmaster="gm-a"), 1),
        (key("grandmaster_clock_class", grandmaster="gm-a"), 7),
        (key("grandmaster_clock_state", grandmaster="gm-a", state="holdover"), 1),
        (key("grandmaster_alarms", grandmaster="gm-a"), 1),
        (key("grandmaster_satellites_healthy", grandmaster="gm-a"), 3),
        (key("findings", severity="warning"), 1),
        (key("findings", severity="critical"), 0),
        (key("mqtt_connected"), 1),
        (key("samples_total"), 17),
    ],
)
def test_values_are_in_base_units(metric: Key, value: float) -> None:
    """Seconds and ratios, each under the labels that name its source."""
    assert scrape(FULL)[metric] == pytest.approx(value)


def test_a_job_pays_and_agrees() -> None:
    """A job's overhead is a ratio; its alignment is in seconds and has grown since the job's message."""
    labels = {"job_id": "0f3a9c51d2b4e687", "job": "llama-pretrain", "attempt": "1"}
    scraped = scrape(FULL, real_ns=NODE.published_realtime_ns + 10 * NS_PER_S)

    assert scraped[key("job_sync_overhead_ratio", **labels)] == 0.183
    assert scraped[key("job_alignment_seconds", **labels)] == pytest.approx(55_518e-9 + 10 * 100_200e-9)
    assert scraped[key("job_slow_rank", **labels)] == 1


def status_of(scraped: dict[Key, float]) -> set[str]:
    """The statuses whose series say 1."""
    return {dict(labels)["status"] for (name, labels), value in scraped.items() if name == "clock_status" and value}


@pytest.mark.parametrize(
    ("age_s", "status", "bound_s"),
    [
        (0, "SYNCHRONIZED", 24_318e-9),
        (4, "SYNCHRONIZED", 24_318e-9 + 4 * 50_100e-9),
        (5, "HOLDOVER", 24_318e-9 + 5 * 50_100e-9),
        (1_000, "UNKNOWN", None),
    ],
)
def test_the_bound_and_the_status_are_as_of_the_scrape(age_s: int, status: str, bound_s: float | None) -> None:
    """The bound grows with the sample's age; exactly one status is 1; without a usable status there is no bound."""
    aged = NODE.model_copy(update={"age_ns": age_s * NS_PER_S})
    scraped = scrape(replace(FULL, node=aged))

    assert status_of(scraped) == {status}
    assert scraped.get(key("gm_bound_seconds", node="trainer-01")) == (bound_s and pytest.approx(bound_s))


def test_every_status_has_its_series() -> None:
    """HOLDOVER, UNKNOWN and DISRUPTED are series of their own, so that an alert can tell them apart."""
    statuses = {dict(labels)["status"] for name, labels in scrape(FULL) if name == "clock_status"}

    assert statuses == {"UNKNOWN", "SYNCHRONIZED", "HOLDOVER", "DISRUPTED"}


def test_a_disrupted_clock_has_no_bound() -> None:
    """After a step no bound is exported, whatever the last one was."""
    scraped = scrape(replace(FULL, node=NODE.model_copy(update={"status": "DISRUPTED"})))

    assert status_of(scraped) == {"DISRUPTED"}
    assert "gm_bound_seconds" not in names(scraped)


def test_absent_is_not_zero() -> None:
    """What is not known has no series: UTC's bound here, and the grandmaster's phase."""
    scraped = scrape(FULL)

    assert not {"utc_bound_seconds", "grandmaster_phase_offset_seconds", "store_rows_total"} & names(scraped)


def test_no_metric_outlives_its_source() -> None:
    """Sources, grandmasters and jobs that are gone from one scrape to the next leave no series behind."""
    now = FULL
    metrics = Metrics(lambda: now, FakeClocks())
    before = metrics.render().decode()
    now = Snapshot(node=NODE.model_copy(update={"sources": []}))
    after = metrics.render().decode()

    assert all(label in before for label in ('source="ptp"', 'grandmaster="gm-a"', 'job="llama-pretrain"'))
    assert not any(label in after for label in ('source="', 'grandmaster="', 'job="'))


@pytest.mark.parametrize("change", [{"reachable": False}, {"reason": "port LISTENING"}])
def test_a_source_that_is_not_read_has_no_offset(change: dict[str, Any]) -> None:
    """The last known offset of a source that is lost, or refuses, is not exported as the present one."""
    source = NODE.sources[0].model_copy(update=change)
    scraped = scrape(replace(FULL, node=NODE.model_copy(update={"sources": [source]})))

    assert not {"offset_seconds", "path_delay_seconds", "port_state"} & names(scraped)


def test_a_finding_that_is_over_is_not_counted() -> None:
    """Only what stands counts."""
    over = FULL.findings[0].model_copy(update={"until_realtime_ns": 1})
    scraped = scrape(replace(FULL, findings=[over]))

    assert scraped[key("findings", severity="warning")] == 0


def test_a_poisoned_name_is_one_label() -> None:
    """Quotes, backslashes and line ends in a job's name are escaped: no series can be forged."""
    evil = 'x"} 1\ntimesyncd_forged 1\n\\'
    scraped = scrape(replace(FULL, jobs=[FULL.jobs[0].model_copy(update={"job": evil})]))

    assert "forged" not in names(scraped)
    assert {dict(labels)["job"] for name, labels in scraped if name == "job_sync_overhead_ratio"} == {evil}


def test_every_counter_is_explained() -> None:
    """Each counter has its help line, and no help line is without its counter."""
    assert set(COUNTER_HELP) == set(Counters.__dataclass_fields__)


def test_the_process_shows_its_own_cost() -> None:
    """The scrape carries the daemon's memory and processor time, so that its cost can be watched."""
    text = Metrics(lambda: FULL, FakeClocks()).render().decode()

    assert "process_resident_memory_bytes" in text
    assert "process_cpu_seconds_total" in text
