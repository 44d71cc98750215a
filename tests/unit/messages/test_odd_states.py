"""The parts together where one of them sends something odd, late, twice, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from fake_clocks import FakeClocks
from grandmaster_states import GM_A, GM_B, HOUR_NS, NIGHT_NS, follower, polled_grandmaster, source
from publisher_lab import PublisherLab
from samples import GRANDMASTER_IDENTITY, HEALTHY, INTERVAL_NS, nth
from wire import grandmaster

from timesyncd.bound import Bound, ErrorBound, Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import Config, parse
from timesyncd.daemon.daemon import STORM_OVER_NS, Daemon
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Publisher
from timesyncd.daemon.remote_state import grandmaster_verdict
from timesyncd.daemon.trap_receiver import TrapReceiver
from timesyncd.driver import options_of
from timesyncd.errors import ConfigError
from timesyncd.findings.followers import identities, offsets
from timesyncd.findings.grandmaster import is_judged_elsewhere
from timesyncd.ipc.clock_segment import Epoch, encode
from timesyncd.ipc.seqlock import SegmentWriter
from timesyncd.messages.node import BoundMessage
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import GrandmasterMemory, GrandmasterVerdict, Invalidation
from timesyncd.model.observation import Observation
from timesyncd.sample import AlarmEvent, ClockState, GrandmasterSample, PtpPort
from timesyncd.snmp.listener import BURST, MAX_ADDRESSES

UTC: dict[str, Any] = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}
GM = [GRANDMASTER_IDENTITY]
NOW_NS = HEALTHY.as_of_ns + 11 * INTERVAL_NS + 1
WELL = GrandmasterVerdict("hub", Bound(100, 1), HEALTHY.as_of_ns)
GRANDMASTER = {
    "name": "gm-a",
    "driver": "timeprovider",
    "host": "192.0.2.1",
    "community": {"env": "COMMUNITY"},
}


def node(**verdicts: GrandmasterVerdict) -> Ensemble:
    """A node that follows a clock identity that each of these grandmasters has, with a bound."""
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    for name, verdict in verdicts.items():
        ensemble.update_grandmaster(name, GM, verdict, HEALTHY.as_of_ns)
    for index in range(12):
        ensemble.accept(nth(index, **UTC))
    return ensemble


def own_error(bound: ErrorBound | None) -> Bound:
    """What is in the bound against UTC and not in that against the grandmaster."""
    assert bound is not None and bound.utc_hard.bound_ns is not None and bound.gm_hard.bound_ns is not None
    return Bound(bound.utc_hard.bound_ns - bound.gm_hard.bound_ns, bound.utc_hard.growth_ppb - bound.gm_hard.growth_ppb)


def config(**tables: Any) -> Config:
    return parse({"node": {"name": "hub"}, "grandmaster": [GRANDMASTER], **tables}, options_of, "t.toml")


def view(settings: Config | None = None) -> NodeView:
    return NodeView(settings or config(), Epoch(1, 2), 1)


def test_a_verdict_that_grows_faster_from_a_smaller_error_narrows_nothing() -> None:
    """The larger error and the larger growth of both words stand: the sample was taken while the first one held."""
    ensemble = node(gm=replace(WELL, utc=Bound(900, 1)))
    published = ensemble.update_grandmaster("gm", GM, replace(WELL, utc=Bound(100, 5), as_of_ns=NOW_NS), NOW_NS)

    assert own_error(published) == Bound(900 + 2, 5)


@pytest.mark.parametrize("names", [("gm-a", "gm-b"), ("gm-b", "gm-a")])
def test_of_two_grandmasters_with_one_identity_the_worse_verdict_counts(names: tuple[str, str]) -> None:
    """Which of them the node follows cannot be known."""
    words = {"gm-a": WELL, "gm-b": replace(WELL, utc=Bound(5_000, 3))}
    ensemble = node(**{name: words[name] for name in names})

    assert own_error(ensemble.accept(nth(12, **UTC)).bound) == Bound(5_000 + 5, 3)


def test_an_invalidation_of_either_of_two_grandmasters_with_one_identity_counts() -> None:
    """A sample of before the event of the second one is ignored."""
    jumped = replace(WELL, invalidation=Invalidation(77, NOW_NS, Reason.GRANDMASTER_JUMPED))
    ensemble = node(a=WELL, b=WELL)
    ensemble.update_grandmaster("b", GM, jumped, NOW_NS)
    late = [ensemble.accept(nth(12 + index, as_of_ns=NOW_NS - 1, **UTC)).bound for index in range(12)]

    assert late == [None] * 12


def test_an_identity_that_is_no_longer_reported_still_counts() -> None:
    """With HTTPS alone a grandmaster reports no identity: a bad verdict on it must reach its followers all the same."""
    seen, now = view(), Moment(realtime_ns=NIGHT_NS, boottime_ns=2 * NS_PER_S)
    published = GrandmasterSample("gm-a", NS_PER_S, clock_identity=GM_A, ports=(PtpPort("1", clock_identity=GM_B),))
    seen.update(Observation(published, None))
    seen.update(Observation(GrandmasterSample("gm-a", now.boottime_ns), None))
    silent = identities(seen.grandmaster_state("gm-a", now))
    seen.update(Observation(replace(published, clock_identity="00a069.fffe.000001"), None))

    assert silent == {GM_A, GM_B}
    assert identities(seen.grandmaster_state("gm-a", now)) == {"00a069.fffe.000001", GM_B}


@pytest.mark.parametrize(
    "published", [{"bound_ns": 2**63 - 1, "growth_ppb": 0}, {"bound_ns": 5, "growth_ppb": 2**63 - 1}]
)
def test_an_absurd_error_of_a_grandmaster_is_no_bound(published: dict[str, int], tmp_path: Any) -> None:
    """It fits into a message, and with the node's own error it would not into the segment."""
    state = polled_grandmaster(utc=BoundMessage.model_validate(published | {"reason": ""}), identities=GM)
    verdict = grandmaster_verdict(state, Moment(realtime_ns=NIGHT_NS, boottime_ns=NOW_NS))
    assert verdict is not None
    bound = node(gm=verdict).deciding_bound(NOW_NS)
    assert bound is not None
    words = encode(bound, Epoch(1, 2))
    with_room = SegmentWriter(tmp_path / "clock", 1, 1, len(words))
    with_room.write(words)
    with_room.close()

    assert (bound.utc_hard.bound_ns, bound.utc_hard.reason) == (None, Reason.GRANDMASTER_STATE_UNKNOWN)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset_ns": -(2**63) + 1},
        {"gm": BoundMessage(bound_ns=2**63 - 1, growth_ppb=2**63 - 1, reason=""), "age_ns": NS_PER_S},
    ],
)
def test_absurd_numbers_of_a_node_measure_nothing(changes: dict[str, Any]) -> None:
    """They fit into its message, and their sums would not into ours."""
    far = source(GM_A, name="a", **{"offset_ns": 2**62, **changes})
    near = source(GM_B, name="b", offset_ns=2**62)

    assert offsets([polled_grandmaster(), polled_grandmaster("gm-b")], [follower(sources=[far, near])], {}) == {
        "gm-a": [],
        "gm-b": [],
    }


@pytest.mark.parametrize("point", [[86_400 * 10**9, 1_500], [86_400, 10**19]])
def test_a_holdover_budget_in_the_wrong_unit_is_refused(point: list[int]) -> None:
    """Seconds written as nanoseconds would end the daemon in the first holdover: no message holds that many."""
    oscillator = {"ocxo": {"holdover": [[0, 100], point]}}

    with pytest.raises(ConfigError, match="oscillator"):
        config(oscillator=oscillator, grandmaster=[{**GRANDMASTER, "oscillator": "ocxo"}])


def test_the_longest_budget_fits_into_a_message() -> None:
    """The state holds it as nanoseconds in 64 bits."""
    settings = config(
        oscillator={"ocxo": {"holdover": [[0, 10**12], [10**9, 10**12]]}},
        grandmaster=[{**GRANDMASTER, "oscillator": "ocxo"}],
    )
    memory, seen = GrandmasterMemory(settings.holdover_curve(settings.grandmaster[0])), view(settings)
    for seconds, state in enumerate((ClockState.LOCKED, ClockState.HOLDOVER)):
        sample = GrandmasterSample("gm-a", seconds * NS_PER_S, clock_state=state, clock_accuracy=0x30)
        seen.update(Observation(sample, assessment=memory.accept(sample, NIGHT_NS)))

    assert (
        seen.grandmaster_state("gm-a", Moment(realtime_ns=NIGHT_NS, boottime_ns=9 * NS_PER_S)).holdover_left_ns
        == (10**9 - 1) * NS_PER_S
    )


def test_alarms_raised_after_a_restart_remain_though_the_poll_is_later() -> None:
    """Its active alarms come by trap first; the poll that they request shows the restart."""
    seen, memory = view(), GrandmasterMemory(None)

    def poll(boottime_ns: int, boots: int) -> None:
        sample = GrandmasterSample("gm-a", boottime_ns, engine_boots=boots)
        seen.update(Observation(sample, assessment=memory.accept(sample, NIGHT_NS)))

    def alarm(boottime_ns: int, id: int) -> None:
        seen.update_alarms(AlarmEvent("gm-a", boottime_ns, "raise", id, 0, "minor", ""))

    alarm(5, 1)
    poll(10, boots=3)
    alarm(20, 2)
    poll(30, boots=4)
    alarms = seen.grandmaster_state("gm-a", Moment(realtime_ns=NIGHT_NS, boottime_ns=40)).alarms

    assert [each.id for each in alarms or []] == [2]


def test_a_grandmaster_s_event_invalidates_the_bounds_of_each_source() -> None:
    """Also of a source that does not decide: its bound is no longer published."""
    seen = NodeView(parse({"source": [{"name": "ptp", "driver": "ptp4l"}]}, options_of, "t"), Epoch(1, 2), 1)
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    for index in range(12):
        outcome = ensemble.accept(nth(index))
        seen.update(Observation(nth(index), outcome.bound, outcome.source_bound))
    moment = Moment(realtime_ns=NIGHT_NS, boottime_ns=NOW_NS)
    before = seen.node_state(moment).sources[0].gm
    seen.update(Observation(None, bounded_sources=frozenset(ensemble.bounded_sources)))
    kept = seen.node_state(moment).sources[0].gm
    ensemble.update_grandmaster(
        "gm", GM, replace(WELL, invalidation=Invalidation(7, NOW_NS, Reason.GRANDMASTER_JUMPED)), NOW_NS
    )
    seen.update(Observation(None, bounded_sources=frozenset(ensemble.bounded_sources)))

    assert before is not None
    assert kept == before
    assert seen.node_state(moment).sources[0].gm is None


async def test_viewers_see_a_grandmaster_only_as_this_daemon_polls_it() -> None:
    """A second poller's state of it would flicker on the page."""
    settings, clocks = config(), FakeClocks()
    publisher = PublisherLab(settings, view(settings), clocks).publisher
    published = publisher.events.subscribe()
    publisher.receive(grandmaster("standby", 1, 1), 0, live=True)
    publisher.receive(grandmaster("standby", 1, 2).model_copy(update={"name": "gm-z"}), 0, live=True)
    first = await anext(published)

    assert getattr(first.data, "name", None) == "gm-z"


@pytest.mark.parametrize(("ahead_ns", "silent"), [(0, True), (30 * NS_PER_S, True), (HOUR_NS, False)])
def test_a_poller_whose_clock_is_ahead_does_not_silence_the_others(ahead_ns: int, silent: bool) -> None:
    """It may be dead since long: what it published would look new for an hour."""
    other = polled_grandmaster(node="a", published_realtime_ns=NIGHT_NS + ahead_ns)

    assert is_judged_elsewhere("gm-a", "b", [other], NIGHT_NS) is silent


class StormingReceiver:
    """A trap receiver that dropped so many datagrams of gm-a at each call."""

    def __init__(self, *cut_off: int) -> None:
        self._cut_off = iter(cut_off)

    def new_rejections(self) -> list[str]:
        return []

    def dropped_in_storms(self) -> dict[str, int]:
        count = next(self._cut_off)
        return {"gm-a": count} if count else {}


def test_a_storm_is_one_finding_however_often_the_daemon_looks() -> None:
    """Each alarm that is taken wakes it, and not between every two of them something is cut off."""
    daemon, clocks = Daemon(config()), FakeClocks()
    published: list[str | None] = []
    daemon._clocks = clocks
    daemon._parts.alarms = cast(TrapReceiver, StormingReceiver(3, 0, 2, 0, 0))
    daemon._publisher = cast(Publisher, Conditions(published))
    for elapsed_ns in (0, 10, 10, STORM_OVER_NS - 1, 1):
        clocks.advance(elapsed_ns)
        daemon._report_rejected_alarms()

    assert [evidence and evidence[0] for evidence in published] == ["3", "2", None]


@dataclass
class Conditions:
    """Takes what holds from now on."""

    published: list[str | None]

    def set_condition(self, id: str, subject: str, evidence: str | None) -> None:
        self.published.append(evidence)


def test_an_address_that_expires_expires_everywhere() -> None:
    """Senders can be forged: what is remembered of those that sent too much must not grow with their number."""
    service = TrapReceiver(config(), {}, FakeClocks(), 1, lambda event: None, lambda name: None)
    for sender in range(2 * MAX_ADDRESSES):
        for _ in range(BURST + 1):
            service._receive_line(f"sender {sender}", "")
        if sender % 100 == 0:
            service.dropped_in_storms()
    service.dropped_in_storms()

    assert len(service._counted) <= MAX_ADDRESSES
