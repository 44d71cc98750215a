"""Profiles are data; decoders turn what agents really send into neutral values."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.drivers._decoders import DECODERS, Raw, Unknown, Value
from timesyncd.drivers._profiles import SHIPPED, Profile, load
from timesyncd.errors import ConfigError, Malformed

pytestmark = pytest.mark.disable_socket

HEAD = """
name = "site"
title = "what our site adds"
proved_by = ["1.3.6.1.4.1.9070.1.2.5.7"]
"""
OBJECT = """
[[object]]
oid = "1.3.6.1.4.1.9070.1.2.5.7.1.2.4"
decoder = "integer"
field = "alarm_count"
confidence = "sister"
source = "the MIB that came with the unit"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "site.toml"
    path.write_text(text)
    return str(path)


def decoded(name: str, raw: Raw) -> Value:
    return DECODERS[name](raw, {})


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load(name: str) -> None:
    """Every shipped profile is valid and is found by its name."""
    assert load(name).name == name


def test_an_enumeration_belongs_to_its_oid() -> None:
    """The same integer means different states in two MIBs, and each profile says its own."""
    states = {name: load(name).filling("clock_state")[0].values for name in ("tp5000e", "ptpbase")}

    assert (states["tp5000e"][5], states["ptpbase"][5]) == ("holdover", "locked")


def test_a_profile_of_the_site_is_read_by_its_path(tmp_path: Path) -> None:
    """Whoever owns a MIB adds a profile without touching the package."""
    profile = load(written(tmp_path, HEAD + OBJECT))

    assert (profile.name, profile.object[0].oid[-3:]) == ("site", (1, 2, 4))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + OBJECT.replace('"integer"', '"number"'), "object[0].decoder = 'number': Value error, allowed: text, "),
        (HEAD + OBJECT.replace("alarm_count", "alarms_count"), "object[0].field = 'alarms_count': Value error, allow"),
        (HEAD + OBJECT.replace(".7.1.2.4", ".7.x"), "an OID in dotted numbers is wanted"),
        (HEAD + OBJECT.replace("alarm_count", "alarms.id"), "alarms.id is a column: name its index"),
        (HEAD + OBJECT.replace('"integer"', '"enum"'), "values belong to the decoder enum, and it needs them"),
        (HEAD + OBJECT + "colour = 1\n", "object[0].colour = 1: Extra inputs are not permitted"),
        (HEAD, "object = "),
        (HEAD + "[[object", "not TOML"),
    ],
)
def test_a_wrong_profile_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    """A profile that cannot be used names its file, the key and what is allowed."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)

    assert (path in str(error.value), told in str(error.value), "\n" in str(error.value)) == (True, True, False)


def test_clock_states_are_the_neutral_ones(tmp_path: Path) -> None:
    """A profile cannot invent a clock state."""
    text = OBJECT.replace("alarm_count", "clock_state").replace('"integer"', '"enum"') + 'values = { 1 = "fine" }\n'
    with pytest.raises(ConfigError, match="values of clock_state: allowed: unknown, warmup"):
        load(written(tmp_path, HEAD + text))


@pytest.mark.parametrize(("name", "told"), [("tp9999", "shipped are tp5000e, ptpbase"), ("no/such.toml", "cannot be")])
def test_a_missing_profile_is_told(name: str, told: str) -> None:
    """A name that is not shipped lists those that are; a path that is not there says so."""
    with pytest.raises(ConfigError, match=told):
        load(name)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("text", b" TimeProvider 4100\0", "TimeProvider 4100"),
        ("text", b"\x1b[31mred\xb5s", "[31mred\xb5s"),
        ("integer", 37, 37),
        ("ticks", 12_345, 123),
        ("oid", "1.3.6.1", "1.3.6.1"),
        ("truth", 1, True),
        ("truth", 2, False),
        ("truth", 0, False),
        ("low_16_bits", 0x4E5D - 0x10000, 0x4E5D),
        ("low_16_bits", 0x4E5D, 0x4E5D),
        ("identity", bytes.fromhex("00a069fffe112233"), "00a069.fffe.112233"),
        ("identity", b"00:A0:69:FF:FE:11:22:33", "00a069.fffe.112233"),
        ("identity", b"0x00A069FFFE112233", "00a069.fffe.112233"),
        ("identity", b"n/a", Unknown("undecodable(b'n/a')")),
        ("clock_class", 140, 140),
        ("clock_class", b"6 (locked)", 6),
        ("clock_class", b"n/a", Unknown("undecodable(b'n/a')")),
        ("clock_class", b"1999", Unknown("undecodable(b'1999')")),
        ("clock_class", 300, Unknown("undecodable(300)")),
        ("clock_accuracy", 0x21, 0x21),
        ("clock_accuracy", b"0x21", 0x21),
        ("clock_accuracy", b"within 100 ns", 0x21),
        ("clock_accuracy", b"2.5 us", 0x24),
        ("clock_accuracy", b"23", Unknown("undecodable(b'23')")),
        ("clock_accuracy", b"> 10 s", Unknown("undecodable(b'> 10 s')")),
        ("nanoseconds", b"-12.6 ns", -13),
        ("nanoseconds", 5, 5),
        ("nanoseconds", b"", Unknown("undecodable(b'')")),
        ("time_interval", (-100 * 65536).to_bytes(8, "big", signed=True), -100),
        ("time_interval", b"-1234567", -1_234_567),
        ("time_interval", b"12 ns\0", 12),
        ("time_interval", bytes(8), 0),
    ],
)
def test_what_agents_send_is_understood(name: str, raw: Raw, value: Value) -> None:
    """Each known habit of an agent has its decoding, and what is not understood is told as what came."""
    assert decoded(name, raw) == value


def test_an_offset_in_the_wrong_byte_order_is_not_believed() -> None:
    """A hundred nanoseconds sent little-endian would be 1.7 s: no offset of a grandmaster."""
    raw = (100 * 65536).to_bytes(8, "little")

    assert isinstance(decoded("time_interval", raw), Unknown)


def test_an_unknown_integer_is_told_by_its_number() -> None:
    """An enumeration that a newer firmware extends gives unknown(n), never a fault or a zero."""
    state = load("tp5000e").filling("clock_state")[0]

    assert state.decode(12, (2, 1)) == Unknown("unknown(12)")


@pytest.mark.parametrize(
    ("name", "raw"),
    [("integer", b"37"), ("enum", b"4"), ("text", 4), ("oid", b"1.3"), ("identity", 7), ("integer", 2**63)],
)
def test_a_wrong_type_is_malformed(name: str, raw: Raw) -> None:
    """A value of another SNMP type than the MIB's is a broken answer, not a value."""
    with pytest.raises(Malformed, match="is wanted"):
        decoded(name, raw)


def test_a_wrong_type_names_its_object() -> None:
    """The error names the field and the OID with its index, and shows what came."""
    with pytest.raises(Malformed) as error:
        load("tp5000e").filling("clock_state")[0].decode(b"locked", (2, 1))

    assert str(error.value) == (
        "clock_state (1.3.6.1.4.1.9070.1.2.5.7.1.8.1.1.1.2.2.1): an integer is wanted, b'locked' came"
    )


def test_profiles_cannot_be_changed() -> None:
    """A profile is shared by every unit that is read with it."""
    profile: Profile = load("system")
    with pytest.raises(ValueError, match="frozen"):
        profile.name = "other"
