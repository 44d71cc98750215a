"""Profiles are data: each object states what it is, and what of it is proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.drivers.timeprovider._decoders import Unknown
from timesyncd.drivers.timeprovider._profiles import DEFAULT, SHIPPED, Object, Profile, load, load_all, proven_table
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


def text_object(*patterns: tuple[str, str]) -> Object:
    return Object.model_validate(
        {"oid": "1.3.6.1.4.1.9070.1", "decoder": "text", "patterns": patterns, "field": "clock_state",
         "confidence": "sister", "source": "a MIB"}
    )  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load(name: str) -> None:
    """Every shipped profile is valid and is found by its name."""
    assert load(name).name == name


def test_an_enumeration_belongs_to_its_oid() -> None:
    """The same integer means different states in two MIBs, and each profile states its own."""
    states = {name: load(name).filling("clock_state")[0].values for name in ("tp5000", "tp5000e", "ptpbase")}

    assert [states[name][4] for name in states] == ["holdover", "locked", "acquiring"]
    assert [states[name][5] for name in states] == ["freerun", "holdover", "locked"]


def test_a_profile_of_the_site_is_read_by_its_path(tmp_path: Path) -> None:
    """The owner of a MIB adds a profile without changing the package."""
    profile = load(written(tmp_path, HEAD + OBJECT))

    assert (profile.name, profile.object[0].oid[-3:]) == ("site", (1, 2, 4))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (HEAD + OBJECT.replace('"integer"', '"number"'), "object[0].decoder = 'number': allowed: text, "),
        (HEAD + OBJECT.replace("alarm_count", "alarms_count"), "object[0].field = 'alarms_count': allow"),
        (HEAD + OBJECT.replace(".7.1.2.4", ".7.x"), "give an OID in dotted numbers"),
        (HEAD + OBJECT.replace("alarm_count", "alarms.id"), "alarms.id is a column: name its index"),
        (HEAD + OBJECT.replace('"integer"', '"enum"'), "values belong to the decoder enum, and it needs them"),
        (
            HEAD + OBJECT.replace('"integer"', '"text"'),
            "decoder of alarm_count: allowed: integer, leading_integer, ticks",
        ),
        (HEAD + OBJECT + "patterns = [['a', 'b']]\n", "patterns belong to the decoder text"),
        (HEAD + OBJECT + "patterns = [['(', 'b']]\n", "not a regular expression: missing )"),
        (
            HEAD + OBJECT + 'group = "daily"\n',
            "object[0].group = 'daily': Input should be 'state', 'table' or 'inventory'",
        ),
        (HEAD + OBJECT + "colour = 1\n", "object[0].colour = 1: unknown key; allowed here: "),
        (HEAD, "the profile is empty; give object, notification, alarms or composes"),
        (HEAD.replace("proved_by", "composes") + OBJECT, "proved_by is missing; give the subtree"),
        (HEAD + "[[notification]]\noid = '1.3.6.1'\nkind = 'alarm'\nvariables = { colour = '1.3.6.1' }\n", "colour"),
        (HEAD + "[[object", "not TOML"),
        (HEAD + "a = " + "[" * 50_000, "not TOML: maximum recursion depth"),
    ],
)
def test_an_invalid_profile_is_an_error_of_one_line(tmp_path: Path, text: str, reported: str) -> None:
    """A profile that cannot be used names its file, the key and what is allowed."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)

    assert (path in str(error.value), reported in str(error.value), "\n" in str(error.value)) == (True, True, False)


def test_clock_states_are_the_neutral_ones(tmp_path: Path) -> None:
    """A profile cannot invent a clock state."""
    text = OBJECT.replace("alarm_count", "clock_state").replace('"integer"', '"enum"') + 'values = { 1 = "fine" }\n'
    with pytest.raises(ConfigError, match="values of clock_state: allowed: acquiring, fault, "):
        load(written(tmp_path, HEAD + text))


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("tp9999", "allowed: tp4100, tp4500, s650, tp5000e, "),
        ("no/such.toml", "cannot be"),
        ("/dev/zero", "no regular"),
    ],
)
def test_a_missing_profile_is_an_error(name: str, reported: str) -> None:
    """A name that is not shipped lists those that are; a path that is not there reports it."""
    with pytest.raises(ConfigError, match=reported):
        load(name)


def test_a_wrong_type_names_its_object() -> None:
    """The error names the field and the OID with its index, and shows what came."""
    with pytest.raises(Malformed) as error:
        load("tp5000e").filling("clock_state")[0].decode(b"locked", (2, 1))

    assert str(error.value) == (
        "clock_state (1.3.6.1.4.1.9070.1.2.5.7.1.8.1.1.1.2.2.1): b'locked' instead of a 64-bit integer"
    )


def test_profiles_cannot_be_changed() -> None:
    """A profile is shared by every grandmaster that is read with it."""
    profile: Profile = load("system")
    with pytest.raises(ValueError, match="frozen"):
        profile.name = "other"


def test_free_text_becomes_a_word_by_the_first_pattern_that_is_found() -> None:
    """Upper and lower case are alike, the order decides, and what no pattern finds is reported as it came."""
    entry = text_object(("not locked", "acquiring"), ("locked", "locked"))

    assert [entry.decode(raw, (0,)) for raw in (b"Clock LOCKED", b"Not Locked", b"off")] == [
        "locked", "acquiring", Unknown("undecodable(b'off')")
    ]  # fmt: skip


@pytest.mark.parametrize("words", [(), (("ok", "fine"),)])
def test_text_cannot_invent_a_clock_state(words: tuple[tuple[str, str], ...]) -> None:
    """Free text needs patterns where the field has words of its own, and no others."""
    with pytest.raises(ValueError, match="patterns of clock_state: allowed: acquiring, "):
        text_object(*words)


def test_a_grandmaster_s_profile_composes_those_that_read_it() -> None:
    """The TimeProvider 4100 has no MIB of its own that is public: its profile names those that are tried."""
    names = [profile.name for profile in load_all(["tp4100", "system"])]

    assert names == ["tp4100", "s650", "tp5000e", "ptpbase", "ntpv4", "symm-common", "system"]


#: The notifications of the S650ALARM MIB, revision 2019-03-21, by the last arc of their OIDs.
S650_ALARM_IDS = {
    *range(1, 7), 8, 9, *range(21, 26), *range(27, 38), *range(40, 49), *range(51, 55), *range(71, 79), *range(91, 105),
    112, *range(114, 121), *range(130, 141), *range(151, 156), *range(157, 165), *range(170, 185),
}  # fmt: skip


def test_every_alarm_of_the_s650_s_mib_has_its_name() -> None:
    """The ports of the J connectors are named, and an id that the MIB lacks has no name."""
    alarms = load("s650").alarms
    assert alarms is not None
    ports = ("J1A", "J1B", "J2A", "J2B", "J7A", "J7B")

    assert set(alarms.names) == S650_ALARM_IDS
    assert [alarms.names[number] for number in range(43, 49)] == [f"{port} frequency qualified" for port in ports]
    assert [alarms.names[number] for number in range(99, 105)] == [f"{port} loss of signal" for port in ports]
    assert [alarms.names[number] for number in (22, 114, 133, 170, 171, 178)] == [
        "channel time qualified", "SyncE Ethernet configuration", "battery A failed", "J1A IRIG input fault",
        "J1B IRIG input fault", "login activity",
    ]  # fmt: skip


def test_the_severities_of_the_s650_are_those_of_its_mib() -> None:
    """S650ALARM MIB, ALARMLEVELTYPE and ALARMACTION; the profile says that they are proven."""
    (notification,) = load("s650").notification

    assert notification.severities == {0: "clear", 2: "critical", 3: "major", 4: "minor", 5: "event"}
    assert notification.actions == {0: "clear", 1: "raise", 2: "event"}
    assert "severities and actions proven by the S650ALARM MIB, revision 2019-03-21" in notification.source


def test_all_profiles_are_tried_by_default() -> None:
    """A family's own objects come before the standard tables, and every shipped profile with objects is included."""
    reading = [name for name in SHIPPED if load(name).object]

    assert list(DEFAULT) == reading


def test_what_is_proven_can_be_listed() -> None:
    """The documentation's table has a row for each object, each notification and each family's alarm ids."""
    rows = [proof for proof in proven_table() if proof.profile == "s650"]

    assert [(proof.what, proof.oid, proof.confidence) for proof in (rows[0], *rows[-2:])] == [
        ("clock_state", "1.3.6.1.4.1.9070.1.2.5.7.8.3.1", "sister"),
        ("notification (alarm)", "1.3.6.1.4.1.9070.1.2.5.7.4.1.2.ID", "sister"),
        ("alarm ids", "", "sister"),
    ]


def test_nothing_private_is_called_proven() -> None:
    """No walk of a TimeProvider 4100 is public, so only what every agent serves may be called proven."""
    proven = {proof.profile for proof in proven_table() if proof.confidence == "proven"}

    assert proven == {"system"}
