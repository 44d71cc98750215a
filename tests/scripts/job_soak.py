"""
`make job-soak`: every script of tests/scripts with and without run-audit, with a late rank, and healthy ones again and
again. It resumes: each result is a line of STATE. `--table` prints what docs/proven.md states.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from script_cases import CASES, Case, difference, judgement, named, run, run_alone


def results(state: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def tried(case: Case, folder: Path, what: str) -> str:
    """One trial: `bits`, `late RANK PLACE`, or `healthy`. Its result begins with `right`, `not named` or `WRONG`."""
    try:
        return _tried(case, folder, what)
    except subprocess.TimeoutExpired:
        return "WRONG: it did not end"


def _tried(case: Case, folder: Path, what: str) -> str:
    if what == "bits":
        alone, hung = run_alone(case, folder)
        differs = difference(alone, audited := run(case, folder / "with", audit=True))
        if not differs and audited.status != case.status:
            differs = f"exit status {audited.status}: {audited.err[-300:]}"
        found = f"WRONG: {differs}" if differs else _healthy(audited.report)
        return f"{found} (without run-audit it did not end, {hung} times)" if hung else found
    if what.startswith("late"):
        _, rank, place = what.split()
        return judgement(case, run(case, folder, True, int(rank), place).report, int(rank), place)
    return _healthy(run(case, folder, audit=True).report)


def _healthy(report: object) -> str:
    if not isinstance(report, dict) or "headline" not in report:
        return "WRONG: no report"
    found = named(report)
    return f"WRONG: accuses a healthy rank ({report['headline']})" if found else "right"


def trials(runs: int) -> Iterator[tuple[Case, str]]:
    """In order: the bits and the late ranks of every script, then healthy runs of all of them in turn."""
    for case in CASES:
        yield case, "bits"
    for number, case in enumerate(CASES):
        for place in case.places or ("data",):
            yield case, f"late {number % case.ranks} {place}"
    rounds = -(-runs // len(CASES))
    healthy = [(case, f"healthy {number}") for number in range(1, rounds) for case in CASES]
    yield from healthy[: max(0, runs - len(CASES))]


def table(found: list[dict[str, str]]) -> Iterator[str]:
    yield "| script | weights and exit status | late rank: where, how long | healthy runs, of which a rank was named |"
    yield "| --- | --- | --- | --- |"
    for case in CASES:
        own = [each for each in found if each["case"] == case.name]
        bits = [each["result"] for each in own if each["what"] == "bits"]
        late = [f"{each['what'][5:]}: {each['result']}" for each in own if each["what"].startswith("late")]
        healthy = [each["result"] for each in own if not each["what"].startswith("late")]
        accused = sum("accuses" in each for each in healthy)
        unequal = [each for each in bits if "WRONG" in each and "accuses" not in each]
        same = "not run" if not bits else unequal[0] if unequal else "equal"
        yield f"| {case.name} | {same} | {'; '.join(late) or 'not run'} | {len(healthy)}, {accused} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".job-soak"))
    parser.add_argument("--runs", type=int, default=200, help="how many healthy runs in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after so long")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(results(options.state))))
        return 0
    until = time.monotonic() + options.seconds
    done = {(each["case"], each["what"]) for each in results(options.state)}
    for case, what in trials(options.runs):
        if (case.name, what) in done:
            continue
        if time.monotonic() >= until:
            break
        folder = Path(tempfile.mkdtemp(prefix="job-soak-"))
        began = time.monotonic()
        result = tried(case, folder, what)
        shutil.rmtree(folder, ignore_errors=True)
        with options.state.open("a") as state:
            state.write(json.dumps({"case": case.name, "what": what, "result": result}) + "\n")
        print(f"{time.monotonic() - began:5.1f} s  {case.name}, {what}: {result}", flush=True)
    return int(any("WRONG" in each["result"] for each in results(options.state)))


if __name__ == "__main__":
    sys.exit(main())
