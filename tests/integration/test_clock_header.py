"""Programs that include schemas/timesyncd_clock.h read segments as Python does, compiled as C and as C++."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from c_header import ALL_OF_TIME, COMPILERS, EPOCH, REFERENCES, bound_now, compiled, publish, writer

from timesyncd.bound import Bound, ClockStatus, Reason, Reference, unbounded
from timesyncd.client import Clock
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc import clock_segment, seqlock

pytestmark = pytest.mark.integration

#: At each line of its input the time against all three references.
PROGRAM = """
#include "timesyncd_clock.h"

int main(int count, char **arguments) {
    char line[8];
    timesyncd_clock clock;
    timesyncd_open(&clock, count > 1 ? arguments[1] : NULL);
    while (fgets(line, sizeof line, stdin)) {
        for (int reference = TIMESYNCD_PARENT; reference <= TIMESYNCD_UTC; reference++) {
            timesyncd_interval now = timesyncd_now(&clock, (timesyncd_reference)reference);
            printf("%s %s %lld %lld\\n", timesyncd_status_name(now.status), timesyncd_reason_name(now.reason),
                   (long long)now.earliest_ns, (long long)now.latest_ns);
        }
        fflush(stdout);
    }
    timesyncd_close(&clock);
    return 0;
}
"""


@pytest.fixture(scope="module", params=COMPILERS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(request.param, PROGRAM, tmp_path_factory.mktemp("program") / "read")


class Running:
    """The compiled reader as a process that reads the segment when it is asked."""

    def __init__(self, program: Path, path: Path) -> None:
        self._process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self) -> dict[Reference, tuple[str, str, int, int]]:
        """Status, reason, earliest, latest by reference."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        lines = [self._process.stdout.readline().split() for _ in REFERENCES]
        return {
            reference: (status, reason, int(earliest), int(latest))
            for reference, (status, reason, earliest, latest) in zip(REFERENCES, lines, strict=True)
        }

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def started(program: Path, tmp_path: Path) -> Any:
    running: list[Running] = []

    def start() -> Running:
        running.append(Running(program, tmp_path / clock_segment.NAME))
        return running[-1]

    yield start
    for each in running:
        each.close()


Start = Callable[[], Running]


def held(folder: Path, running: Running) -> dict[Reference, tuple[str, str]]:
    """The status and reason that the program gives; a Clock of Python gives the same. Without a bound: all of time."""
    answers = running.ask()
    clock = Clock(folder)
    statuses = {Reference.GRANDMASTER: clock.gm_now().status, Reference.UTC: clock.now().status}
    for reference, (status, reason, earliest, latest) in answers.items():
        assert status in ("SYNCHRONIZED", "HOLDOVER") or (earliest, latest) == ALL_OF_TIME
        assert Reason[reason].text == clock.reason(reference)
        assert ClockStatus[status] is statuses.get(reference, ClockStatus[status])
    return {reference: answer[:2] for reference, answer in answers.items()}


AGO = {"holdover": 10 * NS_PER_S, "expired": 2_000 * NS_PER_S}


@pytest.mark.parametrize(
    ("changes", "epoch", "gm", "utc"),
    [
        ({}, EPOCH, ("SYNCHRONIZED", "OK"), ("SYNCHRONIZED", "OK")),
        ({"as_of_ns": -AGO["holdover"]}, EPOCH, ("HOLDOVER", "STALE"), ("HOLDOVER", "STALE")),
        ({"as_of_ns": -AGO["expired"]}, EPOCH, ("UNKNOWN", "EXPIRED"), ("UNKNOWN", "EXPIRED")),
        ({"as_of_ns": 2**61}, EPOCH, ("UNKNOWN", "AS_OF_IN_FUTURE"), ("UNKNOWN", "AS_OF_IN_FUTURE")),
        (
            {"utc_hard": unbounded(Reason.ARBITRARY_TIMESCALE), "utc_status": ClockStatus.UNKNOWN},
            EPOCH,
            ("SYNCHRONIZED", "OK"),
            ("UNKNOWN", "ARBITRARY_TIMESCALE"),
        ),
        (
            {"gm_hard": unbounded(Reason.PARENT_CHANGED), "gm_status": ClockStatus.DISRUPTED},
            EPOCH,
            ("DISRUPTED", "PARENT_CHANGED"),
            ("SYNCHRONIZED", "OK"),
        ),
        ({"gm_hard": unbounded(Reason.NO_SAMPLE_YET)}, EPOCH, ("UNKNOWN", "NO_SAMPLE_YET"), ("SYNCHRONIZED", "OK")),
        ({"real_minus_boot_ns": 1}, EPOCH, ("DISRUPTED", "CLOCK_STEPPED"), ("DISRUPTED", "CLOCK_STEPPED")),
        ({}, EPOCH._replace(boot_id=EPOCH.boot_id ^ 1), ("UNKNOWN", "OTHER_BOOT"), ("UNKNOWN", "OTHER_BOOT")),
        ({}, EPOCH._replace(boot_id=EPOCH.boot_id ^ 1 << 127), ("UNKNOWN", "OTHER_BOOT"), ("UNKNOWN", "OTHER_BOOT")),
        (
            {},
            EPOCH._replace(time_namespace=EPOCH.time_namespace + 1),
            ("UNKNOWN", "OTHER_TIME_NAMESPACE"),
            ("UNKNOWN", "OTHER_TIME_NAMESPACE"),
        ),
    ],
)
def test_a_compiled_reader_reads_what_python_reads(
    tmp_path: Path,
    started: Start,
    changes: dict[str, Any],
    epoch: clock_segment.Epoch,
    gm: tuple[str, str],
    utc: tuple[str, str],
) -> None:
    """Fresh, stale, expired, from the future, unbounded, disrupted, stepped, of another boot or time namespace."""
    bound = bound_now()
    as_of_ns = bound.as_of_ns + changes.get("as_of_ns", 0)
    publish(tmp_path, replace(bound, **changes | {"as_of_ns": as_of_ns}), epoch)
    found = held(tmp_path, started())

    assert (found[Reference.GRANDMASTER], found[Reference.UTC]) == (gm, utc)


def test_a_compiled_reader_s_interval_holds_the_clock(tmp_path: Path, started: Start) -> None:
    """CLOCK_REALTIME lies in the middle, and the interval is as wide as the bound has grown."""
    bound = bound_now()
    publish(tmp_path, bound)
    before_ns = time.time_ns()
    answers = started().ask()
    after_ns = time.time_ns()
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - bound.as_of_ns

    for reference, part in zip(REFERENCES, (bound.parent_hard, bound.gm_hard, bound.utc_hard), strict=True):
        _, _, earliest, latest = answers[reference]
        widest_ns = part.at(age_ns)
        assert before_ns <= (earliest + latest) // 2 <= after_ns
        assert part.bound_ns is not None and widest_ns is not None
        assert part.bound_ns <= (latest - earliest) // 2 <= widest_ns


def test_without_a_file_it_names_the_reason(tmp_path: Path, started: Start) -> None:
    """No daemon is no error, and no time."""
    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "NO_SEGMENT")}


def test_a_file_that_is_too_short_is_no_file(tmp_path: Path, started: Start) -> None:
    """Nothing beyond its end is touched."""
    (tmp_path / clock_segment.NAME).write_bytes(bytes(64))

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "NO_SEGMENT")}


def test_before_the_first_write_there_is_no_sample(tmp_path: Path, started: Start) -> None:
    """Generation 0: the daemon runs, and has not published yet."""
    writer(tmp_path)

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "NO_SAMPLE_YET")}


@pytest.mark.parametrize("word", [seqlock.MAGIC, seqlock.VERSION, seqlock.SIZE])
def test_another_layout_is_not_read(tmp_path: Path, started: Start, word: int) -> None:
    """Another magic, version or size: neither side understands the other, and the reader reports only that."""
    publish(tmp_path, bound_now())._words[word] += 1

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "OTHER_LAYOUT")}


@pytest.mark.parametrize("name", ["gm_status", "utc_status", "gm_hard", "utc_stat"])
@pytest.mark.parametrize("number", [-1, 99])
def test_a_number_without_a_name_is_another_layout(tmp_path: Path, started: Start, name: str, number: int) -> None:
    """A status or a reason that this version does not know, even one that is not asked for."""
    bound = bound_now()
    reason: Any = number
    unknown: Any = number if name.endswith("status") else Bound(1, 1, reason)
    publish(tmp_path, replace(bound, **{name: unknown}))

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "OTHER_LAYOUT")}


def test_a_torn_segment_is_not_read(tmp_path: Path, started: Start) -> None:
    """The writer died half-way and nothing whole was ever read."""
    publish(tmp_path, bound_now())._words[seqlock.GENERATION] += 1

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "TORN_SEGMENT")}


def test_a_corrupted_word_is_not_believed(tmp_path: Path, started: Start) -> None:
    """The checksum covers every word."""
    publish(tmp_path, bound_now())._words[seqlock.PAYLOAD + clock_segment.WORD_COUNT - 1] ^= 1

    assert set(held(tmp_path, started()).values()) == {("UNKNOWN", "TORN_SEGMENT")}


def test_a_torn_segment_leaves_what_was_read_before(tmp_path: Path, started: Start) -> None:
    """A reader that had a whole payload goes on with it, ageing, and takes the next one."""
    made = publish(tmp_path, bound_now())
    reader = started()
    first = reader.ask()
    made._words[seqlock.GENERATION] += 1
    made._words[seqlock.PAYLOAD + 3] = 0
    torn = [reader.ask(), reader.ask()]
    made.write(clock_segment.encode(bound_now(gm_hard=unbounded(Reason.EXPIRED)), EPOCH))

    assert {each[:2] for answers in [first, *torn] for each in answers.values()} == {("SYNCHRONIZED", "OK")}
    assert reader.ask()[Reference.GRANDMASTER][:2] == ("UNKNOWN", "EXPIRED")


def test_a_daemon_that_comes_later_is_found(tmp_path: Path, started: Start) -> None:
    """The file may come after the reader, and be created again; the reader looks for it once a second."""
    reader = started()
    before = reader.ask()[Reference.GRANDMASTER][:2]
    publish(tmp_path, bound_now(as_of_ns=0))
    time.sleep(1.01)
    late = reader.ask()[Reference.GRANDMASTER][0]
    (tmp_path / clock_segment.NAME).unlink()
    publish(tmp_path, bound_now())
    time.sleep(1.01)
    reader.ask()

    assert before == ("UNKNOWN", "NO_SEGMENT")
    assert late != "SYNCHRONIZED"
    assert reader.ask()[Reference.GRANDMASTER][:2] == ("SYNCHRONIZED", "OK")
