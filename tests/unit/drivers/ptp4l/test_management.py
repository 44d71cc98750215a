"""The codec of ptp4l's management protocol, on what a ptp4l 3.1.1 sent."""

from __future__ import annotations

import inspect
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.drivers.kernel._machine import frequency_ppb, slewing_ppb, system_frequency_ppb, to_ppb
from timesyncd.drivers.kernel._machine import parse as parse_timex
from timesyncd.drivers.ptp4l import _management
from timesyncd.drivers.ptp4l._management import (
    Content,
    CurrentDataSet,
    DefaultDataSet,
    ManagementId,
    ManagementRequester,
    ParentDataSet,
    PortDataSet,
    PortProperties,
    PortStats,
    TimeProperties,
    TimeStatus,
    parse,
)
from timesyncd.errors import Malformed, Refused
from timesyncd.sample import PortState

pytestmark = pytest.mark.disable_socket

RECORDING = Path(__file__).parents[3] / "recordings" / "ptp4l" / "linuxptp_3.1.1.json"
RECORDED = {name: bytes.fromhex(text) for name, text in json.loads(RECORDING.read_text()).items()}

NODE = bytes.fromhex("360b7efffe6ae640")
GRANDMASTER = bytes.fromhex("ca2f53fffe4f308f")

#: What pmc printed of the same ptp4l at the same time.
SHOWN_BY_PMC: dict[str, Content] = {
    "DEFAULT_DATA_SET": DefaultDataSet(number_ports=1, clock_identity=NODE, domain=24),
    "CURRENT_DATA_SET": CurrentDataSet(steps_removed=1, mean_path_delay=2313 << 16),
    "PARENT_DATA_SET": ParentDataSet(
        parent_identity=GRANDMASTER,
        parent_port=1,
        grandmaster_class=6,
        grandmaster_accuracy=0x21,
        grandmaster_identity=GRANDMASTER,
    ),
    "TIME_PROPERTIES_DATA_SET": TimeProperties(
        current_utc_offset_s=37, utc_offset_valid=False, ptp_timescale=False, time_traceable=False, time_source=0xA0
    ),
    "PORT_DATA_SET": PortDataSet(
        port=1,
        state=PortState.UNCALIBRATED,
        log_min_delay_req_interval=-3,
        peer_mean_path_delay=0,
        log_sync_interval=0,
        delay_mechanism=1,
        log_min_pdelay_req_interval=0,
    ),
    "TIME_STATUS_NP": TimeStatus(offset_ns=-60, ingress_time_ns=1795266895238146826, grandmaster_identity=GRANDMASTER),
    "PORT_PROPERTIES_NP": PortProperties(hardware_stamps=False, interface="vb"),
    "PORT_STATS_NP": PortStats(
        received=(6218, 0, 0, 0, 0, 0, 0, 0, 6218, 6199, 0, 779, 0, 0, 0, 0), sent=(0, 6206, *[0] * 14)
    ),
}

ASKER = ManagementRequester(domain=24, transport_specific=1, number=0xAABB_CCDD)


@pytest.mark.parametrize("name", SHOWN_BY_PMC)
def test_a_recorded_response_has_the_values_of_pmc(name: str) -> None:
    """Each data set decodes to the fields that pmc printed, the little-endian counters among them."""
    answer = parse(RECORDED[name])

    assert answer.content() == SHOWN_BY_PMC[name]
    assert (answer.identity, answer.management_id) == (NODE, ManagementId[name])


@pytest.mark.parametrize("name", ["NO_SUCH_ID", "WRONG_VALUE"])
def test_an_error_tlv_is_a_refusal(name: str) -> None:
    """A management error names its errorId."""
    with pytest.raises(Refused, match=name):
        parse(RECORDED[name]).content()


@pytest.mark.parametrize("name", RECORDED)
def test_a_truncated_answer_is_malformed(name: str) -> None:
    """Whatever the length at which a datagram is cut, it is Malformed and nothing else."""
    for length in range(len(RECORDED[name])):
        with pytest.raises(Malformed):
            parse(RECORDED[name][:length])


@pytest.mark.parametrize("name", SHOWN_BY_PMC)
def test_a_body_of_another_length_is_malformed(name: str) -> None:
    """A shorter body is refused although the message is consistent in itself."""
    whole = RECORDED[name]
    for cut in range(2, len(whole) - 54 + 1):
        with pytest.raises(Malformed):
            parse(_consistent(whole[:-cut])).content()


def _consistent(datagram: bytes) -> bytes:
    """The datagram with messageLength and the TLV's length as they must be."""
    whole = bytearray(datagram)
    struct.pack_into(">H", whole, 2, len(whole))
    struct.pack_into(">H", whole, 50, len(whole) - 52)
    return bytes(whole)


@given(st.binary(max_size=400))
def test_random_octets_are_malformed_at_worst(octets: bytes) -> None:
    """No octets lead to another failure than the two that a parser may have."""
    try:
        parse(octets).content()
    except (Malformed, Refused):
        pass


@given(st.sampled_from(sorted(RECORDED)), st.binary(max_size=300), st.binary(max_size=1))
def test_a_random_body_is_malformed_at_worst(name: str, body: bytes, tail: bytes) -> None:
    """The same behind a sound header, where the body's decoder is reached."""
    try:
        parse(_consistent(RECORDED[name][:54] + body) + tail).content()
    except (Malformed, Refused):
        pass


def test_an_unknown_port_state_is_malformed() -> None:
    """A state that the standard does not have is not taken for one that it has."""
    datagram = bytearray(RECORDED["PORT_DATA_SET"])
    datagram[54 + 10] = 77

    with pytest.raises(Malformed, match="PORT_DATA_SET: 77"):
        parse(bytes(datagram)).content()


def test_a_request_is_not_an_answer() -> None:
    """Only the action RESPONSE is an answer."""
    with pytest.raises(Malformed, match="action 0"):
        parse(ASKER.get(ManagementId.TIME_STATUS_NP, 1))


def test_get_is_as_the_standard_lays_it_out() -> None:
    """Header, target, no hops, action GET, an empty management TLV."""
    expected = (
        "1d12" "0036" "18" "00" "0000" "0000000000000000" "00000000"
        "000000000000aabb" "ccdd" "1234" "00" "7f"
        "ffffffffffffffff" "0003" "00" "00" "00" "00" "0001" "0002" "c005"
    )  # fmt: skip

    assert ASKER.get(ManagementId.PORT_STATS_NP, 0x1234, port=3).hex() == expected


def test_subscribe_asks_for_time_sync_alone() -> None:
    """The duration and bit 1 of the mask; duration 0 with an empty mask ends the subscription."""
    lasting, ended = ASKER.subscribe(10, 7), ASKER.subscribe(0, 8)

    assert lasting[54:] == bytes([0, 10, 2]) + bytes(63)
    assert ended[54:] == bytes(66)
    assert lasting[2:4] == len(lasting).to_bytes(2)


def test_nothing_but_get_and_subscribe_can_be_built() -> None:
    """No id makes `get` anything but a GET, no other method builds a message, and SET exists with one id only."""
    builders = {
        name for name, _ in inspect.getmembers(ManagementRequester, inspect.isfunction) if not name.startswith("_")
    }
    source = inspect.getsource(_management)

    assert builders == {"get", "subscribe"}
    for management_id in ManagementId:
        message = ASKER.get(management_id, 1)
        assert (message[46], message[52:]) == (0, management_id.to_bytes(2))
    assert (ASKER.subscribe(9, 1)[46], ASKER.subscribe(9, 1)[52:54].hex()) == (1, "c003")
    assert source.count("_SET,") == 2  # where it is named, and in subscribe
    assert "COMMAND" not in source


@pytest.mark.parametrize(
    ("freq", "tick_us", "ppb"),
    [(0, 10_000, 0), (65536, 10_000, 1_000), (-32768 * 65536, 10_000, -32_768_000), (33, 10_001, 100_001)],
)
def test_the_kernels_frequency_in_ppb(freq: int, tick_us: int, ppb: int) -> None:
    """2^16 is 1 ppm; one microsecond a tick of 10 ms is 100 ppm."""
    assert to_ppb(freq, tick_us) == ppb


@pytest.mark.parametrize(
    ("offset", "status", "constant", "left_us", "ppb"),
    [
        (0, 0x40, 7, 0, 0),
        (10_000_000, 0x2001, 7, 0, 19_531),  # systemd-timesyncd corrects 10 ms: a 512th of it in this second
        (-10_000, 0x0001, 7, 0, -19_531),  # the same in microseconds
        (500_000_000, 0x2001, 0, 0, 125_000_000),
        (0, 0x40, 7, 3_000_000, 500_000),  # adjtime(3) of openntpd
        (0, 0x40, 7, -120, -120_000),  # its last second
    ],
)
def test_what_the_kernel_slews_by_itself_counts(
    offset: int, status: int, constant: int, left_us: int, ppb: int
) -> None:
    """Frequency and tick stand still while the phase-locked loop and adjtime(3) move the clock."""
    octets = bytearray(208)
    struct.pack_into("<q", octets, 8, offset)
    struct.pack_into("<iq", octets, 40, status, 0)
    struct.pack_into("<q", octets, 48, constant)
    struct.pack_into("<q", octets, 88, 10_000)
    timex = parse_timex(bytes(octets), 0)

    assert (timex.offset, timex.status, timex.constant) == (offset, status, constant)
    assert slewing_ppb(timex, left_us) == ppb
    assert system_frequency_ppb(lambda: timex, lambda: left_us) == ppb


def test_the_frequency_can_be_read_here() -> None:
    """adjtimex answers without privilege, within what the kernel allows (10 % by tick)."""
    frequency = frequency_ppb()

    assert frequency is not None
    assert abs(frequency) < 101_000_000


def time_status(offset_ns: int, ingress_time_ns: int) -> bytes:
    return (
        RECORDED["TIME_STATUS_NP"][:54]
        + struct.pack(">qq", offset_ns, ingress_time_ns)
        + RECORDED["TIME_STATUS_NP"][70:]
    )


@pytest.mark.parametrize(
    "datagram",
    [
        time_status(2**60 + 1, 0),
        time_status(-(2**60) - 1, 0),
        time_status(0, 2**62),
        time_status(0, -(2**63)),
        RECORDED["PORT_STATS_NP"][:64] + struct.pack("<Q", 2**63) + RECORDED["PORT_STATS_NP"][72:],
    ],
)
def test_what_later_words_of_64_bits_could_not_hold_is_malformed(datagram: bytes) -> None:
    """An offset of decades, a time whose difference to another overflows, a counter beyond a signed word."""
    with pytest.raises(Malformed):
        parse(datagram).content()


def test_the_longest_path_delay_is_two_days() -> None:
    """It comes as ns x 2^16: no answer can report one that overflows."""
    found = parse(RECORDED["CURRENT_DATA_SET"][:-8] + struct.pack(">q", 2**63 - 1)).content()

    assert isinstance(found, CurrentDataSet)
    assert found.mean_path_delay >> 16 < 2**60
    assert parse(time_status(2**60, 2**62 - 1)).content() == TimeStatus(2**60, 2**62 - 1, GRANDMASTER)
