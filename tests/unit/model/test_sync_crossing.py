"""A Sync measured on a PHC, carried over to the system clock, while a servo moves the PHC as fast as its card allows."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import HEALTHY

from timesyncd.bound import ErrorBound, Reason, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble, EnsembleUpdate
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.phc import SyncCrossing
from timesyncd.sample import ClockSample, DelayExchange, NoSample, PhcSample, PortState

MAX_ADJ_PPB = 62_499_999
READ_AFTER_NS = 2_000_000
TAI_NS = 37 * NS_PER_S


@dataclass
class HardwareNode:
    """
    A PHC and a system clock, both errors local minus grandmaster. Once a second a Sync; ptp4l's PI servo corrects the
    PHC at once; the PHC is read against the system clock 2 ms later, in a window of `width_ns`. Its frequency is not
    readable. A delay is measured half a second after each Sync.
    """

    phc_ns: float = 0.0
    system_ns: float = 0.0
    phc_rate_ppb: float = 30_000.0
    system_rate_ppb: float = -12_000.0
    system_frequency_ppb: int = 12_000
    forward_ns: float = 800.0
    reverse_ns: float = 800.0
    width_ns: int = 1_000
    max_adj_ppb: int | None = MAX_ADJ_PPB
    has_exchanges: bool = False
    seconds: int = 0
    servo_ppb: float = -30_000.0
    integral_ppb: float = -30_000.0
    delays: deque[float] = field(default_factory=lambda: deque([800.0], maxlen=10))
    synced_ns: float = 0.0

    def run(self, seconds: float) -> None:
        self.phc_ns += (self.phc_rate_ppb + self.servo_ppb) * seconds
        self.system_ns += (self.system_rate_ppb + self.system_frequency_ppb) * seconds

    def sync(self, share: float = 0.5) -> ClockSample:
        """One second later; the PHC is read where `share` of the window has passed."""
        self.run(0.5)
        self.delays.append((self.synced_ns + self.forward_ns + self.reverse_ns - self.phc_ns) / 2)
        half_ns = HEALTHY.as_of_ns + self.seconds * NS_PER_S + NS_PER_S // 2 + HEALTHY.real_minus_boot_ns + TAI_NS
        exchange = DelayExchange(
            half_ns + round(self.phc_ns - self.system_ns), math.ceil(self.reverse_ns - self.phc_ns)
        )
        self.run(0.5 - READ_AFTER_NS / NS_PER_S)
        self.seconds += 1
        self.synced_ns = self.phc_ns
        boottime_ns = HEALTHY.as_of_ns + self.seconds * NS_PER_S
        ingress_ns = boottime_ns - READ_AFTER_NS + HEALTHY.real_minus_boot_ns + TAI_NS
        ingress_ns += round(self.phc_ns - self.system_ns)
        delay_ns = round(median(self.delays))
        offset_ns = round(self.phc_ns + self.forward_ns) - delay_ns
        self.steer(offset_ns)
        self.run(READ_AFTER_NS / NS_PER_S)
        return replace(
            HEALTHY,
            clock="phc:0",
            as_of_ns=boottime_ns - READ_AFTER_NS,
            read_ns=boottime_ns,
            offset_ns=offset_ns,
            path_delay_ns=delay_ns,
            ingress_time_ns=ingress_ns,
            sync_interval_ns=NS_PER_S,
            delay_interval_ns=NS_PER_S,
            delay_requests_sent=self.seconds,
            delay_responses_received=self.seconds,
            ptp_timescale=True,
            frequency_ppb=None,
            max_frequency_ppb=self.max_adj_ppb,
            exchanges=(exchange,) if self.has_exchanges else (),
            phc=self.reading(boottime_ns, share),
        )

    def steer(self, offset_ns: int) -> None:
        """linuxptp's PI servo with its default gains for hardware timestamps."""
        self.integral_ppb -= 0.3 * offset_ns
        wanted_ppb = self.integral_ppb - 0.7 * offset_ns
        limit_ppb = self.max_adj_ppb or MAX_ADJ_PPB
        self.servo_ppb = max(-limit_ppb, min(limit_ppb, wanted_ppb))

    def reading(self, boottime_ns: int, share: float) -> PhcSample:
        """The PHC was read anywhere in the window, and is taken to be in its middle."""
        error_ns = round((share - 0.5) * self.width_ns)
        return PhcSample(
            source="ptp4l",
            clock="phc:0",
            as_of_ns=boottime_ns,
            real_minus_boot_ns=HEALTHY.real_minus_boot_ns,
            offset_ns=round(self.system_ns - self.phc_ns) - TAI_NS + error_ns,
            width_ns=self.width_ns,
            method="extended",
            system_frequency_ppb=self.system_frequency_ppb,
            max_frequency_ppb=self.max_adj_ppb,
        )


def ensemble() -> Ensemble:
    return Ensemble({HEALTHY.source: EnsembleSettings()})


def error_at(bound: ErrorBound, age_s: float) -> int:
    found = bound.gm_hard.at(round(age_s * NS_PER_S))
    assert found is not None
    return found


@pytest.mark.parametrize("jump_ns", [-20_000_000, -300_000, 300_000, 20_000_000])
def test_the_truth_is_inside_while_ptp4l_slews_the_phc_after_a_step_of_the_grandmaster(jump_ns: int) -> None:
    """
    The PHC moves by up to 6 %, and the daemon cannot read its frequency. The bound on the system clock holds in every quarter of a second
    that follows a Sync of after the step.
    """
    node, model = HardwareNode(), ensemble()
    judged = 0
    for second in range(120):
        if second == 80:
            node.phc_ns -= jump_ns
            node.system_ns -= jump_ns
        bound = model.accept(node.sync()).bound
        for quarter in range(4):
            later_ns = (node.system_rate_ppb + node.system_frequency_ppb) * quarter / 4
            if bound is not None:
                judged += 1
                assert abs(node.system_ns + later_ns) <= error_at(bound, quarter / 4)
    assert judged > 400


@given(
    rate_ppb=st.integers(-48_000, 48_000),
    steered_ppb=st.integers(-40_000, 40_000),
    moved_ns=st.integers(-800, 3_000_000),
    changed_s=st.integers(15, 70),
    shares=st.lists(st.floats(0, 1), min_size=90, max_size=90),
    has_exchanges=st.booleans(),
)
def test_the_truth_is_inside_whatever_path_servo_and_windows_do(
    rate_ppb: int, steered_ppb: int, moved_ns: int, changed_s: int, shares: list[float], has_exchanges: bool
) -> None:
    """
    The forward way changes by anything, the servo chases it with the PHC, and the PHC is read anywhere in each window.
    """
    node = HardwareNode(system_rate_ppb=rate_ppb, system_frequency_ppb=steered_ppb, has_exchanges=has_exchanges)
    model = ensemble()
    for second, share in enumerate(shares):
        node.forward_ns = 800.0 + (moved_ns if second >= changed_s else 0)
        bound = model.accept(node.sync(share)).bound
        if bound is not None:
            for quarter in range(4):
                later_ns = (node.system_rate_ppb + node.system_frequency_ppb) * quarter / 4
                assert abs(node.system_ns + later_ns) <= error_at(bound, quarter / 4)


def test_on_a_quiet_path_the_bound_is_that_of_the_path_and_one_window() -> None:
    """
    What the servo may do to the PHC counts for the 2 ms between Sync and reading alone, and not afterwards.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        bound = model.accept(node.sync()).bound

    assert bound is not None
    assert bound.terms[Term.PHC_READING] == 500
    assert bound.terms[Term.PHC_AGE] <= 10
    assert bound.gm_hard.growth_ppb <= 2_000
    assert error_at(bound, 1) < 10_000


def test_without_the_reading_the_phc_is_bounded_and_the_system_clock_is_not() -> None:
    """
    The reason names what is missing.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        bound = model.accept(replace(node.sync(), phc=None)).bound

    assert bound is not None
    assert bound.gm_hard.reason is Reason.PHC_NOT_MEASURED


def test_a_phc_that_was_stepped_between_sync_and_reading_gives_no_bound() -> None:
    """
    Its reading belongs to another time than the Sync: the PHC's own time shows that.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(30):
        model.accept(node.sync())
    sample = node.sync()
    assert sample.phc is not None
    update: EnsembleUpdate = model.accept(
        replace(sample, phc=replace(sample.phc, offset_ns=sample.phc.offset_ns - 5 * NS_PER_S))
    )

    assert update.bound is not None
    assert update.bound.gm_hard.reason is Reason.CLOCK_STEPPED


def test_a_sync_outage_right_after_a_step_response_is_coasted_by_the_system_clock_s_own_frequency() -> None:
    """
    The newest Sync shows a step of the grandmaster, and none follows. The PHC runs away with the servo's response to it,
    and phc2sys makes the system clock follow: no reading of the PHC's frequency says how fast that one runs.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        model.accept(node.sync())
    node.phc_ns += 300_000
    node.system_ns += 300_000
    bound = model.accept(node.sync()).bound
    node.system_frequency_ppb += round(node.servo_ppb + node.phc_rate_ppb)
    judged = 0
    for second in range(1, 60):
        node.run(1)
        boottime_ns = HEALTHY.as_of_ns + (node.seconds + second) * NS_PER_S
        silent = NoSample(
            HEALTHY.source,
            boottime_ns,
            "no Sync",
            phc=node.reading(boottime_ns, 0.5),
        )
        bound = model.accept(silent).bound or bound
        assert bound is not None
        found_ns = bound.gm_hard.at(boottime_ns - bound.as_of_ns)
        judged += found_ns is not None
        assert found_ns is None or abs(node.system_ns) <= found_ns
    assert judged == 59


def test_what_follows_the_phc_after_an_unusual_offset_is_allowed_for_before_it_is_read() -> None:
    """
    phc2sys follows the PHC within a second of the servo's largest response so far. Until the next Sync is read nothing
    shows that, so the growth allows for it.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        quiet = model.accept(node.sync()).bound
    node.phc_ns += 300_000
    node.system_ns += 300_000
    bound = model.accept(node.sync()).bound

    assert quiet is not None and bound is not None
    assert quiet.gm_hard.growth_ppb <= 3_000
    assert bound.gm_hard.growth_ppb >= abs(node.servo_ppb + node.phc_rate_ppb)


def test_a_sample_that_gives_no_bound_yet_widens_the_one_that_is_carried_on() -> None:
    """
    The port lost its master and found it again. While nothing was read chronyd slewed the clock by a millisecond: the
    first Sync shows that, although the delay filter is not yet full.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        bound = model.accept(node.sync()).bound
    boottime_ns = HEALTHY.as_of_ns + node.seconds * NS_PER_S + 1
    model.accept(NoSample(HEALTHY.source, boottime_ns, "no Sync", port_state=PortState.LISTENING))
    node.system_ns += 1_000_000
    sample = node.sync()
    bound = model.accept(sample).bound or bound

    assert bound is not None
    found_ns = bound.gm_hard.at(sample.read_ns - bound.as_of_ns)
    assert found_ns is not None and found_ns >= abs(node.system_ns)


def test_a_slew_between_two_readings_without_a_sync_shows_in_the_phc() -> None:
    """
    No Sync comes for three seconds, in which chronyd slews the clock by 300 us and is done: its frequency is as it was, and
    the PHC is not.
    """
    node, model = HardwareNode(), ensemble()
    for _ in range(80):
        bound = model.accept(node.sync()).bound
    node.run(3)
    node.system_ns += 300_000
    boottime_ns = HEALTHY.as_of_ns + (node.seconds + 3) * NS_PER_S
    silent = NoSample(HEALTHY.source, boottime_ns, "no Sync", phc=node.reading(boottime_ns, 0.5))
    bound = model.accept(silent).bound or bound

    assert bound is not None
    assert error_at(bound, (boottime_ns - bound.as_of_ns) / NS_PER_S) >= abs(node.system_ns)


@dataclass
class SteppingNode(HardwareNode):
    """ptp4l with a `step_threshold`: at the second Sync that shows a large offset it steps the PHC, before that is read."""

    large: int = 0

    def steer(self, offset_ns: int) -> None:
        if abs(offset_ns) < 1_000_000:
            super().steer(offset_ns)
            return
        self.large += 1
        if self.large == 2:
            self.phc_ns -= offset_ns


@pytest.mark.parametrize("fell_ns", [-20_000_000, -3_000_000])
def test_a_phc_that_is_stepped_forward_between_sync_and_reading_looks_like_a_late_reading(fell_ns: int) -> None:
    """
    A driver reset the PHC, ptp4l steps it back, and the free system clock is off to the other side by as much: carried over,
    the Sync of before the step shows it right.
    """
    node, model = SteppingNode(system_ns=-fell_ns, system_frequency_ppb=12_000), ensemble()
    for second in range(90):
        if second == 80:
            node.phc_ns += fell_ns
        bound = model.accept(node.sync()).bound or None
        if bound is not None and bound.gm_hard.bound_ns is not None:
            assert abs(node.system_ns) <= bound.gm_hard.bound_ns
    assert bound is not None


def read_after(at_ns: int, moved_ns: int, latest_ns: int, offset_ns: int = 0, **changes: Any) -> ClockSample:
    """A Sync whose PHC is read `latest_ns` later; system clock minus PHC is `moved_ns` there, and 37 s less."""
    boot_ns = HEALTHY.as_of_ns + at_ns
    reading = PhcSample("ptp", "phc:0", boot_ns, HEALTHY.real_minus_boot_ns, moved_ns - TAI_NS, 0, "precise", None, 0)
    sample = replace(
        HEALTHY, clock="phc:0", as_of_ns=boot_ns - latest_ns, read_ns=boot_ns, offset_ns=offset_ns, path_delay_ns=500,
        ingress_time_ns=reading.phc_ns - latest_ns, max_frequency_ppb=MAX_ADJ_PPB, phc=reading,
    )  # fmt: skip
    return replace(sample, **changes)


def test_no_exchange_is_carried_over_between_readings_that_leave_out_a_sync() -> None:
    """The servo turned at the Sync in between: the PHC was 10 us ahead at the exchange, and is back at the reading."""
    crossing = SyncCrossing(SourceSettings())
    first = read_after(0, 0, READ_AFTER_NS, sync_interval_ns=NS_PER_S)
    crossing.carry_over(first, 37)
    assert first.phc is not None
    exchange = DelayExchange(first.phc.phc_ns + NS_PER_S + 10_000, 500 - 10_000)
    second = read_after(2 * NS_PER_S, 0, READ_AFTER_NS, sync_interval_ns=NS_PER_S, exchanges=(exchange,))
    carried = crossing.carry_over(second, 37)

    assert carried is not None
    assert carried[0].exchanges == ()


def test_unread_syncs_may_have_changed_the_rate_as_much_as_the_read_one() -> None:
    """31 of 32 Syncs are not read. In the last tenth of a second the PHC ran 40 ppm faster than since the last reading."""
    crossing = SyncCrossing(SourceSettings())
    interval_ns, latest_ns = NS_PER_S // 16, NS_PER_S // 20
    for second, offset_ns in ((0, 0), (2, 20_000), (4, 100)):
        crossing.carry_over(read_after(second * NS_PER_S, 0, latest_ns, offset_ns, sync_interval_ns=interval_ns), 37)
    carried = crossing.carry_over(read_after(6 * NS_PER_S, -6_000, latest_ns, 100, sync_interval_ns=interval_ns), 37)

    assert carried is not None
    sample, crossed = carried
    assert abs(sample.offset_ns - (100 - 4_000)) <= crossed.error_ns
