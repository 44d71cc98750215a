"""Pitfalls in what a ptp4l reports: zeros that are values, zeros that are none, old words, steps and restarts."""

from __future__ import annotations

import struct

import pytest
from pitfall_lab import UNTIL_BOUND_S, Node
from samples import nth

from timesyncd.bound import ClockStatus, Reason, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l._management import PortProperties, parse
from timesyncd.errors import Malformed
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, TraceRow
from timesyncd.sample import ClockSample, NoSample, PortState


def test_pitfall_01_an_offset_of_exactly_zero_is_valid() -> None:
    """It is a sample as any other, in the driver and in the model, and its bound has no term for an offset."""
    node = Node()
    node.ptp4l.offset_ns = 0
    bound = node.synced()

    assert isinstance(node.reading, ClockSample)
    assert (bound.gm_status, bound.terms[Term.OFFSET]) == (ClockStatus.SYNCHRONIZED, 0)


@pytest.mark.parametrize("because", ["step", "announce loss"])
def test_pitfall_02_ingress_time_zero_is_no_sample(because: str) -> None:
    """
    After a step of ptp4l's own, and after Announce was lost, there is no valid Sync, whatever the offset is.
    """
    node = Node()
    before = node.synced()
    node.ptp4l.ingress_ns = 0
    node.ptp4l.state = PortState.SLAVE if because == "step" else PortState.LISTENING
    node.silent(1)

    assert isinstance(node.reading, NoSample)
    assert node.reading.reason == f"no Sync received yet: the port is in state {node.ptp4l.state.name}"
    assert node.published is before


def test_pitfall_03_a_frozen_time_status_ages_by_its_ingress_time() -> None:
    """
    Offset, grandmaster, class 6 and state SLAVE stay as they were: what is old is the Sync, so the clock is in
    holdover.
    """
    node = Node()
    node.synced()
    fresh = node.width_ns()
    node.silent(6)
    interval, reason = node.seen()
    old = node.width_ns()

    assert isinstance(node.reading, NoSample)
    assert (interval.status, reason) == (ClockStatus.HOLDOVER, Reason.STALE.text)
    assert fresh is not None and old is not None and old > fresh


def test_pitfall_07_no_servo_state_is_not_not_locked() -> None:
    """
    A port that stays UNCALIBRATED, as a free-running one does, is measured; so is a trace without states.
    """
    node = Node()
    node.ptp4l.state = PortState.UNCALIBRATED
    for second in range(UNTIL_BOUND_S):
        node.ptp4l.offset_ns = 642 + second % 7
        node.second()
    model = Replay()
    replayed = [model.accept(TraceRow(second * NS_PER_S, second % 7, 2_000)) for second in range(40)]

    assert node.published is not None and node.published.gm_status is ClockStatus.SYNCHRONIZED
    assert replayed[-1].status is ClockStatus.SYNCHRONIZED and replayed[-1].gm_hard_ns is not None


def test_a_sync_counts_from_its_time_stamp() -> None:
    """
    ptp4l shows a Sync once its Follow_Up has come. A reading meanwhile shows none, and is no proof that none had come: by
    the clock that stamped it the Sync is older.
    """
    node = Node()
    node.synced()
    node.clocks.advance(NS_PER_S - 20_000_000)
    stamped_ns, stamped_boot_ns = node.clocks.real_ns, node.clocks.boot_ns
    node.clocks.advance(15_000_000)
    node.read()
    node.clocks.advance(5_000_000)
    node.ptp4l.sync(stamped_ns)
    node.read()

    assert isinstance(node.reading, ClockSample)
    assert node.reading.as_of_ns == stamped_boot_ns


def test_a_ptp4l_without_a_path_delay_reports_each_sync_with_offset_0() -> None:
    """
    After its start ptp4l reports the ingress_time of each Sync, and offset and path delay 0, for as long as no answer to a
    delay request comes. The answers that it counts may be those to other nodes.
    """
    node = Node()
    node.ptp4l.state, node.ptp4l.offset_ns, node.ptp4l.path_delay_ns = PortState.UNCALIBRATED, 0, 0
    for _ in range(120):
        node.second()

    assert node.published is None
    assert isinstance(node.reading, NoSample) and "has not measured an offset" in node.reading.reason


def test_a_ptp4l_that_lost_its_path_delay_repeats_its_last_offset() -> None:
    """
    An Announce time-out empties its delay filter. Offset and path delay of before go on beside the ingress_time of each new
    Sync: the bound ages, until the filter was filled again.
    """
    node = Node()
    node.synced()
    node.ptp4l.state = PortState.UNCALIBRATED
    statuses = []
    for _ in range(20):
        node.second()
        statuses.append(node.seen()[0].status)
    for second in range(UNTIL_BOUND_S):
        node.ptp4l.offset_ns = 700 + second % 7
        node.second()
        statuses.append(node.seen()[0].status)

    assert set(statuses[6:25]) == {ClockStatus.HOLDOVER}
    assert statuses[-1] is ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize("by", ["another instance", "its counters"])
def test_pitfall_12_a_restarted_ptp4l_starts_the_delay_filter_again(by: str) -> None:
    """A new identity, or counters that went back, invalidate what was known: an empty delay filter has to be filled again."""
    node = Node()
    node.synced()
    if by == "its counters":
        node.ptp4l.messages = 0
        node.second()
    else:
        node.restarted()
    at_once = node.seen()
    node.synced(UNTIL_BOUND_S - 2)
    almost = node.seen()[0].status

    assert (at_once[0].status, at_once[1]) == (ClockStatus.DISRUPTED, Reason.SOURCE_RESTARTED.text)
    assert almost is ClockStatus.DISRUPTED
    assert node.synced(2).gm_status is ClockStatus.SYNCHRONIZED


def test_counters_that_went_back_unseen_fill_the_filter_again() -> None:
    """Where a driver does not report a restart, the model detects it by the counters."""
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    counts = [*range(1_000, 1_040), *range(12)]
    bounds = [
        ensemble.accept(nth(index, delay_requests_sent=count, delay_responses_received=count)).bound
        for index, count in enumerate(counts)
    ]

    assert [bound is None for bound in bounds[39:]] == [False, *[True] * 11, False]


@pytest.mark.parametrize("interface", ["eth0", "eth10", "a", "enp193s0f1np1"])
def test_pitfall_15_a_text_of_odd_length_is_padded(interface: str) -> None:
    """
    TLVs have an even length: the octet that fills one up is no part of the name, and a name without its end is
    malformed.
    """
    body = bytes(8) + struct.pack(">HBBB", 1, PortState.SLAVE, 0, len(interface)) + interface.encode()
    padded = body + bytes(len(body) % 2)

    assert len(padded) % 2 == 0
    assert parse(answer(0xC004, padded)).content() == PortProperties(hardware_stamps=False, interface=interface)
    with pytest.raises(Malformed):
        parse(answer(0xC004, body[:-1])).content()


def answer(management_id: int, body: bytes) -> bytes:
    """A management response as ptp4l sends it."""
    length = 54 + len(body)
    header = struct.pack(">BBHBBHqI8sHHBb", 0xD, 2, length, 24, 0, 0, 0, 0, bytes(8), 1, 0, 0, 0x7F)
    return header + struct.pack(">8sHBBBxHHH", b"\xff" * 8, 0xFFFF, 0, 0, 2, 1, 2 + len(body), management_id) + body


@pytest.mark.parametrize("by_ns", [-NS_PER_S, -2_001, 2_001, 37 * NS_PER_S])
def test_pitfall_16_a_step_between_two_reads_is_no_offset(by_ns: int) -> None:
    """
    The reading after it is no sample though a fresh Sync shows, all that was known is invalid, and programs see it
    before us.
    """
    node = Node()
    node.synced()
    node.clocks.step(by_ns)
    unread = node.seen()
    node.second()
    read = node.seen()

    assert isinstance(node.reading, NoSample) and node.reading.stepped
    assert [readings[0].status for readings in (unread, read)] == [ClockStatus.DISRUPTED] * 2
    assert unread[1] == read[1] == Reason.CLOCK_STEPPED.text
    assert node.synced().gm_status is ClockStatus.SYNCHRONIZED


def test_what_is_within_the_step_tolerance_is_a_sample() -> None:
    """2 000 ns pass unseen, and are a term of the bound."""
    node = Node()
    before = node.synced()
    node.clocks.step(2_000)
    node.second()

    assert isinstance(node.reading, ClockSample)
    assert before.terms[Term.STEP_TOLERANCE] == 2_000
