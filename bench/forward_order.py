"""
An average of parameters that arrives during the next forward pass (`synchronized(order="forward")`) against one that the
step waits for: two gloo ranks behind shaped links, whose blocks of steps take turns in the same processes.

    python bench/forward_order.py [--pairs 8] [--mbit 1000,300] [--intervals 1,4]

Printed for each link and interval: the time of a step with both, and the median of the pairs' ratios with its 95 % interval
(by ranks: the binomial interval of a median). Needs root or user namespaces; takes four minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from rank_lab import RankLab


def become_root() -> None:
    """Starts this again in a user namespace, in which it may make network namespaces and shape links."""
    if os.geteuid() != 0:
        inside = 'mount -t tmpfs none /run && mkdir /run/netns && exec "$@"'
        unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", inside, "sh"]
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, with a probability of at least 95 %; infinite where there are too few values."""
    ordered, count, below = sorted(values), len(values), 0.0
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if 2 * below > 0.05:
            return (ordered[rank - 1], ordered[count - rank]) if rank else (-math.inf, math.inf)
    return -math.inf, math.inf


def measured(mbit: int, pairs: int, intervals: str) -> list[dict[str, float]]:
    command = [sys.executable, str(Path(__file__).with_name("_forward_order_rank.py"))]
    with tempfile.TemporaryDirectory() as folder, RankLab(2, f"{mbit}mbit") as lab:
        written = lab.run([*command, folder, "--pairs", str(pairs), "--intervals", intervals], within_s=460)
    return [json.loads(line) for line in written[0].splitlines() if line.startswith("{")]


def main() -> None:
    become_root()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--mbit", default="1000,300")
    parser.add_argument("--intervals", default="1,4")
    given = parser.parse_args()
    for mbit in map(int, given.mbit.split(",")):
        rows = measured(mbit, given.pairs, given.intervals)
        for h in sorted({row["h"] for row in rows}):
            pairs = [(row["None"], row["forward"]) for row in rows if row["h"] == h]
            ratios = [ordered / whole for whole, ordered in pairs]
            whole_ms, ordered_ms = (statistics.median(each) for each in zip(*pairs, strict=True))
            low, high = interval(ratios)
            print(
                f"{mbit} Mbit/s, local_sgd(h={h:.0f}): a step takes {whole_ms:.0f} ms, with the order {ordered_ms:.0f} ms; "
                f"ratio {statistics.median(ratios):.3f} (95 %: {low:.3f} to {high:.3f}), {len(pairs)} pairs",
                flush=True,
            )


if __name__ == "__main__":
    main()
