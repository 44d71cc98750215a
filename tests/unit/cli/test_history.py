"""`timesyncd history`, and how numbers are written for people."""

from __future__ import annotations

import json
import re
import time
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, timedelta, timezone
from pathlib import Path

import pytest
from samples import HEALTHY, nth

from timesyncd.cli import history
from timesyncd.cli._history_table import table_of
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


def test_the_table_is_for_people(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Units that people read, the newest hundred, the failure after them, and that there is more."""
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
    assert lines[-1] == "the newest 100 samples of the span; --limit shows more"
    assert len(lines) == 2 + 100 + 2


def test_a_span_without_anything_has_no_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Headings of nothing would look as if something had gone wrong."""
    code = run("gm", "--store", str(path), "--since", "2h", "--until", "1h")

    assert (code, capsys.readouterr().out) == (0, "gm: nothing in this span\n")


def test_a_source_that_never_gave_a_sample_has_no_columns_of_samples() -> None:
    """Of what kind it is nobody knows yet, so when and why are all."""
    record = {"kind": "event", "realtime_ns": 0, "reason_code": "no_valid_sample", "reason": "no PHC", "port_state": None}
    headings, rows = table_of("event", [record], UTC)

    assert [heading for heading, _ in headings] == ["UTC", "local", "note"]
    assert rows == [TIMES + ["no samples: no PHC"]]


def test_json_is_one_object_a_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get everything of the span, in order of time, events among it."""
    code = run("ptp", "--store", str(path), "--json")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0
    assert [record["offset_ns"] for record in records if record["kind"] == "clock"] == list(range(200))
    assert records[-1]["reason"] == "no answer within 1 s"
    assert [record["realtime_ns"] for record in records] == sorted(record["realtime_ns"] for record in records)


def test_a_span_leaves_out_what_is_older_and_younger(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--since and --until both count back from now."""
    run("ptp", "--store", str(path), "--json", "--since", "2h", "--until", "1h")

    assert capsys.readouterr().out == ""


def test_a_grandmaster_has_its_own_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State, class, accuracy, phase, satellites and alarms; what it did not say is unknown."""
    code = run("gm", "--store", str(path))
    expected = "locked 6 0x21 -12 ns unknown 1 of 2 unknown 1 fan slow"
    line = next(line for line in capsys.readouterr().out.splitlines() if "locked" in line)

    assert code == 0
    assert re.sub(r" +", " ", line).strip().endswith(expected)


def test_an_alarm_event_stands_between_the_samples(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a unit reported by itself is a line with what was lost before it, and nothing that a terminal would obey."""
    run("gm", "--store", str(path))
    told = " ".join(capsys.readouterr().out.split())

    assert "raise, major: GNSS antenna open ?[2J (2 before it were lost)" in told


def test_time_errors_have_a_table_of_their_own(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Channel, metric and value, oldest first, with a limit the newest; JSON gives the numbers."""
    run("gm", "--store", str(path), "--time-errors")
    table = [line.split()[4:] for line in capsys.readouterr().out.splitlines()[2:]]
    run("gm", "--store", str(path), "--time-errors", "--json", "--limit", "1")
    [record] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert table == [["gnss-1", "te", "-1.23", "us"], ["gnss-1", "te", "56", "ns"]]
    assert (record["kind"], record["channel"], record["value_ns"]) == ("time_error", "gnss-1", 56)


def test_an_unknown_source_names_the_known(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the store does not hold: one line with those that it holds, and exit 2."""
    code = run("ptp4", "--store", str(path))

    assert code == 2
    assert capsys.readouterr().err == f"timesyncd: {path} has no 'ptp4'; it has: gm, ptp\n"


def test_the_store_is_found_by_the_configuration(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --store it is the configuration's [store] path."""
    config = tmp_path / "timesyncd.toml"
    config.write_text(f'[store]\npath = "{path}"\n')
    code = run("ptp", "--config", str(config), "--json", "--limit", "2")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0
    assert [record["offset_ns"] for record in records if record["kind"] == "clock"] == [198, 199]


def test_a_configuration_without_a_store_has_no_history(tmp_path: Path) -> None:
    """Who did not switch the store on is told so, and how to name a file."""
    config = tmp_path / "timesyncd.toml"
    config.touch()

    with pytest.raises(ConfigError, match=r"timesyncd\.toml: no \[store\], so no history"):
        run("ptp", "--config", str(config))


@pytest.mark.parametrize("words", [["--limit", "0"], ["--since", "yesterday"], ["--until", "5"]])
def test_a_bad_value_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A count below 1 or a span without a unit: what is wanted is said, and exit 2."""
    with pytest.raises(SystemExit) as exit_:
        run("ptp", *words)

    assert exit_.value.code == 2
    assert "is not a" in capsys.readouterr().err


def test_a_line_has_both_times_and_the_reason() -> None:
    """UTC in full and the local time of day; a clock without a bound says why in the note."""
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
        + ["ptp4l measures the PHC (hardware timestamps): add a phc source, which measures the system clock against it"]
    ]


TIMES = ["1970-01-01 00:00:00.000", "00:00:00 UTC"]


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, ["phc:0", "-37 s -412 ns", "300 ns", "extended", "runs", ""]),
        ({"steered": None}, ["phc:0", "-37 s -412 ns", "300 ns", "extended", "not looked for", ""]),
        ({"offset_ns": -36_999_999_588}, ["phc:0", "-37 s +412 ns", "300 ns", "extended", "runs", ""]),
        ({"offset_ns": -5}, ["phc:0", "-5 ns", "300 ns", "extended", "runs", ""]),
    ],
)
def test_a_phc_is_told_to_the_nanosecond(changes: dict[str, object], cells: list[str]) -> None:
    """Beside 37 s of another timescale three digits would hide what counts."""
    record = {
        "kind": "phc", "realtime_ns": 0, "clock": "phc:0", "offset_ns": -37_000_000_412, "width_ns": 599, "method": "extended",
        "steered": True,
    }  # fmt: skip
    headings, rows = table_of("phc", [record | changes], UTC)

    assert rows == [TIMES + cells]
    assert len(headings) == len(rows[0])


def test_an_ntp_daemon_is_told_with_the_bound_of_the_node() -> None:
    """Its own offset and error, and what the node made of it; why there is no bound is the note."""
    record = {
        "kind": "utc", "realtime_ns": 0, "offset_ns": -1_500, "error_ns": 400_000, "utc_bound_ns": None, "utc_status": "DISRUPTED",
        "reference": "10.0.0.1", "stratum": 2, "utc_reason_code": "clock_stepped",
    }  # fmt: skip
    headings, rows = table_of("utc", [record], UTC)

    assert rows == [
        TIMES + ["-1.50 us", "400 us", "unknown", "DISRUPTED", "10.0.0.1", "2", "the system clock was stepped"]
    ]
    assert len(headings) == len(rows[0])


def test_the_kernel_s_word_is_a_line() -> None:
    """A TAI offset of 0 is one that nobody has set."""
    record = {
        "kind": "kernel", "realtime_ns": 0, "frequency_ppb": -1_830, "maxerror_ns": 16_000_000_000, "synchronized": False,
        "leap": "none", "tai_offset_s": 0, "disciplines": ["chronyd", "phc2sys"], "undecided_disciplines": ["ptp4l"],
    }  # fmt: skip
    headings, rows = table_of("kernel", [record], UTC)

    assert rows == [TIMES + ["-1830 ppb", "16.0 s", "no", "none", "not set", "chronyd, phc2sys", "perhaps ptp4l"]]
    assert len(headings) == len(rows[0])


def test_a_gap_is_a_line_of_its_own() -> None:
    """What was lost is said where it is missing."""
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
    """Never more digits than people read, never 1000 of a unit that has a larger one, never 0 for unknown."""
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3_600), ("2d", 172_800), ("0.5h", 1_800)]
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    """Seconds, minutes, hours and days."""
    assert span_ns(text) == seconds * NS_PER_S


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_599, "59 min"), (13_259, "3 h 40 min"), (172_799, "47 h 59 min"),
        (183_600, "2 d 3 h"),
    ],
)  # fmt: skip
def test_how_long_something_lasts_is_rounded_down(seconds: float, text: str) -> None:
    """Two units at most, and never more than there is: a budget is not overstated."""
    assert span_text(int(seconds * NS_PER_S)) == text


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1h30m", "1 h"])
def test_another_text_is_no_span(text: str) -> None:
    """Anything else is refused, saying how to write it."""
    with pytest.raises(ArgumentTypeError, match="90s, 15m, 1h or 2d"):
        span_ns(text)
