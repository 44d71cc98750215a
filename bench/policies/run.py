"""
The suite: every run that is not there yet, until the time is over. Without root it runs in a user namespace of its own.

    python -m policies.run [--minutes 20] [--results FILE] [--only CELL]

The link of a cell is measured when its first run begins, and kept with the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policies.link import Measured, first_mbit
from policies.plan import CELLS, VERSION, Cell, Method, Row, Run, crossing_s, pending
from policies.ranks import Ranks, RanksLost

FILE = Path(__file__).with_name("results.json")

FLAT = Method("flat", "flat", partition="def")

#: Of the link's measurement.
MEASURING_S = 60.0

Rows = dict[str, Row]


def read(path: Path) -> Rows:
    return json.loads(path.read_text()) if path.exists() else {}


def keep(path: Path, rows: Rows, key: str, row: Row) -> None:
    """On disk, whole, when this returns."""
    rows[key] = row
    partial = path.with_suffix(".partial")
    partial.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(rows.items())) + "\n}\n"
    )
    with partial.open() as file:
        os.fsync(file.fileno())
    partial.replace(path)


def measured(ranks: Ranks) -> tuple[Measured, int]:
    """And the gradients' bytes."""
    result = ranks.run("measure", FLAT, seed=0, limit_s=MEASURING_S, compute_ms=0.0)
    if "error" in result:
        raise RuntimeError(f"the link cannot be measured: {result['error']}")
    return Measured(ranks.rate_mbit, result["compute_ms"], result["communication_ms"]), result["bytes"]


def link_of(cell: Cell, path: Path, rows: Rows) -> Row:
    """As the cell's first run found it."""
    key = f"{VERSION}/{cell.name}/link"
    if key not in rows:
        mbit = cell.mbit
        if cell.ratio is not None:
            with Ranks(cell.task.name, cell.ranks, None) as ranks:
                free, nbytes = measured(ranks)
            mbit = first_mbit(cell.ratio, free, nbytes, cell.ranks)
        with Ranks(cell.task.name, cell.ranks, mbit) as ranks:
            now, _ = measured(ranks)
        row = {"mbit": mbit, "compute_ms": now.compute_ms, "communication_ms": now.communication_ms}
        keep(path, rows, key, {name: None if value is None else round(value, 2) for name, value in row.items()})
    return rows[key]


def outcome(cell: Cell, result: dict[str, Any]) -> Row:
    """`time_s` None: it did not reach the target, for `why`."""
    if "error" in result:
        return {"time_s": None, "why": result["error"]}
    time_s = crossing_s(cell.task, result["curve"]) if result["why"] == "reached" else None
    return {
        "time_s": None if time_s is None else round(time_s, 2),
        "why": result["why"],
        "steps": result["steps"],
        "last": round(result["curve"][-1][1], 4),
        "ms": round(1e3 * result["curve"][-1][0] / result["steps"], 2),
        **({"changes": result["changes"]} if result["changes"] else {}),
    }


def run_one(ranks: Ranks, run: Run, link: Row) -> Row:
    result = ranks.run("train", run.method, seed=run.seed, limit_s=run.limit_s, compute_ms=link["compute_ms"])
    if result.get("error", "").startswith(("ImportError", "ModuleNotFoundError")):
        raise RuntimeError(f"{run.method.name}: {result['error']}")
    return outcome(run.cell, result)


@contextmanager
def opened(cell: Cell, link: Row) -> Iterator[Ranks]:
    with Ranks(cell.task.name, cell.ranks, link["mbit"]) as ranks:
        yield ranks


def next_of(rows: Rows, only: str) -> Run | None:
    return next((run for run in pending(rows) if only in ("", run.cell.name)), None)


def work(path: Path, until: float, only: str) -> bool:
    """False: the time is over."""
    rows, took_s = read(path), [1.0]
    while (run := next_of(rows, only)) is not None:
        link, cell = link_of(run.cell, path, rows), run.cell
        try:
            with opened(cell, link) as ranks:
                while run is not None and run.cell == cell:
                    if time.monotonic() > until:
                        return False
                    began = time.monotonic()
                    keep(path, rows, run.key, row := run_one(ranks, run, link))
                    took_s.append(time.monotonic() - began)
                    left = sum(1 for _ in pending(rows))
                    time_text = "failed" if row["time_s"] is None else f"{row['time_s']} s"
                    print(
                        f"{run.key}: {row['why']}, {time_text}; {left} runs left, about {statistics.mean(took_s) * left / 60:.0f} min",
                        flush=True,
                    )
                    run = next_of(rows, only)
        except RanksLost as error:
            assert run is not None
            keep(path, rows, run.key, {"time_s": None, "why": "no end"})
            print(f"{run.key}: {error}", flush=True)
    return True


def become_root() -> None:
    """Starts this again in a user namespace, in which it may make network namespaces and shape links."""
    if os.geteuid() != 0:
        inside = 'mount -t tmpfs none /run && mkdir /run/netns && exec "$@"'
        unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", inside, "sh"]
        os.execvp(unshare[0], [*unshare, sys.executable, "-m", "policies.run", *sys.argv[1:]])


def main() -> None:
    become_root()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--only", choices=("", *CELLS), default="")
    parser.add_argument("--results", type=Path, default=FILE)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that ranks and namespaces go as well
    if not work(options.results, time.monotonic() + 60 * options.minutes, options.only):
        print("the time is over; run it again for what is left")


if __name__ == "__main__":
    main()
