"""PyTorch profiler traces of two real gloo ranks, merged: what no clock may show does not happen, and what was marked lies there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from perfetto_page import loaded

from timesyncd.__main__ import main
from timesyncd.client import Anchors, Job

pytestmark = pytest.mark.integration

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "profile_job.py"
AHEAD_NS = 3_200_000_017

#: For Perfetto: which process a slice belongs to.
SLICES = """select process.name, slice.name, ts, dur from slice join (
    select id, upid from process_track union all select thread_track.id, upid from thread_track join thread using (utid)
) track on track.id = track_id join process using (upid)"""
COUNTERS = """select process.name, track.name, ts, value from counter
    join process_counter_track track on track.id = track_id join process using (upid)"""
FLOWS = "select count() from flow join slice one on one.id = slice_out join slice other on other.id = slice_in"
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of the example's two ranks, the second of which is 5 ms slow in each step."""
    folder = tmp_path_factory.mktemp("traces")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, str(EXAMPLE), "--out", str(folder), "--steps", "30"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)

    assert done.returncode == 0, done.stderr
    assert "anchors in" in done.stdout
    return [folder / "rank0.json", folder / "rank1.json"]


def collectives(found: dict[str, Any]) -> list[list[tuple[float, float]]]:
    """By rank, begin and end in microseconds of each all-reduce."""
    names = {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}
    by_rank: list[list[tuple[float, float]]] = [[], []]
    for event in found["traceEvents"]:
        if event["name"] == "gloo:all_reduce":
            rank = int(names[event["pid"]].split()[1])
            by_rank[rank].append((event["ts"], event["ts"] + event["dur"]))
    return [sorted(each) for each in by_rank]


def check_causality(found: dict[str, Any]) -> None:
    """No rank leaves a collective before the other one has entered it, by more than the bound that is written."""
    first, second = collectives(found)
    bound_us = found["timesyncd"]["pair_bound_ns"] / 1_000

    assert len(first) == len(second) == 30
    for one, other in zip(first, second, strict=True):
        assert min(one[1], other[1]) + bound_us >= max(one[0], other[0])


def merged(paths: list[Path], output: Path) -> dict[str, Any]:
    assert main(["merge-traces", *map(str, paths), "-o", str(output)]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_two_ranks_of_one_clock(traces: list[Path], tmp_path: Path) -> None:
    """Aligned without any daemon, by the clock that both read; the profiler's own error is measured by the anchors in the trace."""
    found = merged(traces, tmp_path / "all.json")
    files = found["timesyncd"]["files"]

    assert found["timesyncd"]["reference"] == "one_clock"
    assert [(each["rank"], each["profiler_measured"]) for each in files] == [(0, True), (1, True)]
    check_causality(found)


def test_two_ranks_whose_clocks_are_apart(traces: list[Path], tmp_path: Path) -> None:
    """The second as if on a node whose clock is 3.2 s ahead, which its daemon knows within 5 us: the collectives meet again."""
    known = {"bound_ns": 5_000, "growth_ppb": 100, "past_growth_ppb": 100}
    for rank, ahead_ns in enumerate((0, AHEAD_NS)):
        trace = json.loads(traces[rank].read_text())
        trace["baseTimeNanoseconds"] += ahead_ns
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
        head, *lines = (json.loads(line) for line in Path(f"{traces[rank]}.anchors").read_text().splitlines())
        for each in lines:
            for key in ("realtime_ns", "real_minus_boot_ns", "before_ns", "after_ns"):
                each[key] += ahead_ns
            each |= {
                "gm": known | {"offset_ns": ahead_ns},
                "grandmaster_identity": "001122.fffe.334455",
                "utc_seconds_removed": 37,
            }
        head |= {"boot_id": f"{rank:032x}", "node": f"node-{rank}"}
        (tmp_path / f"rank{rank}.json.anchors").write_text("".join(json.dumps(each) + "\n" for each in (head, *lines)))
    found = merged([tmp_path / "rank0.json", tmp_path / "rank1.json"], tmp_path / "all.json")

    assert found["timesyncd"]["reference"] == "grandmaster"
    assert [each["offset_ns"] for each in found["timesyncd"]["files"]] == [0, AHEAD_NS]
    check_causality(found)


async def test_perfetto_takes_it(traces: list[Path], tmp_path: Path) -> None:
    """It complains of nothing, and shows each event and each bound with its rank at its nanosecond, and all that hangs together."""
    events = merged(traces, tmp_path / "all.json")["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    async with loaded(tmp_path / "all.json") as perfetto:
        complaints, [(flows,)] = await perfetto.rows(COMPLAINTS), await perfetto.rows(FLOWS)
        slices, counters = await perfetto.rows(SLICES), await perfetto.rows(COUNTERS)

    def events_of(phases: str) -> list[tuple[str, str, int, dict[str, Any]]]:
        found = [event for event in events if event["ph"] in phases]
        return [(names[each["pid"]], each["name"], round(each["ts"] * 1_000), each) for each in found]

    assert complaints == []
    assert Counter(slices) == Counter((*each, round(event.get("dur", 0) * 1_000)) for *each, event in events_of("Xi"))
    assert counters and Counter(counters) == Counter(
        (process, f"{name} ns", ns, event["args"]["ns"]) for process, name, ns, event in events_of("C")
    )
    assert flows == len(events_of("s")) == len(events_of("f")) > 0


def test_a_profilers_time_lies_within_its_bound(tmp_path: Path) -> None:
    """Each event of a real trace is shown between the readings of the clock around it, give or take the bound."""
    from torch.profiler import ProfilerActivity, profile, record_function

    job = Job("truth", 0, 1, runtime_dir=tmp_path)
    path = tmp_path / "rank0.json"
    truth: dict[str, tuple[int, int]] = {}
    with Anchors(job, path, record_function) as anchors, profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(200):
            before_ns = time.time_ns()
            with record_function(f"mark {number}"):
                pass
            truth[f"mark {number}"] = (before_ns, time.time_ns())
            anchors.step()
            time.sleep(0.001)
    profiler.export_chrome_trace(str(path))
    job.close()
    found = merged([path], tmp_path / "all.json")
    (file,) = found["timesyncd"]["files"]
    shown = {event["name"]: event for event in found["traceEvents"] if event["name"] in truth}

    assert file["profiler_measured"] and file["bound_ns"] == file["profiler_bound_ns"]
    assert len(shown) == 200
    for name, (before_ns, after_ns) in truth.items():
        begin_ns = found["baseTimeNanoseconds"] + round(shown[name]["ts"] * 1_000)
        end_ns = begin_ns + round(shown[name]["dur"] * 1_000)
        assert before_ns - file["bound_ns"] <= begin_ns <= end_ns <= after_ns + file["bound_ns"]
