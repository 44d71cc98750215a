"""`timesyncd audit --from`: traces of all ranks by their content, one error for each bad file, and what stays unknown."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import audit_lab as recording_lab
import pytest
from jsonschema_rs import Draft202012Validator
from pipeline_job import SimulatedJob, run
from pipeline_traces import inspector_log, kineto, write_kineto

from timesyncd.__main__ import main
from timesyncd.audit import trace_files
from timesyncd.cli.schemas import documents

JOB = SimulatedJob(dp=2, pp=2, tp=2, micro_batches=4, steps=5, slow={5: 1.5})


def audited(tmp_path: Path, *paths: Path, more: tuple[str, ...] = ()) -> int:
    return main(["audit", "--from", *map(str, paths), "--out", str(tmp_path / "report"), *more])


def test_the_slow_rank_of_packed_traces_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline names the rank, its node and the step without it; the page and report.json exist."""
    assert audited(tmp_path, *write_kineto(JOB, tmp_path, packed=True)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Rank 5 on node-5 computes")
    assert "than the ranks that do the same work. Without it a step takes" in lines[0]
    assert lines[-1] == f"Report: {tmp_path / 'report' / 'report.html'}"
    page = (tmp_path / "report" / "report.html").read_text()
    assert lines[0] in page
    assert "http" not in page


def test_json_fits_the_published_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints report.json, whose schema is published."""
    assert audited(tmp_path, *write_kineto(JOB, tmp_path), more=("--json",)) == 0

    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "report" / "report.json").read_text())
    Draft202012Validator(json.loads(documents()["blame_report.json"])).validate(found)
    assert [(cause["kind"], cause["rank"]) for cause in found["causes"]] == [("rank", 5)]
    assert len(found["clocks"]) == 8
    assert max(abs(clock["offset_ns"]) for clock in found["clocks"]) > 1_000_000


def test_a_recording_of_metered_ranks_is_replayed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What run-audit recorded needs no profiler: rank 2 of four computes 5 ms longer."""
    recorded = recording_lab.job(ranks=4, computing=recording_lab.late(2, computing=recording_lab.noisy()))

    assert audited(tmp_path, recording_lab.saved(tmp_path / "recording.json", recorded)) == 0
    assert capsys.readouterr().out.startswith("Rank 2 on node-0 computes")

    empty = recording_lab.saved(tmp_path / "empty.json", recording_lab.job(steps=0))
    assert audited(tmp_path, empty) == 2
    assert "has no step with the marks of all its ranks" in capsys.readouterr().err


def test_a_folder_of_traces_is_all_traces_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files and hidden ones are left out; a folder without traces is one error that names it."""
    (tmp_path / "README.txt").write_text("what was recorded")
    (tmp_path / ".rank0.json").write_text("half a file")
    write_kineto(JOB, tmp_path)

    assert audited(tmp_path, tmp_path) == 0
    assert capsys.readouterr().out.startswith("Rank 5 on node-5 computes")

    (tmp_path / "none").mkdir()
    assert audited(tmp_path, tmp_path / "none") == 2
    assert f"{tmp_path / 'none'}: the folder has no traces" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [slice(0, 3), slice(2, 5)], ids=["ends-early", "begins-late"])
def test_traces_of_unequal_numbers_of_steps_are_compared_in_common_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: slice
) -> None:
    """Rank 2's profile has three of the five steps; the slow rank is named from these."""
    paths = write_kineto(JOB, tmp_path)
    trace = json.loads(paths[2].read_text())
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep"))
    begin, end = steps[kept][0][0], steps[kept][-1][1]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if begin <= event["ts"] < end]
    paths[2].write_text(json.dumps(trace))

    assert audited(tmp_path, *paths, more=("--json",)) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["steps"] == 3
    assert [(cause["kind"], cause["rank"]) for cause in found["causes"]] == [("rank", 5)]


def test_a_trace_of_another_run_is_named_as_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3's trace is of a run an hour later: nothing is named, and the reason states which trace."""
    paths = write_kineto(JOB, tmp_path)
    other = replace(JOB, seed=9, slow={1: 1.7})
    later = kineto(other, run(other), 3)
    later["baseTimeNanoseconds"] += 3_600_000_000_000
    paths[3].write_text(json.dumps(later))

    assert audited(tmp_path, *paths, more=("--json",)) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["unknown_code"], found["causes"]) == ("other_run", [])
    assert found["unknown"].startswith(
        "the traces of rank 3 are 3,600 s away from the others, so they are of another run"
    )


def test_a_rank_without_a_trace_leaves_the_culprit_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All others may wait for the absent rank: no rank is named as late, and the reason names the absent one."""
    paths = [path for path in write_kineto(JOB, tmp_path) if path.name != "rank3.json"]

    assert audited(tmp_path, *paths, more=("--json",)) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["causes"], found["absent_ranks"], found["unknown_code"]) == ([], [3], "ranks_absent")
    assert found["headline"] == "Which rank to blame is unknown: 1 of 8 ranks have no trace: 3."


def test_a_rank_twice_leaves_the_culprit_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two traces of one rank are of two runs, or one file was given twice."""
    paths = write_kineto(JOB, tmp_path)

    assert audited(tmp_path, *paths, paths[0]) == 0
    assert "are both of rank 0" in capsys.readouterr().out


def test_each_bad_file_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line names the file and what is wrong there; the others are read all the same."""
    good = write_kineto(JOB, tmp_path)[0]
    bad = {
        "broken.json": good.read_bytes()[:5000],
        "packed.json.gz": gzip.compress(good.read_bytes())[:500],
        "rank_1": pickle.dumps({"entries": [print]}),
        "a.log": b'{"header": {}, "coll_perf": {}}',
        "notes.txt": b"hello",
        "empty": b"",
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)

    folder = tmp_path / "folder"
    folder.mkdir()

    assert audited(tmp_path, good, *(tmp_path / name for name in bad), tmp_path / "nowhere", folder) == 2

    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].rsplit("/", 1)[-1] for line in errors] == [*bad, "nowhere", "folder"]
    assert "truncated" in errors[0] and "truncated" in errors[1]
    assert "refers to builtins.print" in errors[2]
    assert "line 1: the object has no 'metadata'" in errors[3]
    assert not (tmp_path / "report").exists()


def test_a_dump_that_unpacks_without_end_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is read whole is counted as it is unpacked, and never held beyond its limit."""
    monkeypatch.setattr(trace_files, "MAX_WHOLE_BYTES", 4 << 20)
    bomb = tmp_path / "rank_0"
    bomb.write_bytes(gzip.compress(b"\x80\x02" + bytes(64 << 20)))

    assert audited(tmp_path, bomb) == 2
    assert "rank_0: the file has more than 4 MiB" in capsys.readouterr().err


def test_logs_of_nccl_inspector_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ranks of all logs belong to one job; that they show no computing is a note."""
    job = SimulatedJob(dp=8, pp=1, tp=1, slow={2: 1.5}, steps=8)
    runs = run(job)
    paths = [tmp_path / f"node-0-pid{5000 + rank}.log" for rank in range(8)]
    for rank, path in enumerate(paths):
        path.write_text(inspector_log(job, runs, rank))

    assert audited(tmp_path, *paths) == 0
    out = capsys.readouterr().out
    assert out.startswith("Rank 2 on node-2 computes")
    assert "every communication counts as waited for" in out


def test_recorders_of_a_hang_show_who_did_not_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without times no rank is blamed, but the report states the rank whose recorder ends earlier."""
    paths = []
    for rank in range(3):
        entries = [
            {
                "profiling_name": "nccl:all_reduce",
                "collective_seq_id": number,
                "process_group": ("0", "default_pg"),
                "time_created_ns": 1_795_690_054_000_000_000 + number,
                "time_discovered_completed_ns": None,
            }
            for number in range(1, 9 - (rank == 1))
        ]
        paths.append(tmp_path / f"trace_{rank}")
        paths[-1].write_bytes(pickle.dumps({"version": "2.10", "entries": entries, "pg_config": {}}))

    assert audited(tmp_path, *paths) == 0
    out = capsys.readouterr().out
    assert out.startswith("Which rank to blame is unknown: ")
    assert "In process group 0 the recorders of the ranks 1 end before all_reduce 8, which the other 2 called." in out


def test_before_is_refused_with_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--before` compares recordings of the client."""
    assert audited(tmp_path, tmp_path / "rank0.json", more=("--before", str(tmp_path))) == 2
    assert "not possible with --from" in capsys.readouterr().err


def test_a_trace_of_events_alone_is_chromes_other_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of events is read as an object's traceEvents; its rank is in the name."""
    path = tmp_path / "rank0.json"
    path.write_text("[]")

    assert audited(tmp_path, path) == 0
    assert "no collective and no message" in capsys.readouterr().out
