"""A program that slews the system clock after the segment was written: the client measures it, and the interval holds the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from published import good_bound, publish

from timesyncd.bound import Bound, Publication, Reference, published, steered_ns
from timesyncd.client import Clock, past
from timesyncd.client import clock as clock_module
from timesyncd.clocks import NS_PER_S, RawReading

REAL_NS, BOOT_NS, MONO_NS, RAW_NS = 1_700_000_000 * NS_PER_S, 5_000 * NS_PER_S, 4_000 * NS_PER_S, 4_001 * NS_PER_S
FREQUENCY_PPB = 20_000


@dataclass
class Machine:
    """Its clocks run `frequency_ppb` faster than its oscillator, which keeps true time after `true_ns`, from its start on."""

    true_ns: int = 0
    frequency_ppb: int = FREQUENCY_PPB
    moved_ns: float = 0.0

    def run(self, true_ns: int) -> None:
        self.true_ns += true_ns
        self.moved_ns += true_ns * (1 + self.frequency_ppb / NS_PER_S)

    def shown(self, start_ns: int) -> Callable[[], int]:
        return lambda: start_ns + round(self.moved_ns)

    def read(self, clock: int) -> int:
        return RAW_NS + self.true_ns if clock == time.CLOCK_MONOTONIC_RAW else self.shown(BOOT_NS)()

    def raw_reading(self) -> RawReading:
        return RawReading(RAW_NS + self.true_ns, self.shown(MONO_NS)(), RAW_NS + self.true_ns)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock_module, "_realtime_ns", made.shown(REAL_NS))
    monkeypatch.setattr(clock_module, "_monotonic_ns", made.shown(MONO_NS))
    monkeypatch.setattr(clock_module, "_clock_ns", made.read)
    monkeypatch.setattr(past, "boottime_ns", made.shown(BOOT_NS))
    monkeypatch.setattr(past, "_boot_minus_mono", lambda: past.NsRange(BOOT_NS - MONO_NS, BOOT_NS - MONO_NS))
    monkeypatch.setattr(time, "monotonic_ns", made.shown(MONO_NS))
    monkeypatch.setattr(time, "time_ns", made.shown(REAL_NS))
    monkeypatch.setattr(time, "clock_gettime_ns", made.read)
    return made


def publish_now(folder: Path, machine: Machine, growth_ppb: int = 50_000, steering_ppb: int = 40_000) -> None:
    """5 us, and right: the oscillator is off by as much as the frequency corrects."""
    now_ns = machine.shown(BOOT_NS)()
    made = good_bound(
        as_of_ns=now_ns,
        real_minus_boot_ns=REAL_NS - BOOT_NS,
        gm_hard=Bound(5_000, growth_ppb),
        frequency_ppb=FREQUENCY_PPB,
        frequency_at_ns=now_ns,
        steering_ppb=steering_ppb,
    )
    found = published(made, now_ns, machine.frequency_ppb, machine.raw_reading())
    publish(folder, **{name: getattr(found, name) for name in found.__dataclass_fields__})


def half_width_ns(clock: Clock) -> float:
    earliest, latest, _, _ = clock.gm_now()
    assert earliest is not None and latest is not None
    return (latest - earliest) / 2


@pytest.mark.parametrize("ppb", [-5_000_000, -100_000, 100_000, 5_000_000, 100_000_000])
def test_a_slew_that_begins_after_the_segment_was_written_widens_the_interval(
    tmp_path: Path, machine: Machine, ppb: int
) -> None:
    """By what the slew has moved the clock, and hardly more: nothing that was read before could have bounded it."""
    publish_now(tmp_path, machine)
    clock = Clock(tmp_path)
    before_ns = half_width_ns(clock)
    machine.run(NS_PER_S // 4)
    machine.frequency_ppb += ppb
    machine.run(NS_PER_S // 4)
    moved_ns = abs(ppb) / 4

    assert before_ns + moved_ns <= half_width_ns(clock) <= before_ns + 1.001 * moved_ns + 20_000


def test_a_slew_that_has_ended_again_counts(tmp_path: Path, machine: Machine) -> None:
    """The frequency is the old one when the client asks; the clock is where the slew has left it."""
    publish_now(tmp_path, machine)
    clock = Clock(tmp_path)
    machine.frequency_ppb += 8_000_000
    machine.run(NS_PER_S // 10)
    machine.frequency_ppb = FREQUENCY_PPB
    machine.run(NS_PER_S // 10)

    assert half_width_ns(clock) >= 5_000 + 800_000


def test_what_a_servo_might_have_done_does_not_count(tmp_path: Path, machine: Machine) -> None:
    """No program steers: of the growth of 50 ppm, 40 ppm allow for that, and only 10 ppm are left."""
    publish_now(tmp_path, machine)
    clock = Clock(tmp_path)
    machine.run(NS_PER_S // 2)

    assert 5_000 + 5_000 <= half_width_ns(clock) <= 5_000 + 5_000 + 10


def test_a_bound_without_growth_stays(tmp_path: Path, machine: Machine) -> None:
    """A growth of 0 divides nothing by zero, on either path."""
    publish_now(tmp_path, machine, growth_ppb=0, steering_ppb=0)
    clock = Clock(tmp_path)
    slow_ns = half_width_ns(clock)
    machine.run(NS_PER_S // 2)

    assert 5_000 <= slow_ns <= half_width_ns(clock) <= 5_010


def test_the_fast_path_counts_it_too(tmp_path: Path, machine: Machine) -> None:
    """A slew of less than a microsecond, which the slow path need not decide."""
    publish_now(tmp_path, machine)
    clock = Clock(tmp_path)
    half_width_ns(clock)
    machine.frequency_ppb += 50_000
    machine.run(NS_PER_S // 100)
    slow, reason = clock._slow_path(Reference.GRANDMASTER)
    assert slow.earliest is not None and slow.latest is not None and not reason

    assert 5_000 + 500 <= half_width_ns(clock) <= (slow.latest - slow.earliest) / 2 + 3


def test_translate_counts_it(tmp_path: Path, machine: Machine) -> None:
    """A moment after the segment was written may lie within the slew."""
    publish_now(tmp_path, machine)
    clock = Clock(tmp_path)
    machine.frequency_ppb += 5_000_000
    machine.run(NS_PER_S // 10)
    found = clock.translate(boottime_ns=machine.shown(BOOT_NS)()).interval

    assert found.earliest is not None and found.latest is not None
    assert (found.latest - found.earliest) / 2 >= 5_000 + 500_000


def test_a_program_that_slews_before_the_publication_counts() -> None:
    """The frequency was read 10 ms before; by now it is another, and may have been since then."""
    bound = good_bound(frequency_ppb=0, frequency_at_ns=BOOT_NS)
    found = published(bound, BOOT_NS + 10_000_000, 5_000_000, RawReading(0, 0, 0))

    assert found.publication == Publication(0, 0, 0, unseen_ns=50_000)
    assert steered_ns(found, RawReading(0, 0, 0)) == 50_000 + 1


def test_without_a_frequency_nothing_is_measured() -> None:
    """The growth then allows for all that a servo may do."""
    found = published(good_bound(frequency_ppb=0), BOOT_NS, None, RawReading(0, 0, 0))

    assert found.publication is None
    assert steered_ns(found, RawReading(0, 5_000_000, 0)) is None


def test_a_bound_that_knows_no_frequency_is_measured_from_its_publication_on() -> None:
    """As that of an NTP daemon, whose growth allows for its slews: what it does after the publication comes on top."""
    bound = good_bound(frequency_ppb=None, frequency_at_ns=0)
    found = published(bound, BOOT_NS, 5_000_000, RawReading(0, 0, 0))

    assert found.frequency_ppb == 5_000_000
    assert found.publication == Publication(0, 0, 0, unseen_ns=0)
    assert steered_ns(found, RawReading(NS_PER_S, NS_PER_S + 5_000_000, NS_PER_S)) == 1
    assert steered_ns(found, RawReading(NS_PER_S, NS_PER_S, NS_PER_S)) == 5_000_000 + 1


def test_a_pause_between_the_clocks_hides_no_slew() -> None:
    """The clock was hurried by 5 us, and 5 us passed between the two readings: it may have been both or neither."""
    bound = published(good_bound(frequency_ppb=0, frequency_at_ns=0), 0, 0, RawReading(0, 0, 0))
    paused = RawReading(NS_PER_S, NS_PER_S + 5_000, NS_PER_S + 5_000)

    assert steered_ns(bound, paused) == 5_000 + 1
