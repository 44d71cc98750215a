"""What of a grandmaster is read when, and how long it counts."""

from __future__ import annotations

from collections import Counter

import pytest

from timesyncd.drivers.timeprovider._evidence import ReadBatch, ReadCache, batches, is_due, phase_ns
from timesyncd.drivers.timeprovider._profiles import DEFAULT, Group, load, load_all

pytestmark = pytest.mark.disable_socket

S = 1_000_000_000
INTERVALS: dict[Group, int] = {"state": 10 * S, "table": 60 * S, "inventory": 3600 * S}
COLUMN = (1, 3, 6, 1, 2)


def batch(group: Group = "table", number: int = 1) -> ReadBatch:
    return ReadBatch(group, (1, 3, 6, number), ("satellites",), (), (COLUMN,))


def memory() -> ReadCache:
    return ReadCache("gm-a", INTERVALS)


def test_the_state_is_one_batch_and_each_table_another() -> None:
    """The state is read in one go; elsewhere a table that fails costs no other table."""
    made = batches([load("symm-common")])
    state = [batch for batch in made if batch.group == "state"]

    assert [len(batch.columns) for batch in state] == [2]
    assert all(len({column[:-1] for column in batch.columns}) <= 1 for batch in made if batch.group != "state")


def test_every_object_is_read() -> None:
    """Whatever a profile names is in a batch of its group."""
    profiles = load_all(DEFAULT)
    read = {(batch.group, oid) for batch in batches(profiles) for oid in (*batch.scalars, *batch.columns)}

    assert read == {(entry.group, entry.oid) for profile in profiles for entry in profile.object}


def test_a_table_is_due_at_first_and_then_once_an_interval() -> None:
    """Polled every ten seconds for ten minutes, a table is read at once and ten times more."""
    tried_ns: int | None = None
    reads = 0
    for now_ns in range(1000 * S, 1600 * S, 10 * S):
        if is_due(tried_ns, now_ns, 60 * S, 7 * S):
            tried_ns, reads = now_ns, reads + 1

    assert reads == 11


def test_grandmasters_that_start_together_do_not_read_their_tables_together() -> None:
    """Of fifty grandmasters polled in the same second, no more than a third read the same table at the same poll."""
    reading: Counter[int] = Counter()
    for grandmaster in range(50):
        own, table = ReadCache(f"gm-{grandmaster}", INTERVALS), batch()
        own.keep(table, {}, 1000 * S)
        for now_ns in range(1010 * S, 1070 * S, 10 * S):
            if own.due([table], now_ns):
                reading[now_ns] += 1
                own.keep(table, {}, now_ns)

    assert sum(reading.values()) == 50
    assert max(reading.values()) <= 17


def test_a_grandmaster_s_own_tables_are_spread() -> None:
    """Its tables have different moments of the interval, which a restart of the daemon does not change."""
    moments = [phase_ns("gm-a", (1, 3, number), 60 * S) for number in range(10)]

    assert len(set(moments)) == 10
    assert all(0 <= moment < 60 * S for moment in moments)
    assert moments[0] == phase_ns("gm-a", (1, 3, 0), 60 * S)


def test_the_state_is_due_at_each_poll_and_comes_first() -> None:
    """The state never waits for a table."""
    own = memory()
    for group in ("state", "table"):
        own.keep(batch(group), {}, 5 * S)

    assert own.due([batch("table"), batch("state")], 5 * S) == [batch("state")]
    assert own.due([batch("table", 2), batch("state")], 5 * S) == [batch("state"), batch("table", 2)]


@pytest.mark.parametrize(
    ("group", "age_s", "counts"), [("table", 120, True), ("table", 121, False), ("state", 21, False)]
)
def test_what_is_older_than_two_intervals_does_not_count(group: Group, age_s: int, counts: bool) -> None:
    """A stale row is absent, and never shown as if it were fresh."""
    own = memory()
    own.keep(batch(group), {COLUMN: {(1,): 5}}, 1000 * S)

    assert (own.rows((1000 + age_s) * S) == {COLUMN: {(1,): 5}}) is counts


def test_a_failed_table_has_a_note_and_its_rows_stay_valid_for_their_time() -> None:
    """One failure drops no fresh rows; the note stays until the table is read again."""
    own = memory()
    own.keep(batch(), {COLUMN: {(1,): 5}}, 1000 * S)
    own.fail(batch(), "gm:161: genErr", 1060 * S)
    during = (own.rows(1060 * S), own.notes(), own.due([batch()], 1061 * S))
    own.keep(batch(), {COLUMN: {(1,): 6}}, 1120 * S)

    assert during == ({COLUMN: {(1,): 5}}, ["satellites=not read: gm:161: genErr"], [])
    assert (own.rows(1120 * S), own.notes()) == ({COLUMN: {(1,): 6}}, [])


def test_request_poll_reads_all_but_the_inventory() -> None:
    """After a trap whatever may have changed is read at once."""
    own, all_groups = memory(), [batch("state"), batch("table"), batch("inventory")]
    for one in all_groups:
        own.keep(one, {}, 5 * S)
    own.request_poll()

    assert own.due(all_groups, 6 * S) == [batch("state"), batch("table")]


def test_what_is_forgotten_is_due_and_gone() -> None:
    """After a restart nothing of before counts."""
    own = memory()
    own.keep(batch("inventory"), {COLUMN: {(1,): 5}}, 5 * S, ["note"])
    own.clear()

    assert (own.rows(5 * S), own.notes(), own.due([batch("inventory")], 5 * S)) == ({}, [], [batch("inventory")])
