"""What a hub keeps of its fleet, racks and jobs: each minute and hour once, and nothing that was unknown."""

from __future__ import annotations

from fake_view import RECORDED
from snapshots import HEADLINE

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.daemon.hub_history import HubHistory, fleet_values, job_series, rack_series
from timesyncd.messages.fleet import Rollup
from timesyncd.messages.jobs import JobState
from timesyncd.messages.overview import ChainGroup

HOUR_NS = 3_600 * NS_PER_S
START_NS = 472_222 * HOUR_NS
JOB = JobState.model_validate(RECORDED["jobs"][0])


def at(second: int) -> Moment:
    return Moment(realtime_ns=START_NS + second * NS_PER_S, boottime_ns=second * NS_PER_S)


def ended(history: HubHistory, second: int) -> dict[tuple[str, int], Rollup]:
    made = history.ended(at(second).realtime_ns)
    return {(each.source, each.span_s): each for each in made}


def test_a_minute_is_summed_up_once_it_is_over() -> None:
    """It has the values of that minute alone, and comes once."""
    history = HubHistory()
    for second, value in ((0, 5), (50, 9), (60, 100)):
        history.add(at(second), {"@fleet": {"alignment_ns": value}})

    assert ended(history, 59) == {}
    made = ended(history, 60)["@fleet", 60]
    assert (made.begins_realtime_ns, made.quantities["alignment_ns"].maximum) == (START_NS, 9)
    assert (made.quantities["alignment_ns"].minimum, made.quantities["alignment_ns"].count) == (5, 2)
    assert ended(history, 60) == {}


def test_an_hour_has_all_its_values() -> None:
    """The hour's roll-up comes from the values, not from the minutes."""
    history = HubHistory()
    for second in range(0, 3_600, 10):
        history.add(at(second), {"@fleet": {"alignment_ns": second}})

    assert ended(history, 3_600)["@fleet", 3_600].quantities["alignment_ns"].count == 360


def test_an_unknown_value_is_no_value() -> None:
    """A minute without any is missing, so that the chart has a hole there."""
    history = HubHistory()
    history.add(at(0), {"@fleet": {"alignment_ns": None}})
    history.add(at(10), {"@job/1": {"alignment_ns": None, "arrival_skew_p50_ns": 4}})

    assert set(ended(history, 60)) == {("@job/1", 60)}


def test_it_is_due_each_ten_seconds() -> None:
    """However often the daemon asks."""
    history = HubHistory()

    assert history.is_due(0)
    history.add(at(0), {})
    assert not history.is_due(9 * NS_PER_S) and history.is_due(10 * NS_PER_S)


def test_the_fleet_s_and_the_jobs_values_are_kept() -> None:
    """The alignment with its counts, and each job under its id; ratios in billionths."""
    kept = job_series([JOB])[f"@job/{JOB.job_id}"]

    assert fleet_values(HEADLINE)["alignment_ns"] == HEADLINE.alignment_ns
    assert fleet_values(HEADLINE)["without_bound"] == 2
    assert kept["sync_overhead_ppb"] == round((JOB.sync_overhead or 0) * 1e9)


def group(place: str, parent: str, bound_ns: int | None, without: int) -> ChainGroup:
    return ChainGroup(
        grandmaster="gm-a", grandmaster_identity="a", parent_identity=parent, place=place, nodes=4, without_bound=without,
        statuses={}, bound_ns=bound_ns,
    )  # fmt: skip


def test_a_rack_s_values_are_those_of_all_its_groups() -> None:
    """Its nodes may follow two boundary clocks; a rack in which no node has a bound has no widest one."""
    kept = rack_series(
        [
            group("r1", "b1", 900, 0),
            group("r1", "b2", 1_200, 1),
            group("r2", "b2", None, 4),
            group("r" * 128, "b", 1, 0),
        ]
    )

    assert kept == {
        "@rack/r1": {"widest_bound_ns": 1_200, "without_bound": 1},
        "@rack/r2": {"widest_bound_ns": None, "without_bound": 4},
    }
