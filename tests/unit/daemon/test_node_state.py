"""What one daemon knows at a moment: its node's status as it ages, grandmasters, what it remote, and what is wrong."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from samples import HEALTHY, nth
from wire import grandmaster, node_state

from timesyncd import config
from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, Term, unbounded
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, Moment
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.remote_state import GRANDMASTER_EXPIRES_NS, JOB_EXPIRES_NS, RemoteStates, aged_state, last_known
from timesyncd.driver import PollReport, options_of
from timesyncd.findings.node import state_findings
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import NodeState, SourceState, grandmaster_state
from timesyncd.model.assumptions import Assumption, Refutation
from timesyncd.model.error_bound import EnsembleSettings, utc_only_bound
from timesyncd.model.observation import Observation
from timesyncd.model.selection import Agreement
from timesyncd.sample import (
    ClockSample,
    ClockState,
    GrandmasterSample,
    KernelSample,
    NoSample,
    Reading,
    Satellite,
    UtcSample,
)

CONFIG = config.parse(
    tomllib.loads("""
        [node]
        name = "node-a"
        [[source]]
        name = "ptp"
        driver = "ptp4l"
        [[grandmaster]]
        name = "gm-a"
        driver = "timeprovider"
        identities = ["00a069.fffe.704760"]
        host = "192.0.2.1"
        community = { env = "COMMUNITY" }
    """),
    options_of,
    "t.toml",
)
BOUND = ErrorBound(
    as_of_ns=HEALTHY.as_of_ns,
    real_minus_boot_ns=HEALTHY.real_minus_boot_ns,
    parent_hard=Bound(4_000, 50_100),
    gm_hard=Bound(5_000, 50_100),
    utc_hard=unbounded(Reason.ARBITRARY_TIMESCALE),
    gm_status=ClockStatus.SYNCHRONIZED,
    utc_status=ClockStatus.UNKNOWN,
    terms={Term.PATH_DELAY: 2_000},
)
SILENT = NoSample("ptp", BOUND.as_of_ns, "no Sync received yet: the port is in state LISTENING")
GRANDMASTER = GrandmasterSample(
    "gm-a", BOUND.as_of_ns, clock_state=ClockState.LOCKED, satellites=(Satellite(1, 40, True), Satellite(2, 20, False))
)


def after(seconds: float, step_ns: int = 0) -> Moment:
    """So long after the bound's as_of, with CLOCK_REALTIME set by `step_ns`."""
    boottime_ns = BOUND.as_of_ns + round(seconds * NS_PER_S)
    return Moment(realtime_ns=boottime_ns + BOUND.real_minus_boot_ns + step_ns, boottime_ns=boottime_ns)


@dataclass
class ViewLab:
    """A view that was lab of some readings."""

    view: NodeView = field(default_factory=lambda: NodeView(CONFIG, Epoch(0xB007, 7), incarnation=3))

    def of(self, reading: Reading, bound: ErrorBound | None = None) -> bool:
        return self.view.update(Observation(reading, bound))


@pytest.fixture
def lab() -> ViewLab:
    return ViewLab()


@pytest.fixture
def view(lab: ViewLab) -> NodeView:
    """After one good sample."""
    lab.of(HEALTHY, BOUND)
    return lab.view


def published(view: NodeView, now: Moment) -> NodeState:
    """The node's state as the publisher sends it: it dates the status."""
    state = view.node_state(now)
    view.mark_status(state)
    return state


def test_before_the_first_sample_nothing_is_known(lab: ViewLab) -> None:
    """UNKNOWN with the source's own reason, and nothing that looks like a measurement."""
    unread = lab.view.node_state(after(0))
    lab.of(SILENT)
    state = lab.view.node_state(after(0))

    assert (unread.status, unread.reason) == ("UNKNOWN", "no valid sample yet")
    assert (state.status, state.utc_status, state.reason) == ("UNKNOWN", "UNKNOWN", SILENT.reason)
    assert (state.age_ns, state.gm, state.utc, state.grandmaster_identity) == (None, None, None, None)


def test_a_node_with_the_kernel_alone_promises_no_sample() -> None:
    """No sample will come, so the reason names what is missing in the configuration."""
    alone = config.parse({"source": [{"name": "kernel", "driver": "kernel"}]}, options_of, "t.toml")
    state = NodeView(alone, Epoch(0xB007, 7), incarnation=3).node_state(after(0))

    assert state.reason == "no [[source]] measures an offset: the driver kernel reads the kernel's state alone"
    assert state.reason_code == Reason.NO_SAMPLE_YET.code


@pytest.mark.parametrize(
    ("seconds", "status", "reason"),
    [
        (0, "SYNCHRONIZED", ""),
        (4.999, "SYNCHRONIZED", ""),
        (5, "HOLDOVER", "no fresh sample; the bound grows"),
        (999.9, "HOLDOVER", "no fresh sample; the bound grows"),
        (1000, "UNKNOWN", "no fresh sample for too long"),
    ],
)
def test_the_status_ages(view: NodeView, seconds: float, status: str, reason: str) -> None:
    """SYNCHRONIZED, HOLDOVER and UNKNOWN follow from the age alone, and so does the reason."""
    state = view.node_state(after(seconds))

    assert (state.status, state.reason) == (status, reason)
    assert state.age_ns == seconds * NS_PER_S


@pytest.mark.parametrize(
    ("step_ns", "status"), [(STEP_TOLERANCE_NS, "SYNCHRONIZED"), (STEP_TOLERANCE_NS + 1, "DISRUPTED")]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_is_detected_before_the_next_sample(view: NodeView, step_ns: int, status: str, sign: int) -> None:
    """REALTIME - BOOTTIME outside the tolerance, in either direction, is DISRUPTED at once."""
    assert view.node_state(after(1, sign * step_ns)).status == status


def test_a_step_changes_nothing_where_nothing_was_known(view: NodeView) -> None:
    """As a reader of the segment sees it: what is UNKNOWN by age stays so."""
    state = view.node_state(after(2_000, NS_PER_S))

    assert (state.status, state.reason) == ("UNKNOWN", "no fresh sample for too long")


def test_a_lost_source_gives_its_reason_with_the_status(lab: ViewLab, view: NodeView) -> None:
    """The source's reason explains why the bound grows, as long as it grows."""
    lab.of(SILENT)
    fresh, old = view.node_state(after(1)), view.node_state(after(6))
    lab.of(nth(1), BOUND)

    assert (fresh.reason, old.reason) == ("", f"no fresh sample; the bound grows: {SILENT.reason}")
    assert view.node_state(after(6)).reason == "no fresh sample; the bound grows"


def test_a_lost_grandmaster_does_not_explain_the_clock(lab: ViewLab) -> None:
    """A grandmaster that does not respond to SNMP does not concern this node's clock."""
    lab.of(NoSample("gm-a", 0, "no SNMP response"))
    before = lab.view.node_state(after(0)).reason
    lab.of(HEALTHY, BOUND)

    assert before == "no valid sample yet"
    assert lab.view.node_state(after(6)).reason == "no fresh sample; the bound grows"


def test_a_withdrawn_bound_is_disrupted_until_the_next(lab: ViewLab, view: NodeView) -> None:
    """What the ensemble withdrew is shown so, with its reason, and for as long as nothing new comes."""
    nothing = unbounded(Reason.SOURCE_RESTARTED)
    withdrawn = replace(BOUND, gm_hard=nothing, gm_status=ClockStatus.DISRUPTED, utc_status=ClockStatus.DISRUPTED)
    changed = lab.of(replace(SILENT, restarted=True), withdrawn)
    state = view.node_state(after(2_000))

    assert changed
    assert (state.status, state.utc_status, state.reason) == ("DISRUPTED", "DISRUPTED", "the PTP daemon restarted")
    assert lab.of(nth(1), BOUND)


def test_only_a_change_of_status_is_published_at_once(lab: ViewLab) -> None:
    """The first bound is a change, the next like it is none."""
    assert [lab.of(nth(index), BOUND) for index in range(3)] == [True, False, False]


def test_since_is_when_the_status_changed(view: NodeView) -> None:
    """It is the same while the status is, and another with another status."""
    moments = [after(0), after(3), after(5), after(7)]
    since = [published(view, moment).since_realtime_ns for moment in moments]

    assert since == [moments[index].realtime_ns for index in (0, 0, 2, 2)]


def test_a_read_dates_no_status(view: NodeView) -> None:
    """A status that is not published yet is dated at each read, and has no effect on the next one."""
    moments = [after(0), after(1)]
    since = [view.node_state(moment).since_realtime_ns for moment in moments]

    assert since == [moment.realtime_ns for moment in moments]


def test_a_read_takes_no_sequence_number(view: NodeView) -> None:
    """Node and grandmaster states carry the number of the message that was sent last; only sending takes one."""
    sent = [view.numbers.next() for _ in range(2)]
    messages = [view.node_state(after(0)), *view.grandmaster_states(after(0)), view.node_state(after(0))]

    assert [each["sequence"] for each in sent] == [1, 2]
    assert [(each.node, each.incarnation, each.sequence) for each in messages] == [("node-a", 3, 2)] * 3


def test_a_state_carries_its_sample_s_age_and_its_interval(lab: ViewLab) -> None:
    """So that a reader without earlier states can apply an invalidation, and recognise a silent node."""
    bound = replace(BOUND, since_sample_ns=7)
    lab.view.update(Observation(HEALTHY, bound, bound))
    state = lab.view.node_state(after(1))

    assert (state.since_sample_ns, state.every_ns) == (7, 2 * NS_PER_S)


def test_a_source_shows_its_last_sample_and_its_last_poll(lab: ViewLab, view: NodeView) -> None:
    """What was measured stays readable while the source is away, beside why it is."""
    view.update_poll(PollReport("ptp", 0, 1_234, None, 0))
    [there] = view.node_state(after(0)).sources
    lab.of(SILENT)
    view.update_poll(PollReport("ptp", 0, 99, "no answer", 2))
    [away] = view.node_state(after(1)).sources

    assert (there.reachable, there.reason, there.poll_duration_ns, there.offset_ns) == (True, None, 1_234, 100)
    assert (away.reachable, away.reason, away.poll_duration_ns, away.offset_ns) == (False, SILENT.reason, 99, 100)
    assert away.port_state == "SLAVE"
    assert (there.since_poll_ns, away.since_poll_ns) == (after(0).boottime_ns, after(1).boottime_ns)


@pytest.mark.parametrize(
    ("clock", "frequencies", "steers"),
    [("realtime", (1, 2), True), ("realtime", (1, 1), None), ("realtime", (1,) * 12, False), ("phc:0", (1, 2), False)],
)
def test_a_source_shows_whether_its_ptp4l_steers_the_system_clock(
    lab: ViewLab, clock: str, frequencies: tuple[int, ...], steers: bool | None
) -> None:
    """By the samples so far; the kernel's status of the same daemon rests on the same judgement."""
    for ppb in frequencies:
        lab.view.update(Observation(replace(HEALTHY, clock=clock, frequency_ppb=ppb, daemon_pid=42), None))
    [source] = lab.view.node_state(after(1)).sources

    assert source.steers_system_clock is steers


def test_samples_are_counted_and_failures_are_not(lab: ViewLab) -> None:
    """`samples` is what the node's own clock gave."""
    for reading in (HEALTHY, SILENT, GRANDMASTER, nth(1)):
        lab.of(reading, BOUND if isinstance(reading, ClockSample) else None)

    assert lab.view.samples == 2


def test_a_grandmaster_s_state(lab: ViewLab) -> None:
    """What the grandmaster reported, its age, and whether it still responds."""
    [never] = lab.view.grandmaster_states(after(0))
    lab.of(GRANDMASTER)
    lab.view.update_poll(PollReport("gm-a", 0, 5, None, 0))
    [locked] = lab.view.grandmaster_states(after(2))
    lab.of(NoSample("gm-a", 0, "no SNMP response"))
    lab.view.update_poll(PollReport("gm-a", 0, 5, "no SNMP response", 1))
    [lost] = lab.view.grandmaster_states(after(3))

    assert (never.reachable, never.age_ns, never.clock_state, never.reason) == (False, None, None, None)
    assert (locked.reachable, locked.age_ns, locked.clock_state) == (True, 2 * NS_PER_S, "locked")
    assert (locked.identities, locked.satellites_tracked, locked.satellites_healthy) == (["00a069.fffe.704760"], 2, 1)
    assert (lost.reachable, lost.age_ns, lost.clock_state, lost.reason) == (
        False,
        3 * NS_PER_S,
        "locked",
        "no SNMP response",
    )


def test_a_source_shows_what_it_makes_of_its_newest_sample(lab: ViewLab) -> None:
    """Also one that the node does not believe; the bound is as old as its sample, and names what it holds against."""
    own = replace(BOUND, utc_seconds_removed=37)
    lab.view.update(Observation(replace(HEALTHY, current_utc_offset_s=37), None, own))
    [source] = lab.view.node_state(after(2)).sources

    assert source.gm is not None and (source.gm.bound_ns, source.gm.growth_ppb) == (5_000, 50_100)
    assert (source.age_ns, source.utc_seconds_removed) == (2 * NS_PER_S, 37)
    assert (source.grandmaster_identity, source.current_utc_offset_s) == (HEALTHY.grandmaster_identity, 37)


@pytest.mark.parametrize(
    ("reading", "kept"),
    [
        (SILENT, True),
        (replace(SILENT, restarted=True), False),
        (replace(SILENT, source="other", restarted=True), True),
        (replace(SILENT, source="other", stepped=True), False),
        (nth(1), False),
    ],
)
def test_a_source_s_bound_is_withdrawn_with_its_basis(lab: ViewLab, reading: Reading, kept: bool) -> None:
    """A restart of the source, a step of the clock that any source detected, and a sample without a bound."""
    lab.view.update(Observation(HEALTHY, BOUND, BOUND))
    lab.of(reading)
    [source] = lab.view.node_state(after(1)).sources

    assert (source.gm is not None, source.age_ns is not None) == (kept, kept)


def remote_node(**changes: Any) -> NodeState:
    fields: dict[str, Any] = {"status": "SYNCHRONIZED", "age_ns": 0, "published_realtime_ns": after(0).realtime_ns}
    return node_state("node-b").model_copy(update=fields | {"since_realtime_ns": 1} | changes)


def in_view(state: NodeState, seconds: float) -> NodeState:
    return aged_state(state, after(0).boottime_ns, after(seconds))


@pytest.mark.parametrize(
    ("seconds", "status", "since_ns"), [(4, "SYNCHRONIZED", 1), (5, "HOLDOVER", None), (1000, "UNKNOWN", None)]
)
def test_a_node_that_fell_silent_ages(seconds: int, status: str, since_ns: int | None) -> None:
    """No state counts for longer than its own limits."""
    state = in_view(remote_node(), seconds)

    assert (state.status, state.age_ns, state.since_realtime_ns) == (status, seconds * NS_PER_S, since_ns)


def test_a_broker_s_old_copy_is_as_old_as_it_was_published() -> None:
    """It was received just now, and published long ago."""
    state = in_view(remote_node(published_realtime_ns=after(-3_600).realtime_ns, age_ns=NS_PER_S), 0)

    assert (state.status, state.age_ns) == ("UNKNOWN", 3_601 * NS_PER_S)


def test_the_sources_of_a_state_age_too() -> None:
    """As much as the node's own bound; what had no age has none."""
    fresh = SourceState(name="ptp", driver="ptp4l", reachable=True, age_ns=7)
    state = in_view(remote_node(sources=[fresh, fresh.model_copy(update={"age_ns": None})]), 2)

    assert [source.age_ns for source in state.sources] == [2 * NS_PER_S + 7, None]


def test_a_publisher_s_fast_clock_does_not_make_its_state_younger() -> None:
    """A clock that is ahead cannot undo the time since its message came."""
    assert in_view(remote_node(published_realtime_ns=after(9_999).realtime_ns), 6).status == "HOLDOVER"


def test_a_broker_s_copy_leaves_a_node_unknown() -> None:
    """Until it publishes a live state: the copy may be of a daemon that ended long ago."""
    copy = last_known(remote_node())

    assert (copy.status, copy.utc_status) == ("UNKNOWN", "UNKNOWN")
    assert "last known" in copy.reason


def test_a_silent_node_is_unknown_with_a_reason() -> None:
    """Although its last bound still holds by its growth."""
    state = aged_state(remote_node(), after(0).boottime_ns, after(1), CodedReason("node_silent", "silent for 25 s"))

    assert (state.status, state.utc_status) == ("UNKNOWN", "UNKNOWN")
    assert (state.reason_code, state.reason) == ("node_silent", "silent for 25 s")


def test_a_message_that_waited_is_dated_when_it_came() -> None:
    """On both clocks, as far as they ran alike since."""
    assert after(3).at_boottime(after(1).boottime_ns) == after(1)


def test_what_was_unknown_stays_so() -> None:
    """A node that knows of no bound has no age, and its reason is its own."""
    state = remote_node(status="UNKNOWN", age_ns=None, reason="no valid sample yet")

    assert in_view(state, 9_999) == state


def test_remote_states_keep_the_last_state_of_each() -> None:
    """One state a grandmaster."""
    remote = RemoteStates()
    for sequence in (1, 2):
        remote.update(grandmaster("node-b", 1, sequence), after(0).boottime_ns)

    assert [state.sequence for state in remote.grandmasters(after(0))] == [2]


def test_a_grandmaster_expires_an_hour_after_its_last_state() -> None:
    """It was removed, or no daemon polls it any more."""
    remote = RemoteStates()
    remote.update(grandmaster("node-b", 1, 1), after(0).boottime_ns)
    hour_s = GRANDMASTER_EXPIRES_NS // NS_PER_S

    assert [len(remote.grandmasters(after(seconds))) for seconds in (hour_s - 1, hour_s, hour_s - 1)] == [1, 0, 0]


def test_a_job_expires_a_minute_after_its_last_state() -> None:
    """A hub that died took its jobs with it."""
    remote = RemoteStates()
    remote.update(JobState.model_construct(job_id="0f3a9c51d2b4e687"), after(0).boottime_ns)
    still, gone = after((JOB_EXPIRES_NS - 1) / NS_PER_S), after(JOB_EXPIRES_NS / NS_PER_S)

    assert (len(remote.jobs(still)), len(remote.jobs(gone)), len(remote.jobs(still))) == (1, 0, 0)


def test_a_grandmaster_that_never_responded_has_a_state_too() -> None:
    """Its name is known from the configuration, and everything else is null."""
    state = grandmaster_state(
        None, node="n", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=1, age_ns=None, reachable=False
    )

    assert (state.clock_state, state.alarms, state.satellites_tracked) == (None, None, None)


NTP_CONFIG = config.parse(
    tomllib.loads("""
        [node]
        name = "node-n"
        [[source]]
        name = "ntp"
        driver = "chrony"
        [[source]]
        name = "kernel"
        driver = "kernel"
    """),
    options_of,
    "t.toml",
)
UTC_SAMPLE = UtcSample(
    "ntp", HEALTHY.as_of_ns, HEALTHY.real_minus_boot_ns, -400, 1_000, 51_000, "192.0.2.1", 2, "normal", 8, 9
)
KERNEL_SAMPLE = KernelSample("kernel", HEALTHY.as_of_ns, 1, 2, 3, True, "none", 37, ("chronyd",))


@pytest.fixture
def ntp() -> NodeView:
    """A node that NTP alone keeps, after one reading of each of its sources."""
    view = NodeView(NTP_CONFIG, Epoch(0xB007, 7), incarnation=3)
    bound = utc_only_bound(UTC_SAMPLE, EnsembleSettings())
    view.update(Observation(UTC_SAMPLE, bound, bound))
    view.update(Observation(KERNEL_SAMPLE, None))
    return view


def test_a_node_synchronized_by_ntp_is_synchronized_to_utc(ntp: NodeView) -> None:
    """Of a grandmaster it knows nothing, and no reason, no finding calls that a fault."""
    state = ntp.node_state(after(1))

    assert (state.status, state.utc_status, state.reason) == ("UNKNOWN", "SYNCHRONIZED", "")
    assert (state.main_status, state.main_bound) == ("SYNCHRONIZED", state.utc)
    assert state.gm is not None and state.gm.reason_code == Reason.NO_GRANDMASTER.code
    assert [(source.kind, source.reason) for source in state.sources] == [("utc", None), ("kernel", None)]
    assert state.sources[0].utc is not None and state.sources[0].utc.bound_ns == 1_400
    assert state_findings(state, None, None) == {}


def test_a_node_synchronized_by_ntp_ages_by_utc(ntp: NodeView) -> None:
    """HOLDOVER and UNKNOWN, since when, why and the finding are those of UTC, at home and where it was remote."""
    moments = [after(seconds) for seconds in (1, 6, 1_001)]
    lab = [published(ntp, moment) for moment in moments]
    abroad = aged_state(lab[0], moments[0].boottime_ns, after(6))

    assert [state.main_status for state in lab] == ["SYNCHRONIZED", "HOLDOVER", "UNKNOWN"]
    assert [state.reason for state in lab] == ["", "no fresh sample; the bound grows", "no fresh sample for too long"]
    assert [state.since_realtime_ns for state in lab] == [moment.realtime_ns for moment in moments]
    assert [set(state_findings(state, None, None)) for state in lab[1:]] == [
        {("clock-holdover", "node-n")}, {("clock-unknown", "node-n")},
    ]  # fmt: skip
    assert (abroad.utc_status, abroad.reason) == ("HOLDOVER", "no fresh sample; the bound grows")


def test_a_ptp_node_that_ntp_alone_still_feeds_is_not_in_sync(lab: ViewLab) -> None:
    """
    UTC is known, but the grandmaster that it should follow is not: its status stays UNKNOWN, with the source's reason.
    """
    lab.of(HEALTHY, BOUND)
    lab.of(SILENT)
    lab.view.update(Observation(None, utc_only_bound(UTC_SAMPLE, EnsembleSettings())))
    state = lab.view.node_state(after(1))

    assert (state.main_status, state.utc_status) == ("UNKNOWN", "SYNCHRONIZED")
    assert state.reason == SILENT.reason
    assert ("clock-unknown", "node-a") in state_findings(state, None, None)


def test_while_ptp_warms_up_its_sample_is_what_is_waited_for(lab: ViewLab) -> None:
    """NTP's first sample does not explain the missing grandmaster: PTP has given no sample yet."""
    lab.view.update(Observation(None, utc_only_bound(UTC_SAMPLE, EnsembleSettings())))

    assert lab.view.node_state(after(1)).reason == Reason.NO_SAMPLE_YET.text


def test_a_change_of_the_utc_status_is_published_at_once(ntp: NodeView) -> None:
    """On a node without a grandmaster it is the one that counts."""
    bound = utc_only_bound(UTC_SAMPLE, EnsembleSettings())
    withdrawn = replace(bound, utc_hard=unbounded(Reason.CLOCK_STEPPED), utc_status=ClockStatus.DISRUPTED)

    assert [ntp.update(Observation(None, each)) for each in (bound, withdrawn, withdrawn)] == [False, True, False]


def test_the_state_names_falsetickers_and_contradictions(lab: ViewLab, view: NodeView) -> None:
    """Falsetickers by name, a contradiction as such, and neither where one source alone knows UTC."""
    view.update(Observation(None, agreement=Agreement(0, 1, 1, falsetickers=("ntp",))))
    named = view.node_state(after(0))
    view.update(Observation(None, agreement=Agreement(0, 1, 1, contradicting=("ptp", "ntp"))))
    contradicted = view.node_state(after(0))
    view.update(Observation(None))
    alone = view.node_state(after(0))

    assert [state.falsetickers for state in (named, contradicted, alone)] == [["ntp"], [], []]
    assert [state.sources_contradict for state in (named, contradicted, alone)] == [False, True, False]


def test_the_state_names_what_narrows_utc_and_what_may_not(lab: ViewLab, view: NodeView) -> None:
    """The reason of a UTC bound that is narrower than the grandmaster's."""
    view.update(Observation(None, agreement=Agreement(0, 1, 1, narrowed_by=("ntp",), dependent=("ntp-2",))))
    state = view.node_state(after(0))

    assert (state.utc_narrowed_by, state.utc_dependent) == (["ntp"], ["ntp-2"])


def test_the_state_carries_the_terms_of_the_bound(lab: ViewLab) -> None:
    """Terms of both kinds and rates, as they are."""
    parts = {"terms": {"offset": 1}, "stat_terms": {"noise": 2}, "rates": {"steering": 3}}
    lab.of(HEALTHY, replace(BOUND, gm_stat=Bound(2, 3), **parts))  # type: ignore[arg-type]
    state = lab.view.node_state(after(0))

    assert {"terms": state.terms, "stat_terms": state.stat_terms, "rates": state.rates} == parts
    assert state.gm_stat is not None and (state.gm_stat.bound_ns, state.gm_stat.growth_ppb) == (2, 3)


def test_a_source_states_what_its_bounds_assume() -> None:
    """Every value of [source.bounds] that bounds rest on, those that the file sets, and what samples refuted."""
    text = """
        [[source]]
        name = "ptp"
        driver = "ptp4l"
        bounds = { local_drift_ppb = 20000, path_minimum_ns = 0 }
    """
    view = NodeView(config.parse(tomllib.loads(text), options_of, "t.toml"), Epoch(0xB007, 7), incarnation=3)
    refuted = {"ptp": (Refutation(Assumption.LOCAL_DRIFT, 20_000, 31_000),)}
    view.update(Observation(HEALTHY, BOUND, BOUND, refutations=refuted))
    source = view.node_state(after(0)).sources[0]

    assert source.assumed == config.BoundSettings(local_drift_ppb=20_000).model_dump(
        exclude={"holdover_after_ns", "void_after_ns"}
    )
    assert source.configured == ["local_drift_ppb", "path_minimum_ns"]
    assert source.refuted == {"local_drift_ppb": 31_000}


def test_an_ntp_daemon_s_bounds_assume_nothing_of_the_file() -> None:
    """What chronyd reports is taken as it is."""
    view = NodeView(NTP_CONFIG, Epoch(0xB007, 7), incarnation=3)
    bound = utc_only_bound(UTC_SAMPLE, EnsembleSettings())
    view.update(Observation(UTC_SAMPLE, bound, bound))

    assert view.node_state(after(0)).sources[0].assumed == {}
