"""Traces as PyTorch's profiler writes them, and anchors beside them, of ranks whose clocks are off by a known amount."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from timesyncd.client.anchors import FORMAT, SUFFIX, VERSION, Anchor, AnchorsHeader, ReferenceOffset
from timesyncd.clocks import NS_PER_S

#: The true time at which each trace begins.
TRUE_NS = 1_790_000_000 * NS_PER_S
BASE_NS = 1_789_000_000 * NS_PER_S
GRANDMASTER = "001122.fffe.334455"


def owner(rank: int, **changes: Any) -> AnchorsHeader:
    node = f"node-{rank}"
    return replace(AnchorsHeader("train", 0, rank, 2, node, node, 4000 + rank, f"{rank + 1:032x}", 1), **changes)


def anchor(number: int, second: float, ahead_ns: int = 0, **changes: Any) -> Anchor:
    """At this true second of the trace, by a clock that is ahead by so much and whose daemon knows it within 5 us."""
    true_ns = round(second * NS_PER_S)
    found = Anchor(
        number=number,
        realtime_ns=TRUE_NS + true_ns + ahead_ns,
        monotonic_ns=500 * NS_PER_S + true_ns,
        raw_ns=400 * NS_PER_S + true_ns,
        real_minus_boot_ns=TRUE_NS + ahead_ns - 600 * NS_PER_S,
        status="SYNCHRONIZED",
        reason_code="ok",
        reason="",
        gm=ReferenceOffset(ahead_ns, 5_000, 50_000, 500_000),
        utc=ReferenceOffset(ahead_ns, 9_000, 50_000, 500_000),
        grandmaster_identity=GRANDMASTER,
        utc_seconds_removed=37,
    )
    return replace(found, **changes)


def events(rank: int, ahead_ns: int = 0) -> list[dict[str, Any]]:
    """Ten collectives, a second apart, which each rank's clock dates as it shows; and what else a profiler writes."""
    pid = 4000 + rank

    def us(second: float) -> float:
        return (TRUE_NS - BASE_NS + ahead_ns + round(second * NS_PER_S)) / 1_000

    names = [("process_name", {"name": "python"}), ("process_labels", {"labels": "CPU"})]
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": name, "ts": us(0), "pid": pid, "tid": 0, "args": args} for name, args in names
    ]
    found.append({"ph": "M", "name": "thread_name", "ts": us(0), "pid": pid, "tid": pid, "args": {"name": "main"}})
    for second in range(10):
        at = {"cat": "user_annotation", "pid": pid, "tid": pid}
        found.append({"ph": "X", "name": "gloo:all_reduce", "ts": us(second), "dur": 250.5, **at})
        found.append({"ph": "s", "id": second, "name": "fwdbwd", "ts": us(second), **at})
        found.append({"ph": "f", "id": second, "name": "fwdbwd", "ts": us(second + 0.1), "bp": "e", **at})
    found.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": us(9.5)})
    return found


def trace_text(rank: int, ahead_ns: int = 0, **changes: Any) -> str:
    head = {"schemaVersion": 1, "host_name": f"node-{rank}", "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    return json.dumps(head | {"traceEvents": events(rank, ahead_ns), "traceName": "t.json"} | changes, indent=1)


def anchors_text(whose: AnchorsHeader, anchors: list[Anchor]) -> str:
    lines = [{"format": FORMAT, "version": VERSION} | asdict(whose), *map(asdict, anchors)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_rank(folder: Path, rank: int, ahead_ns: int = 0, anchors: list[Anchor] | None = None) -> Path:
    """A rank's trace with its anchors, every two seconds from before it to after it unless they are given."""
    path = folder / f"rank{rank}.json"
    path.write_text(trace_text(rank, ahead_ns))
    every = [anchor(n, 2 * n - 0.5, ahead_ns) for n in range(6)] if anchors is None else anchors
    Path(f"{path}{SUFFIX}").write_text(anchors_text(owner(rank), every))
    return path
