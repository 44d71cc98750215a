"""Stamps on a simulated device are read in the host's time, and never waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.client.torch.stamps import (
    ANCHOR_INTERVAL_NS,
    MAX_ERROR_NS,
    DeviceStamps,
    DriverQuery,
    EventPool,
    HostStamps,
)
from timesyncd.jobs.arrivals import DEVICE_ERROR_NS

MS = 1_000_000


class Device:
    """Does what is in its queue one after the other. Its own clock runs `ppm` faster than the host's."""

    def __init__(self, ppm: int = 0) -> None:
        self.now_ns = self.busy_until_ns = 1_000 * MS
        self.host_minus_now_ns = 1_700_000_000_000_000_000
        self.ppm = ppm

    def work(self, ns: int) -> None:
        """Queue so much."""
        self.busy_until_ns = max(self.busy_until_ns, self.now_ns) + ns

    def host_ns(self, now_ns: int | None = None) -> int:
        return (self.now_ns if now_ns is None else now_ns) + self.host_minus_now_ns

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def stamps(self) -> DeviceStamps:
        return DeviceStamps(self.event, self.host_ns)

    def stamps_aside(self, latency_ns: int) -> DeviceStamps:
        """With anchors in a stream of their own. The host needs some time for each question and each reading of its clock."""

        def aside(event: Any) -> None:
            event.reached_ns = self.now_ns + latency_ns

        def host_ns() -> int:
            self.now_ns += 100
            return self.host_ns()

        return DeviceStamps(lambda: AskedEvent(self), host_ns, aside)


@dataclass
class FakeEvent:
    device: Device
    reached_ns: int | None = None

    def record(self) -> None:
        self.reached_ns = max(self.device.busy_until_ns, self.device.now_ns)

    def query(self) -> bool:
        assert self.reached_ns is not None
        return self.reached_ns <= self.device.now_ns

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        assert self.query() and end_event.query(), "CUDA raises where one is not reached"
        assert self.reached_ns is not None and end_event.reached_ns is not None
        apart_ns = end_event.reached_ns - self.reached_ns
        return apart_ns * (1 + self.device.ppm / 1e6) / MS


class AskedEvent(FakeEvent):
    """A question takes the host 300 ns."""

    def query(self) -> bool:
        self.device.now_ns += 300
        return super().query()

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        assert self.reached_ns is not None and end_event.reached_ns is not None
        return (end_event.reached_ns - self.reached_ns) * (1 + self.device.ppm / 1e6) / MS


def test_the_host_s_stamps_are_the_times_themselves() -> None:
    """Nothing is read later."""
    stamps = HostStamps()
    stamp = stamps.now()

    assert stamps.read(stamp) == stamp


def test_device_stamps_are_read_in_the_host_s_time() -> None:
    """An event is readable once the device has reached it, and has that time, however late it is read."""
    device = Device()
    stamps = device.stamps()
    device.work(MS)
    before_any = stamps.now()
    reached_before = stamps.reached(before_any)
    device.now_ns += MS
    stamps.anchor()  # the device is idle, so the anchor is exact
    device.work(7 * MS)
    true_ns, stamp = device.host_ns() + 7 * MS, stamps.now()
    early = stamps.reached(stamp)
    device.now_ns += 30 * MS

    assert (reached_before, early, stamps.reached(stamp)) == (False, False, True)
    assert stamps.error_ns == 0
    assert stamps.read(stamp) == true_ns


def test_without_a_good_anchor_no_time_is_read() -> None:
    """While the device clock's error is large, no time is used: half a millisecond could make any rank a straggler."""
    device = Device()
    stamps = device.stamps()
    device.work(MS)
    stamps.anchor()  # reached somewhere within the next millisecond
    stamp = stamps.now()
    device.now_ns += MS

    assert stamps.reached(stamp)
    assert stamps.read(stamp) is None
    assert stamps.error_ns == MS // 2 > MAX_ERROR_NS == DEVICE_ERROR_NS


def test_anchors_narrow_each_other() -> None:
    """What one leaves possible and the next one does not is gone: the true time lies in what is left."""
    device = Device()
    stamps = device.stamps()
    device.work(300_000)
    stamps.anchor()  # recorded 0.3 ms before it is reached, seen at once
    device.now_ns += 300_000
    stamps.anchor()  # takes the first one in; the device is idle now
    device.now_ns += 20_000  # seen 20 us after it was reached
    device.work(MS)
    true_ns = device.host_ns() + MS
    stamp = stamps.now()
    device.now_ns += 5 * MS
    reached, stamp_ns = stamps.reached(stamp), stamps.read(stamp)

    assert reached and stamp_ns is not None and stamps.error_ns is not None
    assert abs(stamp_ns - true_ns) <= stamps.error_ns <= 12_000


@pytest.mark.parametrize("ppm", [-50, 0, 50])
def test_an_anchor_follows_the_device_s_drift(ppm: int) -> None:
    """Renewed at every step, the anchor stays near, whichever way the device's clock runs off."""
    device = Device(ppm)
    stamps = device.stamps()
    for _ in range(1000):
        device.work(8 * MS)
        stamp, true_ns = stamps.now(), device.host_ns(device.busy_until_ns)
        stamps.anchor()
        device.now_ns = device.busy_until_ns  # the loss is read: the device is idle
        stamps.anchor()
        reached, stamp_ns = stamps.reached(stamp), stamps.read(stamp)
        device.now_ns += 2 * MS

    assert reached and stamp_ns is not None and stamps.error_ns is not None
    assert abs(stamp_ns - true_ns) <= stamps.error_ns + 2_000


def test_after_the_host_clock_is_set_the_newest_anchor_counts() -> None:
    """The anchors contradict each other, so only the newest one counts."""
    device = Device()
    stamps = device.stamps()
    stamps.anchor()
    stamps.anchor()
    device.now_ns += MS
    device.host_minus_now_ns -= 3_600_000 * MS
    stamps.anchor()
    stamps.anchor()
    stamp = stamps.now()

    assert stamps.reached(stamp)
    assert stamps.read(stamp) == device.host_ns()


def reached_ns(stamp: Any) -> int:
    found: int = stamp.event.reached_ns
    return found


@given(
    ppm=st.integers(-90, 90),
    latency_ns=st.integers(0, 5_000),
    steps=st.lists(st.tuples(st.integers(0, 60 * MS), st.integers(0, 60 * MS)), min_size=1, max_size=40),
)
def test_the_true_time_is_within_the_error(ppm: int, latency_ns: int, steps: list[tuple[int, int]]) -> None:
    """Whatever the queue, the drift and the pace of the host: each stamp is read, by the anchor nearest to it, and is right."""
    device = Device(ppm)
    stamps, waiting = device.stamps_aside(latency_ns), deque[tuple[Any, int]]()
    for work_ns, passed_ns in steps:
        device.work(work_ns)
        stamp = stamps.now()
        waiting.append((stamp, device.host_ns(reached_ns(stamp))))
        stamps.anchor()
        device.now_ns += passed_ns
        while waiting and stamps.reached(waiting[0][0]):
            stamp, true_ns = waiting.popleft()
            found = stamps.read_with_error(stamp)
            assert found is not None and abs(found[0] - true_ns) <= found[1]


def test_a_device_that_is_never_idle_is_read_with_a_small_error() -> None:
    """The anchors pass the queue by: what a step's stamps leave open is an anchor's own width, and the drift over some milliseconds."""
    device, errors_ns = Device(50), []
    stamps, waiting = device.stamps_aside(4_000), deque[tuple[Any, int]]()
    device.work(100 * MS)  # the host is five steps ahead
    for _ in range(300):
        device.work(20 * MS)
        stamp = stamps.now()
        waiting.append((stamp, device.host_ns(reached_ns(stamp))))
        stamps.anchor()
        device.now_ns += 20 * MS - 20_000
        if len(waiting) > 10:  # the marks are read late
            stamp, true_ns = waiting.popleft()
            assert stamps.reached(stamp)
            stamp_ns, error_ns = stamps.read_with_error(stamp) or (0, 0)
            assert stamps.read(stamp) == stamp_ns
            assert abs(stamp_ns - true_ns) <= error_ns
            errors_ns.append(error_ns)

    assert len(errors_ns) == 290
    assert max(errors_ns) <= 6_000


def test_an_anchor_is_renewed_by_stamps() -> None:
    """In a long step the stamps themselves renew it, so that the drift since the nearest one stays small."""
    device = Device(80)
    stamps = device.stamps_aside(0)
    for _ in range(100):
        device.now_ns += ANCHOR_INTERVAL_NS
        stamp, true_ns = stamps.now(), device.host_ns(device.now_ns)
    found = stamps.read_with_error(stamp)

    assert found is not None and abs(found[0] - true_ns) <= found[1] <= 3_000


def test_events_are_used_again() -> None:
    """One goes back to the pool with the last reference to its stamp, and not before."""
    made: list[Any] = []

    def event() -> Any:
        made.append(FakeEvent(Device()))
        return made[-1]

    pool = EventPool(event)
    first = pool.recorded()
    second = pool.recorded()
    del first
    third = pool.recorded()

    assert len(made) == 2
    assert third.event is made[0]
    assert second.event is made[1]


class Driver:
    """What is used of CUDA's driver: the mode in which each thread asks, and the answers."""

    def __init__(self, answer: int, may_ask: int = 0) -> None:
        self.answer, self.may_ask = answer, may_ask
        self.modes: list[int] = []
        self.asked: list[int | None] = []

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.modes.append(mode._obj.value)
        return self.may_ask

    def cuEventQuery(self, event: Any) -> int:
        self.asked.append(event.value)
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reached"), [(0, True), (600, False), (201, None)], ids=["reached", "ahead", "an error"]
)
def test_the_driver_says_whether_an_event_is_reached(answer: int, reached: bool | None) -> None:
    """A thread asks in the mode that leaves another thread's capture of a graph as it is, which it sets once."""
    driver = Driver(answer)
    query = DriverQuery(lambda: driver)
    event = SimpleNamespace(cuda_event=42)

    assert [query(event), query(event)] == [reached, reached]
    assert (driver.modes, driver.asked) == ([2], [42, 42])


def test_a_driver_that_may_end_a_capture_is_not_asked() -> None:
    """It does not know the mode: no answer. And a machine without a driver gives none."""
    driver = Driver(0, may_ask=1)

    assert DriverQuery(lambda: driver)(SimpleNamespace(cuda_event=42)) is None
    assert driver.asked == []
    assert DriverQuery(lambda: None)(SimpleNamespace(cuda_event=42)) is None


def test_a_stamp_of_a_device_is_ahead_until_the_device_reaches_it() -> None:
    """By the driver's answer; the host's stamps are of the past."""
    device = Device()
    stamps = DeviceStamps(device.event, device.host_ns, query=lambda event: event.query())
    device.work(5 * MS)
    stamp = stamps.now()

    assert stamps.is_ahead(stamp) is True
    device.now_ns += 5 * MS
    assert stamps.is_ahead(stamp) is False
    assert DeviceStamps(device.event, device.host_ns, query=lambda event: None).is_ahead(stamp) is None
    assert HostStamps().is_ahead(HostStamps().now()) is False
