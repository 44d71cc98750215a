"""A store is copied and put back while its daemon writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_bench import SAMPLES, Bench

from timesyncd import __main__ as program
from timesyncd.store import writer
from timesyncd.store.backup import requested_restore


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(writer, "BATCH_S", 0.05)
    return Bench(tmp_path / "history.sqlite")


def command(bench: Bench, *words: str | Path) -> int:
    return program.main(["store", *map(str, words), "--store", str(bench.path)])


def test_a_backup_is_put_back_while_the_daemon_writes(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What came after the backup is in the former file; the daemon goes on in the restored one, with a new stream for its hubs."""
    backup = tmp_path / "backup.sqlite"
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
        statuses = [command(bench, "backup", backup)]
        bench.fill(store, 10)
        bench.clocks.advance(5_000_000_000)
        [[stream]] = bench.rows("SELECT stream FROM outbox_counter")
        statuses.append(command(bench, "restore", backup))
        bench.fill(store, 5)
    [former] = tmp_path.glob("history.sqlite.replaced-*Z")

    assert statuses == [0, 0]
    assert "the daemon restored the backup" in capsys.readouterr().out
    assert bench.offsets() == [*range(SAMPLES), *range(SAMPLES + 10, SAMPLES + 15)]
    assert Bench(former).offsets() == list(range(SAMPLES + 10))
    assert bench.rows("SELECT stream FROM outbox_counter") > [(stream,)]
    assert bench.rows("PRAGMA integrity_check") == [("ok",)]
    assert (bench.problems.empty(), bench.reports.empty()) == (True, True)


def test_a_stopped_daemon_takes_the_backup_at_its_start(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command states that the daemon does not run; a backup of a store at rest needs no daemon either."""
    monkeypatch.setattr("timesyncd.cli.store.RESTORE_S", 0)
    backup = tmp_path / "backup.sqlite"
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store, 10)
    statuses = [command(bench, "backup", backup), command(bench, "backup", backup), command(bench, "restore", backup)]
    printed = capsys.readouterr()
    with bench.running() as store:
        bench.fill(store, 1)

    assert statuses == [0, 2, 0]
    assert f"{backup}: the file exists; --force replaces it" in printed.err
    assert "it takes the backup when it starts" in printed.out
    assert not requested_restore(bench.path).exists()
    assert bench.offsets() == list(range(11))


def test_a_backup_that_cannot_be_written_is_named(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the backup's path, not the store's."""
    with bench.running() as store:
        bench.fill(store, 1)
    backup = tmp_path / "nowhere" / "backup.sqlite"

    assert command(bench, "backup", backup) == 1
    assert capsys.readouterr().err == f"timesyncd: {backup}: No such file or directory\n"


def test_no_damaged_file_becomes_a_store_or_a_backup(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each failure is one line, and leaves the store and the folder as they were."""
    other, part, damaged = tmp_path / "other", tmp_path / "part.sqlite", tmp_path / "damaged.sqlite"
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
    other.write_text("no database at all" * 100)
    part.write_bytes(bench.path.read_bytes()[:-8_192])
    octets = bytearray(bench.path.read_bytes())
    octets[len(octets) // 2 :: 7] = bytes(len(octets[len(octets) // 2 :: 7]))
    damaged.write_bytes(octets)
    before = sorted(tmp_path.iterdir())
    files = (other, part, damaged, tmp_path / "none")
    statuses = [command(bench, "restore", file) for file in files]
    lines = capsys.readouterr().err.splitlines()
    url = program.main(["store", "backup", str(other), "--store", "postgresql://u@h/d"])

    assert (statuses, url) == ([1, 1, 1, 1], 2)
    assert len(lines) == 4
    assert all(
        words in line for words, line in zip(("header", "truncated", "damaged", "No such file"), lines, strict=True)
    )
    assert "pg_dump" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert bench.offsets() == list(range(SAMPLES))
