"""Which names are kept where a client of the broker invents more than there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.admission import (
    FEW_NEWCOMERS,
    MEMBER_AFTER_NS,
    NEWCOMER_EXPIRES_NS,
    SILENT_AFTER_NS,
    Admission,
)


def members(admission: Admission, *names: str, size: int = 1) -> None:
    """Names that reported for long enough, until MEMBER_AFTER_NS."""
    for name in names:
        for now_ns in (0, MEMBER_AFTER_NS):
            assert admission.admit(name, size, True, now_ns).admitted


def test_the_newcomer_that_was_silent_longest_gives_way() -> None:
    """An invented name is mostly used once, so the oldest of those goes first."""
    admission = Admission(2, 100)
    for now_ns, name in enumerate(("a", "b", "a")):
        admission.admit(name, 1, True, now_ns)

    assert admission.admit("c", 1, True, 9) == (True, ["b"])
    assert (len(admission), admission.dropped, admission.last_refused) == (2, 1, "b")


def test_a_member_that_reports_gives_way_to_nobody() -> None:
    """However many names are invented, a fleet that is known stays known."""
    admission = Admission(3, 100)
    members(admission, "n1", "n2")
    now_ns = MEMBER_AFTER_NS + NS_PER_S
    dropped = [admission.admit(f"x{number}", 1, True, now_ns).given_way for number in range(100)]

    assert {name for names in dropped for name in names} == {f"x{number}" for number in range(99)}
    members(admission, "n3")
    assert admission.admit("y", 1, True, now_ns) == (False, [])
    assert (admission.refused, admission.last_refused) == (1, "y")


def test_a_silent_member_gives_way_when_no_newcomer_is_left() -> None:
    """The one that was silent longest goes; before five minutes of silence none does."""
    admission = Admission(2, 100)
    members(admission, "n1", "n2")
    admission.repeat("n1", MEMBER_AFTER_NS + NS_PER_S)

    assert not admission.admit("n3", 1, True, SILENT_AFTER_NS).admitted
    assert admission.admit("n3", 1, True, MEMBER_AFTER_NS + SILENT_AFTER_NS) == (True, ["n2"])


def test_retained_copies_make_no_member() -> None:
    """A broker's copy may be of any age, and invented names may be retained too."""
    admission = Admission(1, 100)
    for now_ns in (0, MEMBER_AFTER_NS):
        admission.admit("n1", 1, False, now_ns)

    assert admission.admit("n2", 1, True, MEMBER_AFTER_NS) == (True, ["n1"])


def test_expected_names_are_always_kept_and_take_no_room() -> None:
    """An operator named them, so their number is bounded by the configuration."""
    admission = Admission(1, 10, protected=("n1", "n2"))

    assert all(admission.admit(name, 1_000, True, 0) == (True, []) for name in ("n1", "n2", "n1"))
    assert admission.admit("x", 10, True, 0).admitted
    assert (len(admission), admission.bytes) == (1, 10)


def test_bytes_are_bounded_and_a_message_too_large_drops_no_member() -> None:
    """A known name keeps what it had where its next message does not fit."""
    admission = Admission(100, 10)
    members(admission, "n1", size=4)
    admission.admit("x", 6, True, 0)

    assert admission.admit("y", 11, True, 0) == (False, [])
    assert admission.admit("n1", 11, True, 0) == (False, [])
    assert admission.admit("n1", 5, True, MEMBER_AFTER_NS) == (True, ["x"])
    assert admission.admit("n2", 6, True, MEMBER_AFTER_NS) == (False, [])
    assert (len(admission), admission.bytes) == (1, 5)


def test_a_flood_leaves_no_name() -> None:
    """Newcomers that are silent for a minute are forgotten; a broker's retained copies and members are not."""
    admission = Admission(10_000, 10_000)
    members(admission, "n1")
    admission.admit("retained", 1, False, 0)
    for number in range(FEW_NEWCOMERS + 500):
        admission.admit(f"x{number}", 1, True, number)

    assert admission.expire(NEWCOMER_EXPIRES_NS - 1) == []
    assert admission.expire(NEWCOMER_EXPIRES_NS + 9) == [f"x{number}" for number in range(10)]
    gone = admission.expire(NEWCOMER_EXPIRES_NS + NS_PER_S)
    assert (len(gone), gone[-1], len(admission)) == (1_490, "x1499", 2)


def test_a_newcomer_without_a_flood_stays() -> None:
    """A node that reported once is last known for an hour, as any other."""
    admission = Admission(10, 10)
    admission.admit("n1", 1, True, 0)

    assert admission.expire(10 * NEWCOMER_EXPIRES_NS) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 6), st.booleans(), st.integers(0, SILENT_AFTER_NS)),
        max_size=60,
    )
)
def test_its_names_and_bytes_are_those_of_its_answers(messages: list[tuple[str, int, bool, int]]) -> None:
    """What it counts as kept is what its caller keeps, and is never above its limits."""
    admission = Admission(3, 10)
    kept: dict[str, int] = {}
    now_ns = 0
    for name, size, live, later_ns in messages:
        now_ns += later_ns
        admitted, given_way = admission.admit(name, size, live, now_ns)
        for gone in given_way:
            del kept[gone]
        if admitted:
            kept[name] = size
        assert (len(admission), admission.bytes) == (len(kept), sum(kept.values()))
        assert len(kept) <= 3 and sum(kept.values()) <= 10
