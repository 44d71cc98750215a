"""schemas/timesyncd_clock.h in its parts: the arithmetic, the numbers, the names, the page's example."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from c_header import ALL_OF_TIME, COMPILERS, EPOCH, HEADER, REFERENCES, bound_now, compiled, publish
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Publication, Reason, Reference, interval_now, unbounded
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, RawReading
from timesyncd.ipc import clock_segment, seqlock

pytestmark = pytest.mark.integration

PAGE_OF_WORDS = HEADER.parent / "SHM.md"
PAGE = HEADER.parents[1] / "docs" / "other-languages.md"


class CInterval(ctypes.Structure):
    _fields_ = [
        ("earliest_ns", ctypes.c_int64),
        ("latest_ns", ctypes.c_int64),
        ("status", ctypes.c_int),
        ("reason", ctypes.c_int),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header's functions, as another language would link them."""
    source = '#define TIMESYNCD_API\n#include "timesyncd_clock.h"\n'
    path = compiled("C", source, tmp_path_factory.mktemp("library") / "clock.so", "-shared", "-fPIC")
    found = ctypes.CDLL(str(path))
    found.timesyncd_interval_at.restype = CInterval
    found.timesyncd_reason_name.restype = found.timesyncd_status_name.restype = ctypes.c_char_p
    return found


WORDS = st.integers(-(2**63) + 1, 2**63 - 1)
NANOSECONDS = st.integers(0, 10**12)
ANY_BOUND = st.builds(Bound, NANOSECONDS, NANOSECONDS) | st.builds(unbounded, st.sampled_from(Reason))
ANY_ERROR_BOUND = st.builds(
    ErrorBound,
    as_of_ns=st.integers(0, 10**18) | WORDS,
    real_minus_boot_ns=st.integers(0, 2 * 10**18) | WORDS,
    parent_hard=ANY_BOUND,
    gm_hard=ANY_BOUND | st.builds(Bound, WORDS, WORDS, st.sampled_from(Reason)),
    utc_hard=ANY_BOUND,
    gm_status=st.sampled_from(ClockStatus),
    utc_status=st.sampled_from(ClockStatus),
    holdover_after_ns=NANOSECONDS | WORDS,
    void_after_ns=st.integers(0, 10**13) | WORDS,
    frequency_ppb=st.none() | st.integers(-(10**9), 10**9),
    steering_ppb=NANOSECONDS,
    utc_steering_ppb=NANOSECONDS,
    publication=st.none() | st.builds(Publication, *[st.integers(0, 10**18)] * 2, NANOSECONDS, NANOSECONDS),
)
RAW_READINGS = st.builds(RawReading, *[st.integers(0, 2 * 10**18)] * 3)


@given(
    ANY_ERROR_BOUND,
    st.integers(-NS_PER_S, 2 * 10**12) | WORDS,
    st.integers(-2_001, 2_001),
    st.sampled_from(REFERENCES),
    st.none() | RAW_READINGS,
)
def test_the_interval_of_any_segment_is_python_s(
    library: ctypes.CDLL,
    bound: ErrorBound,
    age_ns: int,
    step_ns: int,
    reference: Reference,
    raw: RawReading | None,
) -> None:
    """For any numbers the same status, reason and ends, to the nanosecond; an end stops where 64 bits do."""
    boot_ns = clamped(bound.as_of_ns + age_ns)
    real_ns = clamped(boot_ns + bound.real_minus_boot_ns + step_ns)
    found = interval_at(library, bound, reference, real_ns, boot_ns, raw)
    wanted, reason = interval_now(bound, reference, lambda: (real_ns, boot_ns), None if raw is None else lambda: raw)
    ends = ALL_OF_TIME
    if wanted.earliest is not None and wanted.latest is not None:
        ends = (clamped(wanted.earliest), clamped(wanted.latest))

    assert (found.status, found.reason) == (wanted.status, reason)
    assert (found.earliest_ns, found.latest_ns) == ends


def interval_at(
    library: ctypes.CDLL,
    bound: ErrorBound,
    reference: Reference,
    real_ns: int,
    boot_ns: int,
    raw: RawReading | None = None,
) -> CInterval:
    """What the header makes of a segment that holds this bound."""
    payload = (ctypes.c_int64 * clock_segment.WORD_COUNT)(*clock_segment.encode(bound, EPOCH))
    number = REFERENCES.index(reference)
    measured = raw and (ctypes.c_int64 * 3)(*raw)
    ends = ctypes.c_int64(real_ns), ctypes.c_int64(boot_ns)
    found: CInterval = library.timesyncd_interval_at(payload, number, *ends, measured)
    return found


@pytest.mark.parametrize("step_ns", [-2_001, -2_000, 2_000, 2_001])
def test_a_step_is_what_python_takes_for_one(library: ctypes.CDLL, step_ns: int) -> None:
    """Up to the tolerance in either direction it is none."""
    bound = bound_now(as_of_ns=0, real_minus_boot_ns=0)
    found = interval_at(library, bound, Reference.UTC, NS_PER_S + step_ns, NS_PER_S)
    _, reason = interval_now(bound, Reference.UTC, lambda: (NS_PER_S + step_ns, NS_PER_S))

    assert found.reason == reason == (Reason.OK if abs(step_ns) <= STEP_TOLERANCE_NS else Reason.CLOCK_STEPPED)


def clamped(value: int) -> int:
    return max(ALL_OF_TIME[0], min(value, ALL_OF_TIME[1]))


def expected_numbers() -> dict[str, int]:
    """The header's names without their prefix: words as schemas/SHM.md draws them, all else from the code."""
    rows = re.findall(r"^\| (\d+) \| `((?!terms)[a-z_.]+)` \|", PAGE_OF_WORDS.read_text(), re.MULTILINE)
    words = {name.replace(".", "_").upper(): int(offset) // 8 for offset, name in rows}
    first_term = words["FREQUENCY_PPB"] - seqlock.PAYLOAD - len(clock_segment.TERMS)
    header = {f"WORD_{name}": word for name, word in words.items() if word < seqlock.PAYLOAD}
    payload = {name: word - seqlock.PAYLOAD for name, word in words.items() if word >= seqlock.PAYLOAD}
    return {
        **header,
        **payload,
        **{f"TERM_{name.upper()}": word for word, name in enumerate(clock_segment.TERMS, first_term)},
        **{status.name: status.value for status in ClockStatus},
        **{f"REASON_{reason.name}": reason.value for reason in Reason},
        "WORD_PAYLOAD": seqlock.PAYLOAD,
        "WORD_COUNT": clock_segment.WORD_COUNT,
        "SIZE": (seqlock.PAYLOAD + clock_segment.WORD_COUNT) * 8,
        "STATUS_COUNT": len(ClockStatus),
        "REASON_COUNT": len(Reason),
        "MAGIC": clock_segment.MAGIC,
        "LAYOUT_VERSION": clock_segment.LAYOUT_VERSION,
        "ABSENT": clock_segment.ABSENT,
        "STEP_TOLERANCE_NS": STEP_TOLERANCE_NS,
        "TRIES": seqlock._TRIES,
        "LOOK_AGAIN_NS": seqlock._REMAP_INTERVAL_NS,
    }


def test_the_header_s_numbers_are_the_code_s(tmp_path: Path) -> None:
    """Every word, status and reason, the version, the sizes: a change of the layout must be made in the header too."""
    expected = expected_numbers()
    prints = "".join(f'printf("%lld\\n", (long long)TIMESYNCD_{name});' for name in expected)
    source = f'#include "timesyncd_clock.h"\nint main(void) {{ {prints} return 0; }}\n'
    done = subprocess.run([compiled("C", source, tmp_path / "numbers")], capture_output=True, text=True, check=True)

    assert dict(zip(expected, map(int, done.stdout.split()), strict=True)) == expected


@pytest.mark.parametrize("names", [ClockStatus, Reason])
def test_every_number_has_its_name(library: ctypes.CDLL, names: type[ClockStatus | Reason]) -> None:
    """What is printed is the name that Python and the pages have; a number without a name is distinct."""
    name_of = library.timesyncd_status_name if names is ClockStatus else library.timesyncd_reason_name

    assert [name_of(member.value).decode() for member in names] == [member.name for member in names]
    assert name_of(len(names)) == b"?"


@pytest.mark.parametrize("language", COMPILERS)
def test_the_page_s_example_runs(tmp_path: Path, language: str) -> None:
    """The C of docs/other-languages.md compiles, also as C++, and prints the interval."""
    [example] = re.findall(r"```c\n(.*?)```", PAGE.read_text(), re.DOTALL)
    publish(tmp_path, bound_now())
    binary = compiled(language, example, tmp_path / "example")
    done = subprocess.run([binary, tmp_path / clock_segment.NAME], capture_output=True, text=True, check=True)

    assert re.fullmatch(r"SYNCHRONIZED: UTC is \d+ \+- \d+ ns\n", done.stdout)
