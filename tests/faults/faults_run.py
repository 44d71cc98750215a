"""
Does each fault to a running system, and prints what it did to clocks, samples and reports, and how long the recovery took.

    python tests/faults/faults_run.py [--state .faults] [--table] [--write docs/faults.md] [WORD ...]

With words, only the faults whose name has one of them. With `--state`, a run that was stopped goes on after the last fault that it judged,
and the folder is removed when none is left. `--table` tries nothing: a fault that was not judged is printed as not run. Exit status 1: a goal was missed, or a fault was not tried.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from faults_judging import NS_PER_S, Record, Row, failures, record_of_machine, table
from faults_rows import FAULTS, Fault
from faults_system import System

VM_SOAK = Path(__file__).parents[1] / "vm" / "vm_soak.py"
#: What the record of a scenario covers.
SCENARIO_S = 38

BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


def tried(fault: Fault, skips: bool = False) -> Row:
    """One fault, in a system of its own. What goes wrong in the trial itself fails the row."""
    if fault.scenario and not skips:
        return in_virtual_machine(fault)
    if fault.act is None or skips:
        return Row(fault.group, fault.name, not_run=fault.not_run or "not judged yet")
    try:
        with System(fault.options) as system:
            fault.act(system)
            record = system.record()
            print(f"    {record}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001  one fault's trial costs no other's
        traceback.print_exc()
        return Row(fault.group, fault.name, not_run=f"{type(error).__name__}: {error}"[:200])
    return Row(fault.group, fault.name, record, tuple(failures(record, fault.must_report, fault.may_report)))


def in_virtual_machine(fault: Fault) -> Row:
    """A scenario of tests/vm, where the clock of the whole machine may be stepped."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(VM_SOAK), "--state", folder, fault.scenario]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        result = Path(folder, f"{fault.scenario}.json")
        if not result.exists():
            lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
            return Row(fault.group, fault.name, not_run=lines[-1][:200])
        samples = Path(folder, f"{fault.scenario}.samples.csv").read_text().splitlines()
        record = record_of_machine(json.loads(result.read_text()), samples, SCENARIO_S * NS_PER_S)
    print(f"    {record}", file=sys.stderr)
    return Row(fault.group, fault.name, record, tuple(failures(record, fault.must_report, fault.may_report)))


def chosen(words: Sequence[str]) -> list[Fault]:
    return [each for each in FAULTS if not words or any(word in f"{each.group}: {each.name}" for word in words)]


def with_table(page: str, text: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def kept(state: Path | None) -> dict[str, Row]:
    """The faults that an earlier run judged, by name."""
    rows = []
    for file in state.glob("*.json") if state is not None else ():
        fields = json.loads(file.read_text())
        record = fields.pop("record")
        record["reported"] = frozenset(record["reported"])
        rows.append(Row(record=Record(**record), **fields | {"failed": tuple(fields["failed"])}))
    return {f"{row.group}: {row.name}": row for row in rows}


def keep(state: Path | None, row: Row) -> None:
    if state is not None and not row.not_run:
        state.mkdir(exist_ok=True)
        fields = asdict(row)
        fields["record"]["reported"] = sorted(row.record.reported)
        name = "".join(each if each.isalnum() else "-" for each in f"{row.group}-{row.name}")
        (state / f"{name}.json").write_text(json.dumps(fields))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    parser.add_argument("--state", type=Path, help="the folder of what was judged")
    parser.add_argument("--table", action="store_true", help="print what was judged, and try nothing")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    known, rows = kept(args.state), list[Row]()
    for fault in chosen(args.words):
        row = known.get(f"{fault.group}: {fault.name}") or tried(fault, args.table)
        rows.append(row)
        keep(args.state, row)
        state = f"not run: {row.not_run}" if row.not_run else "; ".join(row.failed) or "held"
        print(f"{row.group}: {row.name}: {state}", file=sys.stderr, flush=True)
    print(table(rows))
    if args.write is not None:
        args.write.write_text(with_table(args.write.read_text(), table(rows)))
    if args.state is not None and not args.words and not args.table:
        shutil.rmtree(args.state, ignore_errors=True)
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
