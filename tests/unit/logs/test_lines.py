"""A line of a log: which program wrote it and when, whatever brought it there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.logs.lines import LogLine, Lost, Marker, Origin, parse_line
from timesyncd.logs.walltime import parse_walltime

TEXT = "master offset        -22 s2 freq  -25273 path delay       625"


def parsed(line: str) -> LogLine:
    found = parse_line(line)
    assert isinstance(found, LogLine)
    return found


@pytest.mark.parametrize(
    ("prefix", "origin", "wall"),
    [
        ("ptp4l[24.634]: ", Origin("ptp4l"), ""),
        ("[24.634] ", Origin(None), ""),
        ("ptp4l-5.0[24.634]: ", Origin("ptp4l-5.0"), ""),
        ("Feb 15 20:04:04 node1 ptp4l[383]: [24.634] ", Origin("ptp4l", "node1", 383), "Feb 15 20:04:04"),
        ("Feb  5 20:04:04 node1 ptp4l: [24.634] ", Origin("ptp4l", "node1"), "Feb  5 20:04:04"),
        ("Feb 15 20:04:04.1234 10.0.0.5 ptp4l[383]: [24.634] ", Origin("ptp4l", "10.0.0.5", 383), "Feb 15 20:04:04.1234"),
        ("<30>Feb 15 20:04:04 ptp4l[383]: [24.634] ", Origin("ptp4l", None, 383), "Feb 15 20:04:04"),
        ("Feb 15 20:04:04 ptp4l[383]: [24.634] ", Origin("ptp4l", None, 383), "Feb 15 20:04:04"),
        ("2024-02-15T20:04:04+0100 node1 ptp4l[383]: [24.634] ", Origin("ptp4l", "node1", 383), "2024-02-15T20:04:04+0100"),
        ("2024-02-15T20:04:04.1Z node1 ptp4l[383]: ptp4l[24.634]: ", Origin("ptp4l", "node1", 383), "2024-02-15T20:04:04.1Z"),
        ("Thu 2024-02-15 20:04:04 CET node1 ptp4l@eth0.service[383]: [24.634] ", Origin("ptp4l@eth0.service", "node1", 383), "Thu 2024-02-15 20:04:04 CET"),
        ("[   24.634567] node1 ptp4l[383]: [24.634] ", Origin("ptp4l", "node1", 383), "[   24.634567]"),
        ("1708023844.123456 node1 ptp4l[383]: [24.634] ", Origin("ptp4l", "node1", 383), "1708023844.123456"),
        ("<30>1 2024-02-15T20:04:04.123Z node1 ptp4l 383 - - [24.634] ", Origin("ptp4l", "node1", 383), "2024-02-15T20:04:04.123Z"),
        ("2024-02-15T20:04:04.123456789Z stdout F ptp4l[24.634]: ", Origin("ptp4l"), "2024-02-15T20:04:04.123456789Z stdout F"),
        ("Feb 15 20:04:04 node1 timing[383]: [24.634] ", Origin("timing", "node1", 383), "Feb 15 20:04:04"),
    ],
)  # fmt: skip
def test_each_prefix_gives_program_host_pid_and_stamp(prefix: str, origin: Origin, wall: str) -> None:
    """The stamp is the one with three decimals, never the pid and never the journal's own."""
    assert parsed(prefix + TEXT) == LogLine(origin, "24.634", wall, TEXT)


@pytest.mark.parametrize(
    ("prefix", "host"),
    [
        ("node1: ptp4l[24.634]: ", "node1"),
        ("[pod/linuxptp-a/daemon] ptp4l[24.634]: ", "[pod/linuxptp-a/daemon]"),
        ("linuxptp-a daemon ptp4l[24.634]: ", "linuxptp-a daemon"),
        ("2024-02-15T20:04:04.1Z linuxptp-a daemon ptp4l[24.634]: ", "linuxptp-a daemon"),
        ("ptp-1  | ptp4l[24.634]: ", "ptp-1"),
        ("Feb 15 20:04:04 ptp4l[24.634]: ", None),
        ("Thu Feb 15 20:04:04 CET 2024 ptp4l[24.634]: ", None),
        ("[   24.634567 <    1.000123 >] ptp4l[24.634]: ", None),
        ("17:ptp4l[24.634]: ", None),
        ("\x1b[0;1;39mptp4l[24.634]: ", None),
        ("Feb 15 20:04:04 node1 run.sh[383]: ptp4l[24.634]: ", "node1"),
    ],
)
def test_what_a_collector_puts_before_a_line_names_its_origin(prefix: str, host: str | None) -> None:
    """pdsh, kubectl and stern mix the lines of several machines; a date, or a number of a line, is no origin."""
    origin = parsed(prefix + TEXT).origin

    assert (origin.program, origin.host) == ("ptp4l", host)


def test_docker_and_the_journal_by_server_sent_events_wrap_a_line_in_json() -> None:
    """`docker logs` keeps a line as `log`; `journalctl -o json-sse` puts `data: ` before the entry."""
    assert parsed(json.dumps({"log": f"ptp4l[24.634]: {TEXT}\n", "stream": "stdout"})).text == TEXT
    entry = json.dumps({"MESSAGE": f"[24.634] {TEXT}", "SYSLOG_IDENTIFIER": "ptp4l", "_PID": "383"})
    assert parsed(f"data: {entry}").origin == Origin("ptp4l", None, 383)


@pytest.mark.parametrize(
    "line", ["MESSAGE=[24.634] " + TEXT, "    MESSAGE=[24.634] " + TEXT, '"MESSAGE" : "[24.634] x"']
)
def test_a_field_of_an_entry_over_several_lines_is_not_read(line: str) -> None:
    """The pid of `journalctl -o export`, `verbose` and `json-pretty` is in another line, so nothing tells two programs apart."""
    assert parse_line(line) is None


def test_an_entry_of_json() -> None:
    """`journalctl -o json` has each part as a field; a message that is no text is an array of octets."""
    entry = {
        "MESSAGE": [*f"[24.634] {TEXT}".encode()],
        "SYSLOG_IDENTIFIER": "ptp4l",
        "_PID": "383",
        "_HOSTNAME": "node1",
        "_BOOT_ID": "ab12",
        "__REALTIME_TIMESTAMP": "1708023844123456",
        "__MONOTONIC_TIMESTAMP": "24634567",
    }
    found = parsed(json.dumps(entry))

    assert found == LogLine(Origin("ptp4l", "node1", 383), "24.634", "1708023844123456", TEXT, "ab12", 24_634_567)


def test_a_message_of_json_without_text_is_a_lost_one() -> None:
    """journalctl leaves out a message that is too long, unless it is called with `--all`."""
    assert parse_line('{"MESSAGE": null, "SYSLOG_IDENTIFIER": "ptp4l"}') is Marker.CUT
    assert parse_line('{"MESSAGE": null, "SYSLOG_IDENTIFIER": "sshd"}') is None


@pytest.mark.parametrize(
    "line", ["ptp4l[12.3", "ptp4l[1x.345]: x", "ptp", "Feb 15 20:04:04 node1 ptp4l[38", '{"MESSAGE": "[24.634] mas']
)
def test_a_line_that_is_cut_in_its_prefix(line: str) -> None:
    """It is no line of another program."""
    assert parse_line(line) is Marker.CUT


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Feb 15 20:04:04 node1 systemd[1]: Started ptp4l.service - Precision Time Protocol.",
        "Feb 15 20:04:04 node1 kernel: [   24.634567] eth0: link becomes ready",
        "Feb 15 20:04:04 node1 ts2phc[12]: [24.634] eth0 offset 5 s2 freq +1",
        "-- Logs begin at Thu 2024-02-15 --",
    ],
)
def test_lines_of_others_are_none(line: str) -> None:
    """Also where they name ptp4l."""
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("node1 systemd-journald[321]: Suppressed 1023 messages from ptp4l@eth0.service", 1023),
        ("node1 rsyslogd: imjournal: 12 messages lost due to rate-limiting (20000 allowed within 600 seconds)", 12),
        ("node1 rsyslogd: imuxsock[pid 383]: begin to drop messages due to rate-limiting", None),
    ],
)
def test_a_notice_of_dropped_lines(line: str, lines: int | None) -> None:
    """With their number, where the service reports it."""
    assert parse_line(line) == Lost(lines)


def test_dropped_lines_of_another_unit_do_not_count() -> None:
    """journald limits each unit by itself."""
    assert parse_line("node1 systemd-journald[321]: Suppressed 1023 messages from nginx.service") is None


@pytest.mark.parametrize(
    "line", ["-- Boot 0123456789abcdef --", "-- Reboot --", "Feb 15 20:04:04 node1 kernel: Linux version 6.12.0"]
)
def test_the_begin_of_a_boot(line: str) -> None:
    """Monotonic timestamps restart after it."""
    assert parse_line(line) is Marker.BOOT


@pytest.mark.parametrize(
    ("text", "time_ns", "is_whole"),
    [
        ("2024-02-15T20:04:04+0100", 1_708_023_844_000_000_000, True),
        ("2024-02-15T19:04:04.25Z", 1_708_023_844_250_000_000, False),
        ("Thu 2024-02-15 19:04:04 UTC", 1_708_023_844_000_000_000, True),
        ("Feb 15 19:04:04", 1_708_023_844_000_000_000, True),
        ("Feb 15 19:04:04.123456", 1_708_023_844_123_456_000, False),
        ("1708023844.5", 1_708_023_844_500_000_000, False),
        ("1708023844123456", 1_708_023_844_123_456_000, False),
        ("[   24.634567]", 24_634_567_000, False),
    ],
)
def test_a_date_and_time(text: str, time_ns: int, is_whole: bool) -> None:
    """In nanoseconds; without a year, of a leap year, which has each date."""
    assert parse_walltime(text) == (time_ns, is_whole)


@given(st.text())
def test_any_line_is_read_or_left(line: str) -> None:
    """No line raises an error."""
    parse_line(line)
    parse_walltime(line)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_any_field_of_json_is_read_or_left(value: object) -> None:
    """Also where it has another type than journald gives it."""
    for field in ("MESSAGE", "_PID", "_HOSTNAME", "__MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP", "_BOOT_ID"):
        entry = {"MESSAGE": f"[24.634] {TEXT}", "SYSLOG_IDENTIFIER": "ptp4l", field: value}
        parse_line(json.dumps(entry))
