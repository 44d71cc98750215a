"""`timesyncd replay` on logs: the right rows, or one clear error; and a report of all that was left out."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from timesyncd.__main__ import main

LOGS = Path(__file__).parents[2] / "recordings" / "logs"

Rows = list[dict[str, str]]


def replayed(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[Rows, str]:
    """The rows of a replay that succeeds, and its summary."""
    status = main(["replay", str(path), *options])
    printed = capsys.readouterr()

    assert status == 0, printed.err
    return list(csv.DictReader(io.StringIO(printed.out))), printed.err


def refused(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> str:
    """The one line of the error of a replay that fails."""
    status = main(["replay", str(path), *options])
    printed = capsys.readouterr()

    assert status == 2
    assert printed.err.count("\n") == 1
    return printed.err


def sync(second: int, pid: int = 383, freq: int = -25_000, delay: int = 625, servo: int = 2) -> str:
    """A line of plain `journalctl`."""
    offset = second * 37 % 101 - 50
    return (
        f"Feb 15 20:{second // 60 % 60:02d}:{second % 60:02d} node1 ptp4l[{pid}]: [{second}.634]"
        f" master offset {offset:10d} s{servo} freq {freq + second % 3:+7d} path delay {delay:9d}"
    )


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "ptp4l.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_another_port_that_changes_state_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a boundary clock only the followed port counts: each Sync arrived, so no row is HOLDOVER."""
    rows, _ = replayed(capsys, LOGS / "other_port_changes_state.log")

    assert len(rows) == 110
    assert [row["status"] for row in rows[21:]] == ["SYNCHRONIZED"] * 89
    assert all(int(row["gm_hard_ns"]) < 60_000 for row in rows[21:])


def test_the_time_is_ptp4l_s_stamp_and_not_its_pid(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain `journalctl` puts the pid into brackets before it."""
    rows, _ = replayed(capsys, LOGS / "journal_with_pid.log")

    assert [row["t_s"] for row in rows] == ["24.634", "25.634", "26.634", "27.635"]


def test_a_step_of_the_servo_makes_earlier_samples_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    """The offset of 32,360 s at the step is the one before it: no later bound contains it, and for 20 s there is none."""
    rows, summary = replayed(capsys, LOGS / "servo_steps_the_clock.log")
    times = [float(row["t_s"]) for row in rows]
    bounded = [(time, int(row["gm_hard_ns"])) for time, row in zip(times, rows, strict=True) if row["gm_hard_ns"]]

    assert next(time for time, _ in bounded) - 15_085.778 > 20
    assert max(bound_ns for _, bound_ns in bounded) < 100_000_000
    assert bounded[-1][1] < 20_000_000
    assert "steps of the clock: 1" in summary


def test_a_step_ends_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was known is DISRUPTED, until samples after the step fill the delay filter."""
    lines = [sync(second) for second in range(100)] + [sync(100, servo=0), sync(101, servo=1)]
    rows, _ = replayed(capsys, written(tmp_path, *lines, *(sync(second) for second in range(102, 140))))

    assert rows[99]["status"] == "SYNCHRONIZED"
    assert [row["status"] for row in rows[101:120]] == ["DISRUPTED"] * 19
    assert {row["gm_hard_ns"] for row in rows[101:120]} == {""}
    assert rows[-1]["status"] == "SYNCHRONIZED"


@pytest.mark.parametrize("form", ["plain", "cat", "m", "json", "precise", "iso", "rfc5424", "both"])
def test_each_form_of_a_log_gives_the_same_rows(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Syslog, the journal in each of its forms, `-m`, and both in one journal: the times and bounds are the same."""
    texts = [f"master offset {second * 37 % 101:10d} s2 freq  -25000 path delay       625" for second in range(60)]
    stamps = [f"{second}.634" for second in range(60)]
    prefixes = {
        "plain": "Feb 15 20:04:04 node1 ptp4l[383]: [{}] {}",
        "cat": "[{}] {}",
        "m": "ptp4l[{}]: {}",
        "precise": "Feb 15 20:04:04.123456 node1 ptp4l[383]: [{}] {}",
        "iso": "2024-02-15T20:04:04+0100 node1 ptp4l[383]: [{}] {}",
        "rfc5424": "<30>1 2024-02-15T20:04:04.123Z node1 ptp4l 383 - - [{}] {}",
        "both": "Feb 15 20:04:04 node1 ptp4l[383]: [{0}] {1}\nFeb 15 20:04:04 node1 ptp4l[383]: ptp4l[{0}]: {1}",
    }
    if form == "json":
        lines = [json.dumps({"MESSAGE": f"[{stamp}] {text}", "_PID": "383", "SYSLOG_IDENTIFIER": "ptp4l"})
                 for stamp, text in zip(stamps, texts, strict=True)]  # fmt: skip
    else:
        lines = [prefixes[form].format(stamp, text) for stamp, text in zip(stamps, texts, strict=True)]
    rows, summary = replayed(capsys, written(tmp_path, *lines))
    plain, _ = replayed(capsys, written(tmp_path, *(f"ptp4l[{s}]: {t}" for s, t in zip(stamps, texts, strict=True))))

    assert rows == plain
    assert [row["t_s"] for row in rows] == stamps
    assert rows[-1]["status"] == "SYNCHRONIZED"
    assert ("lines that the log has twice: 60" in summary) == (form == "both")


def test_two_instances_are_an_error_that_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is written; `--instance` chooses one."""
    lines = [line for second in range(60) for line in (sync(second), sync(second, pid=991, freq=4_000))]
    path = written(tmp_path, *lines)
    error = refused(capsys, path)
    rows, summary = replayed(capsys, path, "--instance", "991")

    assert "'node1 ptp4l[383]', 'node1 ptp4l[991]'" in error
    assert "--instance" in error
    assert len(rows) == 60
    assert "measurements of other instances: 60" in summary


def test_a_cut_line_of_another_instance_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its step is not one of the chosen clock."""
    lines = [line for second in range(60) for line in (sync(second), sync(second, pid=991, freq=4_000))]
    lines[-2:-2] = [f"Feb 15 20:05:00 node1 ptp4l[383]: [58.900] {text}" for text in ("master off", "port 1: SLAVE to")]
    rows, summary = replayed(capsys, written(tmp_path, *lines), "--instance", "991")

    assert rows[-1]["status"] == "SYNCHRONIZED"
    assert "lines cut" not in summary


def test_the_same_pid_on_two_hosts_is_two_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log server has the lines of many hosts."""
    lines = [sync(second).replace("node1", host) for second in range(30) for host in ("node1", "node2")]

    assert "'node1 ptp4l[383]', 'node2 ptp4l[383]'" in refused(capsys, written(tmp_path, *lines))


def test_tags_are_instances_whatever_the_level_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `message_tag [ptp4l.0.config:{level}]` one program has several tags, and two programs have two."""

    def tagged(second: int, number: int) -> list[str]:
        return [f"ptp4l[{second}.634]: [ptp4l.{number}.config:6] {sync(second).partition('] ')[2]}"]

    one = [line for second in range(60) for line in tagged(second, 0)]
    one.insert(30, "ptp4l[29.900]: [ptp4l.0.config:5] port 1: UNCALIBRATED to SLAVE on MASTER_CLOCK_SELECTED")
    rows, _ = replayed(capsys, written(tmp_path, *one))
    two = [line for second in range(60) for number in (0, 1) for line in tagged(second, number)]
    path = written(tmp_path, *two)
    error = refused(capsys, path)
    chosen, _ = replayed(capsys, path, "--instance", "ptp4l.1.config")

    assert len(rows) == 61
    assert "'ptp4l [ptp4l.0.config:]', 'ptp4l [ptp4l.1.config:]'" in error
    assert len(chosen) == 60


def test_an_instance_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names those that are."""
    error = refused(capsys, written(tmp_path, *map(sync, range(30))), "--instance", "7")

    assert "no instance '7'; it has 'node1 ptp4l[383]'" in error


def test_a_restart_is_the_same_instance_with_nothing_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another pid after the first one ended: the service was restarted, and its delay filter is empty."""
    lines = [sync(second) for second in range(60)] + [sync(second, pid=991) for second in range(60, 90)]
    rows, summary = replayed(capsys, written(tmp_path, *lines))

    assert Counter(row["status"] for row in rows[60:80]) == {"DISRUPTED": 20}
    assert rows[-1]["status"] == "SYNCHRONIZED"
    assert "restarts of the program: 1" in summary


def test_another_boot_is_another_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its monotonic timestamps restart."""
    lines = [*map(sync, range(100, 160)), "-- Boot 0123456789abcdef0123456789abcdef --", *map(sync, range(60))]
    path = written(tmp_path, *lines)
    error = refused(capsys, path)
    rows, _ = replayed(capsys, path, "--instance", "boot 2")

    assert "'node1 ptp4l[383] boot 1', 'node1 ptp4l[383] boot 2'" in error
    assert [rows[0]["t_s"], rows[-1]["t_s"]] == ["0.634", "59.634"]


def test_the_journal_s_boot_id_tells_boots_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the pid is the same in both, and no line marks the reboot."""
    entry = {"SYSLOG_IDENTIFIER": "ptp4l", "_PID": "383", "_HOSTNAME": "node1"}
    lines = [
        json.dumps(entry | {"MESSAGE": sync(second).partition("383]: ")[2], "_BOOT_ID": boot})
        for boot in ("aa", "bb")
        for second in range(30)
    ]

    assert "'node1 ptp4l[383] boot 1', 'node1 ptp4l[383] boot 2'" in refused(capsys, written(tmp_path, *lines))


def test_time_that_goes_back_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the line and both times."""
    error = refused(capsys, written(tmp_path, *map(sync, range(30, 60)), sync(12)))

    assert "ptp4l.log:31: time goes back from 59.634 s to 12.634 s" in error


def test_a_summary_is_refused_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It summarizes many Syncs, of which none can be replayed."""
    line = "ptp4l[344.386]: rms 5395 max 6072 freq  -9110 +/- 217 delay   232 +/-   1"
    error = refused(capsys, written(tmp_path, line))

    assert "ptp4l.log:1: a summary" in error
    assert "summary_interval" in error


@pytest.mark.parametrize(
    ("cut", "is_step_possible"),
    [("master offset        -22 s2 freq", False), ("master offset        -22", True), ("mast", True)],
)
def test_a_cut_line_is_counted_and_located(
    cut: str, is_step_possible: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the state of the servo is not legible, the line may be a step: then nothing is known any more."""
    lines = [*map(sync, range(60)), f"Feb 15 20:05:00 node1 ptp4l[383]: [60.634] {cut}", *map(sync, range(61, 70))]
    rows, summary = replayed(capsys, written(tmp_path, *lines))

    assert len(rows) == 69
    assert "lines cut or garbled, the first is" in summary and "ptp4l.log:61: 1" in summary
    assert rows[60]["status"] == ("DISRUPTED" if is_step_possible else "SYNCHRONIZED")


def test_a_last_line_without_its_end_is_not_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the path delay digits may be missing; ptp4l pads it, so a shorter field was cut."""
    path = tmp_path / "ptp4l.log"
    whole = "\n".join(map(sync, range(30)))
    path.write_text(whole[:-1])
    cut, summary = replayed(capsys, path)
    path.write_text(whole)
    complete, _ = replayed(capsys, path)

    assert (len(cut), len(complete)) == (29, 30)
    assert "ptp4l.log:30: 1" in summary


@pytest.mark.parametrize(
    "notice",
    [
        "Feb 15 20:05:00 node1 systemd-journald[321]: Suppressed 1023 messages from ptp4l.service",
        "Feb 15 20:05:00 node1 rsyslogd: imjournal: 1023 messages lost due to rate-limiting (20000 allowed)",
        "Feb 15 20:05:00 node1 rsyslogd: imuxsock[pid 383]: begin to drop messages due to rate-limiting",
    ],
)
def test_dropped_lines_make_earlier_samples_invalid(
    notice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step may be among them."""
    lines = [*map(sync, range(60)), notice, *map(sync, range(80, 90))]
    rows, summary = replayed(capsys, written(tmp_path, *lines))

    assert rows[60]["status"] == "DISRUPTED"
    assert "notices that the logging service dropped lines: 1" in summary


def test_missing_state_changes_make_earlier_samples_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The port was SLAVE, and is LISTENING: a line between is missing, and more may be."""
    change = "Feb 15 20:04:04 node1 ptp4l[383]: [{}.700] port 1: {} to {} on RS_SLAVE"
    lines = [change.format(0, "UNCALIBRATED", "SLAVE"), *map(sync, range(1, 60))]
    lines += [change.format(60, "LISTENING", "UNCALIBRATED"), *map(sync, range(61, 70))]
    rows, summary = replayed(capsys, written(tmp_path, *lines))

    assert rows[-1]["status"] == "DISRUPTED"
    assert "changes of the port's state are missing: 1" in summary


def test_the_followed_port_that_leaves_is_time_without_syncs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ages to HOLDOVER, and its return gives no bound before the filter is full again."""
    change = "Feb 15 20:04:04 node1 ptp4l[383]: [{}.700] port 1 (eth0): {} to {} on RS_SLAVE"
    lines = [change.format(0, "UNCALIBRATED", "SLAVE"), *map(sync, range(1, 60))]
    lines += [change.format(67, "SLAVE", "LISTENING"), change.format(75, "LISTENING", "UNCALIBRATED")]
    lines += [*map(sync, range(80, 120))]
    rows, _ = replayed(capsys, written(tmp_path, *lines))

    assert [row["status"] for row in rows[58:81]] == ["SYNCHRONIZED", *["HOLDOVER"] * 22]
    assert rows[-1]["status"] == "SYNCHRONIZED"


def test_another_master_makes_earlier_samples_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ptp4l 3 repeats the line for the same master, which changes nothing."""
    best = "Feb 15 20:04:04 node1 ptp4l[383]: [{}.700] selected best master clock 00a069.fffe.0b552{}"
    lines = [best.format(0, "d"), *map(sync, range(1, 60)), best.format(60, "d"), *map(sync, range(61, 70))]
    same, _ = replayed(capsys, written(tmp_path, *lines))
    other, summary = replayed(capsys, written(tmp_path, *lines, best.format(70, "e"), *map(sync, range(71, 75))))

    assert same[-1]["status"] == "SYNCHRONIZED"
    assert other[-1]["status"] == "DISRUPTED"
    assert "changes of the master: 1" in summary


def test_two_ports_that_follow_are_an_error_that_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--port` chooses one, by number or by interface."""
    change = "Feb 15 20:04:04 node1 ptp4l[383]: [0.{}] port {} (eth{}): LISTENING to UNCALIBRATED on RS_SLAVE"
    path = written(tmp_path, change.format("100", 1, 0), change.format("200", 2, 1), *map(sync, range(1, 40)))
    error = refused(capsys, path)
    rows, _ = replayed(capsys, path, "--port", "eth1")

    assert "ptp4l.log:3: a Sync, and several ports follow a master: choose one with --port: 1 (eth0), 2 (eth1)" in error
    assert len(rows) == 39


def test_a_port_that_does_not_follow_has_no_syncs(capsys: pytest.CaptureFixture[str]) -> None:
    """Port 3 of the boundary clock was LISTENING while port 2 followed."""
    error = refused(capsys, LOGS / "other_port_changes_state.log", "--port", "3")
    rows, _ = replayed(capsys, LOGS / "other_port_changes_state.log", "--port", "2")

    assert "port 3 was LISTENING" in error
    assert len(rows) == 110


def test_two_clocks_that_nothing_tells_apart_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o cat` has no pid: frequency and delay take turns."""
    lines = [line for second in range(60) for line in (sync(second), sync(second, freq=4_000, delay=90_000))]
    path = written(tmp_path, *(line.partition("383]: ")[2] for line in lines))

    assert "two clocks take turns" in refused(capsys, path)


def test_a_sync_without_any_time_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As documentation shows them, with stamps removed."""
    error = refused(capsys, written(tmp_path, "master offset     -23947 s0 freq      +0 path delay     11350"))

    assert "ptp4l.log:1: no time" in error


def test_without_ptp4l_s_stamp_the_date_is_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In whole seconds no frequency can be used: the bounds are wider, and the summary says why."""
    lines = [sync(second).replace(f"[{second}.634] ", "") for second in range(60)]
    rows, summary = replayed(capsys, written(tmp_path, *lines))
    first, last = int(rows[0]["t_s"]), int(rows[-1]["t_s"])

    assert last - first == 59
    assert "whole seconds" in summary


def test_a_log_without_a_sync_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A grandmaster's log has none."""
    line = "ptp4l[12.345]: port 1: LISTENING to MASTER on ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES"

    assert "no Sync" in refused(capsys, written(tmp_path, line))


PHC2SYS = "Feb 15 20:04:{0:02d} node1 phc2sys[400]: [{0}.100] {1} {2} offset {3:9d} s{4} freq   -6785 delay   1651"


def test_phc2sys_bounds_the_system_clock_against_the_phc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The offset, and half of the reading's width, rounded up; a step has no bound."""
    lines = [PHC2SYS.format(10, "CLOCK_REALTIME", "phc", -13, 2), PHC2SYS.format(11, "CLOCK_REALTIME", "phc", 7, 1)]
    rows, summary = replayed(capsys, written(tmp_path, *lines))

    assert [(row["t_s"], row["status"], row["phc_hard_ns"]) for row in rows] == [
        ("10.100", "SYNCHRONIZED", "839"),
        ("11.100", "DISRUPTED", ""),
    ]
    assert {row["gm_hard_ns"] + row["utc_hard_ns"] for row in rows} == {""}
    assert "phc2sys-log: 2 readings" in summary


def test_a_phc2sys_reading_without_a_delay_has_no_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a PPS the width of the reading is not in the log, and a width of 0 would be a bound that is wrong."""
    line = PHC2SYS.format(10, "CLOCK_REALTIME", "phc", -13, 2)
    rows, summary = replayed(
        capsys, written(tmp_path, line, PHC2SYS.format(11, "CLOCK_REALTIME", "phc", -13, 2).partition(" delay")[0])
    )

    assert [row["status"] for row in rows] == ["SYNCHRONIZED", "UNKNOWN"]
    assert "without a delay (as of a PPS) the width of the reading is unknown" in summary


def test_a_phc2sys_log_whose_time_goes_back_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of two boots would be one clock's history, so the line and both times are named."""
    lines = [PHC2SYS.format(second, "CLOCK_REALTIME", "phc", 5, 2) for second in (11, 10)]

    assert "ptp4l.log:2: time goes back from 11.100 s to 10.100 s" in refused(capsys, written(tmp_path, *lines))


def test_a_phc2sys_line_that_is_logged_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that was exported with its syslog file has each line twice."""
    lines = [PHC2SYS.format(second, "CLOCK_REALTIME", "phc", 5, 2) for second in (10, 10, 11)]
    rows, _ = replayed(capsys, written(tmp_path, *lines))

    assert [row["t_s"] for row in rows] == ["10.100", "11.100"]


def test_the_clocks_of_one_phc2sys_are_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `-a` it steers several."""
    lines = [PHC2SYS.format(second, sink, "phc", 5, 2) for second in (1, 2) for sink in ("CLOCK_REALTIME", "eth1")]
    path = written(tmp_path, *lines)

    assert "'node1 phc2sys[400] CLOCK_REALTIME', 'node1 phc2sys[400] eth1'" in refused(capsys, path)
    assert len(replayed(capsys, path, "--instance", "eth1")[0]) == 2


def test_a_log_of_both_programs_is_ptp4l_s_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--from` reads the other one."""
    both = (line for s in range(30) for line in (PHC2SYS.format(s, "CLOCK_REALTIME", "phc", 5, 2), sync(s)))
    path = written(tmp_path, *both)
    ptp4l, _ = replayed(capsys, path)
    phc2sys, _ = replayed(capsys, path, "--from", "phc2sys-log")

    assert "phc_hard_ns" not in ptp4l[0]
    assert {row["phc_hard_ns"] for row in phc2sys} == {"831"}


def test_tracking_bounds_the_system_clock_and_not_the_corrected_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The offset minus the correction that is still to make, half of the root delay, and the root dispersion."""
    rows, _ = replayed(capsys, LOGS / "chronyd_4.3_tracking.log")

    assert rows[0]["status"] == "UNKNOWN"
    assert {row["status"] for row in rows[1:]} == {"SYNCHRONIZED"}
    # The server is 2 ms ahead of this clock, which `chronyd -x` never corrects.
    assert all(1_990_000 < int(row["utc_hard_ns"]) < 2_020_000 for row in rows[1:])
    assert [row["t_s"] for row in rows[:3]] == ["1795678113", "1795678114", "1795678114"]


def test_measurements_bound_chronyd_s_corrected_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The correction still to make is not in that log, so nothing bounds the system clock."""
    rows, _ = replayed(capsys, LOGS / "chronyd_4.3_measurements.log")

    assert {row["utc_hard_ns"] for row in rows} == {""}
    assert 1_990_000 < int(rows[0]["corrected_hard_ns"]) < 2_020_000
    assert int(rows[-1]["corrected_hard_ns"]) < 20_000


def test_measurements_that_failed_chronyd_s_tests_have_no_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """chronyd does not use them, and nor does the replay; a note says why."""
    path = tmp_path / "measurements.log"
    path.write_text((LOGS / "chronyd_4.3_measurements.log").read_text().replace("1 111 111 1111", "1 111 101 1111"))
    rows, summary = replayed(capsys, path)

    assert {(row["status"], row["corrected_hard_ns"]) for row in rows} == {("UNKNOWN", "")}
    assert "measurements that failed chronyd's tests" in summary


def test_a_date_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is named, and no time is made up for it."""
    path = tmp_path / "measurements.log"
    path.write_text((LOGS / "chronyd_4.3_measurements.log").read_text().replace("2026-11-26", "2026-11-31"))

    assert "measurements.log:4: '2026-11-31 07:28:33' is not a date and time" in refused(capsys, path)


def test_several_servers_are_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their addresses choose."""
    text = (LOGS / "chronyd_4.3_measurements.log").read_text()
    path = tmp_path / "measurements.log"
    path.write_text(text + text.replace("127.0.0.1  ", "203.0.113.7"))

    assert "'127.0.0.1', '203.0.113.7'" in refused(capsys, path)
    assert len(replayed(capsys, path, "--instance", "203.0.113.7")[0]) == 27


def test_a_reference_clock_is_no_bound_on_utc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own error is not in the log: a PHC that follows PTP is no measure of UTC."""
    path = tmp_path / "tracking.log"
    path.write_text((LOGS / "chronyd_4.3_tracking.log").read_text().replace("127.0.0.1 ", "PHC0      "))
    rows, summary = replayed(capsys, path)

    assert {row["status"] for row in rows} == {"UNKNOWN"}
    assert "PHC0 is a reference clock" in summary


def test_json_is_a_row_a_line_and_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """Integers are integers, and what is absent is null."""
    status = main(["replay", "--json", str(LOGS / "other_port_changes_state.log")])
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())

    assert status == 0
    assert (rows[0]["t_s"], rows[0]["gm_hard_ns"]) == ("5000.000", None)
    assert rows[-1]["gm_hard_ns"] > 0
    assert last["summary"]["measurements"] == 110
    assert last["summary"]["rows"]["SYNCHRONIZED"] == 89


def test_a_pipe_is_answered_line_by_line(tmp_path: Path) -> None:
    """Its kind is detected by its first lines."""
    command = [sys.executable, "-m", "timesyncd", "replay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as replay:
        assert replay.stdin is not None and replay.stdout is not None
        replay.stdin.write("Feb 15 20:00:00 node1 systemd[1]: Started ptp4l.service\n")
        answers = []
        for second in range(3):
            replay.stdin.write(sync(second) + "\n")
            if second == 0:
                assert replay.stdout.readline().startswith("t_s,status")
            answers.append(replay.stdout.readline().split(",")[0])
        replay.stdin.close()

        assert replay.wait() == 0
    assert answers == ["0.634", "1.634", "2.634"]


def test_two_instances_in_a_pipe_are_an_error_where_it_shows(tmp_path: Path) -> None:
    """The pid that ended speaks again, so it was no restart; before, nothing was known of the new one."""
    lines = [*map(sync, range(30)), sync(30, pid=991), sync(31)]
    done = subprocess.run(
        [sys.executable, "-m", "timesyncd", "replay"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "standard input:32: these are the lines of 2 instances" in done.stderr
    assert done.stdout.splitlines()[-1].split(",")[:3] == ["30.634", "DISRUPTED", ""]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--port", "1"], "--port is for a log of ptp4l"),
        (["--instance", "1"], "--instance is for a log"),
    ],
)
def test_options_of_a_log_are_an_error_for_a_trace(
    options: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that was asked for is ignored."""
    path = tmp_path / "trace.csv"
    path.write_text("t_s,offset_ns,path_delay_ns,freq_ppb,port_state,gm_present,clock_class,clock_accuracy\n")

    assert main(["replay", str(path), *options]) == 2
    assert complaint in capsys.readouterr().err
