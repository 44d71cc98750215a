"""What an operator or a script names as a file: none blocks for ever, and none fills the memory."""

from __future__ import annotations

import os
import stat
import threading
import tracemalloc
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.client.files import open_file, read_file
from timesyncd.errors import StoreError
from timesyncd.store.engine import StoreLocation
from timesyncd.store.export import export
from timesyncd.store.migrate import upgrade


def test_a_regular_file_of_limited_size_is_read(tmp_path: Path) -> None:
    """One octet more is too large."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)

    assert read_file(path, 8) == b"x" * 8
    with pytest.raises(OSError, match="it is larger than 7 bytes"):
        read_file(path, 7)


@pytest.mark.parametrize("path", ["/dev/zero", "/", "fifo"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, path: str) -> None:
    """A FIFO without a writer would block for ever, and /dev/zero fill the memory."""
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match=r"it is no regular file|Is a directory"):
        read_file(tmp_path / path)
    with pytest.raises(OSError, match=r"it is no regular file|Is a directory"), open_file(tmp_path / path):
        pass


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A file with holes would fill the memory up to the limit, which is 2 GiB for a recording."""
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(OSError, match="it is larger than 67108864 bytes"):
        read_file(tmp_path / "holes", 1 << 26)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1 << 20


def test_a_pipe_is_read_to_its_end_where_it_is_allowed() -> None:
    """As of <(...) in a shell, whose writer may be slower than we are."""
    read_fd, write_fd = os.pipe()
    sent = threading.Event()

    def write() -> None:
        sent.wait(60)
        os.write(write_fd, b"to")
        os.write(write_fd, b"ken")
        os.close(write_fd)

    writer = threading.Thread(target=write)
    writer.start()
    sent.set()
    found = read_file(Path(f"/dev/fd/{read_fd}"), pipe_s=60.0)
    writer.join()
    os.close(read_fd)

    assert found == b"token"


def test_a_pipe_that_does_not_end_is_given_up() -> None:
    """Its writer hangs."""
    read_fd, write_fd = os.pipe()
    with pytest.raises(OSError, match=r"the pipe did not end within 0.05 s"):
        read_file(Path(f"/dev/fd/{read_fd}"), pipe_s=0.05)
    os.close(read_fd)
    os.close(write_fd)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["preflight", "--nodes", "a", "--max-alignment", "1us", "--token-file", "{}", "--url", "127.0.0.1:1"],
            "is empty",
        ),
        (["broker-config", "--nodes-file", "{}", "--out", "unused"], "name the nodes"),
        (["profile-from-mib", "{}"], "no regular file"),
        (["history", "ptp", "--store", "{}"], "not a regular file"),
        (["store", "backup", "unused", "--store", "{}"], "not a regular file"),
        (["store", "restore", "{}", "--store", "unused"], "not a regular file"),
        (["check-config", "--config", "{}"], "no regular file"),
        (["probe", "127.0.0.1", "--community-env", "HOME", "--profile", "{}"], "no regular file"),
        (["simulate", "--scenario", "{}"], "no regular file"),
        (["audit", "--out", "unused", "--from", "{}"], "no regular file"),
        (["merge-traces", "{}", "-o", "unused"], "no regular file"),
        (["roadmap", "j", "--out", "{}.folder"], "no regular file"),
        (["broker-config", "n1", "--out", "{}.folder"], "no regular file"),
    ],
)
def test_a_command_that_is_given_a_fifo_without_a_writer_ends(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line that states what is wrong."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo.folder" / "secrets").mkdir(parents=True)
    os.mkfifo(tmp_path / "fifo.folder" / "roadmap.json")
    os.mkfifo(tmp_path / "fifo.folder" / "secrets" / "n1")
    status = main([word.format(tmp_path / "fifo") for word in words])
    error = capsys.readouterr().err

    assert status in (1, 2)
    assert text in error and error.count("\n") == 1


@pytest.mark.parametrize("store", ["", "/", "."])
def test_a_store_without_a_name_is_refused(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, as a wrong URL is."""
    assert main(["history", "ptp", "--store", store]) == 2
    assert "store: give a path or postgresql://" in capsys.readouterr().err


def test_a_link_to_itself_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names it."""
    (tmp_path / "loop").symlink_to("loop")

    assert main(["merge-traces", str(tmp_path / "loop"), "-o", str(tmp_path / "merged.json")]) == 2
    assert capsys.readouterr().err == f"timesyncd: {tmp_path}/loop: Too many levels of symbolic links\n"


def test_certificates_that_are_fifos_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OpenSSL, which reads them, would wait for a writer for ever."""
    for name in ("cert", "key", "ca"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "node.toml").write_text(
        f'[web]\ncertificate = "{tmp_path}/cert"\nkey = "{tmp_path}/key"\n'
        f'[[grandmaster]]\nname = "gm"\ndriver = "timeprovider"\nhost = "gm.example"\n'
        f'https = {{ username = "a", password = {{ env = "HOME" }}, ca = "{tmp_path}/ca" }}\n'
    )

    assert main(["check-config", "--config", str(tmp_path / "node.toml")]) == 2
    (tmp_path / "node.toml").write_text(f'[web]\ncertificate = "{tmp_path}/cert"\nkey = "{tmp_path}/key"\n')
    assert main(["check-config", "--config", str(tmp_path / "node.toml")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "cannot read PEM certificates from this file: it is no regular file" in first
    assert "cannot load it with web.key" in second


@pytest.mark.parametrize("words", ["audit --out unused --from", "audit --out unused --record", "advise"])
def test_a_path_that_is_too_long_is_reported(words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """pathlib raises an error where it is asked whether there is such a file; a folder that may not be entered does the same."""
    path = f"{tmp_path}/{'x' * 300}"
    extra = ["--url", "127.0.0.1:1"] if words == "advise" else []

    assert main([*words.split(), path, *extra]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without a row."""
    path = tmp_path_factory.mktemp("store") / "history.sqlite"
    upgrade(StoreLocation(path=path))
    return path


@pytest.mark.parametrize("output", ["", ".", "fifo", "folder", "file/below", "x" * 300])
@pytest.mark.parametrize(
    "words",
    [
        ["store", "backup", "{output}", "--store", "{store}", "--force"],
        ["store", "restore", "{store}", "--store", "{output}"],
        ["merge-traces", "trace.json", "-o", "{output}"],
    ],
    ids=["backup", "restore", "merge"],
)
def test_an_output_replaces_nothing_but_a_regular_file(
    words: list[str],
    output: str,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root would replace a device such as /dev/null, of which the FIFO stands for; one line names what is wrong."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "trace.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    before = sorted(os.listdir())
    status = main([word.format(output=output, store=store) for word in words])
    error = capsys.readouterr().err

    assert status in (1, 2)
    assert error.count("\n") == 1 and error.startswith("timesyncd: ")
    assert sorted(os.listdir()) == before
    assert stat.S_ISFIFO(os.stat("fifo").st_mode) and (tmp_path / "file").read_text() == "kept"


def test_an_export_replaces_no_device(store: Path, tmp_path: Path) -> None:
    """Nor does it leave a part of a file behind."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StoreError, match="fifo: it names no regular file"):
        export(StoreLocation(path=store), "ptp", "raw", 0, 1, tmp_path / "fifo", "csv", lambda done, total: None, True)

    assert os.listdir(tmp_path) == ["fifo"]
