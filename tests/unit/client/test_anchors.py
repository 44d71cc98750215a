"""Anchors beside a trace are written without a daemon too, and errors of the disk do no harm."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from published import publish

from timesyncd.client import Anchors, Job, anchors, record_anchors
from timesyncd.traces.anchors import AnchorFile, read_anchors


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job("train", 3, 4, node="node-d", runtime_dir=tmp_path / "run")
    yield job
    job.close()


@pytest.fixture(autouse=True)
def _always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "FIRST_ANCHOR_INTERVAL_NS", 0)
    monkeypatch.setattr(anchors, "_NUMBERS", itertools.count(1))


def read(path: Path) -> AnchorFile:
    with open(path, encoding="utf-8") as lines:
        return read_anchors(lines, str(path))


def test_anchors_hold_the_bound(job: Job, tmp_path: Path) -> None:
    """Each anchor has the bounds against the grandmaster and UTC, the grandmaster's identity, and no clock step."""
    (tmp_path / "run").mkdir()
    publish(tmp_path / "run", grandmaster_identity="001122.fffe.334455")
    with Anchors(job, tmp_path / "rank3.json") as kept:
        kept.step()
    found = read(tmp_path / "rank3.json.anchors")

    assert (found.owner.job, found.owner.rank, found.owner.node, found.owner.pid) == ("train", 3, "node-d", os.getpid())
    assert [each.number for each in found.anchors] == [1, 2, 3]
    for each in found.anchors:
        assert each.gm.offset_ns == 0 and each.gm.bound_ns is not None and each.gm.bound_ns >= 5_000
        assert each.utc.bound_ns is not None and each.utc.bound_ns >= 6_000
        assert (each.gm.growth_ppb, each.utc_seconds_removed) == (50_100, 37)
        assert (each.grandmaster_identity, each.reason_code, each.reason) == ("001122.fffe.334455", "ok", "")
    assert kept.problem is None


def test_without_a_daemon_an_anchor_has_the_reason(job: Job, tmp_path: Path) -> None:
    """The clock readings are written all the same: ranks of one node need no more."""
    Anchors(job, tmp_path / "t.json").close()
    first, last = read(tmp_path / "t.json.anchors").anchors

    assert (first.gm.bound_ns, first.status) == (None, "UNKNOWN")
    assert first.reason_code == "no_segment" and first.reason.startswith("no clock segment")
    assert last.monotonic_ns > first.monotonic_ns


def test_no_anchor_is_written_before_it_is_due(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step costs one clock reading; the interval of anchors doubles up to two seconds."""
    monkeypatch.setattr(anchors, "FIRST_ANCHOR_INTERVAL_NS", 3_600 * 10**9)
    with record_anchors(job, tmp_path) as kept:
        for _ in range(1_000):
            kept.step()

    assert kept.path == tmp_path / f"rank-3-{os.getpid()}.anchors"
    assert len(read(kept.path).anchors) == 2


def test_an_annotation_is_between_two_readings(job: Job, tmp_path: Path) -> None:
    """Each anchor is in the trace under its number; an annotation that calls `step` again does no harm."""
    shown: list[str] = []

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        shown.append(name)
        kept = shown and globals().get("_kept")
        if isinstance(kept, Anchors):
            kept.step()
        yield

    with Anchors(job, tmp_path / "t.json", annotate) as kept:
        globals()["_kept"] = kept
        kept.step()
    del globals()["_kept"]
    found = read(tmp_path / "t.json.anchors").anchors

    assert shown == [f"{anchors.ANNOTATION}{each.number}" for each in found]
    assert all(each.before_ns and each.after_ns and each.before_ns < each.after_ns for each in found)


def test_two_files_of_a_process_have_different_annotations(job: Job, tmp_path: Path) -> None:
    """Both annotate one trace, and each finds its own annotations there."""
    shown: list[str] = []

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        shown.append(name)
        yield

    with Anchors(job, tmp_path / "a.json", annotate), Anchors(job, tmp_path / "b.json", annotate):
        pass

    assert len(set(shown)) == 4


@pytest.mark.parametrize("where", ["full", "a folder", "below a file"])
def test_a_failing_disk_does_no_harm(where: str, job: Job, tmp_path: Path) -> None:
    """The step continues, and `problem` states the error."""
    path = tmp_path / "t.json"
    if where == "full":
        (tmp_path / "t.json.anchors").symlink_to("/dev/full")
    elif where == "a folder":
        (tmp_path / "t.json.anchors").mkdir()
    else:
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "t.json"
    with Anchors(job, path) as kept:
        kept.step()

    assert kept.problem is not None and kept.problem.startswith(f"{path}.anchors: ")
    assert kept.problem.endswith("; no further anchor is written")


def test_a_disk_that_fails_at_close_does_no_harm(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system reports lost writes at the close: `problem` states it."""
    close, kept = os.close, Anchors(job, tmp_path / "t.json")

    def failing(file: int) -> None:
        close(file)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        kept.close()
        kept.close()

    assert kept.problem == f"{kept.path}: Input/output error; anchors may be missing at the end of the file"


def test_a_full_file_is_replaced_by_a_new_one(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has a maximum size; the file before it stays."""
    monkeypatch.setattr(anchors, "MAX_ANCHORS_PER_FILE", 3)
    with Anchors(job, tmp_path / "t.json") as kept:
        for _ in range(3):
            kept.step()

    assert [each.number for each in read(Path(f"{kept.path}.old")).anchors] == [1, 2, 3]
    assert [each.number for each in read(kept.path).anchors] == [4, 5]


def test_a_forked_child_writes_nothing(job: Job, tmp_path: Path) -> None:
    """A data loader's worker that inherits the object does not write to the parent's file."""
    kept = Anchors(job, tmp_path / "t.json")
    pid = os.fork()
    if pid == 0:
        kept.step()
        kept.close()
        os._exit(0)
    os.waitpid(pid, 0)
    kept.close()

    assert [each.number for each in read(kept.path).anchors] == [1, 2]
