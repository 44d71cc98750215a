"""
Runs scenarios of tests/vm/vm_scenarios.py, and prints what came of them.

    python tests/vm/vm_soak.py --state FOLDER [SCENARIO ...]

What was judged is in FOLDER, one file a scenario and the logs beside it; a scenario that has one is not run again.
Exit status 1: a claim did not hold, or a truth was too vague. 2: this machine lacks something.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import vm_peers
import vm_two_nodes
from vm_build import build
from vm_cache import KERNEL, Cache, NeedNotMet, check_needs, default_cache
from vm_judging import EXCLUDED_SYNCS, Tally, lines, miss_lines, tally
from vm_lab import Lab
from vm_machine import MachineError
from vm_pair import SYNC_INTERVAL_S, Pair, Run, Setup, measure
from vm_scenarios import BY_NAME, RECOVER_S, SETTLE_S, Scenario

KINDS = ("gm", "utc", "past")

#: What `timesyncd export ptp` writes.
EXPORT = (
    "import csv, sqlite3, sys; "
    'rows = sqlite3.connect("file:/var/lib/timesyncd/history.sqlite?mode=ro", uri=True).execute("select * from clock_sample"); '
    "out = csv.writer(sys.stdout); out.writerow(each[0] for each in rows.description); out.writerows(rows)"
)

#: The findings of the node's store that began at or after a time.
FINDINGS = (
    "import sqlite3, sys; "
    'rows = sqlite3.connect("file:/var/lib/timesyncd/history.sqlite?mode=ro", uri=True).execute('
    '"select distinct finding_id from finding where since_realtime_ns >= ?", (int(sys.argv[1]),)); '
    "print(*(each[0] for each in rows))"
)

#: What the versions of a result are: the command that prints each, in the guest.
VERSIONS = {
    "kernel": "uname -r",
    "linuxptp": "ptp4l -v",
    "chrony": "chronyd -v | cut -d' ' -f4",
    "systemd": "systemctl --version | head -1",
    "card": "ethtool -i eth0 | sed -n 's/^driver: //p'",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument(
        "--table", action="store_true", help="print the table of docs/proven.md instead, from what was judged"
    )
    parser.add_argument("scenario", nargs="*", choices=[[], *BY_NAME, vm_two_nodes.NAME])
    arguments = parser.parse_args()
    if arguments.table:
        results = [json.loads(path.read_text()) for path in sorted(arguments.state.glob("*.json"))]
        print("\n".join(table([result for result in results if "tallies" in result])))
        return 0
    signal.signal(signal.SIGTERM, _terminate)
    names = arguments.scenario or [*BY_NAME, vm_two_nodes.NAME]
    scenarios = [BY_NAME[name] for name in names if name in BY_NAME]
    try:
        check_needs()
        build(cache := default_cache(), {KERNEL, *(scenario.setup.kernel for scenario in scenarios)})
    except NeedNotMet as error:
        print(f"vm: {error}", file=sys.stderr)
        return 2
    arguments.state.mkdir(parents=True, exist_ok=True)
    remaining = [scenario for scenario in scenarios if not _is_judged(scenario.name, arguments.state)]
    for setup, of_setup in groupby(remaining, key=lambda scenario: scenario.setup):
        _run_pair(setup, list(of_setup), cache, arguments.state)
    if vm_two_nodes.NAME in names and not _is_judged(vm_two_nodes.NAME, arguments.state):
        _run_two_nodes(cache, arguments.state)
    return max(_status_of(name, arguments.state) for name in names)


def _terminate(number: int, _: object) -> None:
    """The lab ends its machines and removes its folder on the way out, which a second signal must not cut off."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _path(name: str, state: Path) -> Path:
    return state / f"{name}.json"


def _is_judged(name: str, state: Path) -> bool:
    if known := _path(name, state).exists():
        print(f"vm: {name}: judged already")
    return known


def _status_of(name: str, state: Path) -> int:
    """A scenario that could not be run is none that held."""
    path = _path(name, state)
    return int(not path.exists() or json.loads(path.read_text())["failed"])


def _run_pair(setup: Setup, scenarios: Sequence[Scenario], cache: Cache, state: Path) -> None:
    """A machine that fails ends its pair's scenarios; those of the next pair are run."""
    try:
        with Lab(cache) as lab:
            pair = Pair(lab, setup)
            pair.start()
            settle_s = SETTLE_S
            for scenario in scenarios:
                pair.settle(settle_s)
                _judge(pair, scenario, state)
                settle_s = RECOVER_S
    except MachineError as error:
        print(f"vm: {error}", flush=True)


def _run_two_nodes(cache: Cache, state: Path) -> None:
    try:
        vm_two_nodes.run(cache, state)
    except MachineError as error:
        print(f"vm: {error}", flush=True)


def _judge(pair: Pair, scenario: Scenario, state: Path) -> None:
    began_ns = int(pair.node.run("date +%s%N"))
    run = measure(pair, scenario.seconds, scenario.act)
    tallies = tallies_of(run)
    failed = not all(each.counts and each.judged and not each.missed for each in tallies)
    print(f"== {scenario.name}: {'FAILED' if failed else 'held'}\n{report(run)}", flush=True)
    files = run.logs | _more_files(pair)
    for name, text in files.items():
        (state / f"{scenario.name}.{name}").write_text(text)
    widths_ns = vm_peers.widths_ns(files["samples.csv"].splitlines(), began_ns)
    widths = ", ".join(f"{name} {width_ns / 1e3:.1f} us" for name, width_ns in widths_ns.items())
    print(f"  median half width against UTC: {widths}", flush=True)
    result = {
        "scenario": scenario.name,
        "failed": failed,
        "when": vm_two_nodes.now(),
        "versions": {name: pair.node.run(command).strip() for name, command in VERSIONS.items()},
        "tallies": [each.as_dict() for each in tallies],
        "widths_ns": widths_ns,
        "findings": sorted(pair.node.run(f"python3 -c '{FINDINGS}' {began_ns}").split()),
        "disturbances": [each._asdict() for each in run.disturbances],
        "pieces": run.pieces,
    }
    _path(scenario.name, state).write_text(json.dumps(result, indent=1))


def _more_files(pair: Pair) -> dict[str, str]:
    """What explains a miss. The store is read without timesyncd, which an emulated processor takes half a minute to start."""
    return {
        "samples.csv": pair.node.run(f"python3 -c '{EXPORT}'"),
        "journal": pair.node.run("journalctl -b -o short-precise --no-pager"),
    }


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """One row a scenario: of all claims, those of now against the grandmaster and UTC, and those of past readings."""
    rows = [
        "| scenario | moments judged | outside | open | unknown | excluded, of these outside | bound, median | nearest | truth known to |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        kinds = result["tallies"]

        def total(name: str, kinds: list[dict[str, Any]] = kinds) -> int:
            return sum(each[name] for each in kinds)

        excluded = f"{total('excluded') / total('moments'):.1%}, {total('excluded_missed')}"
        bound, error = (
            f"{(kinds[0][name] or 0) / 1e3:.1f} us" for name in ("median_bound_ns", "median_truth_error_ns")
        )
        nearest = f"{max(each['worst_ratio'] or 0 for each in kinds):.2f}"
        cells = (total("judged"), total("missed"), total("open"), total("unknown"), excluded, bound, nearest, error)
        rows.append(f"| {result['scenario']} | {' | '.join(map(str, cells))} |")
    return rows


def tallies_of(run: Run) -> list[Tally]:
    return [tally(kind, run.moments, run.disturbances, SYNC_INTERVAL_S, run.ticks_per_ns) for kind in KINDS]


def report(run: Run) -> str:
    reach_ticks = EXCLUDED_SYNCS * SYNC_INTERVAL_S * 1e9 * run.ticks_per_ns
    text = [line for each in tallies_of(run) for line in lines(each)]
    for each in run.disturbances:
        span_ms = (each.latest - each.earliest) / run.ticks_per_ns / 1e6
        text.append(
            f"  {each.what}: " + (f"within {span_ms:.0f} ms" if math.isfinite(span_ms) else "at an end of the log")
        )
    if run.boundary_errors:
        text.append(
            f"  boundary clock off by {max(abs(each.error_ns) for each in run.boundary_errors) / 1e3:.1f} us at most"
        )
    return "\n".join(text + miss_lines(run.moments, run.disturbances, reach_ticks))


if __name__ == "__main__":
    sys.exit(main())
