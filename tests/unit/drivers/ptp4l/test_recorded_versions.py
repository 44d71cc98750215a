"""
The codec on what ptp4l 4.x sent over UDP, with software and with hardware stamps, against what pmc printed of the same.

`linuxptp_4.2_UDPv4.json` and the like are recorded from real programs (tests/matrix/matrix_record.py). Those with `hardware` in their
name are of the virtual machines of tests/vm, whose network card has a PTP clock; what changed before pmc asked is not in them. The card
stamps no PTP message over UDP, so what would need such a stamp is composed here of recorded octets, and the test's name states that.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l._event_monitor import DelayTiming, RxSync, exchanges, parse_event
from timesyncd.drivers.ptp4l._management import (
    Content,
    CurrentDataSet,
    DefaultDataSet,
    ParentDataSet,
    PortDataSet,
    PortHwclock,
    PortProperties,
    PortStats,
    TimeProperties,
    TimeStatus,
    parse,
)
from timesyncd.sample import format_identity

pytestmark = pytest.mark.disable_socket

FOLDER = Path(__file__).parents[3] / "recordings" / "ptp4l"
RECORDINGS: dict[str, dict[str, Any]] = {
    path.stem.removeprefix("linuxptp_"): json.loads(path.read_text())
    for path in sorted(FOLDER.glob("linuxptp_4*.json"))
}
SOFTWARE = [name for name in RECORDINGS if "hardware" not in name]
ANSWERS = [(name, data_set) for name, recording in RECORDINGS.items() for data_set in recording["replies"]]

#: The virtual machine's clock runs on while its emulated card waits for the host.
MAX_ROUND_TRIP_NS = dict.fromkeys(RECORDINGS, 1_000_000) | {"4.2_L2_hardware": 5_000_000}

#: In the order of messageType (IEEE 1588-2019, table 36), without the reserved ones.
MESSAGES = {
    0: "Sync", 1: "Delay_Req", 2: "Pdelay_Req", 3: "Pdelay_Resp", 8: "Follow_Up", 9: "Delay_Resp", 10: "Pdelay_Resp_Follow_Up",
    11: "Announce", 12: "Signaling", 13: "Management",
}  # fmt: skip

#: enum timestamp_type of linuxptp's transport.h.
TIME_STAMPINGS = {0: "SOFTWARE", 1: "HARDWARE", 2: "LEGACY_HW", 3: "ONESTEP", 4: "P2P1STEP"}


def octets(recording: str, data_set: str) -> bytes:
    return bytes.fromhex(RECORDINGS[recording]["replies"][data_set])


def printed(recording: str, data_set: str) -> dict[str, str]:
    """pmc's lines, by their first word."""
    lines: list[str] = RECORDINGS[recording]["pmc"][data_set]
    return dict(line.split(" ", 1) for line in lines[1:])


def as_pmc(content: Content) -> dict[str, str]:
    """The decoded fields as pmc prints them."""
    match content:
        case DefaultDataSet(ports, identity, domain):
            return {"numberPorts": f"{ports}", "clockIdentity": format_identity(identity), "domainNumber": f"{domain}"}
        case CurrentDataSet(steps, delay):
            return {"stepsRemoved": f"{steps}", "meanPathDelay": f"{delay / 65_536:.1f}"}
        case ParentDataSet(identity, port, clock_class, accuracy, grandmaster):
            return {
                "parentPortIdentity": f"{format_identity(identity)}-{port}", "gm.ClockClass": f"{clock_class}",
                "gm.ClockAccuracy": f"{accuracy:#x}", "grandmasterIdentity": format_identity(grandmaster),
            }  # fmt: skip
        case TimeProperties():
            return {
                "currentUtcOffset": f"{content.current_utc_offset_s}", "leap61": f"{content.leap61:d}", "leap59": f"{content.leap59:d}",
                "currentUtcOffsetValid": f"{content.utc_offset_valid:d}", "ptpTimescale": f"{content.ptp_timescale:d}",
                "timeTraceable": f"{content.time_traceable:d}", "timeSource": f"{content.time_source:#x}",
            }  # fmt: skip
        case PortDataSet():
            return {
                "portState": content.state.name, "logMinDelayReqInterval": f"{content.log_min_delay_req_interval}",
                "peerMeanPathDelay": f"{content.peer_mean_path_delay >> 16}", "logSyncInterval": f"{content.log_sync_interval}",
                "delayMechanism": f"{content.delay_mechanism}", "logMinPdelayReqInterval": f"{content.log_min_pdelay_req_interval}",
            }  # fmt: skip
        case TimeStatus(offset_ns, ingress_time_ns, grandmaster):
            return {
                "master_offset": f"{offset_ns}", "ingress_time": f"{ingress_time_ns}", "gmIdentity": format_identity(grandmaster)
            }  # fmt: skip
        case PortProperties(hardware_stamps, interface):
            return {"timestamping": "HARDWARE" if hardware_stamps else "SOFTWARE", "interface": interface}
        case PortHwclock(phc):
            return {"phcIndex": f"{-1 if phc is None else phc}"}
        case PortStats(received, sent):
            return {
                f"{way}_{name}": f"{counts[kind]}"
                for way, counts in (("rx", received), ("tx", sent))
                for kind, name in MESSAGES.items()
            }


@pytest.mark.parametrize(("recording", "data_set"), ANSWERS)
def test_a_recorded_reply_has_the_values_of_pmc(recording: str, data_set: str) -> None:
    """Of each data set, version and transport."""
    found = as_pmc(parse(octets(recording, data_set)).content())
    shown = printed(recording, data_set)

    assert found != {}
    assert found == {name: shown[name] for name in found}


@pytest.mark.parametrize("recording", [name for name in RECORDINGS if RECORDINGS[name]["events"]])
def test_recorded_events_are_of_the_clock_that_replies(recording: str) -> None:
    """Both kinds come from the parent port that PARENT_DATA_SET names, and their delays make the mean path delay."""
    events = {kind: parse_event(bytes.fromhex(text)) for kind, text in RECORDINGS[recording]["events"].items()}
    default, parent = (parse(octets(recording, name)).content() for name in ("DEFAULT_DATA_SET", "PARENT_DATA_SET"))
    sync, delay = events["sync"].record, events["delay"].record

    assert isinstance(default, DefaultDataSet) and isinstance(parent, ParentDataSet)
    assert isinstance(sync, RxSync) and isinstance(delay, DelayTiming)
    assert {(each.domain, each.clock_identity) for each in events.values()} == {
        (default.domain, default.clock_identity)
    }
    assert {(each.master, each.master_port) for each in (sync, delay)} == {(parent.parent_identity, parent.parent_port)}
    assert 0 < sync.forward_ns + delay.reverse_ns < MAX_ROUND_TRIP_NS[recording]


def test_recorded_hardware_stamps_with_free_running() -> None:
    """Over each transport ptp4l reports hardware's stamps, and that it has no clock: it disciplines none."""
    recordings = [name for name in RECORDINGS if "hardware" in name]
    found = [
        [parse(octets(name, f"PORT_{kind}_NP")).content() for kind in ("PROPERTIES", "HWCLOCK")] for name in recordings
    ]

    assert recordings == ["4.2_L2_hardware", "4.2_UDPv4_hardware", "4.2_UDPv6_hardware"]
    assert found == [[PortProperties(hardware_stamps=True, interface="eth0"), PortHwclock(None)]] * 3


@pytest.mark.parametrize("recording", SOFTWARE)
@pytest.mark.parametrize("stamping", TIME_STAMPINGS)
def test_composed_port_properties_of_each_time_stamping(recording: str, stamping: int) -> None:
    """One octet differs with the time stamping, over every transport; all but the first are the hardware's."""
    whole = bytearray(octets(recording, "PORT_PROPERTIES_NP"))
    whole[_TIME_STAMPING_AT] = stamping
    content = parse(bytes(whole)).content()

    assert content == PortProperties(hardware_stamps=TIME_STAMPINGS[stamping] != "SOFTWARE", interface="ptp0")


_BODY_AT = 54
_TIME_STAMPING_AT = _BODY_AT + 11  # behind the port's identity and its state


@pytest.mark.parametrize("recording", SOFTWARE)
@pytest.mark.parametrize("flags", [0, 1])
def test_a_composed_hardware_clock(recording: str, flags: int) -> None:
    """The PHC's number, with and without the flag of a virtual clock."""
    whole = bytearray(octets(recording, "PORT_HWCLOCK_NP"))
    struct.pack_into(">iB", whole, _BODY_AT + 10, 3, flags)

    assert parse(bytes(whole)).content() == PortHwclock(3)


@pytest.mark.parametrize("recording", SOFTWARE)
def test_composed_hardware_stamps_are_on_the_cards_timescale(recording: str) -> None:
    """
    A PHC keeps TAI, so t2 and t3 are 37 s later than software's; ptp4l then takes nothing out of the offset, and the exchange is as with
    software stamps, against a grandmaster on the same scale.
    """
    sync, delay = (
        parse_event(bytes.fromhex(RECORDINGS[recording]["events"][kind])).record for kind in ("sync", "delay")
    )
    assert isinstance(sync, RxSync) and isinstance(delay, DelayTiming)
    tai_ns = 37 * NS_PER_S
    on_card = replace(sync, t1_ns=sync.t1_ns + tai_ns, t2_ns=sync.t2_ns + tai_ns)
    sent = replace(delay, t3_ns=delay.t3_ns + tai_ns, t4_ns=delay.t4_ns + tai_ns)
    parent = (sync.master, sync.master_port)

    (found,) = exchanges([on_card, sent], parent, on_card.t2_ns, sync.forward_ns)
    (by_software,) = exchanges([sync, delay], parent, sync.t2_ns, sync.forward_ns)

    assert found == replace(by_software, local_ns=by_software.local_ns + tai_ns)
