"""From readings to rows."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from grandmaster_samples import EVERYTHING, REAL_MINUS_BOOT_NS
from samples import HEALTHY

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Rate, Reason, Term, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import AlarmEventMessage
from timesyncd.sample import (
    ClockSample,
    DelayExchange,
    GrandmasterSample,
    KernelSample,
    NoSample,
    NoSampleCause,
    NtpSource,
    PhcSample,
    PortState,
    Satellite,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import rows, tables
from timesyncd.store.rows import (
    CLOCK_COLUMNS,
    WHOLE_EVERY_NS,
    Row,
    SourceAvailability,
    WholeRowSchedule,
    alarm_event_entry,
    availability_of,
    clock_values,
    grandmaster_entries,
    grandmaster_row,
    kernel_entry,
    phc_entry,
    series_entries,
    utc_entry,
)

BOUND = ErrorBound(
    as_of_ns=HEALTHY.as_of_ns,
    real_minus_boot_ns=HEALTHY.real_minus_boot_ns,
    parent_hard=Bound(2_100, 50_100),
    gm_hard=Bound(2_200, 50_100),
    utc_hard=unbounded(Reason.ARBITRARY_TIMESCALE),
    gm_status=ClockStatus.SYNCHRONIZED,
    utc_status=ClockStatus.UNKNOWN,
    utc_seconds_removed=0,
    gm_stat=Bound(1_900, 1_100),
    terms={Term.OFFSET: 100, Term.PATH_DELAY: 2_000},
    stat_terms={Term.NOISE: 1_900},
    rates={Rate.STEERING: 50_000, Rate.GRANDMASTER_RATE: 100},
)


def clock_row(sample: ClockSample, bound: ErrorBound | None) -> Row:
    return dict(zip(CLOCK_COLUMNS, clock_values(sample, bound), strict=True))


def test_a_row_has_every_column_but_its_id() -> None:
    """What a sample or a bound states is stored, all of it: a field without a column is a failure here."""
    columns = set(tables.clock_sample.c.keys()) - {"id"}

    assert set(clock_row(HEALTHY, BOUND)) == columns
    assert set(clock_row(HEALTHY, None)) == columns
    assert {field.name for field in fields(ClockSample)} <= columns


@pytest.mark.parametrize("whole", [True, False])
def test_a_grandmaster_row_has_every_column_but_its_id(whole: bool) -> None:
    """The same for a grandmaster."""
    columns = set(tables.grandmaster_sample.c.keys()) - {"id"}

    assert set(grandmaster_row(EVERYTHING, None, 0, whole=whole)) == columns
    assert {field.name for field in fields(GrandmasterSample)} <= columns


def test_a_bound_is_stored_with_its_growth_and_terms() -> None:
    """The row is dated by the sample's own reading; a bound that there is has no reason."""
    row = clock_row(HEALTHY, BOUND)

    assert row["realtime_ns"] == 1_700_000_000 * NS_PER_S
    assert row["port_state"] == "SLAVE"
    assert (row["gm_bound_ns"], row["gm_growth_ppb"], row["gm_reason_code"]) == (2_200, 50_100, None)
    assert (row["gm_status"], row["terms"]) == ("SYNCHRONIZED", '{"offset":100,"path_delay":2000}')


def test_both_bounds_are_stored_with_what_they_are_made_of() -> None:
    """The statistical one beside the hard one, its terms and the rates by name; what is not computed is NULL."""
    row = clock_row(HEALTHY, BOUND)

    assert (row["gm_stat_bound_ns"], row["gm_stat_growth_ppb"], row["utc_stat_bound_ns"]) == (1_900, 1_100, None)
    assert (row["stat_terms"], row["rates"]) == ('{"noise":1900}', '{"steering":50000,"grandmaster_rate":100}')
    assert [clock_row(HEALTHY, None)[name] for name in ("gm_stat_bound_ns", "stat_terms", "rates")] == [None] * 3


def test_raw_exchanges_are_stored_where_they_were_seen() -> None:
    """As JSON of plain objects, NULL where the PTP daemon does not give them away; and when the sample was read."""
    seen = clock_row(replace(HEALTHY, exchanges=(DelayExchange(5, 990),), read_ns=HEALTHY.as_of_ns + 3), None)

    assert (seen["exchanges"], seen["read_ns"]) == ('[{"local_ns":5,"reverse_ns":990}]', HEALTHY.as_of_ns + 3)
    assert clock_row(HEALTHY, None)["exchanges"] is None


def test_the_other_sources_have_a_table_each() -> None:
    """Every field of a reading has its column; a row is dated on CLOCK_REALTIME."""
    ntp = NtpSource("10.0.0.1", "selected", 1, 255, 1, 2, 3)
    utc = UtcSample("ntp", 10, 90, -5, 7, 51, "10.0.0.1", 2, "normal", 8, 9, ntp_sources=(ntp,))
    entries = [
        phc_entry(PhcSample("nic", "phc:0", 10, 90, -37, 6, "extended"), 1),
        utc_entry(utc, replace(BOUND, utc_hard=Bound(12, 51), utc_status=ClockStatus.SYNCHRONIZED), 1),
        kernel_entry(KernelSample("kernel", 10, 1, 2, 3, True, "none", 37, ("chronyd",)), 90, 1),
    ]

    assert [(entry.source, entry.realtime_ns) for entry in entries] == [("nic", 100), ("ntp", 100), ("kernel", 100)]
    assert [set(entry.row) for entry in entries] == [
        set(table.c.keys()) - {"id"} for table in (tables.phc_sample, tables.utc_sample, tables.kernel_sample)
    ]
    assert (entries[1].row["utc_bound_ns"], entries[1].row["utc_status"]) == (12, "SYNCHRONIZED")
    assert entries[1].row["ntp_sources"][0]["name"] == "10.0.0.1"
    assert utc_entry(utc, None, 1).row["utc_bound_ns"] is None


def test_an_unbounded_clock_is_null_with_its_reason() -> None:
    """Absent is NULL, never 0."""
    row = clock_row(HEALTHY, BOUND)

    assert (row["utc_bound_ns"], row["utc_growth_ppb"], row["utc_reason_code"]) == (None, None, "arbitrary_timescale")


def test_a_sample_without_a_bound_is_stored_all_the_same() -> None:
    """Without a bound every column of it is NULL."""
    row = clock_row(replace(HEALTHY, offset_ns=-5), None)

    assert (row["offset_ns"], row["gm_bound_ns"], row["gm_status"], row["terms"]) == (-5, None, None, None)


def test_a_grandmaster_is_stored_as_it_speaks() -> None:
    """Lists become JSON of plain objects, a position one object, and every field that the grandmaster reported is there."""
    row = grandmaster_row(EVERYTHING, Bound(150, 2), 100, whole=True)

    assert (row["realtime_ns"], row["clock_state"]) == (EVERYTHING.boottime_ns + 100, "holdover")
    assert row["references"][1] == {"name": "PTP-1", "qualification": "disqualified"}
    assert row["position"] == {"latitude_deg": 50.12, "longitude_deg": 8.68, "height_m": 112.5}
    assert (row["utc_bound_ns"], row["utc_growth_ppb"]) == (150, 2)
    assert [name for name, value in row.items() if value is None] == ["snmp_error", "utc_reason_code"]


def test_what_a_grandmaster_does_not_provide_is_null() -> None:
    """Absent is NULL and not an empty list; an empty list states that there is none."""
    row = grandmaster_row(GrandmasterSample("gm", 1, alarms=()), None, 0, whole=True)

    assert (row["alarms"], row["satellites"], row["clock_class"], row["position"]) == ((), None, None, None)


def test_a_row_that_is_not_whole_leaves_out_what_is_slow() -> None:
    """The columns named slow are NULL, all others as they were read."""
    whole = grandmaster_row(EVERYTHING, None, 0, whole=True)
    thin = grandmaster_row(EVERYTHING, None, 0, whole=False)

    assert thin == whole | dict.fromkeys(tables.SLOW) | {"whole": False}


def test_a_satellite_that_moves_makes_no_row_whole() -> None:
    """Its direction changes by a degree each few minutes; its C/N0 does make one."""
    whole = WholeRowSchedule()
    sample = replace(EVERYTHING, satellites=(Satellite(3, 45, True, 100, 40),))
    moved = replace(sample, satellites=(Satellite(3, 45, True, 101, 41),))

    assert [whole.is_due(each) for each in (sample, moved)] == [True, False]
    assert whole.is_due(replace(moved, satellites=(Satellite(3, 44, True, 101, 41),)))


def test_a_row_is_whole_when_something_slow_changes() -> None:
    """The first is whole, then each that differs in a slow column from the last whole one; grandmasters are apart."""
    whole = WholeRowSchedule()
    drifted = replace(EVERYTHING, phase_offset_ns=5, alarms=(), boottime_ns=EVERYTHING.boottime_ns + 1)
    changed = replace(drifted, satellites=())
    samples = [EVERYTHING, drifted, replace(drifted, source="gm-2"), changed, changed, drifted]

    assert [whole.is_due(sample) for sample in samples] == [True, False, True, True, False, True]


def test_a_row_is_whole_each_hour_and_after_a_loss() -> None:
    """So that a row deleted by retention or lost on a full disk is replaced."""
    whole = WholeRowSchedule()
    hour_later = replace(EVERYTHING, boottime_ns=EVERYTHING.boottime_ns + WHOLE_EVERY_NS)
    due = [whole.is_due(EVERYTHING), whole.is_due(hour_later), whole.is_due(hour_later)]
    whole.reset()

    assert [*due, whole.is_due(hour_later)] == [True, True, False, True]


def test_the_newest_time_errors_are_rows_of_their_own() -> None:
    """Each is dated by the grandmaster, under its channel and metric; a row that is not whole brings none again."""
    _, *entries = grandmaster_entries(EVERYTHING, None, REAL_MINUS_BOOT_NS, 7, whole=True)
    at_ns = 1_700_000_000_000_000_000

    assert [list(entry.values()) for entry in entries] == [
        [("gm", "gnss-1", "te", at_ns, 23)],
        [("gm", "gnss-1", "cte", at_ns, -4)],
    ]
    assert len(list(grandmaster_entries(EVERYTHING, None, REAL_MINUS_BOOT_NS, 7, whole=False))) == 1


def test_a_long_series_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is longer than the limit, none is empty, and no point is missing."""
    monkeypatch.setattr(rows, "SERIES_POINTS", 2)
    points = ((10, 1), (20, 2), (30, -3))
    entries = list(series_entries(TimeErrorSeries("gm", "gnss-1", "te", points), 7))
    found = [values[-2:] for entry in entries for values in entry.values()]

    assert ([len(entry) for entry in entries], [entry.realtime_ns for entry in entries]) == ([2, 1], [10, 30])
    assert found == list(points)
    assert list(series_entries(TimeErrorSeries("gm", "gnss-1", "te", ()), 7)) == []


def test_an_alarm_event_has_every_column_but_its_id() -> None:
    """A message's `id`, `index` and `name` are columns with names that SQL does not take for its own."""
    message = AlarmEventMessage(
        node="n1", incarnation=1, sequence=1, name="gm", published_realtime_ns=5, action="raise", id=97, index=1,
        severity="major", text="GNSS antenna open", alarm_sequence=12, lost=2, at="2023-11-14 22:00:00",
    )  # fmt: skip
    entry = alarm_event_entry(message, 7)

    assert set(entry.row) == set(tables.alarm_event.c.keys()) - {"id"}
    assert (entry.source, entry.realtime_ns, entry.row["alarm_id"], entry.row["lost"]) == ("gm", 5, 97, 2)


def test_readings_without_a_sample_differ_by_their_cause() -> None:
    """Two polls that fail by the same cause are equal, whatever their time and wording; a sample or another cause differs."""
    first = NoSample("ptp", 1, "no answer", port_state=PortState.LISTENING)
    second = replace(first, boottime_ns=2)

    assert availability_of(first) == availability_of(second)
    assert availability_of(first) == availability_of(replace(first, reason="no reply"))
    assert availability_of(first) != availability_of(replace(first, restarted=True))
    assert availability_of(first) != availability_of(replace(first, poll_failure=NoSampleCause.SOURCE_REFUSED))
    assert availability_of(HEALTHY) == SourceAvailability()


def test_a_series_is_no_sign_of_availability() -> None:
    """A file of yesterday's time errors does not mean that a grandmaster gives samples again."""
    assert availability_of(TimeErrorSeries("gm", "gnss-1", "te", ((1, 2),))) is None
