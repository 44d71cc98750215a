"""Which node follows which grandmaster, and the grandmaster's state as text."""

from __future__ import annotations

from typing import Any

import pytest
from grandmaster_states import GM_A, GM_B, HOUR_NS, MINUTE_NS, NIGHT_NS, follower, polled_grandmaster

from timesyncd.findings.followers import followed_grandmaster, with_grandmaster
from timesyncd.findings.text import grandmaster_summary_text, names_text, utc_text
from timesyncd.sample import Alarm, PtpPort

PORT = "00a069.fffe.70476f"
BUDGET_NS = 220 * MINUTE_NS


@pytest.mark.parametrize(
    ("identity", "name"),
    [(GM_A, "gm-a"), (GM_B, "gm-b"), (PORT, "gm-b"), ("00a069.fffe.000001", "gm-b"), ("001122.fffe.334455", None), (None, None)],
)  # fmt: skip
def test_a_node_follows_the_grandmaster_that_shows_its_grandmaster_s_identity(identity: str, name: str | None) -> None:
    """A configured identity, its own, or one of its ports; an absent identity matches none."""
    other = polled_grandmaster(
        "gm-b", clock_identity="00a069.fffe.000001", ports=[PtpPort("eth1"), PtpPort("eth2", clock_identity=PORT)]
    )
    found = followed_grandmaster(follower(identity=identity), [polled_grandmaster(), other])

    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "LOCKED"),
        ({"antenna": "open"}, "LOCKED, GNSS antenna open"),
        ({"alarms": [Alarm(97, 0, "major", "GNSS: antenna open")]}, "LOCKED, GNSS: antenna open"),
        ({"clock_state": "freerun"}, "FREERUN"),
        (
            {"clock_state": "holdover", "antenna": "open", "holdover_left_ns": BUDGET_NS},
            "HOLDOVER since 02:14Z, GNSS antenna open, budget left 3 h 40 min",
        ),
        (
            {"clock_state": "holdover", "holdover_left_ns": BUDGET_NS, "age_ns": HOUR_NS},
            "HOLDOVER since 02:14Z, budget left 2 h 40 min",
        ),
        (
            {"clock_state": "holdover_out_of_spec", "holdover_left_ns": HOUR_NS, "age_ns": HOUR_NS},
            "HOLDOVER OUT OF SPEC since 02:14Z, budget exhausted",
        ),
        ({"clock_state": None}, "clock class 6"),
        ({"clock_state": None, "clock_class": None}, "state unknown"),
        ({"reachable": False}, "LOCKED, not responding: last known state"),
    ],
)
def test_a_node_s_state_describes_its_grandmaster(changes: dict[str, Any], text: str) -> None:
    """One line: state and since when, what is wrong, how long it will do."""
    since_ns = None if changes.get("clock_state") == "freerun" else NIGHT_NS + 4 * MINUTE_NS
    found = polled_grandmaster(**({"clock_state_since_realtime_ns": since_ns} | changes))

    assert grandmaster_summary_text(found, NIGHT_NS + HOUR_NS) == f"gm-a: {text}"


def test_a_state_with_its_grandmaster() -> None:
    """With the grandmaster's name and state; a node of an unknown grandmaster is unchanged."""
    state, unrelated = (
        with_grandmaster(follower(), [polled_grandmaster()], NIGHT_NS),
        follower(identity="001122.fffe.334455"),
    )

    assert (state.grandmaster, state.grandmaster_summary) == ("gm-a", "gm-a: LOCKED")
    assert with_grandmaster(unrelated, [polled_grandmaster()], NIGHT_NS) == unrelated


@pytest.mark.parametrize(("later_ns", "text"), [(21 * HOUR_NS, "02:10Z"), (22 * HOUR_NS, "2026-03-01 02:10Z")])
def test_a_time_is_in_utc(later_ns: int, text: str) -> None:
    """The minute, and its date where that is not today's."""
    assert utc_text(NIGHT_NS, NIGHT_NS + later_ns) == text


def test_names_are_sorted_and_cut() -> None:
    """Six, and how many more."""
    assert names_text(["b", "a"]) == "a, b"
    assert names_text([str(number) for number in range(9)]) == "0, 1, 2, 3, 4, 5 and 3 more"
