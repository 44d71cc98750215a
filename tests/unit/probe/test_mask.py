"""What masking takes out of a recording, and what it leaves."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from timesyncd.cli.record import MASKS
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load_all
from timesyncd.probe.mask import KINDS, Kind, Masker
from timesyncd.snmp import Raw, parse_oid
from timesyncd.snmp.snmprec import GAUGE32, INTEGER, IP_ADDRESS, OBJECT_ID, OCTETS, RecordedObject

PROFILES = load_all(DEFAULT)

SYS_DESCR, SYS_CONTACT, SYS_NAME = "1.3.6.1.2.1.1.1.0", "1.3.6.1.2.1.1.4.0", "1.3.6.1.2.1.1.5.0"
IF_PHYS_ADDRESS = "1.3.6.1.2.1.2.2.1.6.1"
SERIAL, MODULE_SERIAL, FIRMWARE = (f"1.3.6.1.2.1.47.1.1.1.1.{arcs}" for arcs in ("11.1", "11.2", "10.1"))
IDENTITY, PORT_IDENTITY = "1.3.6.1.2.1.241.1.2.3.1.5.24.1.0", "1.3.6.1.2.1.241.1.2.8.1.6.24.1.0.1"
LATITUDE, HEIGHT = (f"1.3.6.1.4.1.9070.1.2.5.2.1.1.3.1.{column}.101.1" for column in (2, 4))
ENGINE_ID = "1.3.6.1.6.3.10.2.1.1.0"
S650_POSITION = "1.3.6.1.4.1.9070.1.2.5.7.8.4.1.0"
PRIVATE = "1.3.6.1.4.1.9070.1.2.5.7.9.1.0"


def row(oid: str, value: Raw, tag: int = OCTETS) -> RecordedObject:
    return RecordedObject(parse_oid(oid), tag, value)


def masked(
    rows: list[RecordedObject],
    kinds: Collection[Kind] = KINDS,
    secrets: Collection[str] = (),
    models: Collection[str] = (),
) -> list[Raw]:
    return [each.value for each in Masker(kinds, secrets, PROFILES).walk(rows, models).rows]


def test_the_command_names_every_kind() -> None:
    """What --mask takes is what there is."""
    assert MASKS == KINDS


def test_a_serial_number_is_the_same_everywhere() -> None:
    """Also in other text, and another one that begins with it is another one."""
    rows = [row(SYS_DESCR, b"AB1234 with AB1234-C"), row(SERIAL, b"AB1234"), row(MODULE_SERIAL, b"AB1234-C")]

    assert masked(rows) == [b"serial-1 with serial-2", b"serial-1", b"serial-2"]


def test_an_empty_serial_number_stays_empty() -> None:
    """A module without one still has none."""
    assert masked([row(SERIAL, b"")]) == [b""]


def test_a_short_serial_number_is_replaced_in_its_own_place_only() -> None:
    """ "1" may mean anything in other text."""
    assert masked([row(SYS_DESCR, b"port 1"), row(SERIAL, b"1")]) == [b"port 1", b"serial-1"]


def test_names() -> None:
    """Host, contact and place; the host's name in other text too, but only as a word of its own."""
    rows = [row(SYS_DESCR, b"Linux gm-a.lab gm-ab.lab"), row(SYS_CONTACT, b"Ada"), row(SYS_NAME, b"gm-a.lab")]

    assert masked(rows) == [b"Linux name-1 gm-ab.lab", b"name-2", b"name-1"]


def test_a_host_with_a_short_name() -> None:
    """It is found in sysDescr all the same."""
    rows = [row(SYS_DESCR, b"Linux gm 6.1 gmt"), row(SYS_NAME, b"gm")]

    assert masked(rows) == [b"Linux name-1 6.1 gmt", b"name-1"]


def test_a_host_that_is_named_as_its_model() -> None:
    """The model must still be read."""
    rows = [row(SYS_DESCR, b"TimeProvider 4100"), row(SYS_NAME, b"TimeProvider 4100")]

    assert masked(rows, models={"TimeProvider 4100"}) == [b"TimeProvider 4100", b"name-1"]


def test_a_position_keeps_its_form() -> None:
    """Every digit becomes 0: it is decoded as before, and is nowhere."""
    rows = [row(LATITUDE, b"N52:31:12.00"), row(HEIGHT, b"+0058.1"), row(PRIVATE, b"at W122d42'53.2\" fixed")]

    assert masked(rows) == [b"N00:00:00.00", b"+0000.0", b"at W000d00'00.0\" fixed"]


def test_a_position_whose_signs_follow_its_angles_keeps_its_form() -> None:
    """The S650's: a sign of 0 would not be one, and the true sign gives the hemisphere away."""
    rows = [row(S650_POSITION, b"12 55 57.387  -1 77 36 13.809  1 881.61")]

    assert masked(rows) == [b"00 00 00.000  1 00 00 00.000  1 000.00"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("N 38\u00b023'51.3\"".encode(), "N 00\u00b000'00.0\"".encode()),
        (b"N 38\xb023'51.3\"", b"N 00\xb000'00.0\""),
        (b"+ 38 23 51.300 - 122 42 53.200", b"+ 00 00 00.000 - 000 00 00.000"),
        (b"at 12 55 57.387  1 77 36 13.809  -1 881.61", b"at 00 00 00.000  1 00 00 00.000  1 881.61"),
        (b"38.397583, -122.714778", b"00.000000, -000.000000"),
        (b"2026-01-02 03:04:05, 1.5 C", b"2026-01-02 03:04:05, 1.5 C"),
    ],
)
def test_a_position_in_an_object_that_no_profile_knows(written: bytes, shown: bytes) -> None:
    """It is found by how it is written, whatever the encoding of its degree sign; a date is none."""
    assert masked([row(PRIVATE, written)]) == [shown]


def test_text_that_is_not_ascii_is_text() -> None:
    """What is met elsewhere is replaced in it too."""
    rows = [row(PRIVATE, "Ger\u00e4t gm-a 10.1.2.3".encode()), row(SYS_NAME, b"gm-a")]

    assert masked(rows) == ["Ger\u00e4t name-1 198.18.0.1".encode(), b"name-1"]


def test_a_host_by_the_first_part_of_its_name() -> None:
    """Many an agent has the whole name as sysName and the short one in sysDescr."""
    rows = [row(SYS_DESCR, b"Linux gm-a 6.1"), row(SYS_NAME, b"gm-a.lab.example")]

    assert masked(rows) == [b"Linux name-1 6.1", b"name-1"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"0x00A069FFFE704760", b"0x00A069FFFE000001"),
        (b"00A0691112704760", b"00A0691112000001"),
        (b"00 a0 69 ff fe 70 47 60", b"00 a0 69 ff fe 00 00 01"),
    ],
)
def test_a_clock_identity_in_any_text(written: bytes, shown: bytes) -> None:
    """Whatever the decoder of an identity reads is masked where a profile declares it."""
    assert masked([row("1.3.6.1.4.1.9070.1.2.5.1.1.1.1.1.3.101.1", written)]) == [shown]


def test_the_description_of_the_recording_is_masked_too() -> None:
    """A redirect names another host."""
    masker = Masker(KINDS, ["a-secret"], PROFILES)

    assert masker.masked_text("to https://10.1.2.3:443, a-secret") == "to https://198.18.0.1:443, masked"


def test_a_mac_address_and_the_identity_made_of_it() -> None:
    """The vendor's octets stay, the rest is invented, and what belongs together still does, octets or text."""
    mac, eui = "00a069704760", "00a069fffe704760"
    rows = [
        row(IF_PHYS_ADDRESS, bytes.fromhex(mac)),
        row(IDENTITY, bytes.fromhex(eui)),
        row(PORT_IDENTITY, bytes.fromhex(eui + "0003")),
        row(ENGINE_ID, bytes.fromhex("8000236e03" + mac)),
        row(PRIVATE, b"00:A0:69:70:47:60 00:A0:69:FF:FE:70:47:60 00a069.fffe.704760"),
    ]

    assert masked(rows) == [
        bytes.fromhex("00a069000001"),
        bytes.fromhex("00a069fffe000001"),
        bytes.fromhex("00a069fffe0000010003"),
        bytes.fromhex("8000236e0300a069000001"),
        b"00:A0:69:00:00:01 00:A0:69:FF:FE:00:00:01 00a069.fffe.000001",
    ]


def test_an_identity_where_no_profile_knows_of_one() -> None:
    """Eight octets with FFFE in their middle are an EUI-64, wherever they stand."""
    assert masked([row(PRIVATE, bytes.fromhex("00a069fffe704760"))]) == [bytes.fromhex("00a069fffe000001")]


def test_ip_addresses() -> None:
    """The same one is the same in a value and in text, of both families."""
    rows = [
        row(f"{PRIVATE}.1", bytes([10, 1, 2, 3]), IP_ADDRESS),
        row(f"{PRIVATE}.2", b"eth1 10.1.2.3 vlan 7 at 16:18:59, fd00::17"),
        row(f"{PRIVATE}.3", b"10.1.2.4"),
    ]

    assert masked(rows) == [bytes([198, 18, 0, 1]), b"eth1 198.18.0.1 vlan 7 at 16:18:59, 2001:db8::2", b"198.18.0.3"]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "224.0.1.129", "255.255.255.0", "::1", "ff0e::181"])
def test_addresses_that_identify_no_owner(address: str) -> None:
    """Loopback, none at all, PTP's own groups and net masks stay."""
    assert masked([row(PRIVATE, address.encode())]) == [address.encode()]


@pytest.mark.parametrize("text", ["2.4.7", "1.3.6.1.4.1.9070", "2026-11-21,16:18:59", "12 dB 38.5", "300.1.1.1"])
def test_text_that_is_no_address(text: str) -> None:
    """Versions, dates, numbers."""
    assert masked([row(PRIVATE, text.encode())]) == [text.encode()]


def test_a_version_of_four_numbers() -> None:
    """A version of four numbers is not masked as an address."""
    assert masked([row(FIRMWARE, b"5.0.4.1")]) == [b"5.0.4.1"]


@pytest.mark.parametrize("index", ["10.1.2.3", "0.160.105.112.71.96", "65.66.49.50.51.52"])
def test_an_object_whose_index_identifies_the_owner_is_left_out(index: str) -> None:
    """An OID cannot be replaced, so such an object is not stored, and is counted."""
    rows = [
        row(SERIAL, b"AB1234"),
        row(IF_PHYS_ADDRESS, bytes.fromhex("00a069704760")),
        row(PRIVATE, b"10.1.2.3"),
        row(f"1.3.6.1.4.1.9070.1.9.{index}.4", 5, INTEGER),
    ]
    found = Masker(KINDS, (), PROFILES).walk(rows)

    assert ([each.oid for each in found.rows], found.left_out) == ([each.oid for each in rows[:3]], 1)


def test_tables_of_addresses_are_left_out() -> None:
    """ARP, routes, connections, what a bridge has learned: their index is the address."""
    rows = [
        row("1.3.6.1.2.1.4.22.1.3.1.10.0.0.9", bytes(4), IP_ADDRESS),
        row("1.3.6.1.2.1.17.4.3.1.1.0.160.105.1.2.3", bytes(6)),
        row("1.3.6.1.2.1.4.1.0", 1, INTEGER),
    ]

    assert masked(rows) == [1]
    assert len(masked(rows, kinds=())) == 3


@pytest.mark.parametrize("tree", ["6.3.12", "6.3.13", "6.3.15", "6.3.16", "6.3.18", "2.1.25.4", "4.1.8072.1.3"])
def test_access_rules_and_running_processes_are_never_stored(tree: str) -> None:
    """Communities, users, targets, and programs with their arguments go, whatever is masked."""
    assert masked([row(f"1.3.6.1.{tree}.1.1.0", b"x")], kinds=()) == []


def test_a_secret_that_the_grandmaster_serves() -> None:
    """The secret is masked even without --mask: as a whole value, inside other text, or in octets that are no text."""
    rows = [
        row(PRIVATE, b"lab"),
        row(PRIVATE, b"ro hush-hush"),
        row(PRIVATE, b"\x01hush-hush\xff"),
        row(PRIVATE, b"label"),
    ]

    assert masked(rows, kinds=(), secrets=("lab", "hush-hush")) == [
        b"masked",
        b"ro masked",
        b"\x01masked\xff",
        b"label",
    ]


def test_nothing_is_masked_unasked() -> None:
    """Without --mask a recording holds what the grandmaster served."""
    rows = [
        row(SYS_NAME, b"gm-a.lab"),
        row(SERIAL, b"AB1234"),
        row(IDENTITY, bytes.fromhex("00a069fffe704760")),
        row(LATITUDE, b"N52:31:12.00"),
        row(PRIVATE, bytes([10, 1, 2, 3]), IP_ADDRESS),
    ]

    assert masked(rows, kinds=()) == [each.value for each in rows]


def test_numbers_and_names_of_objects_stay() -> None:
    """They identify no owner."""
    rows = [row(PRIVATE, 7, GAUGE32), row(PRIVATE, "1.3.6.1.4.1.9070", OBJECT_ID)]

    assert masked(rows) == [7, "1.3.6.1.4.1.9070"]


def test_answers_over_https_are_masked_alike() -> None:
    """What the walk taught, and the addresses, in the same words."""
    masker = Masker(KINDS, ("hush-hush",), PROFILES)
    masker.walk([row(SERIAL, b"AB1234"), row(PRIVATE, b"10.1.2.3")])

    assert masker.body(b'{"sn": "AB1234", "ip": "10.1.2.3", "p": "hush-hush"}') == (
        b'{"sn": "serial-1", "ip": "198.18.0.1", "p": "masked"}'
    )


def test_an_engine_id_of_another_format_is_masked_too() -> None:
    """It may be of an address or of text; the enterprise and the format stay, the rest is invented."""
    (shown,) = masked([row(ENGINE_ID, bytes.fromhex("8000236e04") + b"gm-7.example.org")])

    assert isinstance(shown, bytes)
    assert shown[:5] == bytes.fromhex("8000236e04")
    assert b"gm-7" not in shown and len(shown) == 5 + len(b"gm-7.example.org")


def test_an_identity_of_nothing_stays() -> None:
    """Eight zero octets name no clock, so a reader of the recording sees that there was none."""
    assert masked([row(IDENTITY, bytes(8))]) == [bytes(8)]
