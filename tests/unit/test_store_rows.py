"""From readings to rows."""

from __future__ import annotations

from dataclasses import fields, replace

from samples import HEALTHY

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.sample import Alarm, ClockSample, ClockState, GrandmasterSample, NoSample, PortState, Satellite
from timesyncd.store import tables
from timesyncd.store.rows import SourceState, clock_row, grandmaster_row, state_of

BOUND = ErrorBound(
    as_of_ns=HEALTHY.as_of_ns,
    real_minus_boot_ns=HEALTHY.real_minus_boot_ns,
    parent_hard=Bound(2_100, 50_100),
    gm_hard=Bound(2_200, 50_100),
    utc_hard=unbounded(Reason.ARBITRARY_TIMESCALE),
    gm_status=ClockStatus.SYNCHRONIZED,
    utc_status=ClockStatus.UNKNOWN,
    utc_seconds_removed=0,
    terms={"offset": 100, "path_delay": 2_000},
)


def test_a_row_has_every_column_but_its_id() -> None:
    """What a sample or a bound says is stored, all of it: a field without a column is a failure here."""
    columns = set(tables.clock_sample.c.keys()) - {"id"}

    assert set(clock_row(HEALTHY, BOUND)) == columns
    assert set(clock_row(HEALTHY, None)) == columns
    assert {field.name for field in fields(ClockSample)} <= columns


def test_a_grandmaster_row_has_every_column_but_its_id() -> None:
    """The same for a grandmaster."""
    row = grandmaster_row(GrandmasterSample("gm", 1), 0)

    assert set(row) == set(tables.grandmaster_sample.c.keys()) - {"id"}


def test_a_bound_is_stored_with_its_growth_and_terms() -> None:
    """The row is dated by the sample's own reading; a bound that there is has no reason."""
    row = clock_row(HEALTHY, BOUND)

    assert row["realtime_ns"] == 1_700_000_000 * NS_PER_S
    assert row["port_state"] == "SLAVE"
    assert (row["gm_bound_ns"], row["gm_growth_ppb"], row["gm_reason"]) == (2_200, 50_100, None)
    assert (row["gm_status"], row["terms"]) == ("SYNCHRONIZED", {"offset": 100, "path_delay": 2_000})


def test_an_unbounded_clock_is_null_with_its_reason() -> None:
    """Absent is NULL, never 0."""
    row = clock_row(HEALTHY, BOUND)

    assert (row["utc_bound_ns"], row["utc_growth_ppb"], row["utc_reason"]) == (None, None, "ARBITRARY_TIMESCALE")


def test_a_sample_without_a_bound_is_stored_all_the_same() -> None:
    """Without a bound every column of it is NULL."""
    row = clock_row(replace(HEALTHY, offset_ns=-5), None)

    assert (row["offset_ns"], row["gm_bound_ns"], row["gm_status"], row["terms"]) == (-5, None, None, None)


def test_a_grandmaster_is_stored_as_it_speaks() -> None:
    """Lists become JSON of plain objects; what the unit does not provide is NULL and not an empty list."""
    sample = GrandmasterSample(
        "gm",
        boottime_ns=5,
        clock_state=ClockState.HOLDOVER,
        alarms=(Alarm(1, 2, "major", "GNSS lost"),),
        satellites=(Satellite(3, 45, True),),
    )
    row = grandmaster_row(sample, real_minus_boot_ns=100)

    assert (row["realtime_ns"], row["clock_state"], row["clock_class"]) == (105, "holdover", None)
    assert row["alarms"] == ({"id": 1, "index": 2, "severity": "major", "text": "GNSS lost", "since": None},)
    assert row["satellites"] == ({"number": 3, "cn0_db_hz": 45, "healthy": True},)


def test_readings_without_a_sample_differ_by_their_reason() -> None:
    """Two polls that fail alike are one state, whenever they are; a sample is another."""
    first = NoSample("ptp", 1, "no answer", port_state=PortState.LISTENING)
    second = replace(first, boottime_ns=2)

    assert state_of(first) == state_of(second)
    assert state_of(first) != state_of(replace(first, restarted=True))
    assert state_of(HEALTHY) == SourceState()
