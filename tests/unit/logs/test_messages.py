"""The messages of ptp4l and phc2sys, in the wording of their versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.logs.messages import (
    BestMaster,
    ClockCheck,
    ClockSelected,
    Measurement,
    OffsetSummary,
    Transition,
    Unreadable,
    parse_phc2sys,
    parse_ptp4l,
)
from timesyncd.sample import PortState

SYNC = Measurement(-22, 2, -25_273, 625)


@pytest.mark.parametrize(
    ("text", "message", "tag"),
    [
        ("master offset        -22 s2 freq  -25273 path delay       625", SYNC, ""),
        ("offset        -22 s2 freq  -25273 path delay       625", SYNC, ""),
        ("server offset        -22 s2 freq  -25273 path delay       625", SYNC, ""),
        ("[ptp4l.0.config] master offset        -22 s2 freq  -25273 path delay       625", SYNC, "[ptp4l.0.config]"),
        ("[ptp4l.0.config:6] master offset        -22 s2 freq  -25273 path delay       625", SYNC, "[ptp4l.0.config:]"),
        ("domain 24 offset        -22 s2 freq  -25273 path delay       625", SYNC, "domain 24"),
        ("port 1 (eth0): offset        -22 s2 freq  -25273 path delay       625", SYNC._replace(port=1), ""),
        ("master offset -22 s2 freq -25273 path delay 625", SYNC._replace(is_padded=False), ""),
        ("master offset -32360145543123 s0 freq -62499999 path delay  -8130665", Measurement(-32360145543123, 0, -62499999, -8130665), ""),
        ("rms   12 max   30 freq  -9110 +/- 217 delay   232 +/-   1", OffsetSummary(), ""),
        ("rms 5917392150883838 max 11834784301767748 freq  -4297 +/- 3147", OffsetSummary(), ""),
        ("port 1: UNCALIBRATED to SLAVE on MASTER_CLOCK_SELECTED", Transition(1, None, PortState.UNCALIBRATED, PortState.SLAVE), ""),
        ("port 2 (eth1): SLAVE to FAULTY on FAULT_DETECTED (FT_UNSPECIFIED)", Transition(2, "eth1", PortState.SLAVE, PortState.FAULTY), ""),
        ("port 1: PRE_MASTER to GRAND_MASTER on RS_GRAND_MASTER", Transition(1, None, PortState.PRE_MASTER, PortState.MASTER), ""),
        ("[a:5] port 1: SLAVE to LISTENING on ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES", Transition(1, None, PortState.SLAVE, PortState.LISTENING), "[a:]"),
        ("selected best master clock 00a069.fffe.0b552d", BestMaster("00a069.fffe.0b552d"), ""),
        ("selected local clock 00a069.fffe.0b552d as best master", BestMaster(None), ""),
        ("selected /dev/ptp1 as PTP clock", ClockSelected("/dev/ptp1", False), ""),
        ("Switched to /dev/ptp2 as PTP clock", ClockSelected("/dev/ptp2", True), ""),
        ("clockcheck: clock jumped backward or running slower than expected!", ClockCheck(True), ""),
        ("clockcheck: clock frequency changed unexpectedly!", ClockCheck(False), ""),
        ("port 1: new foreign master 00a069.fffe.0b552d-1", None, ""),
        ("updating UTC offset to 37", None, ""),
    ],
)  # fmt: skip
def test_messages_of_ptp4l(text: str, message: object, tag: str) -> None:
    """linuxptp 3.1 and 4.4, with and without a tag."""
    assert parse_ptp4l(text) == (message, tag)


@pytest.mark.parametrize(
    ("text", "message", "tag"),
    [
        ("CLOCK_REALTIME phc offset       -13 s2 freq   -6785 delay   1651", Measurement(-13, 2, -6785, 1651, "CLOCK_REALTIME"), ""),
        ("[x] CLOCK_REALTIME phc offset       -13 s2 freq   -6785 delay   1651", Measurement(-13, 2, -6785, 1651, "CLOCK_REALTIME"), "[x]"),
        ("/dev/ptp0 sys offset       -13 s0 freq      +0 delay   1651", Measurement(-13, 0, 0, 1651, "/dev/ptp0"), ""),
        ("phc offset       -13 s2 freq   -6785 delay   1651", Measurement(-13, 2, -6785, 1651, ""), ""),
        ("CLOCK_REALTIME pps offset       -13 s2 freq   -6785", Measurement(-13, 2, -6785, None, "CLOCK_REALTIME", None, False), ""),
        ("CLOCK_REALTIME rms   12 max   30 freq  -9110 +/- 217 delay   232 +/-   1", OffsetSummary("CLOCK_REALTIME"), ""),
        ("reconfiguring after port state change", None, ""),
    ],
)  # fmt: skip
def test_messages_of_phc2sys(text: str, message: object, tag: str) -> None:
    """The clock that is steered is the last word before the source."""
    assert parse_phc2sys(text) == (message, tag)


@pytest.mark.parametrize(
    ("text", "may_hide_step"),
    [
        ("master offset        -22 s2 freq  -25273 path del", False),
        ("master offset        -22 s2 freq  -25273 path delay       625 s1", False),
        ("master offset        -22 s1 freq  -25273 path del", True),
        ("master offset        -22 s", True),
        ("master offset 5 s2 freq +1 path delay 6ptp4l[25.634]: master offset 5 s1 freq +1 path delay 6", True),
        ("master off", True),
        ("", True),
        ("port 1: SLAVE to UNCAL", True),
        ("port 1: SLAVE to NOWHERE on RS_SLAVE", True),
        ("master offset\u0137     -22 s2 freq  -25273 path delay       625", True),
        ("master off\u0137et     -22 s2 freq  -25273 path delay       625", True),
        ("p\u0137rt 1: SLAVE to LISTENING on RS_SLAVE", True),
        ("master offset nan s2 freq -25273 path delay 625", True),
    ],
)
def test_a_cut_message_may_hide_a_step(text: str, may_hide_step: bool) -> None:
    """Unless the state of the servo is legible and is not s1."""
    assert parse_ptp4l(text) == (Unreadable(may_hide_step), "")


@given(st.text())
def test_any_text_is_read_or_left(text: str) -> None:
    """No text raises an error."""
    parse_ptp4l(text)
    parse_phc2sys(text)


@given(st.integers(0, 59))
def test_no_beginning_of_a_measurement_passes_for_another_message(length: int) -> None:
    """Where it stops before the path delay it is unreadable, never silently left out."""
    text = "master offset        -22 s2 freq  -25273 path delay       625"[:length].rstrip()
    message, _ = parse_ptp4l(text)

    assert isinstance(message, Unreadable) or (isinstance(message, Measurement) and not message.is_padded)
