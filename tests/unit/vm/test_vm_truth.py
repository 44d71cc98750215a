"""A claim is held against the truth with the error that the truth has."""

from __future__ import annotations

import math

import pytest
from vm_logs import ALWAYS, EPOCH_NS, PERIOD, READING, log
from vm_truth import (
    TAI_MINUS_UTC_NS,
    Claim,
    ClockError,
    CounterOffset,
    MachineLog,
    Moment,
    Piece,
    Range,
    Verdict,
    errors_of,
    judge,
    parse_claims,
    ranges_beyond,
)


def claim(at: int, earliest: int | None, latest: int | None, *, kind: str = "gm", window: int = 50_000) -> Claim:
    """Of the moment `at` of the node's counter, at which its CLOCK_REALTIME was EPOCH_NS + at."""
    status = "SYNCHRONIZED" if earliest is not None else "UNKNOWN"
    return Claim(kind, "realtime", EPOCH_NS + at, at - window, at + window, at + window, earliest, latest, status, "-")


def only(moments: list[Moment]) -> Moment:
    (moment,) = moments
    return moment


@pytest.mark.parametrize(
    ("error_ns", "bound_ns", "verdict"),
    [
        (0, 1_000, Verdict.HELD),
        (5_000, 6_000, Verdict.HELD),
        (-5_000, 6_000, Verdict.HELD),
        (5_000, 5_050, Verdict.OPEN),
        (5_000, 4_950, Verdict.OPEN),
        (5_000, 4_000, Verdict.MISSED),
        (-5_000, 4_000, Verdict.MISSED),
        (2_000_000_000, 5_000, Verdict.MISSED),
    ],
)
def test_a_claim_is_missed_where_it_excludes_all_that_may_be_true(
    error_ns: int, bound_ns: int, verdict: Verdict
) -> None:
    """Within the error of the truth, of some hundred ns here, the claim is neither held nor missed."""
    at = 33 * PERIOD + 7_654_321
    grandmaster = log(phc=lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t - error_ns)
    middle_ns = EPOCH_NS + at

    moment = only(judge([claim(at, middle_ns - bound_ns, middle_ns + bound_ns)], grandmaster, log()))

    assert moment.verdict is verdict
    assert moment.offset_ns == pytest.approx(error_ns, abs=2)
    assert moment.bound_ns == bound_ns
    assert moment.truth_error_ns is not None and moment.truth_error_ns < 500


def test_an_unknown_clock_is_no_miss() -> None:
    """A claim without an interval claims nothing."""
    assert only(judge([claim(50 * PERIOD, None, None)], log(), log())).verdict is Verdict.UNKNOWN


def test_each_machine_has_its_own_constant() -> None:
    """The two guests' counters differ by their constants, which cancel."""
    at = 40 * PERIOD
    shift = 5_000_000_000
    node = log(offset=CounterOffset(shift - 10, shift + 10))
    grandmaster = log(
        offset=CounterOffset(shift - PERIOD - 10, shift - PERIOD + 10),
        phc=lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t - PERIOD,
    )

    moment = only(judge([claim(at, EPOCH_NS + at - 1_000, EPOCH_NS + at + 1_000)], grandmaster, node))

    assert moment.verdict is Verdict.HELD
    assert moment.at == pytest.approx(shift + at, abs=300)


def test_the_uncertain_constant_widens_the_truth() -> None:
    """Of what is not known to better than 3 us nothing is missed by 2 us."""
    at = 40 * PERIOD
    vague = CounterOffset(-3_000, 3_000)

    moment = only(judge([claim(at, EPOCH_NS + at - 3_000, EPOCH_NS + at - 2_000)], log(offset=vague), log()))

    assert moment.verdict is Verdict.OPEN


def test_the_reading_is_found_within_its_window_by_the_clocks_own_log() -> None:
    """The two readings of CLOCK_MONOTONIC_RAW are 100 us apart, and the truth is known far better."""
    at = 61 * PERIOD + 3_333_333

    moment = only(judge([claim(at, EPOCH_NS + at - 600, EPOCH_NS + at + 600)], log(), log()))

    assert moment.verdict is Verdict.HELD


def test_where_the_clock_was_stepped_between_two_rows_the_window_is_what_is_known() -> None:
    """The reading does not fix its moment there: within 100 us all may be true."""
    at = 50 * PERIOD + 9_000_000
    step_ns = 500_000_000

    def stepped(t: int) -> int:
        return EPOCH_NS + t + (step_ns if t > at - 1_000_000 else 0)

    reading = claim(at, EPOCH_NS + at - 1_000, EPOCH_NS + at + 1_000)._replace(reading_ns=EPOCH_NS + at + step_ns)
    moment = only(judge([reading], log(), log(realtime=stepped)))

    assert moment.verdict is Verdict.OPEN
    assert moment.truth_error_ns == pytest.approx(50_000, rel=0.1)


def test_between_two_rows_whose_rates_differ_the_truth_is_vague() -> None:
    """A grandmaster that slewed by 10 % somewhere between two rows of 20 ms may be off the straight line by 0.5 ms."""
    bend = 50 * PERIOD + PERIOD // 2

    def slewing(t: int) -> int:
        return EPOCH_NS + TAI_MINUS_UTC_NS + t + max(0, t - bend) // 10

    at = 50 * PERIOD + PERIOD // 2 + 1_000
    moment = only(judge([claim(at, EPOCH_NS + at - 1_000, EPOCH_NS + at + 1_000)], log(phc=slewing), log()))

    assert moment.truth_error_ns == pytest.approx(500_000, rel=0.2)
    assert moment.verdict is Verdict.OPEN


def test_a_gap_in_the_grandmasters_log_has_no_truth() -> None:
    """Nothing is interpolated over 0.4 s."""
    at = 50 * PERIOD
    grandmaster = log(without=range(40, 60))

    assert only(judge([claim(at, 0, 1)], grandmaster, log())).verdict is Verdict.NO_TRUTH


def test_claims_outside_of_the_nodes_log_are_left_out() -> None:
    """Before its first row and after its last one the moment of a claim is not known."""
    assert judge([claim(-PERIOD, 0, 1), claim(200 * PERIOD, 0, 1)], log(), log()) == []


def test_a_pause_moves_the_constant_and_leaves_a_gap() -> None:
    """The guest's clocks stand still over it: 3 s later on the host's counter the claim of a continuing clock is wrong by 3 s."""
    stop = 50 * PERIOD
    pause = 3_000_000_000
    line_log = "\n".join(
        " ".join(
            f"{row * PERIOD + n * 1_000} {row * PERIOD + n * 1_000 + READING} {base + row * PERIOD + n * 1_000 + READING // 2}"
            for n, base in enumerate((EPOCH_NS, 0, 0, EPOCH_NS + TAI_MINUS_UTC_NS))
        )
        for row in range(100)
    )
    pieces = [
        Piece(0, stop - 1_000_000, CounterOffset(0, 0)),
        Piece(stop + 1_000_000, ALWAYS, CounterOffset(pause, pause)),
    ]
    node = MachineLog(line_log.splitlines(), pieces)
    grandmaster = log(rows=400)
    before, during, after = 30 * PERIOD, stop, 70 * PERIOD

    claims = [claim(at, EPOCH_NS + at - 1_000, EPOCH_NS + at + 1_000) for at in (before, during, after)]
    moments = judge(claims, grandmaster, node)

    assert [moment.verdict for moment in moments] == [Verdict.HELD, Verdict.MISSED]
    assert moments[1].offset_ns == pytest.approx(-pause, abs=10)
    assert moments[1].missed_by_ns == pytest.approx(pause, rel=1e-5)


def test_a_step_is_found_between_two_rows() -> None:
    """A step of 20 us of the grandmaster shows against CLOCK_MONOTONIC_RAW; before it there is none."""
    at = 70 * PERIOD + 5_000_000
    series = log(phc=lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t + (20_000 if t > at else 0)).series

    assert series["phc"].first_jump(Range(20.0 * PERIOD, 60.0 * PERIOD), series["raw"], 8_000) is None
    found = series["phc"].first_jump(Range(60.0 * PERIOD, 80.0 * PERIOD), series["raw"], 8_000)
    assert found is not None and found.low < at < found.high and found.width < 1.1 * PERIOD


def test_a_slew_is_found_where_it_begins() -> None:
    """At the limit of adjtimex's tick the clock moves by 2 ms from row to row."""
    begins, ends = 60 * PERIOD + 4_000_000, 80 * PERIOD
    series = log(realtime=lambda t: EPOCH_NS + t + max(0, min(t, ends) - begins) // 10).series

    found = series["realtime"].first_jump(Range(50.0 * PERIOD, 90.0 * PERIOD), series["raw"], 300_000)

    assert found is not None and found.low < begins < found.high


def test_claims_are_read_line_by_line_and_a_cut_off_line_is_left_out() -> None:
    """The last line of a run may not be whole."""
    text = (
        "gm realtime 1000 900 1100 1100 995 1005 SYNCHRONIZED -\n"
        "past boottime 7 5 9 2000 - - UNKNOWN clock_stepped_since\n"
        "utc realtime 1000 900 11"
    )

    known, unknown = parse_claims(text.splitlines())

    assert known == Claim("gm", "realtime", 1000, 900, 1100, 1100, 995, 1005, "SYNCHRONIZED", "-")
    assert (unknown.earliest, unknown.latest, unknown.reason) == (None, None, "clock_stepped_since")


def test_a_log_of_no_two_rows_is_refused() -> None:
    """Nothing can be compared with it."""
    with pytest.raises(ValueError, match="fewer than two rows"):
        MachineLog([], [Piece(0, ALWAYS, CounterOffset(0, 0))])


def test_a_boundary_clocks_error_is_that_of_both_logs() -> None:
    """It runs away by 100 ppm from row 30 on; at both ends of the other log nothing is known."""
    grandmaster = log(rows=80)
    boundary = log(phc=lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t + max(0, t - 30 * PERIOD) // 10_000)

    errors = errors_of(boundary.series["phc"], grandmaster.series["phc"])

    assert [round(each.error_ns / 1_000) for each in errors[::20]] == [0, 0, 20, 60]
    assert len(errors) == 79
    assert max(each.known_to_ns for each in errors) < 2_000


@pytest.mark.parametrize(
    ("errors_ns", "ranges"),
    [
        ([0, 99, -99], []),
        ([0, 150, 150, 0, -150, 0], [Range(0, 3), Range(3, 5)]),
        ([0, 95, 0], [Range(0, 2)]),
        ([150, 0, 150], [Range(-math.inf, 1), Range(1, math.inf)]),
    ],
    ids=["within", "twice beyond", "perhaps beyond", "from the beginning and to the end"],
)
def test_a_clock_is_beyond_its_limit_between_two_moments_that_surely_keep_it(
    errors_ns: list[int], ranges: list[Range]
) -> None:
    """The truth's own error counts as beyond, so no moment is judged that the limit may have failed."""
    errors = [ClockError(at, error_ns, 1 if abs(error_ns) != 95 else 10) for at, error_ns in enumerate(errors_ns)]

    assert ranges_beyond(errors, 100) == ranges
