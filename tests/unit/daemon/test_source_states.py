"""What is shown of each kind of clock source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import HEALTHY

from timesyncd.clocks import NS_PER_S
from timesyncd.daemon.source_states import ClockReading, measured
from timesyncd.messages.node import SourceState
from timesyncd.sample import KernelSample, NtpSource, PhcSample, UtcSample

PHC = PhcSample("nic", "phc:0", 1, 0, -37 * NS_PER_S + 412, 599, "extended", frequency_ppb=-20, steered=True)
UTC = UtcSample(
    "ntp", 1, 0, 400_000, 1_200_000, 51_000, "10.0.0.1", 2, "normal", 2_000_000, 100_000, frequency_ppb=-9,
    ntp_sources=(NtpSource("10.0.0.1", "selected", 1, 255, 1, 1, 1), NtpSource("10.0.0.2", "lost", 1, 0, None, None, None)),
)  # fmt: skip
KERNEL = KernelSample("kernel", 1, -1_830, 500_000, 100, True, "none", 37, ("chronyd",))


def shown(reading: ClockReading) -> SourceState:
    return SourceState.model_validate({"name": "s", "driver": "d", "reachable": True} | measured(reading))


def test_a_ptp_source_has_its_port_and_its_path() -> None:
    """It has no error of its own, since the bound includes it."""
    source = shown(replace(HEALTHY, domain=24))

    assert (source.kind, source.port_state, source.offset_ns, source.path_delay_ns) == ("ptp", "SLAVE", 100, 2_000)
    assert source.domain == 24
    assert (source.error_ns, source.detail) == (None, None)


@pytest.mark.parametrize(
    ("changes", "offset_ns", "detail"),
    [
        ({}, 412, "phc:0 by extended, system clock at -37 s, phc2sys is running"),
        ({"offset_ns": -5, "steered": False}, -5, "phc:0 by extended, phc2sys is not running"),
        ({"offset_ns": 3 * NS_PER_S - 5, "steered": None}, 3 * NS_PER_S - 5, "phc:0 by extended"),
        (
            {"offset_ns": -36_041_400_000, "steered": None},
            958_600_000,
            "phc:0 by extended, system clock at -37 s",
        ),
    ],
)
def test_of_a_phc_whole_seconds_are_separate(changes: dict[str, Any], offset_ns: int, detail: str) -> None:
    """
    Only the seconds that lie between two timescales are removed: a system clock that is 959 ms wrong is not 41 ms wrong.
    The error is half of the window, rounded up.
    """
    source = shown(replace(PHC, **changes))

    assert (source.kind, source.offset_ns, source.error_ns, source.frequency_ppb) == ("phc", offset_ns, 300, -20)
    assert source.detail == detail


def test_without_announce_a_ptp_source_reports_no_field_of_it() -> None:
    """ptp4l then serves its own clock's class, accuracy and steps, which say nothing of the one that it follows."""
    source = shown(replace(HEALTHY, parent_identity=None, grandmaster_identity=None, clock_class=255, steps_removed=0))

    assert (source.grandmaster_identity, source.clock_class, source.clock_accuracy) == (None, None, None)
    assert (source.steps_removed, source.current_utc_offset_s, source.ptp_timescale) == (None, None, None)
    assert source.offset_ns == HEALTHY.offset_ns


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, "follows 10.0.0.1, stratum 2, 1 of 2 sources reachable"),
        ({"ntp_sources": (), "leap": "insert"}, "follows 10.0.0.1, stratum 2, leap insert"),
    ],
)
def test_an_ntp_source_names_its_reference(changes: dict[str, Any], detail: str) -> None:
    """Offset and error are the daemon's own; a leap second is in the detail when there is one."""
    source = shown(replace(UTC, **changes))

    assert (source.kind, source.offset_ns, source.error_ns, source.detail) == ("utc", 400_000, 1_200_000, detail)


@pytest.mark.parametrize(
    ("changes", "error_ns", "detail"),
    [
        ({}, 500_000, "disciplined by: chronyd, TAI - UTC 37 s"),
        ({"synchronized": False}, None, "disciplined by: chronyd, not synchronized, TAI - UTC 37 s"),
        ({"disciplines": ("chronyd", "phc2sys")}, None, "disciplined by: chronyd, phc2sys, TAI - UTC 37 s"),
        ({"disciplines": (), "undecided_disciplines": ("ptp4l",)}, None, "disciplined by: none found, possibly ptp4l, TAI - UTC 37 s"),
        ({"disciplines": ("ntpd",)}, 500_000, "disciplined by: ntpd, TAI - UTC 37 s"),
        ({"undecided_disciplines": ("sfptpd",)}, None, "disciplined by: chronyd, possibly sfptpd, TAI - UTC 37 s"),
        ({"disciplines": ("sfptpd",)}, None, "disciplined by: sfptpd, TAI - UTC 37 s"),
        ({"leap": "insert", "tai_offset_s": 0}, 500_000, "disciplined by: chronyd, leap second armed: insert, TAI - UTC not set"),
    ],
)  # fmt: skip
def test_the_kernel_s_own_error_counts_where_one_program_alone_maintains_it(
    changes: dict[str, Any], error_ns: int | None, detail: str
) -> None:
    """chronyd and ntpd do. Of any other program, of two, and where another one may steer, maxerror has no meaning."""
    source = shown(replace(KERNEL, **changes))

    assert (source.kind, source.offset_ns, source.error_ns, source.detail) == ("kernel", None, error_ns, detail)
