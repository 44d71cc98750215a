"""What the bounds rest on: values with origin and refutation, and what no sample can show."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_view import RECORDED
from rich.console import Console, Group

from timesyncd.cli._tables import budget_tables
from timesyncd.cli.assumptions import (
    Unobservable,
    assumed_values,
    assumptions_json,
    unobservable_assumptions,
)
from timesyncd.config import BoundSettings
from timesyncd.messages.node import NodeState

DOCS = Path(__file__).parents[3] / "docs" / "error-bound.md"
RECORDED_NODE = RECORDED["nodes"][0]
ASSUMED = {"local_drift_ppb": 50_000, "boundary_clock_error_ns": None, "utc_offset_s": 37, "delay_filter_length": 10}
UTC = {"bound_ns": 5_000, "growth_ppb": 100, "reason": ""}
PTP: dict[str, Any] = {
    "name": "ptp",
    "driver": "ptp4l",
    "reachable": True,
    "kind": "ptp",
    "age_ns": 0,
    "steps_removed": 1,
    "utc": UTC,
    "assumed": ASSUMED,
    "configured": ["local_drift_ppb"],
}
NTP: dict[str, Any] = {"name": "ntp", "driver": "chrony", "reachable": True, "kind": "utc", "age_ns": 0, "utc": UTC}


def node(*sources: dict[str, Any], **changes: Any) -> NodeState:
    return NodeState.model_validate(RECORDED_NODE | {"sources": list(sources), "falsetickers": []} | changes)


def codes(node: NodeState) -> set[str]:
    return {assumption.value for assumption, _ in unobservable_assumptions(node)}


def printed(node: NodeState) -> list[str]:
    console = Console(file=StringIO(), record=True, width=80, highlight=False)
    console.print(Group(*budget_tables(node)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_each_value_has_its_unit_and_its_origin() -> None:
    """A value that the file sets is configured, another is a default; one that is not set stays None."""
    drift, hops, utc, length = assumed_values(node(PTP))

    assert (drift.value, drift.unit, drift.origin, drift.refuted) == (50_000, "ppb", "configured", False)
    assert (hops.value, hops.unit, hops.origin) == (None, "ns", "default")
    assert (utc.value, utc.unit, utc.refuted) == (37, "s", None)
    assert (length.value, length.unit) == (10, "measurements")


def test_what_samples_refuted_counts_no_more() -> None:
    """The observed value is in force, in JSON as in text."""
    refuted = node(PTP | {"refuted": {"local_drift_ppb": 81_234}})
    value = assumptions_json(refuted)["values"][0]  # type: ignore[index]

    assert (value["value"], value["in_force"], value["refuted"]) == (50_000, 81_234, True)
    assert any(line.split() == ["local_drift_ppb", "50000", "ppb", "configured", "REFUTED:", "81234", "ppb"]
               for line in printed(refuted))  # fmt: skip


def test_the_announced_utc_offset_is_in_force_after_a_leap_second() -> None:
    """The file says 37 s, and the bound removes 38 s: the list must not state 37 s as what counts."""
    value = next(
        each for each in assumed_values(node(PTP | {"utc_seconds_removed": 38})) if each.name == "utc_offset_s"
    )

    assert (value.value, value.in_force) == (37, 38)


def test_of_a_direct_path_no_boundary_clock_is_assumed() -> None:
    """An assumption is listed where a bound rests on it."""
    direct, behind = node(PTP), node(PTP | {"steps_removed": 2})

    assert "boundary_clock_holdover" not in codes(direct)
    assert "boundary_clock_holdover" in codes(behind)


def test_a_vote_is_assumed_to_be_won_by_the_truth_where_there_is_one() -> None:
    """With one source of UTC, or with sources that may share an error, no source votes."""
    assert not {"majority_right", "declared_independent"} & codes(node(PTP))
    assert not {"majority_right", "declared_independent"} & codes(node(PTP, NTP, utc_dependent=["ntp"]))
    assert {"majority_right", "declared_independent", "root_dispersion"} <= codes(node(PTP, NTP))


def test_a_grandmaster_s_report_is_assumed_where_it_counts() -> None:
    """Only where the daemons poll the grandmaster that the bound against UTC goes through."""
    assert not {code for code in codes(node(PTP)) if code.startswith("gm_")}
    assert "gm_holdover_curve" in codes(node(PTP, grandmaster="gm-a"))
    assert "gm_holdover_curve" not in codes(node(PTP | {"utc": None}, grandmaster="gm-a"))


def test_a_machine_that_its_host_stops_is_always_assumed_away() -> None:
    """Nothing on the node shows it, whatever its sources are."""
    assert {"no_host_pause", "clocks_run_in_suspend"} <= codes(node(NTP))


def test_nothing_is_assumed_of_a_bound_that_does_not_exist() -> None:
    """Before the first sample there is no bound, so nothing that it rests on."""
    assert codes(node(PTP | {"age_ns": None}, age_ns=None)) == set()


def test_the_sources_are_named_where_there_are_others() -> None:
    """A node with two sources needs to know of which one something is assumed."""
    shown = printed(node(PTP, NTP))

    assert "ptp4l shows a Sync within a second of its receipt (ptp)" in " ".join(" ".join(shown).split())
    assert "assumed by ptp" in [line.rstrip() for line in shown]


def test_no_line_of_the_assumptions_exceeds_80_columns() -> None:
    """Every value that the file can set, refuted by a large one, fits a terminal of 80 columns."""
    values = dict.fromkeys(BoundSettings.model_fields, 10**6)
    worst = node(PTP | {"assumed": values, "refuted": values, "configured": list(values)}, grandmaster="gm-a")

    assert max(map(len, printed(worst))) <= 80


@pytest.mark.parametrize("code", list(Unobservable))
def test_the_page_has_each_code(code: Unobservable) -> None:
    """docs/error-bound.md states what happens when the assumption breaks."""
    assert f"`{code}`" in DOCS.read_text()


def test_each_assumption_of_the_page_is_listed() -> None:
    """A row of the page that `explain` does not print would be a silent assumption."""
    documented = re.findall(r"^\| `([a-z0-9_]+)` \| ", DOCS.read_text().partition("## Assumptions")[2], re.MULTILINE)

    assert set(documented) - {"delay_filter_length"} == set(Unobservable) - {"statistical_prior"}
