"""Which log a file is, and that no log raises anything but a TraceError."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import TraceError
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.reading import LogFormat, kind_of_line, peek_kind, read_log, survey
from timesyncd.model.replay import Replay, TraceRow

LOGS = Path(__file__).parents[2] / "recordings" / "logs"
LINES = [line for path in sorted(LOGS.iterdir()) for line in path.read_text().splitlines(keepends=True)]
OTHERS = [
    "ptp4l[10.000]: rms   12 max   30 freq  -9110 +/- 217 delay   232 +/-   1\n",
    "Feb 15 20:04:04 node1 phc2sys[400]: [25.100] CLOCK_REALTIME phc offset  -13 s2 freq -6785 delay   1651\n",
    "Feb 15 20:04:04 node1 systemd-journald[321]: Suppressed 1023 messages from ptp4l.service\n",
    "-- Boot 0123456789abcdef --\n",
    '{"MESSAGE": "[26.634] port 1 (eth0): SLAVE to LISTENING on RS_SLAVE", "SYSLOG_IDENTIFIER": "ptp4l"}\n',
    "ptp4l[27.000]: Switched to /dev/ptp2 as PTP clock\n",
    "ptp4l[28.000]: clockcheck: clock jumped forward or running faster than expected!\n",
    "[29.000] selected best master clock 00a069.fffe.0b552d\n",
    "master offset 5 s3 freq +0 path delay 10\n",
]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("t_s,offset_ns,path_delay_ns", LogFormat.CSV),
        ('\ufeff"offset_ns","t_s"', LogFormat.CSV),
        ("ptp4l[10.000]: rms   12 max   30 freq  -9110 +/- 217 delay   232 +/-   1", LogFormat.PTP4L),
        ("[24.634] master offset   -22 s2 freq  -25273 path delay       625", LogFormat.PTP4L),
        ("[24.634] CLOCK_REALTIME phc offset   -13 s2 freq   -6785 delay   1651", LogFormat.PHC2SYS),
        ("   Date (UTC) Time     IP Address   St   Freq ppm   Skew ppm     Offset L Co  Offset sd Rem. corr.", LogFormat.CHRONY_TRACKING),
        ("   Date (UTC) Time     IP Address   L St 123 567 ABCD  LP RP Score    Offset  Peer del. Peer disp.", LogFormat.CHRONY_MEASUREMENTS),
        ("Feb 15 20:04:04 node1 systemd[1]: Started ptp4l.service", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_line_shows_what_its_file_is(line: str, kind: LogFormat | None) -> None:
    """Or does not."""
    assert kind_of_line(line) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chronyd_4.3_measurements.log", LogFormat.CHRONY_MEASUREMENTS),
        ("chronyd_4.3_tracking.log", LogFormat.CHRONY_TRACKING),
        ("journal_with_pid.log", LogFormat.PTP4L),
        ("ptp4l_3.1.1_free_running.log", LogFormat.PTP4L),
        ("ptp4l_3.1.1_free_running_syslog.log", LogFormat.PTP4L),
    ],
)
def test_recorded_logs_are_recognized(name: str, kind: LogFormat) -> None:
    """From a file as from a pipe, which is then read from its first line."""
    lines = (LOGS / name).read_text().splitlines(keepends=True)
    shown, rest = peek_kind(iter(lines))

    assert survey(lines, name, None, None) is shown is kind
    assert list(rest) == lines


def test_a_log_is_read_on_demand() -> None:
    """A row needs no later line, so a long log is never in memory."""
    read = []

    def lines() -> object:
        for second in range(10**9):
            read.append(second)
            yield f"ptp4l[{second}.000]: master offset {second:10d} s2 freq +1 path delay        10\n"

    _, rows = read_log(lines(), "endless", LogFormat.PTP4L)  # type: ignore[arg-type]

    assert [next(rows) and None for _ in range(3)] == [None] * 3
    assert len(read) == 3


def test_the_heads_of_tail_separate_files() -> None:
    """`tail` and `head` of several files name each one before its lines: they are several instances."""
    sync = "master offset          5 s2 freq     +1 path delay        10\n"
    lines = [f"==> {node}.log <==\nptp4l[{at}.{ms}]: {sync}" for at, node in enumerate("ab") for ms in ("000", "900")]

    with pytest.raises(TraceError, match="2 instances.*'a.log ptp4l', 'b.log ptp4l'"):
        survey("".join(lines).splitlines(keepends=True), "both", None, None)


def test_a_boot_before_the_first_message_counts() -> None:
    """So that the boots that the error lists are those that --instance takes."""
    sync = "ptp4l[24.000]: master offset          5 s2 freq     +1 path delay        10\n"
    lines = ["-- Boot 0123 --\n", sync, "-- Boot 4567 --\n", sync]

    with pytest.raises(TraceError, match="'ptp4l boot 2', 'ptp4l boot 3'"):
        survey(lines, "both", None, None)
    assert survey(lines, "both", None, "ptp4l boot 2") is LogFormat.PTP4L


def mutated(seed: int) -> list[str]:
    """A log with lines of several, some of them cut, garbled, missing, doubled or exchanged."""
    draw = random.Random(seed)
    begin = draw.randrange(len(LINES))
    lines = LINES[begin : begin + draw.randint(1, 60)]
    for _ in range(draw.randint(0, 8)):
        index = draw.randrange(len(lines))
        line = lines[index]
        match draw.randint(0, 5):
            case 0:
                lines[index] = line[: draw.randrange(len(line) + 1)]
            case 1:
                lines.insert(draw.randrange(len(lines)), line)
            case 2:
                where = draw.randrange(len(line) + 1)
                lines[index] = line[:where] + chr(draw.randrange(1, 0x300)) + line[where + 1 :]
            case 3:
                lines.insert(index, draw.choice(OTHERS))
            case 4:
                lines[index] = line.replace("s2", "s1")
            case _ if len(lines) > 1:
                del lines[index]
    return lines


@given(st.integers(0, 2**32), st.sampled_from([kind for kind in LogFormat if kind is not LogFormat.CSV]))
def test_any_log_is_replayed_or_refused(seed: int, kind: LogFormat) -> None:
    """No rows without a report, times that do not go back, and no error but TraceError, which names the file."""
    lines, replay, last_ns = mutated(seed), Replay(), -1
    try:
        survey(lines, "a.log", kind, None)
        report, rows = read_log(lines, "a.log", kind)
        for row in rows:
            if not isinstance(row, BoundRow):
                assert row[1].t_ns >= last_ns
                last_ns = row[1].t_ns
                replay.accept(row[1])
        assert report.lines == len(lines)
        assert report.measurements > 0
    except TraceError as error:
        assert str(error).startswith("a.log:")
        assert "\n" not in str(error)


@given(st.integers(0, 2**32))
def test_each_line_is_a_row_or_is_counted(seed: int) -> None:
    """Half a trace is never replayed silently: each Sync in the log is replayed, or is listed in the report."""
    lines = mutated(seed)
    try:
        report, rows = read_log(lines, "a.log", LogFormat.PTP4L)
        syncs = sum(isinstance(row, tuple) and isinstance(row[1], TraceRow) and row[1].is_sync for row in rows)
    except TraceError:
        return
    whole = sum("master offset" in line and "path delay" in line for line in lines)
    left = report.unreadable + report.duplicates + report.other_instances + report.other_ports + report.other_messages

    assert syncs == report.measurements - report.steps
    assert whole <= report.measurements + left
