"""schemas/SHM.md and the code agree: every word's place, name and absent value, every number of an enumeration."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Publication, Reason
from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.ipc import clock_segment, seqlock

TEXT = (Path(__file__).parents[3] / "schemas" / "SHM.md").read_text()

#: Offset -> (name, absent), as the page draws it.
WORDS = {
    int(offset): (name, absent)
    for offset, name, absent in re.findall(r"^\| (\d+) \| `([a-z_.]+)` \|[^|]*\| ([^|]*?) ?\|", TEXT, re.MULTILINE)
}
HEADER = {
    "magic": seqlock.MAGIC,
    "layout_version": seqlock.VERSION,
    "size": seqlock.SIZE,
    "generation": seqlock.GENERATION,
    "checksum": seqlock.CHECKSUM,
}

BOUNDS = ("parent_hard", "gm_hard", "utc_hard", "parent_stat", "gm_stat", "utc_stat")
PLAIN = Bound(1, 1, Reason.OK)
PUBLICATION = Publication(1, 1, 1, 1)
EPOCH = clock_segment.Epoch(1 << 64 | 1, 1)
BASE = ErrorBound(
    as_of_ns=1,
    real_minus_boot_ns=1,
    parent_hard=PLAIN,
    gm_hard=PLAIN,
    utc_hard=PLAIN,
    parent_stat=PLAIN,
    gm_stat=PLAIN,
    utc_stat=PLAIN,
    gm_status=ClockStatus.SYNCHRONIZED,
    utc_status=ClockStatus.SYNCHRONIZED,
    grandmaster_identity="000000.0000.000001",
    parent_identity="000000.0000.000001",
    utc_seconds_removed=1,
    clock="phc:1",
    holdover_after_ns=1,
    void_after_ns=1,
    terms=dict.fromkeys(clock_segment.TERMS, 1),
    frequency_ppb=1,
    steering_ppb=1,
    utc_steering_ppb=1,
    publication=PUBLICATION,
)


def changed(name: str, value: Any) -> list[int]:
    """The payload when the named word alone has another value; None = absent."""
    bound, epoch = BASE, EPOCH
    outer, _, inner = name.partition(".")
    if outer == "terms":
        terms: dict[Any, Any] = BASE.terms | {inner: value}
        bound = replace(BASE, terms={key: each for key, each in terms.items() if each is not None})
    elif outer == "publication":
        bound = replace(BASE, publication=PUBLICATION._replace(**{inner: value}))
    elif inner:
        part: Any = PLAIN._replace(**{inner: value})
        bound = replace(BASE, **{outer: part})
    elif name.startswith("boot_id"):
        half = 64 if name == "boot_id_high" else 0
        epoch = EPOCH._replace(boot_id=EPOCH.boot_id ^ 3 << half)
    elif name == "time_namespace":
        epoch = EPOCH._replace(time_namespace=2)
    else:
        bound = replace(BASE, **{name: value})
    return clock_segment.encode(bound, epoch)


def difference(words: list[int]) -> dict[int, int]:
    """The words that are not as in BASE, by their offset in bytes."""
    pairs = zip(clock_segment.encode(BASE, EPOCH), words, strict=True)
    return {(seqlock.PAYLOAD + index) * 8: word for index, (base, word) in enumerate(pairs) if word != base}


SPECIAL = {"clock_kind", "clock_index"}
PAYLOAD_NAMES = {name: offset for offset, (name, _) in WORDS.items() if name not in HEADER}
OTHERS: dict[str, Any] = {
    "gm_status": ClockStatus.HOLDOVER,
    "utc_status": ClockStatus.HOLDOVER,
    "grandmaster_identity": "000000.0000.000002",
    "parent_identity": "000000.0000.000002",
}


def test_every_word_is_drawn_once() -> None:
    """Offsets run from 0 in steps of 8 to the size that the writer gives the file, and the page names that size."""
    size = (seqlock.PAYLOAD + clock_segment.WORD_COUNT) * 8

    assert list(WORDS) == list(range(0, size, 8))
    assert f"{size // 8} words of 64 bits, {size} bytes" in TEXT
    assert f"| 16 | `size` | bytes | | {size} |" in TEXT


def test_the_header_is_drawn_as_it_is() -> None:
    """Magic, version, size, generation and checksum are where seqlock.py has them, with the numbers of clock_segment.py."""
    drawn = {name: offset // 8 for offset, (name, _) in WORDS.items() if name in HEADER}

    assert drawn == HEADER
    assert f"`{clock_segment.MAGIC:#x}`" in TEXT
    assert f"| 8 | `layout_version` | | | {clock_segment.LAYOUT_VERSION} |" in TEXT
    assert f"## Layout (version {clock_segment.LAYOUT_VERSION})" in TEXT


@pytest.mark.parametrize("name", sorted(set(PAYLOAD_NAMES) - SPECIAL))
def test_a_field_is_in_its_word_and_in_no_other(name: str) -> None:
    """Another value of the named field changes the word at the drawn offset, and that one alone."""
    value = OTHERS.get(name, Reason.STALE if name.endswith(".reason") else 2)

    assert list(difference(changed(name, value))) == [PAYLOAD_NAMES[name]]


@pytest.mark.parametrize("name", [name for name, absent in WORDS.values() if absent == "-2^63" and name not in SPECIAL])
def test_what_is_absent_is_written_as_drawn(name: str) -> None:
    """None is the drawn absent value."""
    assert difference(changed(name, None)) == {PAYLOAD_NAMES[name]: clock_segment.ABSENT}
    assert clock_segment.ABSENT == -(2**63)


def test_a_bound_without_a_publication_has_no_frequency() -> None:
    """A reader then measures no steering, and counts the whole growth."""
    words = clock_segment.encode(replace(BASE, publication=None), EPOCH)
    first = PAYLOAD_NAMES["frequency_ppb"] // 8 - seqlock.PAYLOAD

    assert words[first:] == [clock_segment.ABSENT, 0, 0, 0, 0, 0, 0]


def test_what_can_be_absent_is_drawn_so() -> None:
    """Every field that the code allows to be None has an absent value on the page, and no other field has one."""
    may_be = {f.name for f in fields(ErrorBound) if "None" in str(f.type)} - {"clock", "publication"}
    bounds = {f"{bound}.bound_ns" for bound in BOUNDS}
    terms = {f"terms.{term}" for term in clock_segment.TERMS}

    assert {n for n, absent in WORDS.values() if absent == "-2^63"} == may_be | bounds | terms | {"clock_index"}


@pytest.mark.parametrize(
    ("clock", "kind", "index"),
    [(None, 0, clock_segment.ABSENT), ("realtime", 1, clock_segment.ABSENT), ("phc:7", 2, 7)],
)
def test_the_clock_is_a_kind_and_an_index(clock: str | None, kind: int, index: int) -> None:
    """The two words of the measured clock are where they are drawn."""
    words = clock_segment.encode(replace(BASE, clock=clock), EPOCH)
    at = {name: words[PAYLOAD_NAMES[name] // 8 - seqlock.PAYLOAD] for name in SPECIAL}

    assert at == {"clock_kind": kind, "clock_index": index}


@pytest.mark.parametrize(("heading", "numbers"), [("Statuses", ClockStatus), ("Reasons", Reason)])
def test_every_number_is_named(heading: str, numbers: type[ClockStatus | Reason]) -> None:
    """The page's table of an enumeration is the code's."""
    section = re.split(r"^#+ ", TEXT.split(f"### {heading}\n")[1], flags=re.MULTILINE)[0]
    drawn = {int(number): name for number, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", section, re.MULTILINE)}

    assert drawn == {member.value: member.name for member in numbers}


def test_the_protocol_s_numbers_are_the_code_s() -> None:
    """The step tolerance and the number of tries of the page are those of the reader."""
    assert f"within {STEP_TOLERANCE_NS:_} ns".replace("_", " ") in TEXT
    assert f"up to {seqlock._TRIES} times" in TEXT
