"""`timesyncd replay`: a bound for each row of a trace as soon as it is read, and for each stored sample."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from samples import HEALTHY, nth

from timesyncd.__main__ import main
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import StoreSettings as Settings
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.observation import Observation
from timesyncd.model.replay import StoredReplay, seconds_text
from timesyncd.sample import ClockSample, GrandmasterSample, NoSample, PhcSample, PortState
from timesyncd.store.writer import Store

HEADER = "t_s,offset_ns,path_delay_ns,freq_ppb,port_state,gm_present,clock_class,clock_accuracy"
REPLAYED_HEADER = "t_s,status,gm_hard_ns,gm_stat_ns,utc_hard_ns,utc_stat_ns"
NO_LOG = "; no line is one of a log of ptp4l, phc2sys or chronyd either (of journalctl, give -o short or -o json)"
COMMAND = [sys.executable, "-m", "timesyncd", "replay"]

#: As a shell has it, whose programs keep what they write until there is much of it.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def row(second: int, offset_ns: int | None = None, state: str = "SLAVE", end: str = "true,6,33") -> str:
    """A row of a healthy clock; the offset differs in each second unless it is given."""
    offset = (second * 37) % 101 - 50 if offset_ns is None else offset_ns
    return f"{second}.250,{offset},10000,{3_000 + second % 3},{state},{end}"


HEALTHY_ROWS = [row(second) for second in range(100)]


def replayed(capsys: pytest.CaptureFixture[str], path: Path, *lines: str) -> list[list[str]]:
    """The cells of each row of the output."""
    path.write_text("\n".join((HEADER, *lines, "")))
    status = main(["replay", str(path)])
    printed = capsys.readouterr()
    first, *rest = printed.out.splitlines()

    assert (status, first, printed.err) == (0, REPLAYED_HEADER, "")
    return [line.split(",") for line in rest]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_one_row_for_each_row(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows keep their order and times; bounds begin once the delay filter has only rows of the trace."""
    rows = replayed(capsys, trace, *HEALTHY_ROWS)

    assert [cells[0] for cells in rows] == [f"{second}.250" for second in range(100)]
    assert rows[0] == ["0.250", "UNKNOWN", "", "", "", ""]
    assert {len(cells) for cells in rows} == {6}
    assert [cells[1] for cells in rows[-60:]] == ["SYNCHRONIZED"] * 60
    assert int(rows[-1][2]) >= 10_000


def test_a_bound_depends_on_earlier_rows_only(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Later rows do not change it."""
    whole = replayed(capsys, trace, *HEALTHY_ROWS, row(100, 5_000_000), row(101, state="LISTENING"))
    begun = replayed(capsys, trace, *HEALTHY_ROWS)

    assert whole[:100] == begun


def test_utc_is_the_accuracy_further(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Class 6 adds the announced accuracy, class 7 the default holdover budget too, any other bounds nothing."""
    ends = {60: "true,6,33", 61: "true,7,0x21", 62: "true,52,33", 63: "true,6,254", 64: "true,,"}
    rows = replayed(capsys, trace, *HEALTHY_ROWS[:60], *(row(second, end=end) for second, end in ends.items()))
    beyond = [int(cells[4]) - int(cells[2]) if cells[4] else None for cells in rows[60:]]

    assert beyond == [100, 1_600, None, None, None]


def test_a_worse_grandmaster_takes_effect_at_once(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes effect without a fresh Sync, an improvement does not."""
    ends = ("true,6,32", "true,6,33", "true,7,33", "true,52,33", "true,6,31", "true,6,32")
    frozen = (row(60 + index, offset_ns=77, end=end) for index, end in enumerate(ends))
    rows = replayed(capsys, trace, *HEALTHY_ROWS[:60], *frozen)
    beyond = [int(cells[4]) - int(cells[2]) if cells[4] else None for cells in rows[60:]]

    assert beyond == [25, 100, 1_600, None, 25, 25]


def test_a_repeated_offset_is_not_fresh(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a loss ptp4l repeats its values: the bound grows, and the status is HOLDOVER after five seconds."""
    frozen = [f"{second}.250,{HEALTHY_ROWS[-1].split(',', 1)[1]}" for second in range(100, 110)]
    rows = replayed(capsys, trace, *HEALTHY_ROWS, *frozen)[99:]
    bounds = [int(cells[2]) for cells in rows]

    assert [cells[1] for cells in rows] == ["SYNCHRONIZED"] * 5 + ["HOLDOVER"] * 6
    assert bounds == sorted(set(bounds))


@pytest.mark.parametrize("state", ["LISTENING", "MASTER", "FAULTY"])
def test_a_port_that_does_not_follow_gives_no_sample(
    trace: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    """The offset of such a row is ignored."""
    rows = replayed(capsys, trace, *HEALTHY_ROWS, *(row(second, state=state) for second in range(100, 110)))

    assert rows[-1][1] == "HOLDOVER"


def test_a_row_without_an_offset_only_advances_time(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand seconds after the last sample the status is UNKNOWN."""
    rows = replayed(capsys, trace, *HEALTHY_ROWS, "1099,,,,,,,", "1099.26,,,,,,,")

    assert [cells[1] for cells in rows[-2:]] == ["HOLDOVER", "UNKNOWN"]
    assert rows[-1] == ["1099.26", "UNKNOWN", "", "", "", ""]


def test_only_a_header_gives_only_a_header(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace without rows is no error."""
    assert replayed(capsys, trace) == []


def test_the_rows_before_an_error_are_written(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error names file and line; the exit status is 2."""
    trace.write_text("\n".join((HEADER, *HEALTHY_ROWS[:3], row(3).replace("SLAVE", "SLOVE"), *HEALTHY_ROWS[4:])))
    status = main(["replay", str(trace)])
    printed = capsys.readouterr()

    assert status == 2
    assert [line.split(",")[0] for line in printed.out.splitlines()] == ["t_s", "0.250", "1.250", "2.250"]
    assert printed.err.startswith(f"timesyncd: {trace}:5: port_state = 'SLOVE' is not one of ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (b"", "1: no header; a trace begins with " + HEADER + NO_LOG),
        (HEADER.encode() + b"\n1.5,12", "2: 2 cells, where the header has 8: is the line cut off?"),
        (HEADER.encode() + b"\n" + bytes(8), "2: 1 cells, where the header has 8: is the line cut off?"),
        (HEADER.encode() + b"\n1,\xff,3,4,SLAVE,true,6,33\n", "2: offset_ns = '\ufffd' is not a number"),
        (HEADER.encode() + b"\n1,1\x00,3,4,SLAVE,true,6,33\n", "2: offset_ns = '1\\x00' is not a number"),
        (b"\x7fELF\x02\x01\x01\x00\n\x00", "1: the header has no " + HEADER.replace(",", ", ") + "; a trace begins with " + HEADER + NO_LOG),
        (HEADER.encode() + b"\n" + b"x" * 1_000_000, "2: 1 cells, where the header has 8: is the line cut off?"),
    ],
)  # fmt: skip
def test_an_invalid_trace_is_one_line(
    trace: Path, capsys: pytest.CaptureFixture[str], content: bytes, printed: str
) -> None:
    """Empty, truncated, binary and endless input gives one line and no traceback."""
    trace.write_bytes(content)
    status = main(["replay", str(trace)])

    assert status == 2
    assert capsys.readouterr().err == f"timesyncd: {trace}:{printed}\n"


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file and a folder end with exit status 2."""
    assert [main(["replay", str(path)]) for path in (tmp_path, tmp_path / "none.csv")] == [2, 2]
    assert capsys.readouterr() == (
        "",
        f"timesyncd: {tmp_path}: Is a directory\ntimesyncd: {tmp_path}/none.csv: No such file or directory\n",
    )


@pytest.mark.parametrize("words", [["--since", "1h"], ["--store", "x"], ["trace.csv", "--source", "ptp"]])
def test_trace_and_store_exclude_each_other(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Options that would be ignored are a usage error."""
    assert main(["replay", *words]) == 2
    assert capsys.readouterr().err.startswith("timesyncd: replay")


@pytest.mark.parametrize("words", [[], ["-"]])
def test_a_pipe_is_answered_row_by_row(words: list[str]) -> None:
    """Each row written to a pipe gets its result before the next one."""
    with subprocess.Popen(
        [*COMMAND, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=BUFFERED
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        answers = []
        for line in (HEADER, *HEALTHY_ROWS[:3]):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())
        process.stdin.close()
        rest = process.stdout.read()

    assert [answer.split(",")[0] for answer in answers] == ["t_s", "0.250", "1.250", "2.250"]
    assert (rest, process.returncode) == ("", 0)


def test_a_row_that_comes_in_pieces_is_one_row() -> None:
    """A row may arrive in pieces, split within a character."""
    data = (HEADER + ",ü\n" + HEALTHY_ROWS[0] + ",ü\n").encode()
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        for begin in range(0, len(data), 7):
            process.stdin.write(data[begin : begin + 7])
            time.sleep(0.001)
        process.stdin.close()
        printed = process.stdout.read()

    assert printed.decode().splitlines() == [REPLAYED_HEADER, "0.250,UNKNOWN,,,,"]


def test_a_closed_pipe_is_silent(trace: Path) -> None:
    """A reader such as `head -1` causes no message."""
    trace.write_text("\n".join((HEADER, *(row(second) for second in range(5_000)))))
    with subprocess.Popen(
        [*COMMAND, str(trace)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        complaints = process.stderr.read()

    assert (complaints, process.returncode) == (b"", 130)


def test_progress_is_for_a_terminal(trace: Path) -> None:
    """Progress is printed to a terminal on stderr, and the rows are the same."""
    trace.write_text("\n".join((HEADER, *HEALTHY_ROWS)))
    ours, theirs = pty.openpty()
    done = subprocess.run([*COMMAND, str(trace)], stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    drawn = os.read(ours, 65_536)
    os.close(ours)

    assert b"100%" in drawn
    assert len(done.stdout.splitlines()) == 101


@pytest.mark.parametrize("kind", [[], ["--from", "ptp4l-log"], ["--from", "chrony-tracking"]])
def test_what_has_no_line_ends_is_refused(kind: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of 1 TB with a hole would be read for hours."""
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)

    assert main(["replay", *kind, str(tmp_path / "hole")]) == 2
    assert capsys.readouterr().err.endswith("a line has more than 16 MiB: it is no trace and no log\n")


GROUND_NS = time.time_ns() - 60 * NS_PER_S - HEALTHY.as_of_ns
TAI_MINUS_UTC_NS = 37 * NS_PER_S


def stored(index: int, **changes: object) -> ClockSample:
    return nth(index, offset_ns=index % 7, real_minus_boot_ns=GROUND_NS, **changes)


def read_at_sync(index: int, source: str) -> ClockSample:
    """A Sync on a PHC on TAI, which was read one millisecond after it."""
    sample = stored(index, source=source, clock="phc:0", ptp_timescale=True, current_utc_offset_s=37)
    at_ns = sample.as_of_ns + 1_000_000
    phc = PhcSample(source, "phc:0", at_ns, GROUND_NS, -TAI_MINUS_UTC_NS, 600, "extended", -20, -20)
    return replace(sample, read_ns=at_ns, ingress_time_ns=phc.phc_ns - 1_000_000, phc=phc)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """
    Two hundred samples of ptp within the last minute, then a restart; as many of a PHC, which is read at none, at each, or
    at all but the last ten Syncs; one of a grandmaster.
    """
    path = tmp_path_factory.mktemp("store") / "history.sqlite"
    store = Store(Settings(path=path), SystemClocks(), lambda problem: None)
    store.start()
    for index in range(200):
        store.put(Observation(stored(index), None))
        store.put(Observation(stored(index, source="nic", clock="phc:0"), None))
        store.put(Observation(read_at_sync(index, "card"), None))
        mixed = read_at_sync(index, "mixed")
        store.put(Observation(mixed if index < 190 else replace(mixed, phc=None), None))
    store.put(Observation(NoSample("ptp", 1, "ptp4l restarted", restarted=True, port_state=PortState.LISTENING), None))
    store.put(Observation(GrandmasterSample("gm", SystemClocks().boottime_ns()), None))
    store.stop()
    yield path


def replayed_store(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    status = main(["replay", *words])
    printed = capsys.readouterr()
    return status, printed.out.splitlines(), printed.err


def test_the_store_s_samples_are_replayed(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each sample and each failure has a row with its Unix time and the model's bounds."""
    status, lines, complaints = replayed_store(capsys, "--source", "ptp", "--store", str(store_path))
    rows = [line.split(",") for line in lines]
    replay = StoredReplay("ptp", EnsembleSettings())
    last = [replay.accept(stored(index)) for index in range(200)][-1]
    unix_ns = stored(199).read_ns + GROUND_NS

    assert (status, complaints, lines[0]) == (0, "", REPLAYED_HEADER)
    assert len(rows) == 1 + 200 + 1
    assert lines[200] == f"{seconds_text(unix_ns)},SYNCHRONIZED,{last.gm_hard_ns},{last.gm_stat_ns},,"
    assert rows[201][1:] == ["DISRUPTED", "", "", "", ""]


def test_since_counts_back_from_now(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Older samples are not used."""
    _, lines, _ = replayed_store(capsys, "--source", "ptp", "--store", str(store_path), "--since", "30s")

    assert len(lines) == 2


def test_the_bounds_of_a_hardware_clock_are_named(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message states that the bounds are those of the PHC."""
    _, lines, complaints = replayed_store(capsys, "--source", "nic", "--store", str(store_path))

    assert lines[-1].split(",")[1] == "SYNCHRONIZED"
    assert complaints == "nic measures phc:0: the bounds are those of that clock, not of the system clock\n"


def test_where_the_phc_was_read_the_bounds_are_those_of_the_system_clock(
    store_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store whose samples hold the PHC's reading gives the system clock's bounds, and no message states otherwise."""
    _, lines, complaints = replayed_store(capsys, "--source", "card", "--store", str(store_path))

    assert (lines[-1].split(",")[1], complaints) == ("SYNCHRONIZED", "")


def test_samples_without_the_phc_s_reading_are_counted(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where some Syncs have a reading of the PHC and others none, the message is about the latter alone."""
    _, _, complaints = replayed_store(capsys, "--source", "mixed", "--store", str(store_path))

    without = "in 10 of 200 samples mixed did not read the PHC"
    assert complaints == f"{without}: these rows bound phc:0, and not the system clock\n"


@pytest.mark.parametrize(("source", "why"), [("gm", "is no PTP source (ptp4l)"), ("other", "is not in the store")])
def test_a_source_without_ptp_is_an_error(
    store_path: Path, capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    """The error lists the sources that can be replayed."""
    printed = replayed_store(capsys, "--source", source, "--store", str(store_path))

    line = f"{store_path}: source {source!r} {why}; PTP sources that can be replayed: card, mixed, nic, ptp"
    assert printed == (2, [], f"timesyncd: {line}\n")


def test_the_configuration_gives_store_and_settings(
    store_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bound includes [source.bounds]; a missing [store] is an error."""
    source = '[[source]]\nname = "ptp"\ndriver = "ptp4l"\n[source.bounds]\nasymmetry_uncertainty_ns = 12345\n'
    config = tmp_path / "timesyncd.toml"
    config.write_text(source + f'[store]\npath = "{store_path}"\n')
    (_, plain, _), (_, assumed, _) = (
        replayed_store(capsys, "--source", "ptp", *words) for words in (["--store", str(store_path)], ["--config", str(config)])
    )  # fmt: skip
    config.write_text(source)
    status, _, complaint = replayed_store(capsys, "--source", "ptp", "--config", str(config))

    assert int(assumed[200].split(",")[2]) - int(plain[200].split(",")[2]) == 12_345
    assert (status, complaint) == (
        2,
        f"timesyncd: {config}: no [store] section, so there is nothing to replay; name a store with --store\n",
    )


def last_of(*readings: ClockSample | NoSample) -> str:
    replay = StoredReplay("ptp", EnsembleSettings())
    return [replay.accept(reading).status.name for reading in readings][-1]


HUNDRED = [stored(index) for index in range(100)]


def test_a_reboot_invalidates_the_samples() -> None:
    """If CLOCK_BOOTTIME goes back, the clock is that of another boot."""
    after = replace(HUNDRED[0], as_of_ns=NS_PER_S, read_ns=NS_PER_S)

    assert last_of(*HUNDRED) == "SYNCHRONIZED"
    assert last_of(*HUNDRED, after) == "DISRUPTED"


def test_a_step_of_the_clock_invalidates_the_samples() -> None:
    """A step shows in CLOCK_REALTIME minus CLOCK_BOOTTIME; for a PHC it is irrelevant."""
    after = replace(stored(100), real_minus_boot_ns=GROUND_NS + 2_001)
    unstepped = replace(stored(100), real_minus_boot_ns=GROUND_NS + 2_000)
    of_a_phc = [replace(sample, clock="phc:0") for sample in (*HUNDRED, after)]

    assert last_of(*HUNDRED, after) == "DISRUPTED"
    assert last_of(*HUNDRED, unstepped) == "SYNCHRONIZED"
    assert last_of(*of_a_phc) == "SYNCHRONIZED"


def test_another_hardware_clock_is_another_clock() -> None:
    """Samples of one hardware clock do not apply to another."""
    assert last_of(*HUNDRED, replace(stored(100), clock="phc:1")) == "DISRUPTED"
