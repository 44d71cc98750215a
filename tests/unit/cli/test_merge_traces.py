"""`timesyncd merge-traces`: one file of many, traces that are not aligned, and unreadable ones."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from trace_files import TRUE_NS, anchor, anchors_text, owner, trace_text, write_rank

from timesyncd.__main__ import main
from timesyncd.clocks import NS_PER_S

AHEAD_NS = 3_200_000_017


def merged(folder: Path, *paths: Path, status: int = 0) -> dict[str, Any]:
    output = folder / "all.json"

    assert main(["merge-traces", *map(str, paths), "-o", str(output)]) == status
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Path, Path]:
    """Two traces, of clocks that are 3.2 s apart."""
    return write_rank(tmp_path, 0), write_rank(tmp_path, 1, AHEAD_NS)


def test_the_same_collective_is_at_the_same_place(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Ten collectives of two ranks are at their true times in both."""
    found = merged(tmp_path, *ranks)
    at_us: dict[int, list[float]] = {}
    for event in found["traceEvents"]:
        if event["name"] == "gloo:all_reduce":
            at_us.setdefault(event["pid"], []).append(event["ts"])
            assert event["dur"] == 250.5
    first, second = at_us.values()

    assert first == second
    assert first == [(TRUE_NS - found["baseTimeNanoseconds"]) / 1_000 + n * 1e6 for n in range(10)]


def test_ids_of_two_ranks_differ(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Processes, threads and flows of two ranks have different ids, and keep their relations within a rank."""
    events = merged(tmp_path, *ranks)["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    by_rank = [
        {pid for pid, name in named.items() if name.startswith(f"rank {rank} on node-{rank}: ")} for rank in (0, 1)
    ]

    assert by_rank[0] and by_rank[1] and not by_rank[0] & by_rank[1]
    for what in ("tid", "id"):
        of = [{event[what] for event in events if event["pid"] in pids and what in event} for pids in by_rank]
        assert of[0] and not of[0] & of[1]
    flows = [(event["ph"], event["id"]) for event in events if "id" in event]
    assert sorted(n for ph, n in flows if ph == "s") == sorted(n for ph, n in flows if ph == "f")
    assert any(name == "rank 1 on node-1: python (4001)" for name in named.values())


def test_the_uncertainty_is_in_the_trace(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """A counter and an event of each rank have it, and the head of the file."""
    found = merged(tmp_path, *ranks)
    counters = [event for event in found["traceEvents"] if event["ph"] == "C"]
    printed = [event["args"] for event in found["traceEvents"] if event["name"] == "clock alignment"]
    labels = [event["args"]["labels"] for event in found["traceEvents"] if event["name"] == "process_labels"]

    assert {(event["name"], event["args"]["ns"]) for event in counters} == {
        ("clock bound", 97_911),
        ("clock bound", 7_000),
    }
    assert printed == found["timesyncd"]["files"]
    assert [(each["aligned"], each["bound_ns"], each["offset_ns"]) for each in printed] == [
        (True, 97_911, 0), (True, 97_911, AHEAD_NS),
    ]  # fmt: skip
    assert found["timesyncd"]["pair_bound_ns"] == 2 * 97_911
    assert "CPU, within 97.9 us of the grandmaster" in labels


def test_global_events_belong_to_their_rank(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """The profiler's global events are on its own rank, and every process and thread has a name."""
    events = merged(tmp_path, *ranks)["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    ends = [event for event in events if event["name"] == "Record Window End"]

    assert [event["s"] for event in ends] == ["p", "p"]
    assert [named[event["pid"]] for event in ends] == [
        f"rank {rank} on node-{rank}: python ({4000 + rank})" for rank in (0, 1)
    ]
    assert all(event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name"))
    assert {event["pid"] for event in events} == set(named)


def test_processes_of_a_rank_stay_together(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """A rank's own process is first, then the others in the order of the file."""
    others = [(0, "python", 5_000_000), (1, "python", 5_000_001), ("Overhead", "", 10), ("Spans", "", 536_870_912)]
    for rank, path in enumerate(ranks):
        trace = json.loads(path.read_text())
        for pid, name, order in others:
            about = {"ph": "M", "pid": pid, "tid": 0}
            trace["traceEvents"].append(about | {"name": "process_name", "args": {"name": name}})
            trace["traceEvents"].append(about | {"name": "process_sort_index", "args": {"sort_index": order}})
        path.write_text(json.dumps(trace))
    events = merged(tmp_path, *reversed(ranks))["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    orders = {event["args"]["sort_index"]: event["pid"] for event in events if event["name"] == "process_sort_index"}
    wanted = ["python ({main})", "Overhead", "python (0)", "python (1)", "Spans"]

    assert [named[pid] for _, pid in sorted(orders.items())] == [
        f"rank {rank} on node-{rank}: {name.format(main=4000 + rank)}" for rank in (0, 1) for name in wanted
    ]
    assert max(orders) < 2**31  # which is as much as Perfetto takes


def test_compressed_files_are_the_same(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Input and output may be compressed; the side file has the uncompressed name."""
    plain = merged(tmp_path, *ranks)
    packed = tmp_path / "rank1.json.gz"
    packed.write_bytes(gzip.compress(ranks[1].read_bytes()))
    output = tmp_path / "all.json.gz"

    assert main(["merge-traces", str(ranks[0]), str(packed), "-o", str(output)]) == 0
    assert len(json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]) == len(plain["traceEvents"])


def test_one_recording_serves_all_traces_of_a_process(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """A trace without a side file uses that of its process, found by host and process id."""
    (tmp_path / "rank1.json.anchors").rename(tmp_path / "rank-1-4001.anchors")
    other = owner(0, pid=4001)
    (tmp_path / "rank-0-4001.anchors").write_text(anchors_text(other, [anchor(0, 1)]))

    assert [each["offset_ns"] for each in merged(tmp_path, *ranks)["timesyncd"]["files"]] == [0, AHEAD_NS]


def test_another_container_s_process_is_not_used(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Two containers may share a process id: a trace without a host name uses its rank's anchors, or none."""
    wrong = [anchor(n, 2 * n - 0.5, 3 * NS_PER_S) for n in range(6)]
    (tmp_path / "rank1.json.anchors").unlink()
    (tmp_path / "rank-0-4001.anchors").write_text(anchors_text(owner(0, pid=4001), wrong))
    ranks[1].write_text(trace_text(1, AHEAD_NS, host_name=None, distributedInfo={"rank": 1}))
    assert merged(tmp_path, *ranks, status=1)["timesyncd"]["files"][1]["bound_ns"] is None

    right = [anchor(n, 2 * n - 0.5, AHEAD_NS) for n in range(6)]
    (tmp_path / "rank-1-4001.anchors").write_text(anchors_text(owner(1), right))
    assert merged(tmp_path, *ranks)["timesyncd"]["files"][1]["offset_ns"] == AHEAD_NS

    ranks[1].write_text(trace_text(1, AHEAD_NS, host_name=None))
    assert merged(tmp_path, *ranks, status=1)["timesyncd"]["files"][1]["bound_ns"] is None


def test_the_older_side_file_is_read_too(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Anchors of the older, full file are read with the newer ones."""
    side = tmp_path / "rank1.json.anchors"
    every = [anchor(n, 2 * n - 0.5, AHEAD_NS) for n in range(6)]
    (tmp_path / "rank1.json.anchors.old").write_text(anchors_text(owner(1), every[:3]))
    side.write_text(anchors_text(owner(1), every[3:]))

    assert merged(tmp_path, *ranks)["timesyncd"]["files"][1]["anchors"] == 6


@pytest.mark.parametrize("name", ["rank1.json.anchors", "rank1.json.anchors.old", "rank-1-4001.anchors"])
def test_anchors_that_are_a_pipe_are_reported(
    name: str, tmp_path: Path, ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It may never end."""
    if not name.endswith(".old"):
        (tmp_path / "rank1.json.anchors").unlink()
    os.mkfifo(tmp_path / name)

    assert main(["merge-traces", *map(str, ranks), "-o", str(tmp_path / "merged.json")]) == 2
    assert capsys.readouterr().err == f"timesyncd: {tmp_path / name}: it is no regular file\n"


def test_a_trace_may_have_the_longest_name(tmp_path: Path) -> None:
    """The name of its side file would be too long, so there is none."""
    trace = tmp_path / f"{'t' * 250}.json"
    trace.write_text(trace_text(0, 0))

    assert main(["merge-traces", str(trace), "-o", str(tmp_path / "merged.json")]) == 1


def test_an_unaligned_trace_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output, the trace and the exit status report it; its events keep their own clock."""
    paths = [write_rank(tmp_path, 0), write_rank(tmp_path, 1, AHEAD_NS)]
    (tmp_path / "rank1.json.anchors").unlink()
    found = merged(tmp_path, *paths, status=1)
    names = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"]
    out = capsys.readouterr().out

    assert f"{paths[1]}: {paths[1]} on node-1, NOT ALIGNED: the trace has no anchors; record them with" in out
    assert any(name.endswith("python (4001) NOT ALIGNED") for name in names)
    assert found["timesyncd"]["files"][1]["bound_ns"] is None and found["timesyncd"]["pair_bound_ns"] is None


def test_json_has_the_same_result(tmp_path: Path, ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """One object has the alignment of each file."""
    output = str(tmp_path / "all.json")

    assert main(["merge-traces", *map(str, ranks), "-o", output, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["output"], printed["reference"]) == (output, "grandmaster")
    assert [each["rank"] for each in printed["files"]] == [0, 1]


def line(**changes: Any) -> str:
    """The anchors of rank 1, with changes to the third one."""
    every = [asdict(anchor(n, 2 * n - 0.5)) for n in range(6)]
    every[2] |= changes
    return anchors_text(owner(1), []) + "".join(json.dumps(each) + "\n" for each in every)


BOUND = {"offset_ns": 0, "bound_ns": 5_000, "growth_ppb": 0, "past_growth_ppb": 0}
IMPOSSIBLE: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "no JSON": lambda: "what\n",
    "an array": lambda: "[]\n",
    "another file": lambda: '{"a": 1}\n',
    "a newer version": lambda: anchors_text(owner(1), []).replace('"version": 1', '"version": 9'),
    "a rank beyond the world": lambda: anchors_text(owner(5), []),
    "a bound below 0": lambda: line(gm=BOUND | {"bound_ns": -1}),
    "a bound that is a word": lambda: line(gm=BOUND | {"bound_ns": "5 us"}),
    "a bound that is true": lambda: line(gm=BOUND | {"bound_ns": True}),
    "a growth below 0": lambda: line(utc=BOUND | {"growth_ppb": -1}),
    "no bound": lambda: line(gm=None),
    "an offset of ages": lambda: line(gm=BOUND | {"offset_ns": 2**70}),
    "no status": lambda: line(status="FINE"),
    "time that goes back": lambda: line(monotonic_ns=1),
    "raw time that goes back": lambda: line(raw_ns=1),
    "a time before all": lambda: line(realtime_ns=-5),
    "a float": lambda: line(realtime_ns=1.5),
    "a clock that runs by itself": lambda: line(realtime_ns=TRUE_NS - 100 * NS_PER_S),
    "an annotation that ends before it begins": lambda: line(before_ns=2, after_ns=1),
    "too deep": lambda: "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_invalid_anchors_are_an_error(
    what: str, tmp_path: Path, ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, the exit status is 2, and there is no output."""
    side = tmp_path / "rank1.json.anchors"
    side.write_text(IMPOSSIBLE[what]())

    assert main(["merge-traces", *map(str, ranks), "-o", str(tmp_path / "all.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"timesyncd: {side}:") and error.count("\n") == 1
    assert not (tmp_path / "all.json").exists()


def test_a_truncated_last_line_is_ignored(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """A killed process leaves one; its earlier anchors count."""
    side = tmp_path / "rank1.json.anchors"
    side.write_text(side.read_text() + '{"number":7,"real')

    assert merged(tmp_path, *ranks)["timesyncd"]["files"][1]["anchors"] == 6


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "cut off": lambda: trace_text(1).encode()[:900],
    "packed and cut off": lambda: gzip.compress(trace_text(1).encode())[:200],
    "packed and wrong": lambda: gzip.compress(trace_text(1).encode())[:60] + b"x" * 60,
    "no JSON": lambda: b"\x00\xff binary",
    "a list": lambda: b"[]",
    "no events": lambda: b"{}",
    "a time that is a word": lambda: b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": "now"}]}',
    "a time beyond all": lambda: b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 1e300}]}',
    "a process that is a list": lambda: b'{"traceEvents": [{"ph": "X", "pid": [1], "tid": 1, "name": "a", "ts": 1}]}',
    "a base that is none": lambda: trace_text(1, baseTimeNanoseconds="x").encode(),
    "a base after the events": lambda: b'{"traceEvents": [{"pid": 1}], "baseTimeNanoseconds": 5}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_invalid_trace_is_an_error(
    what: str, tmp_path: Path, ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, the exit status is 2, and a former output is unchanged."""
    ranks[1].write_bytes(BROKEN[what]())
    output = tmp_path / "all.json"
    output.write_text("former")

    assert main(["merge-traces", *map(str, ranks), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"timesyncd: {ranks[1]}: ") and error.count("\n") == 1
    assert output.read_text() == "former"
    assert not list(tmp_path.glob(".all*"))


def test_invalid_paths_are_errors(tmp_path: Path, ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A missing input, a duplicate, an output that is an input, and a missing folder are one line each."""
    one, other = map(str, ranks)
    for arguments, printed in (
        ([one, str(tmp_path / "none.json"), "-o", "x"], "none.json: No such file"),
        ([one, one, "-o", "x"], "given twice"),
        ([one, other, "-o", one], "is one of the traces"),
        ([one, other, "-o", str(tmp_path / "no" / "all.json")], "No such file"),
        ([one, str(tmp_path), "-o", "x"], "Is a directory"),
    ):
        assert main(["merge-traces", *arguments]) == 2
        error = capsys.readouterr().err
        assert printed in error and error.count("\n") == 1


def test_a_rank_that_a_trace_names_by_itself(tmp_path: Path, ranks: tuple[Path, Path]) -> None:
    """Without anchors the profiler's rank counts; control characters are not printed."""
    ranks[1].write_text(trace_text(1, distributedInfo={"rank": 7}, host_name="n\x1b[31m\ud800"))
    (tmp_path / "rank1.json.anchors").unlink()
    found = merged(tmp_path, *ranks, status=1)

    assert any(
        e["args"]["name"].startswith("rank 7 on n?[31m?: python")
        for e in found["traceEvents"]
        if e["name"] == "process_name"
    )


def test_a_stepped_clock_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file with a clock step is named, with its size."""
    every = [anchor(n, 2 * n - 0.5) for n in range(3)] + [anchor(n, 2 * n - 0.5, 500_000_000) for n in range(3, 6)]
    paths = [write_rank(tmp_path, 0), write_rank(tmp_path, 1, 0, every)]
    merged(tmp_path, *paths, status=1)

    assert (
        f"{paths[1]}: rank 1 on node-1, NOT ALIGNED: the system clock was stepped by 500 ms during the trace"
        in capsys.readouterr().out
    )


def test_anchors_of_another_boot_are_not_used(tmp_path: Path) -> None:
    """Anchors of an earlier boot do not cover the trace."""
    every = [
        replace(each, realtime_ns=each.realtime_ns - 3_600 * NS_PER_S) for each in (anchor(n, 2 * n) for n in range(6))
    ]
    every = [replace(each, real_minus_boot_ns=each.real_minus_boot_ns - 3_600 * NS_PER_S) for each in every]
    paths = [write_rank(tmp_path, 0), write_rank(tmp_path, 1, 0, every)]
    found = merged(tmp_path, *paths, status=1)

    assert found["timesyncd"]["files"][1]["reason_code"] == "ends_after_anchors"
