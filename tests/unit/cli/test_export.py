"""`timesyncd export`: stored rows as a file."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from rich.console import Console
from sqlalchemy import create_engine, insert

from timesyncd import __main__ as program
from timesyncd.clocks import NS_PER_S
from timesyncd.store import tables

HOUR_NS = 3_600 * NS_PER_S


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten kernel samples of `k` in the last half hour; an hour and a minute of `ptp` on n1, and of `far` on n2."""
    path = tmp_path_factory.mktemp("store") / "history.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    tables.metadata.create_all(engine)
    now_ns = time.time_ns()
    samples = [
        {
            "source": "k", "realtime_ns": now_ns - n * 180 * NS_PER_S, "boottime_ns": n, "frequency_ppb": n, "maxerror_ns": 1,
            "esterror_ns": 1, "synchronized": True, "leap": "none", "tai_offset_s": 37, "disciplines": [],
            "undecided_disciplines": [],
        }
        for n in range(1, 11)
    ]  # fmt: skip
    summary = {"quantity": "offset_ns", "count": 1, "minimum": 1, "maximum": 1, "mean": 1, "p50": 1, "p99": 1}
    at = {"realtime_ns": now_ns - HOUR_NS // 2}
    rolled = [
        {"node": node, "source": source, "span_s": span_s} | at | summary
        for node, source in (("n1", "ptp"), ("n2", "far"))
        for span_s in (60, 3600)
    ]
    with engine.begin() as connection:
        connection.execute(insert(tables.kernel_sample), samples)
        connection.execute(insert(tables.rollup), rolled)
        connection.execute(
            insert(tables.incarnation), [{"node": "n1", "incarnation": 1, "started_realtime_ns": now_ns}]
        )
    engine.dispose()
    return path


def run(store: Path, *words: str) -> int:
    return program.main(["export", "--store", str(store), *words])


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_samples_become_csv(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of the span are in order of time, and one line gives their number."""
    out = tmp_path / "k.csv"
    code = run(store, "k", "--since", "1h", "--until", "10m", "-o", str(out))

    assert (code, capsys.readouterr()) == (0, (f"{out}: 7 rows\n", ""))
    assert [row["frequency_ppb"] for row in rows(out)] == ["10", "9", "8", "7", "6", "5", "4"]


def test_samples_become_parquet(store: Path, tmp_path: Path) -> None:
    """The rows are the same, with their types."""
    out = tmp_path / "k.parquet"
    code = run(store, "k", "--format", "parquet", "-o", str(out))

    assert code == 0
    assert pyarrow.parquet.read_table(out).column("frequency_ppb").to_pylist() == list(range(10, 0, -1))


@pytest.mark.parametrize(
    ("words", "node"),
    [(["ptp", "--span", "minute"], "n1"), (["ptp", "--span", "hour"], "n1"), (["far", "--span", "hour", "--node", "n2"], "n2")],
)  # fmt: skip
def test_minutes_and_hours(store: Path, tmp_path: Path, words: list[str], node: str) -> None:
    """The default is the store's own node; on a hub, --node names another one."""
    out = tmp_path / "rolled.csv"
    code = run(store, *words, "-o", str(out))

    assert code == 0
    assert [(row["node"], row["source"], row["span_s"]) for row in rows(out)] == [
        (node, words[0], "60" if "minute" in words else "3600")
    ]


@pytest.mark.parametrize(
    ("words", "there"), [(["typo"], "k"), (["k", "--span", "hour"], "ptp"), (["ptp", "--span", "hour", "--node", "n2"], "far")]
)  # fmt: skip
def test_an_unknown_source_names_the_known(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], there: str
) -> None:
    """One line lists the known sources, the exit status is 2, and there is no file."""
    out = tmp_path / "x.csv"
    code = run(store, *words, "-o", str(out))

    assert (code, capsys.readouterr().err) == (
        2,
        f"timesyncd: {store} has no source {words[0]!r}; known sources: {there}\n",
    )
    assert not out.exists()


def test_a_file_is_replaced_only_with_force(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --force the exit status is 2, and the file is unchanged."""
    out = tmp_path / "k.csv"
    out.write_text("mine")
    refused, before = run(store, "k", "-o", str(out)), out.read_text()
    forced = run(store, "k", "-o", str(out), "--force")

    assert (refused, before, forced) == (2, "mine", 0)
    assert capsys.readouterr().err == f"timesyncd: {out}: the file exists; replace it with --force\n"
    assert len(rows(out)) == 10


def test_an_empty_span_gives_an_empty_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has only headings, and one line states it."""
    out = tmp_path / "k.csv"
    code = run(store, "k", "--since", "2d", "--until", "1d", "-o", str(out))

    assert code == 0
    assert capsys.readouterr().out == f"{out}: 0 rows: the store has none between --since and --until\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["k", "--since", "1h", "--until", "2h"], "--since is not before --until: both are ages, so --since has to be the larger one"),
        (["k", "--node", "n2"], "--node: a hub stores minutes and hours of other nodes, no samples: give --span minute or --span hour"),
    ],
)  # fmt: skip
def test_a_usage_error_is_2(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    """One line states what to do."""
    code = run(store, *words, "-o", str(tmp_path / "x.csv"))

    assert (code, capsys.readouterr().err) == (2, f"timesyncd: {error}\n")


@pytest.mark.parametrize(("store_name", "out"), [("nothing.sqlite", "x.csv"), (None, "no/such/folder/x.csv")])
def test_a_failure_is_one_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], store_name: str | None, out: str
) -> None:
    """The exit status is 1, and the line names the path."""
    place = store if store_name is None else tmp_path / store_name
    code = run(place, "k", "-o", str(tmp_path / out))
    printed = capsys.readouterr().err

    assert code == 1
    assert str(tmp_path / out if store_name is None else place) in printed and len(printed.splitlines()) == 1


def test_progress_is_shown_on_a_terminal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress is on stderr, and stdout has only the result."""
    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=shown, force_terminal=stderr, width=100))
    run(store, "k", "-o", str(tmp_path / "k.csv"))

    assert "10/10" in shown.getvalue()
    assert capsys.readouterr().out == f"{tmp_path / 'k.csv'}: 10 rows\n"
