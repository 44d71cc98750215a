"""A grandmaster over SNMP, each group at its own pace; what fails costs no more than itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from snmp_fakes import (
    ALARM_COUNT,
    ALARMS,
    BOOTS,
    FIRMWARE,
    SERVO,
    UPTIME,
    RecordedGrandmaster,
    answer_from,
    raise_alarm,
    tp5000e,
)

from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._grandmaster_reader import ROW_CAP, GrandmasterReader
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load_all
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import ClockState, GrandmasterSample
from timesyncd.snmp import Community, parse_oid

pytestmark = pytest.mark.disable_socket

S = 1_000_000_000
IF_STATE, PTPBASE = "1.3.6.1.2.1.2.2.1.8", "1.3.6.1.2.1.241.1.2"


class Watched:
    """A reader with a clock of its own."""

    def __init__(self) -> None:
        intervals_ns = {"state": 10 * S, "table": 60 * S, "inventory": 3600 * S}
        self.reader = GrandmasterReader("gm-a", ("gm", 161), Community("word"), 1.0, load_all(DEFAULT), intervals_ns)  # type: ignore[arg-type]
        self.now_ns = 1000 * S

    async def read(self, after_s: int = 0, within_s: float = 60.0) -> GrandmasterSample:
        self.now_ns += after_s * S
        if not self.reader.is_open:
            await self.reader.open()
        reading = await self.reader.read(self.now_ns, asyncio.get_running_loop().time() + within_s)
        return assemble("gm-a", self.now_ns, reading.profiles, reading.rows, reading.notes)


@pytest.fixture
def grandmaster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedGrandmaster]:
    grandmaster = tp5000e()
    answer_from(grandmaster, monkeypatch)
    yield grandmaster


@pytest.fixture
def watched(grandmaster: RecordedGrandmaster) -> Watched:
    return Watched()


async def test_the_first_read_reads_everything(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """A sample is whole from the start."""
    sample = await watched.read()

    assert (sample.clock_state, sample.alarms, sample.firmware) == (ClockState.LOCKED, (), "1.2")
    assert sample.profiles == ("tp5000e", "system")


async def test_groups_are_read_at_their_own_pace(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """In an hour of polls the state is read each time, tables once a minute, inventory once more at most."""
    counts = dict.fromkeys((SERVO, IF_STATE, FIRMWARE), 0)
    for _ in range(360):
        grandmaster.asked.clear()
        await watched.read(after_s=10)
        for oid in counts:
            counts[oid] += grandmaster.was_asked(oid)

    assert counts[SERVO] == 360
    assert 60 <= counts[IF_STATE] <= 62
    assert 1 <= counts[FIRMWARE] <= 2


@pytest.mark.parametrize("turn", ["alarm", "state"])
async def test_a_turn_makes_the_tables_due_at_once(
    grandmaster: RecordedGrandmaster, watched: Watched, turn: str
) -> None:
    """A changed clock state or count of alarms is followed by what else has changed, in the same poll."""
    await watched.read()
    raise_alarm(grandmaster)
    if turn == "state":
        grandmaster.serve(ALARM_COUNT, 0)
        grandmaster.serve(SERVO, 5, (2, 1))
    sample = await watched.read(after_s=1)

    assert [alarm.id for alarm in sample.alarms or ()] == [12]


async def test_after_request_poll_the_grandmaster_is_read_again(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """After a trap the tables are read at the next poll."""
    await watched.read()
    grandmaster.asked.clear()
    watched.reader.request_poll()
    await watched.read(after_s=1)

    assert (grandmaster.was_asked(IF_STATE), grandmaster.was_asked(FIRMWARE)) == (True, False)


@pytest.mark.parametrize("error", [Malformed("gm:161: does not advance"), Refused("gm:161: genErr")])
async def test_a_failing_table_does_not_cost_the_state(
    grandmaster: RecordedGrandmaster, watched: Watched, error: Malformed | Refused
) -> None:
    """What could not be read is reported, the rest is there."""
    grandmaster.fail(IF_STATE, error)
    sample = await watched.read()

    assert (sample.clock_state, sample.interfaces, sample.alarms) == (ClockState.LOCKED, None, ())
    assert sample.unknown == (f"interfaces=not read: {error}",)


async def test_a_failing_table_counts_until_it_is_stale(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """Rows of before stay for two intervals and are then absent, reported all the while."""
    grandmaster.serve(IF_STATE, 1, (1,))
    await watched.read()
    grandmaster.fail(IF_STATE, Refused("gm:161: genErr"))
    samples = [await watched.read(after_s=60) for _ in range(3)]

    assert [sample.interfaces is None for sample in samples] == [False, False, True]
    assert {sample.unknown for sample in samples} == {("interfaces=not read: gm:161: genErr",)}


async def test_the_note_of_a_table_ends_with_its_failure(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """The note goes with the failure."""
    grandmaster.fail(IF_STATE, Refused("gm:161: genErr"))
    await watched.read()
    grandmaster.failing.clear()

    assert (await watched.read(after_s=60)).unknown == ()


async def test_a_column_that_the_agent_does_not_give_has_a_note(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """The column is absent, with the reason; the other columns and the state are read."""
    grandmaster.problems[parse_oid(IF_STATE)] = "the agent reports tooBig for one row"
    sample = await watched.read()

    assert sample.clock_state is ClockState.LOCKED
    assert sample.unknown == ("interfaces.state=the agent reports tooBig for one row",)


async def test_what_was_found_out_about_an_agent_outlives_the_session(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """Finding it out costs timeouts, so a new session starts with it."""
    await watched.read()
    watched.reader.close()
    await watched.read()

    assert grandmaster.limits[0] is not None
    assert grandmaster.limits[0] is grandmaster.limits[1]


async def test_a_value_of_the_wrong_type_hides_no_other(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """Of an alarm with a broken id the text is reported; the other alarm is active."""
    raise_alarm(grandmaster)
    second: dict[int, int | bytes] = {3: b"twelve", 4: 0, 5: b"", 6: 4, 7: b"open"}
    for column, raw in second.items():
        grandmaster.serve(f"{ALARMS}.{column}", raw, (2,))
    sample = await watched.read()

    assert sample.clock_state is ClockState.LOCKED
    assert [alarm.id for alarm in sample.alarms or ()] == [12]
    assert sample.unknown[:2] == ("alarms.id=undecodable(b'twelve')", "alarms.id=missing (open)")


@pytest.mark.parametrize("raw", [b"locked", "1.3.6.1", b"", 2**63])
async def test_a_state_of_the_wrong_type_is_unknown(
    grandmaster: RecordedGrandmaster, watched: Watched, raw: bytes | str | int
) -> None:
    """It is neither good nor a lost grandmaster: what else the grandmaster reports stays."""
    grandmaster.serve(SERVO, raw, (2, 1))
    sample = await watched.read()

    assert (sample.clock_state, sample.firmware) == (ClockState.UNKNOWN, "1.2")
    assert sample.unknown[0].startswith("clock_state=undecodable(")


async def test_a_state_that_is_mostly_of_wrong_types_is_the_poll_s_error(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """Then the agent breaks the protocol, and nothing of its answer is kept."""
    grandmaster.serve(SERVO, b"locked", (2, 1))
    for scalar in (ALARM_COUNT, UPTIME, BOOTS):
        grandmaster.serve(scalar, b"locked")

    with pytest.raises(Malformed, match="gm:161: .*b'locked' instead of a 64-bit integer"):
        await watched.read()


async def test_a_grandmaster_that_falls_silent_among_its_tables_is_not_asked_on(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """One time-out is enough; what was not asked yet is due at the next poll."""
    grandmaster.fail(f"{ALARMS}.3", Unreachable("gm:161: no SNMP response"))
    first = await watched.read()
    grandmaster.asked.clear()
    second = await watched.read(after_s=1)

    assert first.clock_state is second.clock_state is ClockState.LOCKED
    assert (grandmaster.was_asked(f"{ALARMS}.3"), grandmaster.was_asked(FIRMWARE)) == (False, True)


async def test_a_table_without_a_timely_answer_has_a_note(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """The poll ends in time with what is there; the next one goes on with the tables that were not asked yet."""
    grandmaster.hanging.add(parse_oid(f"{ALARMS}.3"))
    first = await watched.read(within_s=0.1)
    second = await watched.read(after_s=1)

    assert first.clock_state is second.clock_state is ClockState.LOCKED
    assert first.unknown == ("alarms=not read: no answer within the time of a poll",)
    assert (first.firmware, second.firmware) == (None, "1.2")


async def test_a_poll_without_time_for_more_reads_the_state(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """What there was no time for is no failure: it is still due."""
    first = await watched.read(within_s=0)
    second = await watched.read(after_s=1)

    assert (first.clock_state, first.firmware, first.unknown) == (ClockState.LOCKED, None, ())
    assert second.firmware == "1.2"


async def test_a_table_without_end_is_cut_off_with_a_note(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """More rows than a sane grandmaster has are not kept."""
    for row in range(ROW_CAP + 5):
        grandmaster.serve(IF_STATE, 1, (row,))
    sample = await watched.read()

    assert (len(sample.interfaces or ()), sample.unknown) == (
        ROW_CAP,
        (f"interfaces.state=cut off after {ROW_CAP} rows",),
    )


@pytest.mark.parametrize(
    ("oid", "raw", "is_restart"), [(BOOTS, 5, True), (UPTIME, 100, True), (UPTIME, 8_641_000, False)]
)
async def test_a_restarted_grandmaster_is_read_again(
    grandmaster: RecordedGrandmaster, watched: Watched, oid: str, raw: int, is_restart: bool
) -> None:
    """More boots or less uptime: profiles are probed again, and nothing of before counts."""
    grandmaster.serve(IF_STATE, 1, (1,))
    await watched.read()
    grandmaster.serve(oid, raw)
    grandmaster.drop(IF_STATE)
    grandmaster.serve(f"{PTPBASE}.3.1.9", 6, (24, 1, 0))
    sample = await watched.read(after_s=1)

    assert (sample.interfaces is None, sample.clock_class) == ((True, 6) if is_restart else (False, None))


async def test_new_firmware_is_read_again(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """A firmware that changed may serve other tables: the poll after that probes again."""
    await watched.read()
    grandmaster.serve(FIRMWARE, b"1.3", (1,))
    grandmaster.serve(f"{PTPBASE}.3.1.9", 6, (24, 1, 0))
    samples = [await watched.read(after_s=3600), await watched.read(after_s=10)]

    assert [(sample.firmware, sample.clock_class) for sample in samples] == [("1.3", None), ("1.3", 6)]


async def test_an_agent_that_has_just_started_is_probed_at_each_poll(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """It may still gain subtrees."""
    grandmaster.serve(UPTIME, 100)
    await watched.read()
    grandmaster.serve(UPTIME, 1100)
    grandmaster.serve(f"{PTPBASE}.3.1.9", 6, (24, 1, 0))
    sample = await watched.read(after_s=10)

    assert (sample.profiles, sample.clock_class) == (("tp5000e", "ptpbase", "system"), 6)


async def test_a_profile_that_is_served_no_more_leaves_nothing(
    grandmaster: RecordedGrandmaster, watched: Watched
) -> None:
    """What could not be read of it is reported no longer."""
    grandmaster.serve(UPTIME, 100)
    grandmaster.fail(f"{ALARMS}.3", Refused("gm:161: genErr"))
    before = await watched.read()
    grandmaster.serve(UPTIME, 1100)
    grandmaster.drop(SERVO)
    grandmaster.drop(ALARM_COUNT)
    after = await watched.read(after_s=10)

    assert (before.unknown, after.unknown) == (("alarms=not read: gm:161: genErr",), ())
    assert (after.profiles, after.clock_state) == (("system",), None)


async def test_what_serves_no_profile_is_refused(grandmaster: RecordedGrandmaster, watched: Watched) -> None:
    """Another kind of device answers; its session is closed."""
    grandmaster.served.clear()
    with pytest.raises(Refused, match="gm:161: the agent serves none of the profiles s650, tp5000e, "):
        await watched.read()

    assert grandmaster.opened == 0


async def test_a_closed_reader_raises(grandmaster: RecordedGrandmaster) -> None:
    """It does not open itself."""
    with pytest.raises(Unreachable, match="gm:161: the session is not open"):
        await Watched().reader.read(0, 0.0)
