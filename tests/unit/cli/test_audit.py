"""`timesyncd audit`: of a recording, of a running job, and before and after a change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from audit_lab import job, late, saved

from timesyncd.__main__ import main
from timesyncd.cli import _common
from timesyncd.jobs.recording import RecordingMessage


@contextmanager
def daemon(answers: dict[str, Any]) -> Iterator[str]:
    """A server that replies as the HTTP API does."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            printed = answers.get(self.path)
            body = json.dumps({"error": "there is none"} if printed is None else printed).encode()
            self.send_response(404 if printed is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_recording_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline is first, the path of the report last, and both files exist."""
    path = saved(tmp_path / "now.json", job(60, computing=late(1)))

    assert main(["audit", "--record", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].startswith("Rank 1 on node-0 is persistently late")
    assert lines[-1] == f"Report: {tmp_path / 'out' / 'report.html'}"
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]


def test_the_folder_of_a_job_s_audit_is_a_recording(tmp_path: Path) -> None:
    """By its recording.json, which `audit --job` writes beside its report."""
    saved(tmp_path / "recording.json", job(300, computing=late(1)))
    folder, out = str(tmp_path), str(tmp_path / "out")

    assert main(["audit", "--record", folder, "--before", folder, "--out", out]) == 0
    assert main(["advise", folder]) == 0


@pytest.mark.parametrize("words", [("audit", "--record"), ("audit", "--from"), ("advise",), ("audit", "--before")])
def test_names_in_a_recording_are_text(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal gets no control character of a job's or a host's name, and no line that looks like another one."""
    forged = "\x1b]0;owned\x07\nReport: elsewhere"
    recorded = job(60, 3, late(1))
    ranks = {rank: replace(record, node=forged) for rank, record in recorded.ranks.items()}
    path = str(saved(tmp_path / "now.json", replace(recorded, job=forged, ranks=ranks)))

    if words[-1] == "--before":
        words = ("audit", "--record", path, "--before")
    main([*words, path, *(["--out", str(tmp_path / "out")] if words[0] == "audit" else [])])
    lines = capsys.readouterr().out.split("\n")

    assert any("owned" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert "Report: elsewhere" not in lines


def test_a_name_in_an_error_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value of a file that is no recording is quoted without what a terminal acts on."""
    (tmp_path / "rank\x1b[2J.marks").write_bytes(b"\4\0\0\0none")

    for words in (["audit", "--record"], ["audit", "--from"], ["advise"]):
        assert main([*words, str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"timesyncd: {tmp_path}/rank\\x1b[2J.marks: ")


def test_numbers_that_no_report_can_hold_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged recording, whose times or counts add up to more than 64 bits, is an error that names the number."""
    recorded = job(30)
    lost = {rank: replace(record, marks_lost=2**63 - 1) for rank, record in recorded.ranks.items()}
    path = saved(tmp_path / "damaged.json", replace(recorded, ranks=lost))

    assert main(["audit", "--record", str(path), "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the recording of the job 'train' has impossible numbers, so it is damaged: marks_lost = 18446744" in line


def test_json_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints report.json and nothing else."""
    path = saved(tmp_path / "now.json", job(60))

    assert main(["audit", "--record", str(path), "--before", str(path), "--out", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr().out

    assert printed == (tmp_path / "report.json").read_text()
    assert json.loads(printed)["before_after"]["step_ratio"]["value"] == 1


def test_a_running_job_is_fetched_page_by_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hub's pages make one recording, which is saved for a later comparison."""
    whole = RecordingMessage.of(job(60, computing=late(1)))
    first = {"syncs": whole.syncs[:60], "steps": whole.steps[:50], "next_step": 30}
    rest = {"syncs": whole.syncs[60:], "steps": whole.steps[50:]}
    jobs = [{"job_id": "0f3a", "job": "train", "published_realtime_ns": 2}]
    window = "/api/v1/jobs/0f3a/window?limit=1000"
    answers = {
        "/api/v1/jobs?limit=1000": {"items": jobs, "next": None},
        window: json.loads(whole.model_copy(update=first).model_dump_json()),
        f"{window}&from_step=30": json.loads(whole.model_copy(update=rest).model_dump_json()),
    }

    with daemon(answers) as url:
        assert main(["audit", "--job", "train", "--url", url, "--out", str(tmp_path)]) == 0
        assert main(["audit", "--job", "eval", "--url", url, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()

    assert RecordingMessage.model_validate_json((tmp_path / "recording.json").read_text()) == whole
    assert printed.err == f"timesyncd: {url}: no job 'eval'; known jobs: train\n"


@pytest.mark.parametrize("printed", [{"items": [], "next": None}, {"items": [{}], "next": None}, [], {"no": "api"}])
def test_an_invalid_reply_is_one_line(printed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid reply gives one line on stderr."""
    with daemon({"/api/v1/jobs?limit=1000": printed}) as url:
        assert main(["audit", "--job", "train", "--url", url, "--out", str(tmp_path)]) in (1, 2)

    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("command", [["audit", "--record", "x"], ["run-audit", "--", "true"]])
def test_a_missing_extra_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a charting library the exit status is 2, and the script is not started."""
    monkeypatch.setattr(_common, "_EXTRA", ("no_such_library",))

    assert main(command) == 2
    assert "in timesyncd's source folder, pip install '.[audit]'" in capsys.readouterr().err
