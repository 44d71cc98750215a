"""The Prometheus metrics: a scrape has the current values in base units, and no unknown ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_clocks import FakeClocks
from prometheus_client.parser import text_string_to_metric_families
from snapshots import EVERYTHING, FULL, HEADLINE, HUB, NODE, NOW_NS, SUMMARY

from timesyncd.bound import Reason
from timesyncd.build import this_build
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import BoundMessage, GrandmasterState
from timesyncd.metrics.exposition import COUNTER_HELP, MAX_PARTS, Counters, Metrics, MetricsSnapshot
from timesyncd.metrics.hub import MAX_FOLLOWED, WORST_NODES, FleetSnapshot, MessageLag
from timesyncd.sample import Sensor

Key = tuple[str, frozenset[tuple[str, str]]]

THIS = this_build()


def scrape(snapshot: MetricsSnapshot, real_ns: int = NODE.published_realtime_ns) -> dict[Key, float]:
    """The samples that a Prometheus server would store, without the process's own metrics."""
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
        (key("findings_active", id="grandmaster-alarm", severity="warning"), 1),
        (key("node_status", node="trainer-01", status="SYNCHRONIZED"), 1),
        (key("node_bound_seconds", node="trainer-01"), 24_318e-9 + 0.08 * 50_100e-9),
        (key("node_bound_growth_ratio", node="trainer-01"), 50_100e-9),
        (key("node_bound_holds_seconds", node="trainer-01"), 999.92),
        (key("mqtt_connected"), 1),
        (key("samples_total"), 17),
    ],
)
def test_values_are_in_base_units(metric: Key, value: float) -> None:
    """Values are in seconds and ratios, with the labels of their source."""
    assert scrape(FULL)[metric] == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (key("node_info", node="trainer-01", topology="hall-1/rack-12"), 1),
        (key("build_info", version=THIS.version, commit=THIS.commit or "", python=THIS.python), 1),
        (key("hub_primary", hub="hub-a"), 1),
        (key("hub_shares", hub="hub-a"), 0),
        (key("fleet_nodes", hub="hub-a", status="SYNCHRONIZED"), 9_990),
        (key("fleet_nodes", hub="hub-a", status="DISRUPTED"), 0),
        (key("fleet_nodes_expected", hub="hub-a"), 10_000),
        (key("fleet_nodes_known", hub="hub-a"), 9_999),
        (key("fleet_nodes_live", hub="hub-a"), 9_998),
        (key("fleet_nodes_missing", hub="hub-a"), 2),
        (key("fleet_nodes_following", hub="hub-a", grandmaster="001122.fffe.334466"), 997),
        (key("fleet_nodes_following", hub="hub-a", grandmaster=""), 2),
        (key("fleet_jobs", hub="hub-a"), 1),
        (key("fleet_alignment_seconds", hub="hub-a"), 48_636e-9),
        (key("fleet_alignment_holds_seconds", hub="hub-a"), 600),
        (key("fleet_nodes_compared", hub="hub-a"), 9_997),
        (key("fleet_nodes_without_bound", hub="hub-a"), 2),
        (key("fleet_nodes_not_compared", hub="hub-a"), 1),
        (key("fleet_nodes_wide", hub="hub-a"), 5),
        (key("limit_seconds", hub="hub-a", limit="job_alignment"), 1e-6),
        (key("fleet_worst_bound_seconds", hub="hub-a", node="trainer-00"), 24_318e-9),
        (key("outbox_waiting_rows"), 120),
        (key("store_waiting_rows"), 40),
        (key("message_lag_seconds_bucket", le="0.001"), 0),
        (key("message_lag_seconds_bucket", le="0.0025"), 2),
        (key("message_lag_seconds_bucket", le="0.1"), 3),
        (key("message_lag_seconds_bucket", le="60.0"), 3),
        (key("message_lag_seconds_bucket", le="+Inf"), 4),
        (key("message_lag_seconds_count"), 4),
        (key("message_lag_seconds_sum"), 90.074),
        (key("messages_ahead_total"), 1),
    ],
)
def test_a_hub_exports_its_fleet(metric: Key, value: float) -> None:
    """A hub exports counts, the alignment, the primary and the lag of messages."""
    assert scrape(EVERYTHING)[metric] == pytest.approx(value)


def fleet_metrics(real_ns: int = NOW_NS, **changes: Any) -> dict[Key, float]:
    """The scrape of a hub with changes to its headline."""
    assert EVERYTHING.fleet is not None
    fleet = replace(EVERYTHING.fleet, headline=HEADLINE.model_copy(update=changes))
    return scrape(MetricsSnapshot(node=NODE, fleet=fleet), real_ns=real_ns)


def test_the_fleet_s_alignment_grows_until_it_expires() -> None:
    """It is as of the scrape, and absent once it is unknown or has expired."""
    alignment = key("fleet_alignment_seconds", hub="hub-a")

    assert fleet_metrics(NOW_NS + 10 * NS_PER_S)[alignment] == pytest.approx(48_636e-9 + 10 * 100_200e-9)
    assert alignment not in fleet_metrics(NOW_NS + 600 * NS_PER_S)
    assert alignment not in fleet_metrics(alignment_ns=None, growth_ppb=None, holds_for_ns=None, pair=None)


def test_a_node_without_a_clock_source_has_no_status() -> None:
    """A hub without sources has no status UNKNOWN, for which an alert would fire."""
    scraped = names(scrape(MetricsSnapshot(node=NODE.model_copy(update={"sources": [], "age_ns": None}))))

    assert "node_info" in scraped
    assert not scraped & {"node_status", "clock_status", "utc_status", "gm_bound_seconds"}


def test_the_series_of_a_fleet_are_limited() -> None:
    """Only the nodes with the largest bounds have a series on the hub."""
    worst = [dict(labels)["node"] for name, labels in fleet_metrics() if name == "fleet_worst_bound_seconds"]
    summary = SUMMARY.model_copy(update={"grandmasters": {f"gm-{n}": n for n in range(100)}})
    followed = scrape(MetricsSnapshot(node=NODE, fleet=FleetSnapshot(HUB, summary)))

    assert sorted(worst) == [f"trainer-{n:02}" for n in range(WORST_NODES)]
    assert len([name for name, _ in followed if name == "fleet_nodes_following"]) == MAX_FOLLOWED


def test_a_daemon_without_a_hub_exports_no_fleet() -> None:
    """Without hub, outbox and lag there is no series of them."""
    shown = names(scrape(MetricsSnapshot(node=NODE)))

    assert not [name for name in shown if name.startswith(("hub_", "fleet_", "outbox_", "history_", "message"))]


def test_a_standby_hub_is_not_primary() -> None:
    """Of two hubs, only the primary exports 1."""
    assert EVERYTHING.fleet is not None
    standby = replace(EVERYTHING.fleet, hub=HUB.model_copy(update={"primary": False, "node": "hub-b"}))

    assert scrape(MetricsSnapshot(node=NODE, fleet=standby))[key("hub_primary", hub="hub-b")] == 0


def test_a_message_from_the_future_has_no_lag() -> None:
    """A message with a negative lag is counted separately."""
    lag = MessageLag()
    lag.observe(NOW_NS + 1, NOW_NS)
    scraped = scrape(MetricsSnapshot(node=NODE, lag=lag))

    assert scraped[key("message_lag_seconds_count")] == 0
    assert scraped[key("messages_ahead_total")] == 1


def test_utc_is_the_main_bound_of_a_node_synchronized_by_ntp() -> None:
    """Its main status and bound are those against UTC, because it knows no grandmaster."""
    nothing = BoundMessage(bound_ns=None, growth_ppb=0, reason=Reason.NO_GRANDMASTER.text, reason_code="no_grandmaster")
    utc = BoundMessage(bound_ns=1_500_000, growth_ppb=51_000, reason="")
    changes = {
        "gm": nothing,
        "status": "UNKNOWN",
        "utc": utc,
        "utc_status": "SYNCHRONIZED",
        "sources": NODE.sources[1:],
    }
    scraped = scrape(MetricsSnapshot(node=NODE.model_copy(update=changes | {"age_ns": 0})))

    assert scraped[key("node_status", node="trainer-01", status="SYNCHRONIZED")] == 1
    assert scraped[key("node_bound_seconds", node="trainer-01")] == pytest.approx(1.5e-3)


def test_a_job_s_alignment_expires() -> None:
    """A job's alignment is absent once it has expired."""
    job = FULL.jobs[0].model_copy(update={"alignment_holds_for_ns": 10 * NS_PER_S})
    at = [scrape(MetricsSnapshot(node=NODE, jobs=[job]), NOW_NS + s * NS_PER_S) for s in (9, 10)]

    assert ["job_alignment_seconds" in names(scraped) for scraped in at] == [True, False]


def test_a_job_exports_its_stragglers() -> None:
    """Conclusive stragglers have lateness and cost; other ranks have no series."""
    labels = {"job_id": "0f3a9c51d2b4e687", "job": "llama-pretrain", "attempt": "1"}
    late = labels | {"rank": "1", "node": "trainer-02", "where": "bucket 2"}
    scraped = scrape(FULL)

    assert scraped[key("job_straggler_lateness_seconds", **late)] == pytest.approx(0.0398)
    assert scraped[key("job_straggler_exposed_seconds", **late)] == pytest.approx(38.1)
    assert scraped[key("job_stragglers", **labels)] == 1
    assert scraped[key("job_arrival_variance_seconds2", **labels)] == pytest.approx(4e-4)
    assert [
        scraped[key("job_method", method=name, **labels)] for name in ("one_clock", "clock_bounds", "collective_ends")
    ] == [0, 1, 0]
    assert sum(name == "job_straggler_exposed_seconds" for name, _ in scraped) == 1


def test_a_job_exports_overhead_and_alignment() -> None:
    """The overhead is a ratio; the alignment is in seconds and has grown since the message."""
    labels = {"job_id": "0f3a9c51d2b4e687", "job": "llama-pretrain", "attempt": "1"}
    scraped = scrape(FULL, real_ns=NODE.published_realtime_ns + 10 * NS_PER_S)

    assert scraped[key("job_sync_overhead_ratio", **labels)] == 0.183
    assert scraped[key("job_alignment_seconds", **labels)] == pytest.approx(55_518e-9 + 10 * 100_200e-9)
    assert scraped[key("job_straggler_rank", **labels)] == 1


def status_of(scraped: dict[Key, float]) -> set[str]:
    """The statuses whose series are 1."""
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
    """Each status has a series, so that an alert can name it."""
    statuses = {dict(labels)["status"] for name, labels in scrape(FULL) if name == "clock_status"}

    assert statuses == {"UNKNOWN", "SYNCHRONIZED", "HOLDOVER", "DISRUPTED"}


def test_a_disrupted_clock_has_no_bound() -> None:
    """After a clock step no bound is exported."""
    scraped = scrape(replace(FULL, node=NODE.model_copy(update={"status": "DISRUPTED"})))

    assert status_of(scraped) == {"DISRUPTED"}
    assert "gm_bound_seconds" not in names(scraped)


def test_an_expired_bound_has_no_terms() -> None:
    """Terms, rates and statistical bounds expire with the bound."""
    age_ns = {"age_ns": NODE.void_after_ns}
    scraped = scrape(MetricsSnapshot(node=NODE.model_copy(update=age_ns)))

    assert not {"bound_term_seconds", "bound_growth_ratio", "gm_bound_stat_seconds"} & names(scraped)


def grandmaster_metrics(**changes: Any) -> dict[Key, float]:
    """The scrape of one grandmaster."""
    grandmaster = FULL.grandmasters[0].model_copy(update=changes)
    return scrape(MetricsSnapshot(node=NODE, grandmasters=[grandmaster]))


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
def test_a_grandmaster_s_bound_grows_until_it_expires(
    changes: dict[str, Any], bound_s: float | None, left_s: float | None
) -> None:
    """Its error is as of the scrape; without budget or a recent poll it is absent."""
    scraped = grandmaster_metrics(**changes)

    assert scraped.get(key("grandmaster_utc_bound_seconds", grandmaster="gm-a")) == (bound_s and pytest.approx(bound_s))
    assert scraped.get(key("grandmaster_holdover_left_seconds", grandmaster="gm-a")) == left_s


def test_an_unreachable_grandmaster_has_no_state() -> None:
    """Its last known state, alarms and ports are not exported."""
    present = {name for name in names(grandmaster_metrics(reachable=False)) if name.startswith("grandmaster_")}

    assert present == {
        f"grandmaster_{name}" for name in ("reachable", "age_seconds", "utc_bound_seconds", "holdover_left_seconds")
    }


def test_a_bad_sensor_takes_precedence() -> None:
    """A failed fan is not hidden by the sensor of its speed, in any order."""
    good, bad, silent = (Sensor("fan 1", "fan", 5_400, "rpm", ok) for ok in (True, False, None))
    ok = key("grandmaster_sensor_ok", grandmaster="gm-a", sensor="fan 1", kind="fan")

    assert [grandmaster_metrics(sensors=rated).get(ok) for rated in ([good, bad], [bad, good], [bad, silent], [good, silent])] == [
        0, 0, 0, 1,
    ]  # fmt: skip
    assert ok not in grandmaster_metrics(sensors=[silent])


def test_an_absent_value_has_no_series() -> None:
    """A grandmaster that provides only its name has no values, and no count of 0 alarms."""
    bare = GrandmasterState(
        node="n", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=1, age_ns=None, reachable=True
    )
    scraped = scrape(MetricsSnapshot(node=NODE, grandmasters=[bare]))

    assert {name for name in names(scraped) if name.startswith("grandmaster_")} == {
        "grandmaster_reachable", "grandmaster_info",
    }  # fmt: skip


def test_the_series_of_a_grandmaster_are_limited() -> None:
    """Many ports, unknown severities and repeated names give a limited number of distinct series."""
    grandmaster = FULL.grandmasters[0]
    assert grandmaster.ports is not None and grandmaster.alarms is not None
    ports = [replace(grandmaster.ports[0], name=f"eth{number % 1_000}") for number in range(2_000)]
    alarms = [replace(grandmaster.alarms[0], severity=f"unknown({number})") for number in range(2_000)]
    scraped = grandmaster_metrics(ports=ports, alarms=alarms)
    clients = [labels for name, labels in scraped if name == "grandmaster_port_clients"]

    assert len(clients) == MAX_PARTS
    assert scraped[key("grandmaster_alarms", grandmaster="gm-a", severity="other")] == 2_000
    assert len([name for name, _ in scraped if name == "grandmaster_alarms"]) == 5


def test_absent_is_not_zero() -> None:
    """Unknown values have no series, such as the UTC bound and the grandmaster's phase here."""
    scraped = scrape(FULL)

    assert not {"utc_bound_seconds", "grandmaster_phase_offset_seconds", "store_rows_total"} & names(scraped)


def test_no_metric_outlives_its_source() -> None:
    """Sources, grandmasters and jobs that have ended have no series in the next scrape."""
    now = FULL
    metrics = Metrics(lambda: now, FakeClocks())
    before = metrics.render().decode()
    now = MetricsSnapshot(node=NODE.model_copy(update={"sources": []}))
    after = metrics.render().decode()

    assert all(label in before for label in ('source="ptp"', 'grandmaster="gm-a"', 'job="llama-pretrain"'))
    assert not any(label in after for label in ('source="', 'grandmaster="', 'job="'))


@pytest.mark.parametrize(
    "change", [{"reachable": False}, {"reason": "port LISTENING", "reason_code": "no_valid_sample"}]
)
def test_a_lost_source_has_no_offset(change: dict[str, Any]) -> None:
    """The last known offset of a lost source is not exported."""
    source = NODE.sources[0].model_copy(update=change)
    scraped = scrape(replace(FULL, node=NODE.model_copy(update={"sources": [source]})))

    assert not {"offset_seconds", "path_delay_seconds", "port_state", "source_falseticker"} & names(scraped)


def test_an_ended_finding_is_not_counted() -> None:
    """Only active findings count."""
    over = FULL.findings[0].model_copy(update={"until_realtime_ns": 1})
    scraped = scrape(replace(FULL, findings=[over]))

    assert scraped[key("findings", severity="warning")] == 0


def test_a_hostile_name_is_one_label() -> None:
    """Quotes, backslashes and line ends in a job's name are escaped, so that it cannot forge a series."""
    evil = 'x"} 1\ntimesyncd_forged 1\n\\'
    scraped = scrape(replace(FULL, jobs=[FULL.jobs[0].model_copy(update={"job": evil})]))

    assert "forged" not in names(scraped)
    assert {dict(labels)["job"] for name, labels in scraped if name == "job_sync_overhead_ratio"} == {evil}


def test_every_counter_has_a_help_text() -> None:
    """Each counter has a help text, and each help text a counter."""
    assert set(COUNTER_HELP) == set(Counters.__dataclass_fields__)


def test_the_process_s_metrics_are_exported() -> None:
    """A scrape has the daemon's memory and processor time."""
    text = Metrics(lambda: FULL, FakeClocks()).render().decode()

    assert "process_resident_memory_bytes" in text
    assert "process_cpu_seconds_total" in text
