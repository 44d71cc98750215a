"""`timesyncd history`, and the format of durations and spans."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import closing
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from samples import HEALTHY, nth

from timesyncd.cli import history
from timesyncd.cli.history import table_of
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import StoreSettings as Settings
from timesyncd.errors import ConfigError
from timesyncd.messages.node import AlarmEventMessage
from timesyncd.model.observation import Observation
from timesyncd.sample import Alarm, ClockState, GrandmasterSample, NoSample, Satellite, TimeErrorSeries
from timesyncd.store.writer import Store
from timesyncd.units import duration_text, span_ns, span_text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred samples of ptp in the last half minute, then a failure; one sample of gm, two time errors, an alarm event."""
    path = tmp_path_factory.mktemp("store") / "history.sqlite"
    real_minus_boot_ns = time.time_ns() - 30 * NS_PER_S - HEALTHY.as_of_ns
    store = Store(Settings(path=path), SystemClocks(), lambda problem: None)
    store.start()
    for index in range(200):
        store.put(Observation(nth(index, offset_ns=index, real_minus_boot_ns=real_minus_boot_ns), None))
    store.put(Observation(NoSample("ptp", 1, "no answer within 1 s"), None))
    store.put(
        Observation(
            GrandmasterSample(
                "gm",
                SystemClocks().boottime_ns(),
                clock_state=ClockState.LOCKED,
                clock_class=6,
                clock_accuracy=0x21,
                phase_offset_ns=-12,
                satellites=(Satellite(1, 40, True), Satellite(2, 20, False)),
                alarms=(Alarm(1, 1, "minor", "fan slow"),),
            ),
            None,
        )
    )
    now_ns = time.time_ns()
    series = TimeErrorSeries("gm", "gnss-1", "te", ((now_ns - 20 * NS_PER_S, -1_234), (now_ns - NS_PER_S, 56)))
    store.put(Observation(series, None))
    store.put_alarm_event(
        AlarmEventMessage(
            node="n1", incarnation=1, sequence=1, name="gm", published_realtime_ns=now_ns, action="raise", id=97, index=1,
            severity="major", text="GNSS antenna open \x1b[2J", lost=2,
        )
    )  # fmt: skip
    store.stop()
    return path


def run(*words: str) -> int:
    parser = ArgumentParser()
    history.add_arguments(parser)
    return history.run(parser.parse_args(words))


def test_the_table_has_units(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest hundred samples, the failure after them, and a note that there are more."""
    code = run("ptp", "--store", str(path))
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert lines[1].split() == [
        "UTC",
        "local",
        "offset",
        "path",
        "delay",
        "bound",
        "at",
        "99.7%",
        "status",
        "port",
        "note",
    ]
    assert lines[2].split()[4:] == ["100", "ns", "2.00", "us", "unknown", "unknown", "unknown", "SLAVE"]
    assert lines[-2].endswith("no samples: no answer within 1 s")
    assert lines[-1] == "only the newest 100 samples; --limit shows more"
    assert len(lines) == 2 + 100 + 2


def test_an_empty_span_has_no_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line states that there are no records."""
    code = run("gm", "--store", str(path), "--since", "2h", "--until", "1h")

    assert (code, capsys.readouterr().out) == (0, "gm: no records between --since and --until\n")


def test_a_source_that_never_gave_a_sample_has_no_columns_of_samples() -> None:
    """The kind of such a source is unknown, so the table has times and notes only."""
    record = {
        "kind": "event",
        "realtime_ns": 0,
        "reason_code": "no_valid_sample",
        "reason": "no PHC",
        "port_state": None,
    }
    headings, rows = table_of("event", [record], UTC)

    assert [heading for heading, _ in headings] == ["UTC", "local", "note"]
    assert rows == [TIMES + ["no samples: no PHC"]]


def test_json_is_one_object_a_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has all samples and events of the span, in order of time."""
    code = run("ptp", "--store", str(path), "--json")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0
    assert [record["offset_ns"] for record in records if record["kind"] == "clock"] == list(range(200))
    assert records[-1]["reason"] == "no answer within 1 s"
    assert [record["realtime_ns"] for record in records] == sorted(record["realtime_ns"] for record in records)


def test_since_and_until_limit_the_span(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are ages, counted back from now."""
    run("ptp", "--store", str(path), "--json", "--since", "2h", "--until", "1h")

    assert capsys.readouterr().out == ""


def test_a_grandmaster_has_its_own_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State, class, accuracy, phase, satellites and alarms; a value that is not provided is unknown."""
    code = run("gm", "--store", str(path))
    expected = "locked 6 0x21 -12 ns unknown 1 of 2 unknown 1 fan slow"
    line = next(line for line in capsys.readouterr().out.splitlines() if "locked" in line)

    assert code == 0
    assert re.sub(r" +", " ", line).strip().endswith(expected)


@pytest.mark.parametrize(
    ("satellites", "shown"),
    [(None, "unknown"), ([], "0 of 0"), ([{"healthy": True}, {"healthy": None}], "1 of 2")],
)
def test_satellites_that_a_grandmaster_does_not_report_are_unknown(
    satellites: list[dict[str, Any]] | None, shown: str
) -> None:
    """A count of 0 would state that its antenna receives nothing."""
    assert history._satellites(satellites) == shown


def test_an_alarm_event_is_between_the_samples(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An alarm event has a line with the number of lost ones; control characters are printed as text."""
    run("gm", "--store", str(path))
    printed = " ".join(capsys.readouterr().out.split())

    assert "raise, major: GNSS antenna open ?[2J (2 before it were lost)" in printed


def test_time_errors_have_a_table_of_their_own(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has channel, metric and value, the oldest first; a limit keeps the newest."""
    run("gm", "--store", str(path), "--time-errors")
    table = [line.split()[4:] for line in capsys.readouterr().out.splitlines()[2:]]
    run("gm", "--store", str(path), "--time-errors", "--json", "--limit", "1")
    [record] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert table == [["gnss-1", "te", "-1.23", "us"], ["gnss-1", "te", "56", "ns"]]
    assert (record["kind"], record["channel"], record["value_ns"]) == ("time_error", "gnss-1", 56)


def test_an_unknown_source_names_the_known(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line lists the known sources, and the exit status is 2."""
    code = run("ptp4", "--store", str(path))

    assert code == 2
    assert capsys.readouterr().err == f"timesyncd: {path} has no source 'ptp4'; known sources: gm, ptp\n"


def test_the_store_is_that_of_the_configuration(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --store, the configuration's [store] is read."""
    config = tmp_path / "timesyncd.toml"
    config.write_text(f'[store]\npath = "{path}"\n')
    code = run("ptp", "--config", str(config), "--json", "--limit", "2")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0
    assert [record["offset_ns"] for record in records if record["kind"] == "clock"] == [198, 199]


def test_a_configuration_without_a_store_has_no_history(tmp_path: Path) -> None:
    """The error names the missing section, and --store."""
    config = tmp_path / "timesyncd.toml"
    config.touch()

    with pytest.raises(ConfigError, match=r"timesyncd\.toml: no \[store\] section, so there is no history"):
        run("ptp", "--config", str(config))


@pytest.mark.parametrize("words", [["--limit", "0"], ["--since", "yesterday"], ["--until", "5"]])
def test_an_invalid_value_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A limit below 1 or a span without a unit ends with exit status 2."""
    with pytest.raises(SystemExit) as exit_:
        run("ptp", *words)

    assert exit_.value.code == 2
    assert "is not a" in capsys.readouterr().err


def test_a_line_has_both_times_and_the_reason() -> None:
    """A line has UTC and the local time of day; the note is the reason of an unknown bound."""
    record = {
        "kind": "clock",
        "realtime_ns": 1_700_000_000_123_456_789,
        "offset_ns": -1_234,
        "path_delay_ns": 45_600,
        "gm_bound_ns": None,
        "gm_stat_bound_ns": None,
        "gm_status": "UNKNOWN",
        "port_state": "SLAVE",
        "gm_reason_code": "phc_not_measured",
    }
    _, rows = table_of("clock", [record], timezone(timedelta(hours=1), "CET"))

    assert rows == [
        ["2023-11-14 22:13:20.123", "23:13:20 CET", "-1.23 us", "45.6 us", "unknown", "unknown", "UNKNOWN", "SLAVE"]
        + ["only the PHC is measured: set the ptp4l source's phc, and let the daemon read /dev/ptpN"]
    ]


TIMES = ["1970-01-01 00:00:00.000", "00:00:00 UTC"]


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, ["phc:0", "-37 s -412 ns", "300 ns", "extended", "runs", ""]),
        ({"steered": None}, ["phc:0", "-37 s -412 ns", "300 ns", "extended", "unknown", ""]),
        ({"offset_ns": -36_999_999_588}, ["phc:0", "-37 s +412 ns", "300 ns", "extended", "runs", ""]),
        ({"offset_ns": -5}, ["phc:0", "-5 ns", "300 ns", "extended", "runs", ""]),
    ],
)
def test_a_phc_offset_has_nanoseconds(changes: dict[str, object], cells: list[str]) -> None:
    """With 37 s between two timescales, three digits would hide the offset."""
    record = {
        "kind": "phc", "realtime_ns": 0, "clock": "phc:0", "offset_ns": -37_000_000_412, "width_ns": 599, "method": "extended",
        "steered": True,
    }  # fmt: skip
    headings, rows = table_of("phc", [record | changes], UTC)

    assert rows == [TIMES + cells]
    assert len(headings) == len(rows[0])


def test_an_ntp_sample_has_the_bound_of_the_node() -> None:
    """The line has the daemon's offset and error, and the node's bound or its reason."""
    record = {
        "kind": "utc", "realtime_ns": 0, "offset_ns": -1_500, "error_ns": 400_000, "utc_bound_ns": None, "utc_status": "DISRUPTED",
        "reference": "10.0.0.1", "stratum": 2, "utc_reason_code": "clock_stepped",
    }  # fmt: skip
    headings, rows = table_of("utc", [record], UTC)

    assert rows == [
        TIMES + ["-1.50 us", "400 us", "unknown", "DISRUPTED", "10.0.0.1", "2", "the system clock was stepped"]
    ]
    assert len(headings) == len(rows[0])


def test_a_kernel_sample_is_a_line() -> None:
    """A TAI offset of 0 is not set."""
    record = {
        "kind": "kernel", "realtime_ns": 0, "frequency_ppb": -1_830, "maxerror_ns": 16_000_000_000, "synchronized": False,
        "leap": "none", "tai_offset_s": 0, "disciplines": ["chronyd", "phc2sys"], "undecided_disciplines": ["ptp4l"],
    }  # fmt: skip
    headings, rows = table_of("kernel", [record], UTC)

    assert rows == [TIMES + ["-1830 ppb", "unknown", "no", "none", "not set", "chronyd, phc2sys", "possibly ptp4l"]]
    assert len(headings) == len(rows[0])


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "1.50 ms"),
        ({"disciplines": ["ntpd"]}, "1.50 ms"),
        ({"disciplines": ["phc2sys"]}, "unknown"),
        ({"undecided_disciplines": ["sfptpd"]}, "unknown"),
        ({"synchronized": False}, "unknown"),
        ({"unexplained_movement": "frequency"}, "unknown"),
        ({"programs_visible": False}, "unknown"),
    ],
)
def test_the_kernels_maxerror_is_printed_where_it_is_a_bound(changes: dict[str, Any], shown: str) -> None:
    """Where the steering program does not maintain it, or is not known, the number has no meaning."""
    record = {
        "kind": "kernel", "realtime_ns": 0, "frequency_ppb": 1, "maxerror_ns": 1_500_000, "synchronized": True,
        "leap": "none", "tai_offset_s": 37, "disciplines": ["chronyd"], "undecided_disciplines": [],
    }  # fmt: skip
    _, rows = table_of("kernel", [record | changes], UTC)

    assert rows[0][3] == shown


def test_a_gap_is_a_line_of_its_own() -> None:
    """The number of lost rows is where they are missing."""
    record = {"kind": "gap", "realtime_ns": 0, "rows_lost": 12, "reason": "the store fell behind"}
    headings, rows = table_of("clock", [record], UTC)

    assert rows == [["1970-01-01 00:00:00.000", "00:00:00 UTC"] + [""] * 6 + ["12 rows lost: the store fell behind"]]
    assert len(headings) == len(rows[0])


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "unknown"), (0, "0 ns"), (-999, "-999 ns"), (1_000, "1.00 us"), (1_234, "1.23 us"), (-45_600, "-45.6 us"),
        (999_499, "999 us"), (999_500, "1.00 ms"), (9_996_000, "10.0 ms"), (5_000_000_000, "5.00 s"),
        (1_234_000_000_000, "1234 s"),
    ],
)  # fmt: skip
def test_a_duration_has_three_digits_and_a_unit(ns: int | None, text: str) -> None:
    """A duration has three digits and the largest suitable unit; unknown is not 0."""
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3_600), ("2d", 172_800), ("0.5h", 1_800)]
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    """The units are seconds, minutes, hours and days."""
    assert span_ns(text) == seconds * NS_PER_S


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_599, "59 min"), (13_259, "3 h 40 min"), (172_799, "47 h 59 min"),
        (183_600, "2 d 3 h"),
    ],
)  # fmt: skip
def test_a_span_is_rounded_down(seconds: float, text: str) -> None:
    """It has two units at most and never exceeds the value, so that a budget is not overstated."""
    assert span_text(int(seconds * NS_PER_S)) == text


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1h30m", "1 h"])
def test_an_invalid_span_is_an_error(text: str) -> None:
    """The error gives the format of a span."""
    with pytest.raises(ArgumentTypeError, match="90s, 15m, 1h, 2d"):
        span_ns(text)


def test_damaged_rows_are_left_out_with_their_number(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that became a text costs its own row; standard error states how many, and no row is a traceback."""
    copy = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        with target:
            target.execute("UPDATE clock_sample SET offset_ns = 'abc' WHERE id IN (7, 8)")
            target.execute("UPDATE clock_sample SET path_delay_ns = x'00', terms = '{' WHERE id = 9")
            target.execute("UPDATE grandmaster_sample SET alarms = '[1]'")
    parser = ArgumentParser()
    history.add_arguments(parser)
    statuses = [
        history.run(parser.parse_args([*words, "--store", str(copy)]))
        for words in (["ptp", "--json"], ["ptp", "--limit", "1000"], ["gm"])
    ]
    printed = capsys.readouterr()

    assert statuses == [0, 0, 0]
    assert printed.err == "timesyncd: 3 damaged rows of the store are left out: docs/store.md, Damage\n" * 2
    assert len([line for line in printed.out.splitlines() if line.startswith('{"kind": "clock"')]) == 197
    assert "this row is damaged" in printed.out
