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
from timesyncd.metrics import COUNTER_HELP, MOST_PARTS, Counters, Metrics, Snapshot
from timesyncd.sample import Sensor

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


def key(name: str, /, **labels: str) -> Key:
    return name, frozenset(labels.items())


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
        (key("offset_error_seconds", source="ntp"), 410e-6),
        (key("gm_bound_stat_seconds", node="trainer-01"), 21_022e-9),
        (key("bound_term_seconds", node="trainer-01", kind="hard", term="path_delay"), 21_060e-9),
        (key("bound_term_seconds", node="trainer-01", kind="stat", term="noise"), 618e-9),
        (key("bound_growth_ratio", node="trainer-01", rate="steering"), 48_910e-9),
        (key("source_falseticker", source="ntp"), 1),
        (key("source_falseticker", source="ptp"), 0),
        (key("port_state", source="ptp", state="SLAVE"), 1),
        (key("port_state", source="ptp", state="LISTENING"), 0),
        (key("grandmaster_reachable", grandmaster="gm-a"), 1),
        (key("grandmaster_clock_class", grandmaster="gm-a"), 7),
        (key("grandmaster_clock_state", grandmaster="gm-a", state="holdover"), 1),
        (key("grandmaster_clock_state_since_timestamp_seconds", grandmaster="gm-a"), 1_699_999_200),
        (key("grandmaster_clock_accuracy_seconds", grandmaster="gm-a"), 100e-9),
        (key("grandmaster_alarms", grandmaster="gm-a", severity="major"), 1),
        (key("grandmaster_alarms", grandmaster="gm-a", severity="critical"), 0),
        (key("grandmaster_satellites_tracked", grandmaster="gm-a"), 9),
        (key("grandmaster_satellites_healthy", grandmaster="gm-a"), 3),
        (key("grandmaster_satellites_cn0_median_dbhz", grandmaster="gm-a"), 23),
        (key("grandmaster_utc_offset_seconds", grandmaster="gm-a"), 37),
        (key("grandmaster_leap", grandmaster="gm-a", state="none"), 1),
        (key("grandmaster_leap", grandmaster="gm-a", state="insert"), 0),
        (key("grandmaster_ntp_stratum", grandmaster="gm-a"), 1),
        (key("grandmaster_port_clients", grandmaster="gm-a", port="eth1"), 412),
        (key("grandmaster_port_max_clients", grandmaster="gm-a", port="eth1"), 500),
        (key("grandmaster_port_load_ratio", grandmaster="gm-a", port="eth1"), 0.63),
        (key("grandmaster_time_error_seconds", grandmaster="gm-a", channel="ptp-1", metric="max-te"), -310e-9),
        (key("grandmaster_temperature_celsius", grandmaster="gm-a", sensor="board"), 41.5),
        (key("grandmaster_sensor_ok", grandmaster="gm-a", sensor="power B", kind="power"), 0),
        (key("grandmaster_offset_seconds", grandmaster="gm-a", other="gm-b"), -85e-9),
        (key("grandmaster_offset_bound_seconds", grandmaster="gm-a", other="gm-b"), 240e-9),
        (
            key(
                "grandmaster_info",
                grandmaster="gm-a",
                model="TimeProvider 4100",
                serial="SN100234",
                firmware="2.4.1",
                oscillator="OCXO",
            ),
            1,
        ),
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


def test_what_is_void_is_explained_no_longer() -> None:
    """No term, rate or statistical bound outlives the bound that it explains."""
    age_ns = {"age_ns": NODE.void_after_ns}
    scraped = scrape(Snapshot(node=NODE.model_copy(update=age_ns)))

    assert not {"bound_term_seconds", "bound_growth_ratio", "gm_bound_stat_seconds"} & names(scraped)


def unit_metrics(**changes: Any) -> dict[Key, float]:
    """The scrape of one grandmaster."""
    unit = FULL.grandmasters[0].model_copy(update=changes)
    return scrape(Snapshot(node=NODE, grandmasters=[unit]))


@pytest.mark.parametrize(
    ("changes", "bound_s", "left_s"),
    [
        ({"age_ns": 0}, 1_240e-9, 13_200),
        ({"age_ns": 100 * NS_PER_S}, 1_240e-9 + 100 * 86e-9, 13_100),
        ({"age_ns": 100 * NS_PER_S, "reachable": False}, 1_240e-9 + 100 * 86e-9, 13_100),
        ({"age_ns": 60 * NS_PER_S, "holdover_left_ns": 60 * NS_PER_S}, None, 0),
        ({"age_ns": 1_001 * NS_PER_S, "holdover_left_ns": None}, None, None),
        ({"utc": None, "holdover_left_ns": None}, None, None),
    ],
)
def test_a_units_bound_grows_until_it_holds_no_more(
    changes: dict[str, Any], bound_s: float | None, left_s: float | None
) -> None:
    """Its own error is as of the scrape, also while it is silent; past its budget or a poll too old there is none."""
    scraped = unit_metrics(**changes)

    assert scraped.get(key("grandmaster_utc_bound_seconds", grandmaster="gm-a")) == (bound_s and pytest.approx(bound_s))
    assert scraped.get(key("grandmaster_holdover_left_seconds", grandmaster="gm-a")) == left_s


def test_a_unit_that_does_not_answer_has_no_present() -> None:
    """Its last word is not exported as how it is now: no state, no alarm, no port."""
    present = {name for name in names(unit_metrics(reachable=False)) if name.startswith("grandmaster_")}

    assert present == {
        f"grandmaster_{name}" for name in ("reachable", "age_seconds", "utc_bound_seconds", "holdover_left_seconds")
    }


def test_of_parts_of_one_name_the_one_that_is_not_well_counts() -> None:
    """A fan that has failed is not hidden by the sensor of its speed, in whatever order they come."""
    good, bad, silent = (Sensor("fan 1", "fan", 5_400, "rpm", ok) for ok in (True, False, None))
    ok = key("grandmaster_sensor_ok", grandmaster="gm-a", sensor="fan 1", kind="fan")

    assert [unit_metrics(sensors=rated).get(ok) for rated in ([good, bad], [bad, good], [bad, silent], [good, silent])] == [
        0, 0, 0, 1,
    ]  # fmt: skip
    assert ok not in unit_metrics(sensors=[silent])


def test_what_a_unit_does_not_provide_has_no_series() -> None:
    """Of a unit that tells nothing but its name there is no number, and above all no 0 alarms."""
    bare = GrandmasterState(
        node="n", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=1, age_ns=None, reachable=True
    )
    scraped = scrape(Snapshot(node=NODE, grandmasters=[bare]))

    assert {name for name in names(scraped) if name.startswith("grandmaster_")} == {
        "grandmaster_reachable", "grandmaster_info",
    }  # fmt: skip


def test_a_unit_does_not_decide_how_many_series_there_are() -> None:
    """However many ports and severities it invents, and however often one name: bounded, each series once."""
    unit = FULL.grandmasters[0]
    assert unit.ports is not None and unit.alarms is not None
    ports = [replace(unit.ports[0], name=f"eth{number % 1_000}") for number in range(2_000)]
    alarms = [replace(unit.alarms[0], severity=f"unknown({number})") for number in range(2_000)]
    scraped = unit_metrics(ports=ports, alarms=alarms)
    clients = [labels for name, labels in scraped if name == "grandmaster_port_clients"]

    assert len(clients) == MOST_PARTS
    assert scraped[key("grandmaster_alarms", grandmaster="gm-a", severity="other")] == 2_000
    assert len([name for name, _ in scraped if name == "grandmaster_alarms"]) == 5


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

    assert not {"offset_seconds", "path_delay_seconds", "port_state", "source_falseticker"} & names(scraped)


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
