"""Findings about leap seconds, by what the sources of a node and the grandmasters say."""

from __future__ import annotations

from typing import Any

import pytest
from wire import node_state

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.leap import leap_findings
from timesyncd.messages.node import GrandmasterState, NodeState, SourceState
from timesyncd.model.leap import LeapTable

#: 2016-12-31T12:00:00Z: half a day before the last leap second, and the same time on 2021-08-20, when none was due.
DUE_NS = 1_483_185_600 * NS_PER_S
NOT_DUE_NS = 1_629_460_800 * NS_PER_S
TABLE = LeapTable(((1_435_708_800, 36), (1_483_228_800, 37)), 1_700_000_000)

GM = "001122.fffe.334455"


def source(name: str, kind: Any, leap: str, **changes: Any) -> SourceState:
    known = {"name": name, "driver": name, "reachable": True, "kind": kind, "leap": leap, "grandmaster_identity": GM}
    return SourceState.model_validate(known | changes)


def node(*sources: SourceState, **changes: Any) -> NodeState:
    return node_state().model_copy(update={"sources": list(sources), **changes})


def polled(leap: str | None, **changes: Any) -> GrandmasterState:
    known = {
        "node": "hub", "incarnation": 1, "sequence": 1, "name": "gm-a", "published_realtime_ns": 0, "age_ns": 0,
        "reachable": True, "leap": leap,
    }  # fmt: skip
    return GrandmasterState.model_validate(known | changes)


def found(
    state: NodeState, now_ns: int = DUE_NS, table: LeapTable | None = TABLE, *gms: GrandmasterState
) -> dict[str, str]:
    return {
        f"{id} {subject}": each.evidence for (id, subject), each in leap_findings(state, gms, table, now_ns).items()
    }


def test_no_flag_calls_for_nothing() -> None:
    """Nor does a source that reports none."""
    assert (
        found(node(source("ptp", "ptp", "none"), source("ntp", "utc", "none"), source("kernel", "kernel", "none")))
        == {}
    )


@pytest.mark.parametrize(
    ("leap", "text"),
    [("insert", "23:59:60 UTC of 2016-12-31 is inserted"), ("delete", "23:59:59 UTC of 2016-12-31 is deleted")],
)
def test_an_announced_leap_second_has_its_direction_and_time(leap: str, text: str) -> None:
    """By Announce, and by the NTP daemon."""
    assert found(node(source("ptp", "ptp", leap)), table=None) == {
        "leap-announced ptp": f"Announce of {GM} (ptp) announces: {text}"
    }
    assert found(node(source("ntp", "utc", leap)), table=None) == {
        "leap-announced ntp": f"the NTP daemon (ntp) announces: {text}"
    }


def test_one_that_is_due_is_no_fault() -> None:
    """Everybody says so, and the table has it."""
    all_say = node(source("ptp", "ptp", "insert"), source("ntp", "utc", "insert"), source("kernel", "kernel", "insert"))

    assert found(all_say).keys() == {"leap-announced ptp", "leap-announced ntp"}


@pytest.mark.parametrize("table", [TABLE, None])
def test_one_that_is_not_due_is_suspicious(table: LeapTable | None) -> None:
    """Announced or armed on a day that ends no month, as in August 2021: no table is needed."""
    state = node(source("ptp", "ptp", "insert"), source("kernel", "kernel", "insert"), node="n1")
    unexpected = found(state, NOT_DUE_NS, table)
    text = "23:59:60 UTC of 2021-08-20 is inserted; 2021-08-20 is not the end of a month, and leap seconds are"

    assert unexpected["leap-unexpected ptp"] == f"Announce of {GM} (ptp): {text}"
    assert unexpected["leap-unexpected n1"] == f"the kernel: {text}"


def test_the_table_decides_at_the_end_of_a_month() -> None:
    """NTP's indicator means the end of the month, and the table has none for August 2021."""
    assert found(node(source("ntp", "utc", "insert")), NOT_DUE_NS)["leap-unexpected ntp"] == (
        "the NTP daemon (ntp): 23:59:60 UTC of 2021-08-31 is inserted; leap-seconds.list has no leap second then"
    )


@pytest.mark.parametrize(
    ("sources", "evidence"),
    [
        ([("ptp", "ptp", "both")], f"Announce of {GM} (ptp): insert and delete at once"),
        (
            [("ptp", "ptp", "insert"), ("spare", "ptp", "delete")],
            f"Announce of {GM} (ptp): insert a second, Announce of {GM} (spare): delete a second",
        ),
        (
            [("ntp", "utc", "delete"), ("kernel", "kernel", "insert")],
            "the NTP daemon (ntp): delete a second, the kernel: insert a second",
        ),
        (
            [("ntp", "utc", "none"), ("kernel", "kernel", "insert")],
            "the NTP daemon (ntp): no leap second, the kernel: insert a second",
        ),
        (
            [("ptp", "ptp", "insert"), ("ntp", "utc", "none")],
            f"Announce of {GM} (ptp): insert a second, the NTP daemon (ntp): no leap second",
        ),
        ([("ptp", "ptp", "insert"), ("kernel", "kernel", "none")], None),
        ([("ptp", "ptp", "insert"), ("ntp", "utc", "insert")], None),
    ],
    ids=["both", "two sources", "kernel", "armed by another program", "announced by one", "not armed yet", "agree"],
)
def test_clocks_that_contradict_each_other(sources: list[tuple[str, str, str]], evidence: str | None) -> None:
    """Each with what it reports; a kernel that is not armed contradicts no source."""
    state = node(*(source(*each) for each in sources), node="n1")

    assert found(state, NOT_DUE_NS).get("leap-contradiction n1") == evidence


def test_one_that_is_due_may_be_announced_by_one_before_the_others() -> None:
    """NTP may know a month ahead, PTP 12 hours; in the last hour everybody must."""
    state = node(source("ptp", "ptp", "none"), source("ntp", "utc", "insert"), node="n1")

    assert "leap-contradiction n1" not in found(state, DUE_NS)
    assert "leap-contradiction n1" in found(state, DUE_NS + (11 * 3_600 + 1) * NS_PER_S)


def test_the_grandmaster_itself_contradicts_its_announce() -> None:
    """The one that the node follows, as its poll reports; another one's is no contradiction here."""
    state = node(source("ptp", "ptp", "insert"), node="n1", grandmaster="gm-a")

    assert found(state, NOT_DUE_NS, TABLE, polled("none"))["leap-contradiction n1"] == (
        f"Announce of {GM} (ptp): insert a second, gm-a itself: no leap second"
    )
    assert "leap-contradiction n1" not in found(state, NOT_DUE_NS, TABLE, polled("insert"))
    assert "leap-contradiction n1" not in found(state, NOT_DUE_NS, TABLE, polled(None))
    assert "leap-contradiction n1" not in found(state, NOT_DUE_NS, TABLE, polled("none", name="gm-b"))


def test_a_grandmaster_that_announces_one_that_is_not_due() -> None:
    """Whether a node follows it or not."""
    assert found(node(), NOT_DUE_NS, TABLE, polled("insert")) == {
        "leap-unexpected gm-a": "gm-a itself: 23:59:60 UTC of 2021-12-31 is inserted; leap-seconds.list has no leap second then"
    }


def test_a_grandmaster_may_announce_one_months_ahead() -> None:
    """GNSS does, for the end of June or December; where leap-seconds.list does not reach, nothing speaks against it."""
    assert found(node(), NOT_DUE_NS, None, polled("insert")) == {}


def test_a_source_without_a_fresh_sample_says_nothing() -> None:
    """Its last flag may have been cleared since."""
    assert found(node(source("ptp", "ptp", "insert", reason_code="no_valid_sample")), NOT_DUE_NS) == {}


def test_a_flag_that_is_not_cleared_yet_is_of_the_midnight_that_passed() -> None:
    """For two minutes; then it announces another one, which is not due."""
    midnight_ns = 1_483_228_800 * NS_PER_S
    state = node(source("ptp", "ptp", "insert"))

    assert found(state, midnight_ns + 3 * NS_PER_S).keys() == {"leap-announced ptp"}
    assert "leap-unexpected ptp" in found(state, midnight_ns + 200 * NS_PER_S)
