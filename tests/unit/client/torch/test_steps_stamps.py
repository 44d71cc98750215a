"""Stamps on a simulated device are read in the host's time, and never waited for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from timesyncd.client.torch.steps import MAX_ERROR_NS, DeviceStamps, HostStamps
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


def test_the_host_s_stamps_are_the_times_themselves() -> None:
    """Nothing is read later."""
    stamps = HostStamps()
    stamp = stamps.now()

    assert stamps.read(stamp) == stamp


def test_device_stamps_are_read_in_the_host_s_time() -> None:
    """An event is readable once the device has reached it, and has that time, however late it is read."""
    device = Device()
    stamps = device.stamps()
    before_any = stamps.now()
    reached_before = stamps.reached(before_any)
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
