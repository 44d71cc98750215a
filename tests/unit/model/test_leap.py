"""Leap seconds: the table, the midnight, and what speaks against one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.leap import (
    Leap,
    LeapTable,
    LeapWatch,
    doubt_text,
    end_of_day_s,
    end_of_half_year_s,
    end_of_month_s,
    parse_leap_seconds,
    when_text,
)
from timesyncd.sample import UtcSample

#: The last entries of a leap-seconds.list, as tzdata installs it.
LIST = """\
#\tATOMIC TIME
#$ 3676924800
#@ 3707596800
3550089600\t35\t# 1 Jul 2012
3644697600\t36\t# 1 Jul 2015
3692217600\t37\t# 1 Jan 2017
#h 5a7b ...
"""
TABLE = parse_leap_seconds(LIST)


def s(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_the_list_of_tzdata_is_read() -> None:
    """NTP seconds become Unix time; the line `#@` is the expiry."""
    steps = ((s("2012-07-01"), 35), (s("2015-07-01"), 36), (s("2017-01-01"), 37))

    assert TABLE == LeapTable(steps, s("2017-06-28"))


@pytest.mark.parametrize("text", ["", "#@ 3707596800\n", LIST.replace("#@", "##"), LIST.replace("\t36", ""), "#@\n"])
def test_a_list_that_is_none_is_an_error(text: str) -> None:
    """A table that is cut or empty knows nothing, and is not taken for one that has no leap second."""
    with pytest.raises(Malformed, match="leap-seconds.list"):
        parse_leap_seconds(text)


@pytest.mark.parametrize(
    ("at", "change_s"),
    [
        ("2017-01-01", 1),
        ("2016-12-31", 0),
        ("2017-02-01", 0),
        ("2012-07-01", 0),
        ("2017-06-28", None),
        ("2026-01-01", None),
    ],
)
def test_the_table_knows_until_it_expires(at: str, change_s: int | None) -> None:
    """Beyond that nothing is known; the first entry is where it begins, and no leap second."""
    assert TABLE.change_at(s(at)) == change_s


def test_an_offset_counts_after_its_leap_second() -> None:
    """From 36 to 37 s at the beginning of 2017, and not before, nor the other way."""
    midnight_ns = s("2017-01-01") * NS_PER_S

    assert [TABLE.has_changed(36, 37, ns) for ns in (midnight_ns - 1, midnight_ns)] == [False, True]
    assert not TABLE.has_changed(37, 36, midnight_ns) and not TABLE.has_changed(37, 38, midnight_ns)
    assert [TABLE.offset_at(s(at)) for at in ("2016-12-31", "2017-01-01", "2026-01-01")] == [36, 37, 37]


@pytest.mark.parametrize(
    ("now", "day", "month", "half_year"),
    [
        ("2016-12-31T23:59:59", "2017-01-01", "2017-01-01", "2017-01-01"),
        ("2016-12-31T00:00:00", "2017-01-01", "2017-01-01", "2017-01-01"),
        ("2024-02-28T12:00:00", "2024-02-29", "2024-03-01", "2024-07-01"),
        ("2024-06-30T23:00:00", "2024-07-01", "2024-07-01", "2024-07-01"),
        ("2024-07-01T00:00:00", "2024-07-02", "2024-08-01", "2025-01-01"),
        ("2026-11-26T07:00:00", "2026-11-27", "2026-12-01", "2027-01-01"),
    ],
)
def test_the_midnights_at_which_one_is_applied(now: str, day: str, month: str, half_year: str) -> None:
    """A flag means the end of the UTC day, NTP's indicator that of the month, and GNSS knows one months ahead."""
    ends = [end(s(now) * NS_PER_S) for end in (end_of_day_s, end_of_month_s, end_of_half_year_s)]

    assert ends == [s(day), s(month), s(half_year)]


@pytest.mark.parametrize(
    ("leap", "at", "table", "doubt"),
    [
        (Leap.INSERT, "2017-01-01", TABLE, None),
        (Leap.DELETE, "2017-01-01", TABLE, "leap-seconds.list has a leap second of +1 s then"),
        (Leap.INSERT, "2017-02-01", TABLE, "leap-seconds.list has no leap second then"),
        (Leap.INSERT, "2021-08-21", None, "2021-08-20 is not the end of a month, and leap seconds are"),
        (Leap.INSERT, "2021-08-21", TABLE, "2021-08-20 is not the end of a month, and leap seconds are"),
        (Leap.INSERT, "2026-12-01", TABLE, "every leap second so far was at the end of June or December"),
        (Leap.INSERT, "2027-01-01", TABLE, None),
        (Leap.INSERT, "2026-07-01", None, None),
    ],
)
def test_what_speaks_against_a_leap_second(leap: Leap, at: str, table: LeapTable | None, doubt: str | None) -> None:
    """The day, then the table as far as it reaches, then the month."""
    assert doubt_text(leap, s(at), table) == doubt


def test_a_leap_second_has_a_direction_and_a_time() -> None:
    """The second by its name in UTC, and the day that it ends."""
    assert when_text(Leap.INSERT, s("2017-01-01")) == "23:59:60 UTC of 2016-12-31 is inserted"
    assert when_text(Leap.DELETE, s("2017-01-01")) == "23:59:59 UTC of 2016-12-31 is deleted"


@pytest.mark.parametrize(
    ("leap61", "leap59", "leap"),
    [(False, False, Leap.NONE), (True, False, Leap.INSERT), (False, True, Leap.DELETE), (True, True, Leap.BOTH)],
)
def test_the_two_flags(leap61: bool, leap59: bool, leap: Leap) -> None:
    """Both at once are a contradiction of their own."""
    assert Leap.of_flags(leap61, leap59) is leap


@pytest.mark.parametrize(
    ("at", "limit_s", "wider_s"),
    [
        ("2016-12-15T23:50:00", 1_000, 0),
        ("2016-12-15T01:00:00", 1_000, 0),
        ("2016-12-31T12:00:00", 1_000, 0),
        ("2016-12-31T23:50:00", 598, 0),
        ("2017-01-01T00:05:00", 300, 1),
        ("2017-01-01T05:59:59", 1_000, 1),
        ("2017-01-01T06:00:00", 1_000, 0),
    ],
)
def test_what_ntp_announces_all_month_limits_its_last_midnight_alone(at: str, limit_s: int, wider_s: int) -> None:
    """Its indicator means the end of the month, so on other days the bound claims as much as ever."""
    realtime_ns, boottime_ns = s(at) * NS_PER_S, 10**15
    sample = UtcSample(
        "ntp", boottime_ns, realtime_ns - boottime_ns, 0, 1_000_000, 1_000, "10.0.0.1", 2, "insert", 1, 1
    )
    bound = Ensemble({"ntp": EnsembleSettings()}).accept(sample).bound

    assert bound is not None
    assert bound.void_after_ns == limit_s * NS_PER_S
    assert bound.utc_hard.bound_ns == 1_000_000 + wider_s * NS_PER_S


@pytest.mark.parametrize(
    ("at", "removed_s", "wider_s"),
    [
        ("2017-01-01T00:05:00", 36, 1),
        ("2017-01-01T23:00:00", 36, 1),
        ("2017-01-01T00:05:00", 37, 0),
        ("2017-01-01T00:05:00", 0, 0),
        ("2017-01-01T00:05:00", None, 1),
        ("2017-01-01T23:00:00", None, 0),
        ("2017-01-02T00:05:00", 36, 0),
    ],
)
def test_a_source_may_have_missed_a_leap_second_of_the_table(at: str, removed_s: int | None, wider_s: int) -> None:
    """UTC is uncertain by it while a PTP source removes the former offset, and until an NTP source had time to notice it."""
    realtime_ns, boottime_ns = s(at) * NS_PER_S, 10**15
    sample = UtcSample("ntp", boottime_ns, realtime_ns - boottime_ns, 0, 1_000_000, 1_000, "10.0.0.1", 2, "none", 1, 1)
    bound = Ensemble({"ntp": EnsembleSettings()}).accept(sample).bound
    assert bound is not None
    limited = LeapWatch(TABLE).limit(replace(bound, utc_seconds_removed=removed_s))

    assert limited.utc_hard.bound_ns == 1_000_000 + wider_s * NS_PER_S


def test_without_a_table_no_midnight_is_suspect() -> None:
    """A day after which nothing was announced, and of which nothing is known, leaves the bound as it is."""
    boottime_ns = 10**15
    realtime_ns = s("2017-01-01T00:05:00") * NS_PER_S
    sample = UtcSample("ntp", boottime_ns, realtime_ns - boottime_ns, 0, 1_000_000, 1_000, "10.0.0.1", 2, "none", 1, 1)
    bound = Ensemble({"ntp": EnsembleSettings()}).accept(sample).bound
    assert bound is not None

    assert LeapWatch().limit(bound) is bound


def test_a_second_that_is_both_inserted_and_deleted_has_a_sentence() -> None:
    """Both flags at once contradict each other, and the sentence says both."""
    at_s = s("2017-01-01")

    assert when_text(Leap.BOTH, at_s) == "a second is both inserted and deleted at the end of 2016-12-31 UTC"
