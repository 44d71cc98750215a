"""Stamps on a device, with a device made of plain numbers: told in the host's time, never waited for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from timesyncd.client.torch.stamps import MAX_ERROR_NS, DeviceStamps, HostStamps
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


def test_a_device_s_moments_are_told_in_the_host_s_time() -> None:
    """An event is told once the device has reached it, at the time at which it did, however late it is asked."""
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


def test_without_a_good_anchor_nothing_is_told() -> None:
    """While the device's clock is known too badly, no time is: half a millisecond could make a straggler of anyone."""
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
    reached, told_ns = stamps.reached(stamp), stamps.read(stamp)

    assert reached and told_ns is not None and stamps.error_ns is not None
    assert abs(told_ns - true_ns) <= stamps.error_ns <= 12_000


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
        reached, told_ns = stamps.reached(stamp), stamps.read(stamp)
        device.now_ns += 2 * MS

    assert reached and told_ns is not None and stamps.error_ns is not None
    assert abs(told_ns - true_ns) <= stamps.error_ns + 2_000


def test_a_host_clock_that_was_set_is_anchored_anew() -> None:
    """What the anchors say no longer agrees: the newest alone counts."""
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
