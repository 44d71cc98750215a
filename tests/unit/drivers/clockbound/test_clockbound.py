"""The driver clockbound, on octets laid out by ClockBound's PROTOCOL.md (version 2), without timesyncd's writer."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_clocks import FakeClocks

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.config import parse
from timesyncd.driver import options_of
from timesyncd.drivers.clockbound.clockbound import ClockBound, ClockBoundOptions
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable
from timesyncd.ipc.clockbound import SegmentContent, SegmentStatus, parse_content, parse_header
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.sample import NoSample, NoSampleCause, Reading, UtcOrigin, UtcSample

pytestmark = pytest.mark.disable_socket

#: 12,345 ns at 1,000.5 s of CLOCK_MONOTONIC, 50 ppm, synchronized, disruption marker 7, on a little-endian machine.
RECORDED = bytes.fromhex(
    "4e5a4d41 00024243 50000000 0200 0400"
    "e803000000000000 0065cd1d00000000 d007000000000000 0000000000000000"
    "3930000000000000 0700000000000000 50c30000 01000000 01 00000000000000"
)

#: Where PROTOCOL.md has each field, and how wide it is there.
LAYOUT = {
    "magic": (0, "=I"), "magic_2": (4, "=I"), "size": (8, "=I"), "version": (12, "=H"), "generation": (14, "=H"),
    "as_of_s": (16, "=q"), "as_of_ns": (24, "=q"), "void_s": (32, "=q"), "void_ns": (40, "=q"), "bound_ns": (48, "=q"),
    "marker": (56, "=Q"), "drift_ppb": (64, "=I"), "status": (68, "=i"), "support": (72, "=B"),
}  # fmt: skip

UNKNOWN, SYNCHRONIZED, FREE_RUNNING, DISRUPTED = range(4)


def octets(**fields: int) -> bytes:
    """A synchronized segment, 5 us at 1,000 s, 1 ppm, void at 2,000 s, without disruption support."""
    made = bytearray(80)
    usual = {
        "magic": 0x414D5A4E, "magic_2": 0x43420200, "size": 80, "version": 2, "generation": 4, "as_of_s": 1_000,
        "void_s": 2_000, "bound_ns": 5_000, "drift_ppb": 1_000, "status": SYNCHRONIZED,
    }  # fmt: skip
    for name, value in (usual | fields).items():
        at, kind = LAYOUT[name]
        struct.pack_into(kind, made, at, value)
    return bytes(made)


class Lab:
    """A driver with clocks that a test moves. CLOCK_BOOTTIME is 100 s ahead of CLOCK_MONOTONIC, which shows 999 s."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shm0"
        self.dev = folder / "dev"
        self.dev.mkdir()
        self.clocks = FakeClocks(boot_ns=1_099 * NS_PER_S)
        self.suspended_ns = 100 * NS_PER_S
        self.driver = ClockBound(
            "aws", ClockBoundOptions(path=self.path), folder, self.clocks, Machine(dev=self.dev), self.monotonic_ns
        )

    def monotonic_ns(self) -> int:
        return self.clocks.boot_ns - self.suspended_ns

    def write(self, **fields: int) -> None:
        self.path.write_bytes(octets(**fields))

    def vmclock(self, marker: int) -> None:
        (self.dev / "vmclock0").write_bytes(struct.pack("<I8xIQ", 0x4B4C4356, 2, marker))

    def poll(self) -> Sequence[Reading]:
        return asyncio.run(self.driver.poll())

    def reading(self) -> Reading:
        (reading,) = self.poll()
        return reading

    def no_sample(self) -> NoSample:
        reading = self.reading()
        assert isinstance(reading, NoSample)
        return reading

    def sample(self) -> UtcSample:
        reading = self.reading()
        assert isinstance(reading, UtcSample)
        return reading

    def watched(self) -> Lab:
        """After the first look, which gives no sample, with a new bound of 999.5 s read at 1,000 s."""
        self.write(as_of_s=998)
        self.no_sample()
        self.clocks.advance(NS_PER_S)
        self.write(as_of_s=999, as_of_ns=500_000_000)
        return self

    def later(self, seconds: float, **fields: int) -> None:
        """Some time passes, at the end of which ClockBound computes a new bound."""
        self.clocks.advance(int(seconds * NS_PER_S))
        as_of_s, as_of_ns = divmod(self.monotonic_ns(), NS_PER_S)
        self.write(**({"as_of_s": as_of_s, "as_of_ns": as_of_ns} | fields))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_recorded_octets_are_read_field_by_field() -> None:
    """The order of the octets is that of a little-endian machine."""
    assert parse_header(RECORDED[:16], "shm0") == 4
    assert parse_content(RECORDED[16:], "shm0") == SegmentContent(
        as_of_ns=1_000_500_000_000,
        void_after_ns=2_000_000_000_000,
        bound_ns=12_345,
        max_drift_ppb=50_000,
        status=SegmentStatus.SYNCHRONIZED,
        disruption_marker=7,
        is_own=False,
    )


def test_a_sample_is_the_claim_of_its_own_moment(lab: Lab) -> None:
    """Offset 0 within ClockBound's bound, dated by its as_of on CLOCK_BOOTTIME, growing by its drift."""
    sample = lab.watched().sample()

    assert (sample.offset_ns, sample.error_ns, sample.growth_ppb) == (0, 5_000, 1_000)
    assert (sample.as_of_ns, sample.real_minus_boot_ns) == (1_099_500_000_000, lab.clocks.real_ns - lab.clocks.boot_ns)
    assert (sample.reference, sample.origin) == ("ClockBound", UtcOrigin.CLOCKBOUND)


def test_the_bound_at_a_moment_is_what_clockbound_s_client_computes(lab: Lab) -> None:
    """5,000 ns and 1 ppm of the 10 s since as_of."""
    sample = lab.watched().sample()
    bound = Ensemble({"aws": EnsembleSettings()}).accept(sample).bound

    assert bound is not None
    assert bound.utc_hard.at(sample.as_of_ns + 10 * NS_PER_S - bound.as_of_ns) == 5_000 + 10_000


def test_a_claim_from_before_the_first_look_does_not_count(lab: Lab) -> None:
    """The clock may have been stepped between the claim and the first look, which nothing would show."""
    lab.write(as_of_s=998)

    assert lab.no_sample().reason == "ClockBound has computed no bound since timesyncd began to watch this clock"


def test_an_unchanged_bound_is_no_new_sample_and_goes_stale(lab: Lab) -> None:
    """Until 5 s nothing is reported, as with ClockBound's clients; then the status and the age."""
    lab.watched().sample()
    lab.clocks.advance(4 * NS_PER_S)
    fresh = lab.poll()
    lab.write(as_of_s=999, as_of_ns=500_000_000, status=FREE_RUNNING)
    lab.clocks.advance(NS_PER_S)
    stale = lab.no_sample()

    assert fresh == []
    assert stale.reason.startswith("ClockBound's newest bound is 5.5 s old, and its status is FreeRunning")
    assert stale.cause is NoSampleCause.NO_VALID_SAMPLE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": UNKNOWN}, "ClockBound's status is Unknown"),
        ({"void_s": 1_000}, "ClockBound's bound is void since 0 s"),
    ],
)
def test_a_withdrawn_claim_ends_the_source_s_bound(lab: Lab, fields: dict[str, int], reason: str) -> None:
    """ClockBound's status Unknown, or its time of validity over: the bound of before does not go on growing."""
    ensemble = Ensemble({"aws": EnsembleSettings()})
    ensemble.accept(lab.watched().sample())
    lab.write(as_of_s=999, as_of_ns=500_000_000, **fields)
    no_sample = lab.no_sample()
    bound = ensemble.accept(no_sample).bound

    assert no_sample.reason.startswith(reason)
    assert no_sample.cause is NoSampleCause.SOURCE_WITHDRAWN
    assert bound is not None and bound.utc_hard.reason is Reason.SOURCE_WITHDRAWN


def test_a_disruption_withdraws_everything_once(lab: Lab) -> None:
    """Other sources may know the clock again before ClockBound does, so only the beginning invalidates them."""
    lab.watched().sample()
    lab.write(as_of_s=999, status=DISRUPTED)
    begun, goes_on = lab.no_sample(), lab.no_sample()
    lab.write(as_of_s=999, as_of_ns=900_000_000)
    of_before = lab.no_sample()
    lab.later(2)

    assert (begun.cause, goes_on.cause) == (NoSampleCause.VM_MIGRATED, NoSampleCause.NO_VALID_SAMPLE)
    assert begun.reason.startswith("ClockBound's status is Disrupted")
    assert of_before.reason == "ClockBound has computed no bound since the clock was disrupted"
    assert lab.sample().as_of_ns == lab.clocks.boot_ns


def test_a_disruption_invalidates_the_bounds_of_all_sources(lab: Lab) -> None:
    """The machine's clock was disrupted, whichever source measured it."""
    ensemble = Ensemble({"other": EnsembleSettings(), "aws": EnsembleSettings()})
    sample = lab.watched().sample()
    ensemble.accept(UtcSample("other", *(getattr(sample, name) for name in UtcSample.__slots__[1:])))
    lab.write(as_of_s=999, status=DISRUPTED)
    ensemble.accept(lab.no_sample())

    assert ensemble.bounded_sources == set()


def test_another_disruption_marker_is_a_disruption(lab: Lab) -> None:
    """Even where ClockBound is synchronized again at the next reading."""
    lab.vmclock(7)
    lab.watched()
    lab.write(as_of_s=999, as_of_ns=500_000_000, support=1, marker=7)
    lab.sample()
    lab.vmclock(8)
    lab.later(1, support=1, marker=8)
    changed = lab.no_sample()
    lab.later(1, support=1, marker=8)

    assert changed.cause is NoSampleCause.VM_MIGRATED
    assert changed.reason.startswith("ClockBound's disruption marker changed")
    assert lab.sample().error_ns == 5_000


def test_vmclock_is_ahead_of_clockbound_s_daemon(lab: Lab) -> None:
    """Between a migration and the daemon's next round its segment still claims the clock of before."""
    lab.vmclock(8)
    lab.watched()
    lab.write(as_of_s=999, as_of_ns=500_000_000, support=1, marker=7)
    no_sample = lab.no_sample()

    assert no_sample.cause is NoSampleCause.VM_MIGRATED
    assert no_sample.reason == "VMClock reports a disruption that ClockBound has not accounted for yet"


def test_a_segment_that_refers_to_vmclock_needs_it(lab: Lab) -> None:
    """Without the device a disruption is not seen, and the claim of before it would count."""
    lab.write(support=1, marker=7)

    with pytest.raises(Unreachable, match="vmclock0: no such device, and ClockBound's segment refers to it"):
        lab.poll()


def test_a_step_is_reported_and_claims_of_before_it_do_not_count(lab: Lab) -> None:
    """ClockBound's segment does not show that another program stepped the clock."""
    lab.watched().sample()
    lab.later(1)
    lab.clocks.step(5_000_000)
    stepped, of_before = lab.no_sample(), lab.no_sample()
    lab.later(1)

    assert (stepped.stepped, stepped.reason) == (True, "the clock was stepped by +5.000 ms")
    assert of_before.reason == "ClockBound has computed no bound since the clock was stepped"
    assert lab.sample().real_minus_boot_ns == lab.clocks.real_ns - lab.clocks.boot_ns


def test_a_claim_of_before_a_suspend_does_not_count(lab: Lab) -> None:
    """CLOCK_MONOTONIC stood still meanwhile, so the claim would be too young by the time slept."""
    lab.watched().sample()
    lab.later(0.1)
    lab.suspended_ns += 3_600 * NS_PER_S
    lab.clocks.advance(3_600 * NS_PER_S)

    assert lab.no_sample().reason == "ClockBound has computed no bound since the machine was suspended"


def test_a_claim_from_the_future_is_malformed(lab: Lab) -> None:
    """Written before this boot, or by a daemon in another time namespace; ClockBound's clients allow a microsecond."""
    lab.watched()
    lab.write(as_of_s=1_000, as_of_ns=1_000)
    allowed = lab.sample()
    lab.write(as_of_s=1_000, as_of_ns=1_001)

    assert allowed.error_ns == 5_000
    with pytest.raises(Malformed, match="as_of is 0.000 s in the future: written before this boot"):
        lab.poll()


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"", Malformed, "0 octets; a ClockBound segment has 80"),
        (octets()[:79], Malformed, "79 octets; layout version 2 has 80"),
        (bytes(80), Malformed, "not a ClockBound segment"),
        (octets(version=0), Unreachable, "not written yet"),
        (octets(generation=0), Unreachable, "not written yet"),
        (octets(generation=5), Unreachable, "generation 5: its writer is in the middle of a write, or died there"),
        (octets(version=1), Malformed, "layout version 1; timesyncd reads version 2 alone"),
        (octets(version=3), Malformed, "layout version 3; .* ClockBound 3 has version 2 in shm0, and 3 in shm1"),
        (octets(version=0x0302, size=104), Malformed, "layout version 2 to 3; "),
        (octets(version=0x0203, size=104), Malformed, "layout version 2 to 3; "),
        (octets(size=104), Malformed, "104 octets by its header"),
        (octets(as_of_s=-1), Malformed, "as_of -1; allowed"),
        (octets(as_of_ns=10**9), Malformed, "as_of nanoseconds 1000000000; allowed: 0 to 999999999"),
        (octets(void_ns=-1), Malformed, "void_after nanoseconds -1"),
        (octets(bound_ns=-1), Malformed, "bound -1"),
        (octets(drift_ppb=0), Malformed, "max_drift_ppb 0; allowed: 1 to 999999999"),
        (octets(drift_ppb=10**9), Malformed, "max_drift_ppb 1000000000"),
        (octets(status=4), Malformed, "clock_status 4; allowed: 0 to 3"),
        (octets(support=2), Malformed, "clock_disruption_support 2"),
    ],
)
def test_what_is_no_segment_of_version_2_gives_a_reason(
    lab: Lab, data: bytes, kind: type[SourceError], text: str
) -> None:
    """Never a guess: each reason names the file, the value and what is allowed."""
    lab.path.write_bytes(data)

    with pytest.raises(kind, match=rf"/shm0: .*{text}"):
        lab.poll()


def test_a_header_of_two_octets_for_version_2_alone_is_read(lab: Lab) -> None:
    """ClockBound 3's header has the oldest and the newest version."""
    lab.watched()
    lab.write(as_of_s=999, as_of_ns=500_000_000, version=0x0202)

    assert lab.sample().error_ns == 5_000


def test_a_missing_file_a_folder_and_a_fifo_give_a_reason(lab: Lab) -> None:
    """None blocks, and the reason states what to do."""
    with pytest.raises(Unreachable, match="/shm0: no such file: start ClockBound's daemon"):
        lab.poll()
    lab.path.mkdir()
    with pytest.raises(Malformed, match="/shm0: not a regular file"):
        lab.poll()
    lab.path.rmdir()
    os.mkfifo(lab.path)
    with pytest.raises(Malformed, match="/shm0: not a regular file"):
        lab.poll()


def test_a_segment_of_timesyncd_is_refused(lab: Lab) -> None:
    """Its own bound would prove itself; the mark is in octets that ClockBound's clients do not read."""
    lab.path.write_bytes(octets()[:73] + b"timesyn")

    with pytest.raises(Refused, match="timesyncd itself wrote this segment"):
        lab.poll()


def test_a_configuration_that_would_read_its_own_segment_is_refused(tmp_path: Path) -> None:
    """Also by another name of the same folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    data = {
        "clockbound": {"path": str(tmp_path / "run/shm0")},
        "source": [{"name": "aws", "driver": "clockbound", "path": str(tmp_path / "var/shm0")}],
    }
    with pytest.raises(ConfigError, match=r"source\[0\].path = .*: is the segment that this daemon writes"):
        parse(data, options_of, "t.toml")


def test_clockbound_and_chronyd_are_never_independent(lab: Lab) -> None:
    """ClockBound 2 reports chronyd's own figures, so a declaration of independence does not count."""
    settings = {"aws": EnsembleSettings(independent_of=frozenset({"utc"})), "utc": EnsembleSettings()}
    ensemble = Ensemble(settings)
    sample = lab.watched().sample()
    ensemble.accept(sample)
    fields = {name: getattr(sample, name) for name in UtcSample.__slots__}
    chrony = fields | {"source": "utc", "reference": "192.0.2.1", "origin": UtcOrigin.NETWORK, "leap": "none"}
    ensemble.accept(UtcSample(**chrony))

    assert ensemble.shared_cause("aws", "utc") == "same_reference"
