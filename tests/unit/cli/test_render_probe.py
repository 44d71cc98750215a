"""What `timesyncd probe` prints of values that are odd, and of the web interface."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, Group

from timesyncd.cli.render_probe import raw_text, tables
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load_all
from timesyncd.drivers.timeprovider._web_codec import ChannelState
from timesyncd.probe.access import ProbeAccess, SnmpAccess
from timesyncd.probe.probe import ROOTS, Branch, Probe, ProfileReport, SnmpReport, object_reports
from timesyncd.probe.web import WebReport
from timesyncd.sample import GrandmasterSample, TimeError
from timesyncd.snmp import Community, Raw, parse_oid

PROFILE = {profile.name: profile for profile in load_all(DEFAULT)}
ACCESS = ProbeAccess("192.0.2.1", 161, 443, 2.0, SnmpAccess(Community("hush"), {}), None)


def printed(probe: Probe) -> list[str]:
    console = Console(file=StringIO(), width=200)
    console.print(Group(*tables(probe)))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def snmp_report(*reports: ProfileReport, uncovered: tuple[Branch, ...] = ()) -> SnmpReport:
    sample = GrandmasterSample("192.0.2.1", 0)
    return SnmpReport({}, dict.fromkeys(ROOTS), reports, (), sample, uncovered, False)


def value_line(field: str, raw: Raw) -> str:
    """The line of this field, of a grandmaster that serves this value for it and nothing else."""
    profile, entry = next(
        (profile, entry) for profile in PROFILE.values() for entry in profile.object if entry.field == field
    )
    index = (1,) * max(1, len(entry.index))
    report = ProfileReport(profile, tuple(object_reports(profile, {entry.oid: {index: raw}})))
    lines = printed(Probe(ACCESS, snmp_report(report), None, None, ()))
    return next(line for line in lines if line.startswith(f"{field} "))


def test_a_value_of_the_wrong_type_is_shown_as_it_came() -> None:
    """The engineer sees that the profile does not fit, and which value the grandmaster serves."""
    assert "wrong type: 99" in value_line("clock_state", 99)
    assert "undecodable(b'z')" in value_line("clock_class", b"z")
    assert raw_text(bytes([0, 255])) == "00 ff"


def test_a_vendor_s_tree_that_is_wholly_known_is_stated() -> None:
    """Where no object is left over, the probe says so instead of an empty table."""
    known = printed(Probe(ACCESS, snmp_report(), None, None, ()))
    left = printed(Probe(ACCESS, snmp_report(uncovered=(Branch(parse_oid("1.3.6.1.4.1.9070.1"), 3),)), None, None, ()))

    assert "every object below 1.3.6.1.4.1.9070 has a profile" in known
    assert "every object below 1.3.6.1.4.1.9070 has a profile" not in left


@pytest.mark.parametrize(("offset_s", "shown"), [(None, "TAI - UTC: not provided"), (37, "TAI - UTC: 37 s")])
def test_the_web_interface_s_channels_and_errors_are_tables(offset_s: int | None, shown: str) -> None:
    """Each channel with its state, each time error with its unit and what it is against, and the notes."""
    web = WebReport(
        "ab" * 32,
        (ChannelState("gnss-1", True), ChannelState("ptp-1", False)),
        (TimeError("gnss-1", "te", -1_234, 0, "gnss"), TimeError("ptp-1", "cte", 5, 0)),
        offset_s,
        ("history: the file is discarded",),
    )
    lines = printed(Probe(ACCESS, None, web, None, ()))

    assert "gnss-1 monitored" in lines and "ptp-1 not monitored" in lines
    assert "gnss-1 te -1.23 us gnss" in lines and "ptp-1 cte 5 ns not provided" in lines
    assert shown in lines and "history: the file is discarded" in lines
