"""A vendor's MIB becomes the skeleton of a profile; the vendor is invented."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from timesyncd.__main__ import main
from timesyncd.drivers.timeprovider._profiles import load
from timesyncd.probe.from_mib import skeleton
from timesyncd.probe.mib import BASE_MIBS, compiled

HEAD = """
ACME-TIME-MIB DEFINITIONS ::= BEGIN
IMPORTS
    MODULE-IDENTITY, OBJECT-TYPE, NOTIFICATION-TYPE, Integer32, Counter64, TimeTicks, IpAddress, enterprises FROM SNMPv2-SMI
    TEXTUAL-CONVENTION, DisplayString, TruthValue FROM SNMPv2-TC
    SnmpAdminString FROM SNMP-FRAMEWORK-MIB
    AcmeWord, acmeRoot FROM ACME-SMI
    entPhysicalIndex FROM ENTITY-MIB
    ifIndex FROM IF-MIB;
acme MODULE-IDENTITY
    LAST-UPDATED "202611210000Z" ORGANIZATION "Acme" CONTACT-INFO "nobody" DESCRIPTION "Clocks."
    ::= { enterprises 99999 }
AcmeClockIdentity ::= TEXTUAL-CONVENTION STATUS current DESCRIPTION "" SYNTAX OCTET STRING (SIZE (8))
AcmeClockTimeInterval ::= TEXTUAL-CONVENTION STATUS current DESCRIPTION "" SYNTAX OCTET STRING (SIZE (8))
AcmeState ::= TEXTUAL-CONVENTION STATUS current DESCRIPTION "state"
    SYNTAX INTEGER { warmUp(1), freeRun(2), phaseLocked(3), holdover(4) }
"""

ACME_SMI = """ACME-SMI DEFINITIONS ::= BEGIN
IMPORTS enterprises FROM SNMPv2-SMI TEXTUAL-CONVENTION FROM SNMPv2-TC;
acmeRoot OBJECT IDENTIFIER ::= { enterprises 99999 7 }
AcmeWord ::= TEXTUAL-CONVENTION STATUS current DESCRIPTION "" SYNTAX OCTET STRING (SIZE (0..8))
END
"""


def scalar(name: str, syntax: str, arc: int, units: str = "", access: str = "read-only", parent: str = "acme") -> str:
    units_clause = f'UNITS "{units}"' if units else ""
    return (
        f'{name} OBJECT-TYPE SYNTAX {syntax} {units_clause} MAX-ACCESS {access} STATUS current DESCRIPTION "What {name}\n is."'
        f" ::= {{ {parent} {arc} }}\n"
    )


def table(name: str, arc: int, index: str, *columns: tuple[str, str]) -> str:
    row, kind = f"{name}Entry", f"{name[0].upper()}{name[1:]}Entry"
    rest = 'MAX-ACCESS not-accessible STATUS current DESCRIPTION ""'
    return "".join(
        [
            f"{name}Table OBJECT-TYPE SYNTAX SEQUENCE OF {kind} {rest} ::= {{ acme {arc} }}\n",
            f"{row} OBJECT-TYPE SYNTAX {kind} {rest} {index} ::= {{ {name}Table 1 }}\n",
            f"{kind} ::= SEQUENCE {{ {', '.join(f'{column} {syntax}' for column, syntax in columns)} }}\n",
            *(scalar(column, syntax, place, parent=row) for place, (column, syntax) in enumerate(columns, 1)),
        ]
    )


def made(tmp_path: Path, *declarations: str, source: Path | None = None) -> str:
    file = tmp_path / "acme.mib"
    file.write_text(HEAD + "".join(declarations) + "END\n")
    return skeleton(compiled(file, source))


def objects(text: str) -> dict[str, dict[str, Any]]:
    """The text's objects by name, with one # at the start of each line removed."""
    bare = "\n".join(line.removeprefix("# ") for line in text.splitlines() if not line.startswith(("# acme", "#  ")))
    blocks = bare[bare.index("[[object]]") :]
    return {each["source"].split()[-1]: each for each in tomllib.loads(blocks)["object"]}


def test_the_skeleton_loads_with_what_was_guessed(tmp_path: Path) -> None:
    """The clock's states are named by the neutral words, and the rest stays out until somebody chooses."""
    text = made(tmp_path, scalar("acmeClockState", "AcmeState", 1), scalar("acmeColour", "INTEGER { red(1) }", 2))
    file = tmp_path / "acme.toml"
    file.write_text(text)
    profile = load(str(file))

    assert (profile.name, profile.title) == ("acme-time-mib", "ACME-TIME-MIB")
    assert profile.proved_by == ((1, 3, 6, 1, 4, 1, 99999),)
    assert [(each.field, each.values, each.group) for each in profile.object] == [
        ("clock_state", {1: "warmup", 2: "freerun", 3: "locked", 4: "holdover"}, "state")
    ]
    assert (profile.object[0].confidence, profile.object[0].source) == ("unproven", "ACME-TIME-MIB acmeClockState")


def test_the_skeleton_loads_once_a_field_is_chosen(tmp_path: Path) -> None:
    """Taking the # away and naming a field is all that is needed."""
    text = made(tmp_path, table("acmePort", 3, "INDEX { ifIndex, acmePortName }", ("acmePortName", "DisplayString")))
    chosen = "\n".join(
        line.removeprefix("# ").replace('"?"', '"ports.name"') if "=" in line or "[[" in line else line
        for line in text.splitlines()
    )
    file = tmp_path / "acme.toml"
    file.write_text(chosen)
    (entry,) = load(str(file)).object

    assert (entry.field, entry.index, entry.oid[-3:]) == ("ports.name", ("ifIndex", "acmePortName"), (3, 1, 1))


DECODERS = {
    "DisplayString": "text",
    "SnmpAdminString": "text",
    "OCTET STRING": "text",
    "TruthValue": "truth",
    "TimeTicks": "ticks",
    "Integer32 (0..9)": "integer",
    "Counter64": "integer",
    "INTEGER { a(1), b(2) }": "enum",
    "OBJECT IDENTIFIER": "oid",
    "IpAddress": "?",
    "BITS { a(0) }": "?",
    "AcmeWord": "?",
    "AcmeClockIdentity": "identity",
    "AcmeClockTimeInterval": "time_interval",
}


@pytest.mark.parametrize(("syntax", "decoder"), DECODERS.items())
def test_a_decoder_follows_from_the_type(tmp_path: Path, syntax: str, decoder: str) -> None:
    """A syntax that no decoder reads, or of unknown meaning, is left for the operator to decide."""
    found = objects(made(tmp_path, scalar("acmeThing", syntax, 1)))

    assert found["acmeThing"]["decoder"] == decoder
    assert found["acmeThing"]["field"] == "?"


FIELDS = {
    ("acmeSerialNumber", "DisplayString", ""): ("serial", "text"),
    ("acmePtpClockClass", "INTEGER { locked(6) }", ""): ("clock_class", "clock_class"),
    ("acmePtpClockClass", "DisplayString", ""): ("clock_class", "clock_class"),
    ("acmeClockAccuracy", "INTEGER { ns100(33) }", ""): ("clock_accuracy", "clock_accuracy"),
    ("acmeClockIdentity", "OCTET STRING (SIZE (8))", ""): ("clock_identity", "identity"),
    ("acmePhaseOffset", "DisplayString", "ns"): ("phase_offset_ns", "nanoseconds"),
    ("acmePhaseOffset", "Integer32", "nanoseconds"): ("phase_offset_ns", "integer"),
    ("acmePhaseOffset", "Integer32", "ps"): ("?", "integer"),
    ("acmePhaseOffset", "Integer32", ""): ("?", "integer"),
    ("acmeClockState", "INTEGER { good(1), bad(2) }", ""): ("?", "enum"),
    ("acmeClockState", "Integer32", ""): ("?", "integer"),
    ("acmeSerialNumber", "Integer32", ""): ("?", "integer"),
    ("acmeTimeTraceable", "TruthValue", ""): ("time_traceable", "truth"),
    ("acmeOffsetScaledLogVariance", "DisplayString", ""): ("?", "text"),
}


@pytest.mark.parametrize(("declared", "expected"), FIELDS.items(), ids=lambda each: " ".join(each))
def test_a_field_is_guessed_only_without_doubt(
    tmp_path: Path, declared: tuple[str, str, str], expected: tuple[str, str]
) -> None:
    """The name, the type, the unit and every word must fit; else the operator chooses."""
    name, syntax, units = declared
    found = objects(made(tmp_path, scalar(name, syntax, 1, units)))[name]

    assert (found["field"], found["decoder"]) == expected
    assert found.get("unit", "") == units


def test_an_enumeration_is_kept_in_the_vendor_s_words(tmp_path: Path) -> None:
    """An enumeration without a known field keeps the vendor's words."""
    found = objects(made(tmp_path, scalar("acmeMode", "INTEGER { fast-track(3), slow(9) }", 1)))

    assert found["acmeMode"]["values"] == {"3": "fast-track", "9": "slow"}


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """An index column, and what only notifications carry, answers no GET."""
    text = made(
        tmp_path,
        scalar("acmeHidden", "Integer32", 1, access="not-accessible"),
        scalar("acmeTold", "Integer32", 2, access="accessible-for-notify"),
        scalar("acmeSet", "Integer32", 3, access="read-write"),
    )

    assert list(objects(text)) == ["acmeSet"]


def test_a_table_that_augments_another(tmp_path: Path) -> None:
    """Its rows are indexed as the other's are."""
    text = made(
        tmp_path,
        table("acmeBase", 1, "INDEX { entPhysicalIndex, acmeA }", ("acmeA", "Integer32")),
        table("acmeMore", 2, "AUGMENTS { acmeBaseEntry }", ("acmeB", "Integer32")),
    )

    assert objects(text)["acmeB"]["index"] == ["entPhysicalIndex", "acmeA"]


def test_a_notification(tmp_path: Path) -> None:
    """Its variables are distinguished by name; the operator fills in the rest."""
    text = made(
        tmp_path,
        scalar("acmeSerialNumber", "DisplayString", 1),
        scalar("acmeAlarmId", "Integer32", 2, access="accessible-for-notify"),
        scalar("acmeSeverity", "INTEGER { Clear(0), Major(3) }", 3, access="accessible-for-notify"),
        scalar("acmeWeight", "Integer32", 4, access="accessible-for-notify"),
        "acmeAlarm NOTIFICATION-TYPE OBJECTS { acmeAlarmId, acmeSeverity, acmeWeight }"
        ' STATUS current DESCRIPTION "" ::= { acme 0 1 }\n',
    )
    file = tmp_path / "acme.toml"
    file.write_text(text)
    (notification,) = load(str(file)).notification

    assert (notification.oid[-2:], notification.kind, notification.severities) == (
        (0, 1),
        "alarm",
        {0: "clear", 3: "major"},
    )
    assert {name: oid[-1] for name, oid in notification.variables.items()} == {"id": 2, "severity": 3}
    assert '# ? = "1.3.6.1.4.1.99999.4"    # acmeWeight' in text


def test_an_old_mib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SMIv1, with its trap."""
    file = tmp_path / "old.mib"
    file.write_text(
        "OLD-MIB DEFINITIONS ::= BEGIN\n"
        "IMPORTS enterprises FROM RFC1155-SMI OBJECT-TYPE FROM RFC-1212 TRAP-TYPE FROM RFC-1215"
        " DisplayString FROM RFC1213-MIB;\n"
        "old OBJECT IDENTIFIER ::= { enterprises 99999 3 }\n"
        'oldSerialNum OBJECT-TYPE SYNTAX DisplayString ACCESS read-only STATUS mandatory DESCRIPTION "" ::= { old 1 }\n'
        'oldUp TRAP-TYPE ENTERPRISE old VARIABLES { oldSerialNum } DESCRIPTION "" ::= 5\nEND\n'
    )
    status = main(["profile-from-mib", str(file), "--name", "site"])
    printed = capsys.readouterr()
    profile = tmp_path / "site.toml"
    profile.write_text(printed.out)

    assert (status, printed.err) == (0, "")
    assert (load(str(profile)).name, load(str(profile)).notification[0].oid[-3:]) == ("site", (3, 0, 5))


def test_other_mibs_come_from_the_folder_that_is_named(tmp_path: Path) -> None:
    """Their types and their places in the tree are known then."""
    folder = tmp_path / "mibs"
    folder.mkdir()
    (folder / "ACME-SMI.txt").write_text(ACME_SMI)
    text = made(tmp_path, scalar("acmeThing", "AcmeWord", 1, parent="acmeRoot"), source=folder)

    assert (objects(text)["acmeThing"]["decoder"], objects(text)["acmeThing"]["oid"]) == (
        "text",
        "1.3.6.1.4.1.99999.7.1",
    )


def test_a_mib_that_imports_a_missing_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names it and the way out; nothing is fetched."""
    file = tmp_path / "acme.mib"
    file.write_text(HEAD + scalar("acmeThing", "Integer32", 1, parent="acmeRoot") + "END\n")
    status = main(["profile-from-mib", str(file)])

    assert (status, capsys.readouterr()) == (
        2,
        ("", f"timesyncd: {file}: needs ACME-SMI, which was not found: name a folder that contains it with --source\n"),
    )


def test_missing_types_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the MIB is read all the same."""
    file = tmp_path / "acme.mib"
    file.write_text(HEAD + scalar("acmeThing", "AcmeWord", 1) + "END\n")
    status = main(["profile-from-mib", str(file)])

    assert status == 0
    assert capsys.readouterr().err == (
        "timesyncd: MIB ACME-SMI was not found, so its types are unknown; name its folder with --source\n"
    )


BROKEN = {
    "empty": ("", 1),
    "no MIB": ("<html>404</html>", 1),
    "cut short": (HEAD + scalar("acmeThing", "Integer32", 1)[:40], 1),
    "a circle": (HEAD + "a OBJECT IDENTIFIER ::= { b 1 }\nb OBJECT IDENTIFIER ::= { a 1 }\nEND\n", 1),
    "outside iso": (
        HEAD + "a OBJECT IDENTIFIER ::= { 2 1 }\n" + scalar("acmeX", "Integer32", 1, parent="a") + "END\n",
        1,
    ),
}


@pytest.mark.parametrize(("text", "status"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_mib(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int) -> None:
    """One line states the error, and nothing of the file is printed."""
    file = tmp_path / "acme.mib"
    file.write_text(text)
    ended = main(["profile-from-mib", str(file)])
    printed = capsys.readouterr()

    assert (ended, printed.out) == (status, "")
    assert [line for line in printed.err.splitlines() if "was not found" not in line] == [printed.err.splitlines()[-1]]


def test_a_file_or_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It could not be asked so: 2."""
    file = tmp_path / "acme.mib"
    missing = main(["profile-from-mib", str(file)])
    file.write_text(HEAD + "END\n")
    no_folder = main(["profile-from-mib", str(file), "--source", str(tmp_path / "none")])

    assert (missing, no_folder) == (2, 2)
    assert capsys.readouterr().err.splitlines() == [
        f"timesyncd: {file}: cannot be read: No such file or directory",
        f"timesyncd: --source {tmp_path / 'none'}: no such folder",
    ]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line is the one that mends it."""
    monkeypatch.delitem(sys.modules, "timesyncd.probe.mib")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pysmi"]:
        monkeypatch.setitem(sys.modules, name, None)
    ended = main(["profile-from-mib", str(tmp_path / "acme.mib")])

    assert ended == 2
    assert capsys.readouterr().err == (
        "timesyncd profile-from-mib: the mib extra is missing: in timesyncd's source folder, pip install '.[daemon,mib]'\n"
    )


@pytest.mark.parametrize("name", BASE_MIBS)
def test_each_mib_that_comes_along_is_one(tmp_path: Path, name: str) -> None:
    """What vendors import of it is understood."""
    file = tmp_path / f"{name}.mib"
    file.write_text(BASE_MIBS[name])

    assert compiled(file, None).not_found == ()
