"""What follows from chronyd's answers: signs, error, growth, and when there is no sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from timesyncd.drivers.chrony._protocol import SourceData, SourceStats, Tracking
from timesyncd.drivers.chrony.chrony import (
    ChronyHistory,
    ChronyOptions,
    ChronySnapshot,
    address_text,
    ntp_source,
    parse_address,
)
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.sample import NoSample, NtpSource, UtcSample

pytestmark = pytest.mark.disable_socket

STEP_NS = 1_000_000

#: 2 ms behind by an NTP server 50 ppm slower, and steered accordingly. Powers of two, where a figure must come out exactly.
TRACKING = Tracking(
    reference_id=0xC0000201,
    reference="192.0.2.1",
    stratum=3,
    leap="none",
    reference_time=(0, 1_795_288_261, 428_478_193),
    current_correction_s=0.002,
    last_offset_s=-1e-6,
    rms_offset_s=1e-6,
    frequency_ppm=50.0,
    residual_frequency_ppm=-0.25,
    skew_ppm=0.125,
    root_delay_s=0.001,
    root_dispersion_s=0.0001,
    update_interval_s=64.0,
)
SELECTED = NtpSource("192.0.2.1", "selected", 2, 0o377, 1_000, 2_000, 5)
PICTURE = ChronySnapshot(
    boottime_ns=24_000,
    real_minus_boot_ns=5_000_000,
    real_minus_boot_after_ns=5_000_000,
    kernel_ppb=(-50_000, -50_000),
    tracking=TRACKING,
    sources=(SELECTED,),
)


def history() -> ChronyHistory:
    return ChronyHistory("utc", max_clock_error_ppb=1_000)


def snapshot(real_minus_boot_ns: int = 5_000_000, **tracking: Any) -> ChronySnapshot:
    return replace(
        PICTURE,
        real_minus_boot_ns=real_minus_boot_ns,
        real_minus_boot_after_ns=real_minus_boot_ns,
        tracking=replace(TRACKING, **tracking),
    )


def sample_of(taken: UtcSample | NoSample) -> UtcSample:
    assert isinstance(taken, UtcSample), taken
    return taken


def test_a_sample() -> None:
    """
    A correction that chronyd has yet to add is a clock that is behind; the error is the root distance without the offset, and half a
    grandmaster in the last place of each figure; the dispersion grows by skew, residual frequency and chronyd's own clock error.
    """
    assert history().take(PICTURE) == UtcSample(
        source="utc",
        as_of_ns=24_000,
        real_minus_boot_ns=5_000_000,
        offset_ns=-2_000_000,
        error_ns=600_001,
        growth_ppb=1_375,
        reference="192.0.2.1",
        stratum=3,
        leap="none",
        root_delay_ns=1_000_000,
        root_dispersion_ns=100_000,
        frequency_ppb=-50_000,
        skew_ppb=125,
        ntp_sources=(SELECTED,),
    )


def test_a_clock_that_is_ahead() -> None:
    """The other sign of offset and frequency."""
    taken = sample_of(
        history().take(replace(snapshot(current_correction_s=-0.5, frequency_ppm=-7.0), kernel_ppb=(7_000, 7_000)))
    )

    assert (taken.offset_ns, taken.frequency_ppb) == (500_000_000, 7_000)


def test_the_error_is_rounded_up() -> None:
    """A fraction of a nanosecond counts as a whole one."""
    taken = sample_of(history().take(snapshot(current_correction_s=0.0, root_delay_s=0.0, root_dispersion_s=1e-10)))

    assert taken.error_ns == 1


def test_an_offset_of_seconds_has_a_coarse_resolution() -> None:
    """24 bits hold 1000 s to 60 us: that much is in the error, since chronyd rounded it away."""
    taken = sample_of(history().take(snapshot(current_correction_s=1000.0, root_delay_s=0.0, root_dispersion_s=0.0)))

    assert taken.error_ns == 59_605


def test_steering_that_chronyd_does_not_hold_for_right_makes_the_error_grow() -> None:
    """It slews an offset away at 100 ppm: the clock goes so much off the rate of UTC."""
    slewing = sample_of(history().take(replace(PICTURE, kernel_ppb=(-50_000, 50_000))))

    assert slewing.growth_ppb == 1_375 + 100_000


def test_a_chronyd_that_may_not_steer() -> None:
    """With -x the clock runs 50 ppm fast, and goes on to."""
    watched = sample_of(history().take(replace(PICTURE, kernel_ppb=(0, 0))))

    assert watched.growth_ppb == 1_375 + 50_000


def test_without_the_kernels_frequency_there_is_no_sample() -> None:
    """How fast the clock goes away from UTC would be a guess."""
    taken = history().take(replace(PICTURE, kernel_ppb=(None, -50_000)))

    assert taken == NoSample("utc", 24_000, "the clock's frequency cannot be read from the kernel (adjtimex)")


@pytest.mark.parametrize("unsynchronised", [{"leap": "unsynchronised"}, {"stratum": 0}, {"reference_id": 0}])
def test_a_chronyd_that_is_not_synchronised_gives_no_sample(unsynchronised: dict[str, Any]) -> None:
    """Each of the three signs is enough, and the sources' states are the reason."""
    taken = history().take(replace(snapshot(**unsynchronised), sources=(replace(SELECTED, state="falseticker"),)))

    assert taken == NoSample("utc", 24_000, "chronyd is not synchronised: 192.0.2.1 is falseticker")


def test_a_chronyd_without_sources_has_that_reason() -> None:
    """An empty list is a reason too."""
    taken = history().take(replace(snapshot(stratum=0), sources=()))

    assert taken == NoSample("utc", 24_000, "chronyd is not synchronised: it has no sources")


def test_a_chronyd_that_serves_its_own_clock_knows_nothing_of_utc() -> None:
    """With `local`, chronyd reports leap none and dispersion 0 for a clock that no source set."""
    taken = history().take(
        snapshot(reference_id=0x7F7F0101, reference="7F7F0101", root_dispersion_s=0.0, root_delay_s=0.0)
    )

    assert isinstance(taken, NoSample)
    assert taken.reason == "chronyd follows its own clock (directive `local`) instead of a source"


@pytest.mark.parametrize("leap", ["insert", "delete"])
def test_an_armed_leap_second_is_reported(leap: str) -> None:
    """It does not take the sample away."""
    assert sample_of(history().take(snapshot(leap=leap))).leap == leap


def test_a_step_while_chronyd_was_asked_gives_no_sample() -> None:
    """What it stated may be of the clock before or after."""
    taken = history().take(replace(PICTURE, real_minus_boot_after_ns=5_000_000 + STEP_NS))

    assert taken == NoSample("utc", 24_000, "the clock was stepped by +1.000 ms", stepped=True)


def test_a_step_between_two_polls_is_seen() -> None:
    """Also one back."""
    known = history()
    known.take(snapshot())
    taken = known.take(snapshot(5_000_000 - STEP_NS))

    assert taken == NoSample("utc", 24_000, "the clock was stepped by -1.000 ms", stepped=True)


def test_after_a_step_chronyd_must_have_measured_again() -> None:
    """Until its next measurement, chronyd reports the offset of the clock before the step."""
    known = history()
    known.take(snapshot())
    known.take(snapshot(5_000_000 + STEP_NS))
    innocent = known.take(snapshot(5_000_000 + STEP_NS))
    again = known.take(snapshot(5_000_000 + STEP_NS, reference_time=(0, 1_795_288_325, 1)))

    assert isinstance(innocent, NoSample)
    assert (innocent.reason, innocent.stepped) == ("chronyd has not measured since the clock was stepped", False)
    assert isinstance(again, UtcSample)


def test_what_passes_for_no_step() -> None:
    """Within the tolerance two readings of the clocks differ anyhow."""
    known = history()
    known.take(snapshot())

    assert isinstance(known.take(snapshot(5_000_000 + 2_000)), UtcSample)


def refclock(name: str, known: ChronyHistory | None = None, sources: tuple[NtpSource, ...] = ()) -> UtcSample:
    """A sample while chronyd follows this reference clock, 100 us wide."""
    number = int.from_bytes(name.encode().ljust(4, b"\0"), "big")
    followed: dict[str, Any] = {"reference_id": number, "reference": name, "stratum": 1, "root_delay_s": 1e-9}
    return sample_of((known or history()).take(replace(snapshot(**followed), sources=sources)))


def utc_of(sample: UtcSample) -> tuple[int | None, str]:
    """The bound that a node with this source alone has against UTC, and the reason's code."""
    bound = Ensemble({"utc": EnsembleSettings()}).accept(sample).bound
    assert bound is not None
    return bound.utc_hard.bound_ns, bound.utc_hard.reason.code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("PHC0", "follows_phc"),
        ("PTP1", "follows_phc"),
        ("GPS", "refclock_not_declared"),
        ("PPS", "refclock_not_declared"),
        ("SHM0", "refclock_not_declared"),
        ("ABCD", "refclock_not_declared"),
    ],
)
def test_a_reference_clock_that_is_not_declared_bounds_nothing(name: str, code: str) -> None:
    """chronyd reports how well it follows it, and not how well that clock follows UTC: a PHC may follow PTP."""
    assert utc_of(refclock(name)) == (None, code)


def test_a_declared_receiver_counts_with_its_own_error() -> None:
    """The operator states that it is a GNSS receiver, and how far it may be off."""
    declared = ChronyHistory("utc", max_clock_error_ppb=1_000, refclocks={"GPS": 5_000})
    alone, without = refclock("GPS", declared), refclock("GPS")

    assert alone.error_ns == without.error_ns + 5_000
    assert utc_of(alone) == (abs(alone.offset_ns) + alone.error_ns, "ok")


@pytest.mark.parametrize(("state", "counts"), [("selectable", True), ("unselected", False), ("falseticker", False)])
def test_a_reference_clock_that_is_combined_counts_as_followed(state: str, counts: bool) -> None:
    """chronyd averages the selected source with the selectable ones."""
    phc = NtpSource("PHC0", state, 0, 0o377, 1_000, 2_000, 5, kind="refclock")
    taken = sample_of(history().take(replace(PICTURE, sources=(SELECTED, phc))))

    assert (utc_of(taken)[1] == "follows_phc") is counts


@pytest.mark.parametrize(
    "declared",
    [
        {"PHC0": {"gps": True, "error_ns": 1}},
        {"PTP": {"gps": True, "error_ns": 1}},
        {"GPS": {"gps": False, "error_ns": 1}},
        {"GPS": {"gps": True}},
        {"GPS": {"gps": True, "error_ns": -1}},
        {"GPS-1": {"gps": True, "error_ns": 1}},
    ],
)
def test_a_declaration_names_a_receiver_and_its_error(declared: dict[str, object]) -> None:
    """A PHC is none, whatever steers it: its refclock needs a reference id of its own."""
    with pytest.raises(ValidationError):
        ChronyOptions.model_validate({"refclocks": declared})


MS = 1_000_000

#: A receiver that chronyd follows, and three servers that exclude its interval; the last source never answered.
AGAINST_GPS = (
    NtpSource("GPS", "selected", 0, 0o377, -1_806_000, 452_000, 10, kind="refclock"),
    NtpSource("192.0.2.4", "nonselectable", 2, 0o377, -70 * MS, 21 * MS, 10),
    NtpSource("192.0.2.5", "nonselectable", 2, 0o377, -59 * MS, 36 * MS, 10),
    NtpSource("192.0.2.6", "nonselectable", 2, 0o377, -59 * MS, 45 * MS, 10),
    NtpSource("192.0.2.7", "nonselectable", 0, 0, None, None, None),
)
BY_GPS: dict[str, Any] = {"current_correction_s": 0.001806, "root_delay_s": 1e-6, "root_dispersion_s": 0.000452}


def test_servers_that_contradict_the_receiver_leave_no_bound_by_it_alone() -> None:
    """Three in the same reply exclude its interval: the sample's interval holds whichever of them is right."""
    declared = ChronyHistory("utc", max_clock_error_ppb=1_000, refclocks={"GPS": 0})
    followed = snapshot(reference_id=0x47505300, reference="GPS", stratum=1, **BY_GPS)
    taken = sample_of(declared.take(replace(followed, sources=AGAINST_GPS)))

    assert taken.offset_ns - taken.error_ns <= -104 * MS
    assert taken.offset_ns + taken.error_ns >= -1_806_000 + 452_000
    assert [source.contradicts_by_ns is not None for source in taken.ntp_sources] == [False, True, True, True, False]
    assert taken.covers_contradicting


def test_a_minority_that_contradicts_is_named_and_moves_nothing() -> None:
    """More than half of what chronyd reaches agrees with its estimate."""
    near = [replace(SELECTED, name=f"192.0.2.{at}", state="selectable", offset_ns=-2 * MS) for at in (2, 3)]
    far = replace(SELECTED, name="192.0.2.9", state="falseticker", offset_ns=50 * MS, error_ns=MS)
    taken = sample_of(history().take(replace(PICTURE, sources=(SELECTED, *near, far))))
    alone = sample_of(history().take(PICTURE))

    assert (taken.offset_ns, taken.error_ns, taken.covers_contradicting) == (alone.offset_ns, alone.error_ns, False)
    assert [source.name for source in taken.ntp_sources if source.contradicts_by_ns] == ["192.0.2.9"]


@pytest.mark.parametrize(
    "changes",
    [
        {"reachability": 0},
        {"stratum": 0},
        {"stratum": 16},
        {"error_ns": 60 * MS},
        {"offset_ns": None, "error_ns": None, "since_sample_s": None},
        {"since_sample_s": 100_000_000},
        {"adjusted_offset_ns": -2 * MS},
    ],
)
def test_what_is_no_contradiction(changes: dict[str, Any]) -> None:
    """
    A server that is not reached, is not synchronised itself, allows for the difference, or was measured long ago; and
    one whose difference chronyd corrected since.
    """
    other = replace(SELECTED, name="192.0.2.9", state="unselected", offset_ns=50 * MS, error_ns=MS)
    taken = sample_of(history().take(replace(PICTURE, sources=(SELECTED, replace(other, **changes)))))

    assert [source.contradicts_by_ns for source in taken.ntp_sources] == [None, None]


def test_the_interval_of_a_source_from_long_ago_is_no_number_of_65_bits() -> None:
    """It allows for anything, so it neither agrees nor contradicts; store and messages hold 64 bits."""
    old = replace(SELECTED, name="192.0.2.8", state="unselected", since_sample_s=2**32 - 2)
    far = replace(SELECTED, name="192.0.2.9", state="unselected", offset_ns=50 * MS, error_ns=MS)
    fast = replace(snapshot(skew_ppm=1e9), sources=(SELECTED, old, far))
    taken = sample_of(history().take(fast))
    wide = sample_of(history().take(replace(PICTURE, sources=(SELECTED, old, far))))

    assert max(abs(taken.offset_ns), taken.error_ns, abs(wide.offset_ns), wide.error_ns) < 2**62
    assert wide.covers_contradicting


def test_a_reference_clock_that_is_not_declared_has_no_vote() -> None:
    """It is named, but its own error is unknown, so it neither supports nor refutes a bound."""
    phc = NtpSource("PHC0", "unselected", 0, 0o377, 50 * MS, 1_000, 1, kind="refclock")
    taken = sample_of(history().take(replace(PICTURE, sources=(SELECTED, phc))))

    assert taken.ntp_sources[1].contradicts_by_ns is not None
    assert not taken.covers_contradicting


def test_a_source_as_it_was_measured() -> None:
    """Local minus source, as chronyd has it: positive is ahead. Errors are rounded up."""
    data = SourceData("192.0.2.1", 6, 2, "selectable", "server", 0o17, 12, 0.002, 0.001, 0.0005)
    stats = SourceStats("192.0.2.1", 8, 4, 512, 1e-5, 0.1, 0.2, -0.003, 0.0004)

    assert ntp_source(data, stats) == NtpSource(
        name="192.0.2.1",
        state="selectable",
        stratum=2,
        reachability=0o17,
        offset_ns=2_000_000,
        error_ns=500_000,
        since_sample_s=12,
        samples=8,
        estimate_ns=-3_000_000,
        estimate_error_ns=400_000,
        spread_ns=10_000,
        adjusted_offset_ns=1_000_000,
    )


def test_a_source_that_never_answered_has_no_figures() -> None:
    """Its placeholders are not measurements: no offset 0, no spread of 4 s."""
    data = SourceData("192.0.2.2", 6, 0, "nonselectable", "server", 0, None, 0.0, 0.0, 0.0)
    stats = SourceStats("192.0.2.2", 0, 0, 0, 4.0, 0.0, 2000.0, 0.0, 4.0)

    assert ntp_source(data, stats) == NtpSource("192.0.2.2", "nonselectable", 0, 0, None, None, None, samples=0)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("/run/chrony/chronyd.sock", Path("/run/chrony/chronyd.sock")),
        ("127.0.0.1:323", ("127.0.0.1", 323)),
        ("[::1]:1323", ("::1", 1323)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_a_path_or_host_and_port(written: str, address: Path | tuple[str, int]) -> None:
    """And is shown as it was written."""
    assert parse_address(written) == address
    assert address_text(address) == written


@pytest.mark.parametrize(
    "written", ["", "chronyd.sock", "127.0.0.1", "::1:323", "127.0.0.1:0", "localhost:70000", "a:b"]
)
def test_another_address_is_an_error_of_the_configuration(written: str) -> None:
    """An invalid address is an error before anything starts."""
    with pytest.raises(ValidationError, match="give the path of a UNIX socket, host:port"):
        ChronyOptions(address=written)
