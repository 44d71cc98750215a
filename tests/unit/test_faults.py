"""What `make faults` decides without a fault: what was lost, which goals were missed, and the table."""

from __future__ import annotations

import pytest
from faults_judging import NS_PER_S, Record, Row, failures, lost_s, record_of_machine, table
from faults_rows import FAULTS
from faults_run import BEGIN, END, with_table

S = NS_PER_S


@pytest.mark.parametrize(
    ("samples", "absent", "lost"),
    [
        ([0, 1, 2, 3, 4, 5, 6], [], 0),
        ([0, 1, 2, 5, 6], [], 2),
        ([0, 1, 2, 5, 6], [(2, 5)], 0),
        ([0, 1, 2, 5, 6], [(3, 5)], 0),
        ([5, 6, 7], [], 2),
        ([0, 1], [], 4),
        ([], [], 4),
    ],
)
def test_what_is_lost(samples: list[int], absent: list[tuple[int, int]], lost: float) -> None:
    """The longest gap beyond the usual one, without what the daemon was not there for; a daemon that stores no more loses all."""
    spans = [(begin * S, end * S) for begin, end in absent]

    assert lost_s([each * S for each in samples], 2 * S, 6 * S, spans) == lost


GOOD = Record(100, 0, 0.5, frozenset({"broker-lost"}), {"clock": 0.1, "hub": 14.0})


@pytest.mark.parametrize(
    ("record", "missed"),
    [
        (GOOD, []),
        (Record(100, 1, 0.5, GOOD.reported, GOOD.recovered), ["1 of 100 intervals without the true time"]),
        (Record(0, 0, 0.5, GOOD.reported, GOOD.recovered), ["the clock was not read"]),
        (Record(100, 0, 1.5, GOOD.reported, GOOD.recovered), ["1.5 s of samples lost"]),
        (Record(100, 0, 0.5, frozenset(), GOOD.recovered), ["not reported: broker-lost"]),
        (Record(100, 0, 0.5, GOOD.reported | {"x"}, GOOD.recovered), ["reported falsely: x"]),
        (Record(100, 0, 0.5, GOOD.reported, {"hub": 15.5, "page": None}), ["hub recovered after 15.5 s", "page did not recover"]),
    ],
)  # fmt: skip
def test_each_goal_is_judged(record: Record, missed: list[str]) -> None:
    """And named where it was missed."""
    assert failures(record, ["broker-lost"], ["may"]) == missed


def test_what_a_virtual_machine_measured_is_a_record() -> None:
    """Its claims count, and samples are missed by the time that no step changes."""
    result = {"tallies": [{"judged": 10, "missed": 1}, {"judged": 5, "missed": 0}], "findings": ["clock-disrupted"]}
    samples = ["id,as_of_ns", *(f"{number},{second * S}" for number, second in enumerate((1, 9, 20, 21, 22, 25, 26)))]

    assert record_of_machine(result, samples, 6 * S) == Record(15, 1, 1.0, frozenset({"clock-disrupted"}))
    assert record_of_machine(result, samples[:1], 8 * S).lost_s is None


def test_a_row_that_did_not_run_is_printed_so_and_fails() -> None:
    """An absent measurement is no success."""
    row = Row("process", "OOM", not_run="needs a memory cgroup")

    assert not row.is_good
    assert table([row]).splitlines()[-1] == "| process: OOM |  |  |  |  |  | not run: needs a memory cgroup |"
    assert Row("broker", "killed", GOOD).is_good


def test_every_fault_is_tried_or_states_why_not() -> None:
    """Once each."""
    assert all(bool(fault.act) + bool(fault.scenario) + bool(fault.not_run) == 1 for fault in FAULTS)
    assert len({(fault.group, fault.name) for fault in FAULTS}) == len(FAULTS)


def test_the_table_is_replaced_in_its_page() -> None:
    """And nothing else of it."""
    page = f"# Faults\n\n{BEGIN}\n\nold\n\n{END}\n\nmore\n"

    assert with_table(page, "new") == page.replace("old", "new")
