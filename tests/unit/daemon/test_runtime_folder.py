"""The daemon's own folder: one daemon for each, and what is removed from it comes back."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from published import good_bound

from timesyncd.client import Clock
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.daemon.runtime_folder import RuntimeFolder
from timesyncd.errors import ConfigError
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import SegmentReader, SegmentWriter

LAYOUT = clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
PAYLOAD = clock_segment.encode(good_bound(), clock_segment.Epoch(boot_id(), time_namespace()))


def read(folder: Path) -> tuple[int, ...] | None:
    return SegmentReader(folder / clock_segment.NAME, *LAYOUT).read()


def test_a_second_daemon_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    """Two of them would take each other's marks; the kernel frees the folder however a daemon ends."""
    holder = "import sys; from pathlib import Path; from timesyncd.daemon.runtime_folder import RuntimeFolder; "
    holder += "folder = RuntimeFolder(Path(sys.argv[1])); print(flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(ConfigError, match="another daemon uses this folder"):
            RuntimeFolder(tmp_path)
        first.kill()
        first.wait()
        RuntimeFolder(tmp_path).close()


def test_another_user_cannot_keep_the_daemon_from_starting(tmp_path: Path) -> None:
    """Every user who may enter the folder may lock it; only the daemon's user may open the file that the daemon locks."""
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    RuntimeFolder(tmp_path).close()
    os.close(folder)

    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


@pytest.mark.parametrize("removed", ["segment", "folder"])
def test_what_is_removed_is_made_again_with_the_last_bound(tmp_path: Path, removed: str) -> None:
    """A clock that starts later finds it; the lock is on the folder that is there."""
    path = tmp_path / "run"
    folder = RuntimeFolder(path)
    folder.write(PAYLOAD)
    assert folder.restore() is None
    lost = path if removed == "folder" else path / clock_segment.NAME
    shutil.rmtree(path) if removed == "folder" else lost.unlink()

    assert folder.restore() == str(lost)
    assert read(path) == tuple(PAYLOAD)
    with pytest.raises(ConfigError, match="another daemon"):
        RuntimeFolder(path)
    folder.close()
    RuntimeFolder(path).close()


def test_a_folder_that_cannot_be_made_again_is_tried_until_it_can(tmp_path: Path) -> None:
    """Writing goes on meanwhile, for those that have the segment open."""
    path = tmp_path / "run"
    folder = RuntimeFolder(path)
    shutil.rmtree(path)
    path.write_text("a file")
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot create the clock segment"):
            folder.restore()
        folder.write(PAYLOAD)
    path.unlink()

    assert folder.restore() == str(path)
    assert read(path) == tuple(PAYLOAD)
    folder.close()


@pytest.mark.parametrize("made", [os.mkfifo, Path.mkdir])
def test_what_is_no_regular_file_holds_nobody_up(tmp_path: Path, made: object) -> None:
    """A FIFO would block who opens it: the daemon names it, and a clock is UNKNOWN at once."""
    assert callable(made)
    made(tmp_path / clock_segment.NAME)

    assert Clock(tmp_path).gm_now().status.name == "UNKNOWN"
    with pytest.raises(ConfigError, match="node.runtime_dir"):
        RuntimeFolder(tmp_path)


def test_the_writer_follows_no_link(tmp_path: Path) -> None:
    """The target of a link may be any file that the daemon may write."""
    (target := tmp_path / "target").write_text("precious")
    (folder := tmp_path / "run").mkdir()
    (folder / clock_segment.NAME).symlink_to(target)

    with pytest.raises(ConfigError, match="node.runtime_dir"):
        RuntimeFolder(folder)
    assert target.read_text() == "precious"


def test_a_payload_that_does_not_fit_leaves_the_former_one(tmp_path: Path) -> None:
    """A number beyond 64 bits is found before anything is stored."""
    writer = SegmentWriter(tmp_path / clock_segment.NAME, *LAYOUT)
    writer.write(PAYLOAD)
    with pytest.raises(Exception, match="argument out of range|int too large"):
        writer.write([*PAYLOAD[:-1], 2**63])

    reader = SegmentReader(tmp_path / clock_segment.NAME, *LAYOUT)
    assert reader.read() == tuple(PAYLOAD)
    assert not reader.torn
    writer.close()
