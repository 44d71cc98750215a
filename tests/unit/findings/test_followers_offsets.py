"""How far two grandmasters are apart: the sign, and that the truth is always within the bound."""

from __future__ import annotations

from typing import Any

import pytest
from grandmaster_states import GM_A, GM_B, NIGHT_NS, follower, polled_grandmaster, source
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.config import MeasuredInput, parse
from timesyncd.driver import options_of
from timesyncd.errors import ConfigError
from timesyncd.findings.followers import FRESH_NS, offsets
from timesyncd.messages.node import BoundMessage, GrandmasterOffset, NodeState, SourceState
from timesyncd.model.grandmaster_events import RATE_PPB
from timesyncd.sample import TimeError

GRANDMASTERS = [polled_grandmaster(), polled_grandmaster("gm-b")]
ROUNDING_NS = 2


def ptp_source(identity: str, offset_ns: int, error_ns: int, age_ns: int = 0, growth_ppb: int = 0) -> SourceState:
    """A source whose bound is its offset and an error beyond it, as a bound's terms are."""
    bound = BoundMessage(bound_ns=abs(offset_ns) + error_ns, growth_ppb=growth_ppb, reason="")
    name = "ptp-a" if identity == GM_A else "ptp-b"
    return source(identity, name=name, offset_ns=offset_ns, gm=bound, age_ns=age_ns)


def both(*sources: SourceState, **changes: Any) -> NodeState:
    return follower(sources=list(sources), **changes)


def test_a_node_with_both_as_sources_measures_their_offset() -> None:
    """
    A clock that is 300 ns ahead of A and 100 ns ahead of B: A is 200 ns behind B. Each state carries it of the other.
    """
    found = offsets(GRANDMASTERS, [both(ptp_source(GM_A, 300, 40), ptp_source(GM_B, 100, 20))], {})
    common: dict[str, Any] = {"bound_ns": 60, "evidence": "node-a by ptp-a and ptp-b"}

    assert found == {
        "gm-a": [GrandmasterOffset(other="gm-b", offset_ns=-200, **common)],
        "gm-b": [GrandmasterOffset(other="gm-a", offset_ns=200, **common)],
    }


def by_ntp(offset_ns: int, error_ns: int, **changes: Any) -> SourceState:
    """The clock against UTC."""
    bound = BoundMessage(bound_ns=abs(offset_ns) + error_ns, growth_ppb=0, reason="")
    found = {"name": "ntp", "kind": "utc", "offset_ns": offset_ns, "utc": bound, "gm": None} | changes
    return source(GM_A, **found).model_copy(update={"grandmaster_identity": None})


def test_followers_that_know_utc_measure_their_grandmasters_offset() -> None:
    """A is 700 us ahead of UTC by one node, B 100 us behind by another: A is 800 us ahead, and all errors are added."""
    first = both(ptp_source(GM_A, 0, 40), by_ntp(700_000, 1_000))
    worse = both(ptp_source(GM_A, 0, 40), by_ntp(900_000, 500_000), node="node-c")
    second = both(ptp_source(GM_B, 0, 20), by_ntp(-100_000, 2_000), node="node-b")

    assert offsets(GRANDMASTERS, [worse, first, second], {})["gm-a"] == [
        GrandmasterOffset(other="gm-b", offset_ns=800_000, bound_ns=3_060, evidence="node-a and node-b by UTC")
    ]


@pytest.mark.parametrize(
    "changes",
    [{"reason": "gone", "reason_code": "no_valid_sample"}, {"age_ns": None}, {"age_ns": 5 * NS_PER_S}, {"utc": None}],
)
def test_ntp_that_knows_nothing_now_is_no_evidence(changes: dict[str, Any]) -> None:
    """Silent, without an age, old, without a bound."""
    first = both(ptp_source(GM_A, 0, 40), by_ntp(700_000, 1_000, **changes))
    second = both(ptp_source(GM_B, 0, 20), by_ntp(0, 1_000), node="node-b")

    assert offsets(GRANDMASTERS, [first, second], {})["gm-a"] == []


spans = st.integers(0, 4 * NS_PER_S)
times = st.integers(-1_000_000, 1_000_000)
rates = st.integers(-RATE_PPB, RATE_PPB)


@given(times, times, rates, rates, st.integers(-50_000, 50_000), spans, spans, st.data())
def test_the_truth_is_within_the_bound(
    a_ns: int, b_ns: int, a_ppb: int, b_ppb: int, clock_ppb: int, a_age_ns: int, b_age_ns: int, data: st.DataObject
) -> None:
    """Two grandmasters and a clock that all drift, two samples of different age, each as wrong as its error allows."""

    def drift_ns(ppb: int, age_ns: int) -> int:
        return -ppb * age_ns // NS_PER_S

    def sample(identity: str, gm_ns: int, gm_ppb: int, age_ns: int) -> SourceState:
        error_ns = data.draw(st.integers(0, 10_000))
        wrong_ns = data.draw(st.integers(-error_ns, error_ns))
        clock_minus_gm_ns = drift_ns(clock_ppb, age_ns) - (gm_ns + drift_ns(gm_ppb, age_ns))
        return ptp_source(identity, clock_minus_gm_ns + wrong_ns, error_ns, age_ns, abs(clock_ppb) + RATE_PPB)

    node = both(sample(GM_A, a_ns, a_ppb, a_age_ns), sample(GM_B, b_ns, b_ppb, b_age_ns))
    [found] = offsets(GRANDMASTERS, [node], {})["gm-a"]

    assert abs((a_ns - b_ns) - found.offset_ns) <= found.bound_ns + ROUNDING_NS


@pytest.mark.parametrize(
    ("ages_s", "bound_ns"), [((0, 0), 60), ((1, 0), 60 + 50_000), ((1, 1), 60 + 2 * RATE_PPB), ((3, 2), 60 + 50_400)]
)
def test_the_bound_grows_by_what_may_have_moved(ages_s: tuple[int, int], bound_ns: int) -> None:
    """Between two samples the clock, since the later one the grandmasters alone."""
    a_age_s, b_age_s = ages_s
    node = both(
        ptp_source(GM_A, 0, 40, a_age_s * NS_PER_S, 50_000), ptp_source(GM_B, 0, 20, b_age_s * NS_PER_S, 50_000)
    )

    assert [each.bound_ns for each in offsets(GRANDMASTERS, [node], {})["gm-a"]] == [bound_ns]


A, B = ptp_source(GM_A, 300, 40), ptp_source(GM_B, 100, 20)


@pytest.mark.parametrize(
    "node",
    [
        both(A),
        both(A, ptp_source(GM_A, 100, 20)),
        both(A, ptp_source("00a069.fffe.000000", 100, 20)),
        both(A, B.model_copy(update={"utc_seconds_removed": 0})),
        both(*(each.model_copy(update={"utc_seconds_removed": None}) for each in (A, B))),
        both(
            A,
            B.model_copy(
                update={"gm": BoundMessage(bound_ns=None, growth_ppb=0, reason="PHC", reason_code="no_valid_sample")}
            ),
        ),
        both(A, B.model_copy(update={"gm": None})),
        both(A, B.model_copy(update={"age_ns": None})),
        both(A, B.model_copy(update={"age_ns": 5 * NS_PER_S})),
        both(A, B.model_copy(update={"offset_ns": None})),
        both(A, B, status="DISRUPTED"),
        both(A, B, status="UNKNOWN"),
    ],
)
def test_without_evidence_there_is_no_offset(node: NodeState) -> None:
    """One grandmaster, an unknown identity, two scales, an unbounded clock, an old sample, a stepped clock."""
    assert offsets(GRANDMASTERS, [node], {}) == {"gm-a": [], "gm-b": []}


def test_measurements_before_a_grandmaster_jumped_are_invalid() -> None:
    """Its time is another one now; a later sample counts again."""
    jumped = [polled_grandmaster(invalid_before_realtime_ns=NIGHT_NS - NS_PER_S), polled_grandmaster("gm-b")]
    ages_ns = [2 * NS_PER_S, NS_PER_S]
    found = [offsets(jumped, [both(A.model_copy(update={"age_ns": age_ns}), B)], {})["gm-b"] for age_ns in ages_ns]

    assert [len(each) for each in found] == [0, 1]


def test_the_tightest_evidence_counts() -> None:
    """From any node."""
    nodes = [both(ptp_source(GM_A, 0, 900), ptp_source(GM_B, 0, 0)), both(A, B).model_copy(update={"node": "node-b"})]

    assert offsets(GRANDMASTERS, nodes, {})["gm-b"][0].evidence == "node-b by ptp-a and ptp-b"


INPUTS = {"gm-a": {"PPS-1": MeasuredInput(grandmaster="gm-b", uncertainty_ns=50)}}
PPS = TimeError("pps-1", "te", 80, NIGHT_NS)


def test_an_input_of_a_grandmaster_measures_the_other() -> None:
    """B's pulse comes 80 ns ahead of A's own time: A is 80 ns behind B, as well as the cable is known."""
    found = offsets([polled_grandmaster(time_errors=[PPS]), polled_grandmaster("gm-b")], [], INPUTS)

    assert found["gm-a"] == [GrandmasterOffset(other="gm-b", offset_ns=-80, bound_ns=50, evidence="gm-a by PPS-1")]
    assert found["gm-b"] == [GrandmasterOffset(other="gm-a", offset_ns=80, bound_ns=50, evidence="gm-a by PPS-1")]


def test_what_an_input_measured_a_while_ago_holds_less_well() -> None:
    """Each of the two may have moved by its rate since: a minute at twice 100 ppb is 12 us."""
    error = TimeError("PPS-1", "te", 80, NIGHT_NS - 60_000_000_000)
    found = offsets([polled_grandmaster(time_errors=[error]), polled_grandmaster("gm-b")], [], INPUTS)

    assert [(each.offset_ns, each.bound_ns) for each in found["gm-a"]] == [(-80, 50 + 12_000)]


@pytest.mark.parametrize(
    "found",
    [
        polled_grandmaster(),
        polled_grandmaster(time_errors=[TimeError("pps-2", "te", 80, NIGHT_NS)]),
        polled_grandmaster(time_errors=[TimeError("pps-1", "max-te", 80, NIGHT_NS)]),
        polled_grandmaster(time_errors=[TimeError("pps-1", "te", 80, NIGHT_NS - FRESH_NS)]),
        polled_grandmaster(time_errors=[TimeError("pps-1", "te", 80, NIGHT_NS, "GNSS")], clock_state="holdover"),
    ],
)
def test_an_input_without_a_current_value_is_no_evidence(found: Any) -> None:
    """Another channel, a maximum over a span, an old value, or one against a reference that it does not follow."""
    assert offsets([found, polled_grandmaster("gm-b")], [], INPUTS)["gm-b"] == []


def test_an_input_of_an_unknown_grandmaster_is_no_evidence() -> None:
    """Its state is unknown."""
    assert offsets([polled_grandmaster(time_errors=[PPS])], [], INPUTS) == {"gm-a": []}


UNIT_TABLE = {"name": "gm-a", "driver": "timeprovider", "host": "192.0.2.1", "community": {"env": "COMMUNITY"}}


def parsed(inputs: dict[str, Any]) -> dict[str, MeasuredInput]:
    return parse({"grandmaster": [UNIT_TABLE | {"inputs": inputs}]}, options_of, "t.toml").grandmaster[0].inputs


def test_inputs_are_configured_by_channel() -> None:
    """Any channel's name will do; an error names the path of the key."""
    with pytest.raises(ConfigError) as caught:
        parsed({"PPS-1": {"grandmaster": "gm-b", "uncertainty_ns": 50, "delay": 1}})

    assert parsed({"PPS-1": {"grandmaster": "gm-b", "uncertainty_ns": 50}}) == INPUTS["gm-a"]
    assert str(caught.value) == (
        "t.toml: grandmaster[0].inputs.PPS-1.delay = 1: unknown key; allowed here: grandmaster, uncertainty_ns"
    )
