"""What the hub says of two nodes' clocks is held against the difference that they have."""

from __future__ import annotations

import pytest
from vm_fleet_judging import (
    Answer,
    HostLog,
    Line,
    Release,
    judged_alignment,
    parse_lines,
    releases,
    skew_summary,
    summary,
)
from vm_logs import EPOCH_NS, PERIOD, log
from vm_truth import Verdict

#: The host's CLOCK_MONOTONIC_RAW is 5 s behind its counter, whose ticks are nanoseconds.
BEHIND_NS = 5_000_000_000
HOST = HostLog(f"{t} {t} 0 {t + 100} {t + 300} {t + 200 - BEHIND_NS} {t} {t} 0" for t in range(0, 100 * PERIOD, PERIOD))


def answer(alignment_ns: int | None, at: int = 50 * PERIOD) -> Answer:
    return Answer(at - 1_000_000 - BEHIND_NS, at - BEHIND_NS, alignment_ns, "ok")


def test_the_hosts_clock_is_brought_to_the_scale_of_its_counter() -> None:
    """Between two rows of its log, and outside of them not at all."""
    assert HOST.moment_of(33 * PERIOD + 12_345 - BEHIND_NS) == pytest.approx(33 * PERIOD + 12_345)
    assert HOST.moment_of(200 * PERIOD - BEHIND_NS) is None


@pytest.mark.parametrize(
    ("apart_ns", "alignment_ns", "verdict"),
    [
        (30_000, 31_000, Verdict.HELD),
        (-30_000, 31_000, Verdict.HELD),
        (30_000, 29_000, Verdict.MISSED),
        (-30_000, 29_000, Verdict.MISSED),
        (30_000, 30_000, Verdict.OPEN),
        (30_000, None, Verdict.UNKNOWN),
    ],
)
def test_an_alignment_is_missed_where_the_clocks_were_further_apart(
    apart_ns: int, alignment_ns: int | None, verdict: Verdict
) -> None:
    """Whichever of the two is ahead; within the error of the truth it is neither held nor missed."""
    one, other = log(realtime=lambda t: EPOCH_NS + t + apart_ns), log()

    (found,) = judged_alignment([answer(alignment_ns)], HOST, one.series["realtime"], other.series["realtime"])

    assert found.verdict is verdict
    assert found.apart_ns is None or found.apart_ns == pytest.approx(30_000, abs=2)


def test_an_answer_counts_at_the_moment_at_which_it_came() -> None:
    """The clocks part after it, so it holds; one that comes later does not."""
    one = log(realtime=lambda t: EPOCH_NS + t + (1_000_000 if t > 60 * PERIOD else 0))
    answers = [answer(500_000), answer(500_000, 70 * PERIOD), answer(500_000, 1_000 * PERIOD)]

    found = judged_alignment(answers, HOST, one.series["realtime"], log().series["realtime"])

    assert [each.verdict for each in found] == [Verdict.HELD, Verdict.MISSED]
    assert summary(found).verdicts == {"HELD": 1, "MISSED": 1}
    assert summary(found).nearest == pytest.approx(2)


def test_a_rank_that_knows_nothing_is_read_as_that() -> None:
    """Of a line that is cut off nothing is read."""
    assert parse_lines("7 900 1000 plain ok None 5000\n8 901 1001 timed ok 1 None\n9 902") == [
        Line(7, 900, 1000, "plain", "ok", None, 5000),
        Line(8, 901, 1001, "timed", "ok", 1, None),
    ]


def test_the_skew_of_a_release_is_that_on_one_scale() -> None:
    """Rank 1 is released 40 us after rank 0; a step that one rank alone has counts nothing."""
    at = 40 * PERIOD + 100
    ranks = [
        [Line(1, at, 0, "plain", "ok", None, 30_000), Line(2, at, 0, "plain", "ok", None, None)],
        [Line(1, at + 40_000, 0, "plain", "ok", None, 30_000)],
    ]

    found = releases(ranks, [log(), log()])

    assert [(each.step, round(each.skew_ns)) for each in found] == [(1, 40_000)]
    assert found[0].error_ns < 500
    assert skew_summary(found)["beyond_alignment"] == 1
    assert skew_summary([Release(1, 40_000, 500, 50_000)])["beyond_alignment"] == 0
    assert skew_summary([]) == {"releases": 0}
