"""Values that SQLite accepts and no writer stored: one flipped bit makes a text of a number, and integrity_check says ok."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
from fake_clocks import FakeClocks
from samples import HEALTHY, nth

from timesyncd.clocks import NS_PER_S
from timesyncd.config import StoreSettings
from timesyncd.messages.fleet import CloudEvent, HistoryBatch
from timesyncd.model.observation import Observation
from timesyncd.store import export, history, outbox, series
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.intact import decoded
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

FOR_EVER_NS = 2**62
SAMPLES = 200


class Damaged:
    """A store with three minutes of samples that are not rolled up yet; `start` runs its daemon's store again, later."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, StoreLocation(path=path)
        self.clocks, self.problems = FakeClocks(), Queue[str | None]()
        with self.running() as store:
            store.next_incarnation("n1")
            for index in range(SAMPLES):
                store.put(Observation(nth(index, offset_ns=70_000 + index), None))
            store.put_event(CloudEvent(id="e1", source="/n1", type="t", time="2026-01-01T00:00:00Z", data={}), 1)
        self.clocks.advance(3_600 * NS_PER_S)

    @contextmanager
    def running(self) -> Iterator[Store]:
        limits = OutboxLimits(1_000, FOR_EVER_NS)
        store = Store(StoreSettings(path=self.path), self.clocks, self.problems.put, node="n1", outbox=limits)
        store.start()
        try:
            yield store
        finally:
            store.stop()

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()

    def flip_a_bit(self, in_table: str) -> None:
        """Flip the first bit that changes a value's type in this table and that integrity_check does not see."""
        octets = bytearray(self.path.read_bytes())
        for at in range(4_096, len(octets)):
            if octets[at] in (3, 4):
                octets[at] ^= 0x10
                self.path.write_bytes(octets)
                if self._is_hidden_damage(in_table):
                    return
                octets[at] ^= 0x10
        raise AssertionError("no bit of the file makes a text of an offset")

    def _is_hidden_damage(self, table: str) -> bool:
        try:
            [[damaged]] = self.execute(
                f"SELECT count(*) FROM {table} WHERE typeof(offset_ns) NOT IN ('integer', 'null')"
            )
            return bool(damaged) and self.execute("PRAGMA integrity_check") == [("ok",)]
        except sqlite3.Error:
            return False


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path / "history.sqlite")


def test_a_flipped_bit_is_left_out_and_counted(damaged: Damaged) -> None:
    """The store goes on: later rows are stored, the roll-up is of the other values, and the damaged row is left out and counted."""
    damaged.flip_a_bit("clock_sample")
    with damaged.running() as store:
        store.put(Observation(replace(HEALTHY, as_of_ns=damaged.clocks.boot_ns), None))

    rolled_up = damaged.execute("SELECT span_s, count FROM rollup WHERE quantity = 'offset_ns' ORDER BY span_s")
    assert damaged.problems.empty()
    assert store.counts.damaged_values > 0
    assert rolled_up == [(60, SAMPLES - 1), (3_600, SAMPLES - 1)]
    assert len(list(history.samples(damaged.location, "ptp", 0, FOR_EVER_NS))) == SAMPLES
    assert history.damaged_rows(damaged.location, "ptp", 0, FOR_EVER_NS) == 1


#: Each group is one file's damage. What they damage is told apart where one would hide another.
DAMAGES = {
    "samples": (
        "UPDATE clock_sample SET offset_ns = CAST('abc' AS BLOB) WHERE id = 1",
        "UPDATE clock_sample SET offset_ns = 'abc' WHERE id = 2",
        "UPDATE clock_sample SET offset_ns = 0.5 WHERE id = 3",
        "UPDATE clock_sample SET source = CAST(x'ff' AS TEXT) WHERE id = 4",
        "UPDATE clock_sample SET source = CAST(x'70f470' AS TEXT) WHERE id = 5",
        "UPDATE clock_sample SET terms = '{', gm_bound_ns = x'00' WHERE id = 6",
        "UPDATE clock_sample SET source = x'00' WHERE id = 7",
        "UPDATE clock_sample SET source = 7, realtime_ns = 'abc' WHERE id = 8",
        "UPDATE clock_sample SET realtime_ns = 'abc', phc = '[]' WHERE id = 9",
        "UPDATE source_event SET realtime_ns = 'abc', reason = CAST(x'ff' AS TEXT)",
        "INSERT INTO rollup VALUES (CAST('n1' AS TEXT), 'ptp', CAST(x'ff' AS TEXT), 60, 'abc', 1, 2, 3, 4, 5, 6)",
        "INSERT INTO finding VALUES ('id', x'00', 'abc', NULL, 1, 2, 3, 4, 5)",
    ),
    "counters": (
        "UPDATE incarnation SET incarnation = 'abc', started_realtime_ns = x'00'",
        "UPDATE outbox_counter SET next_sequence = 'abc'",
        "UPDATE event SET data = '[]'",
    ),
    "rows for hubs": (
        "UPDATE outbox SET sequence = 'abc'",
        "UPDATE event SET sequence = 'abc', event_id = CAST(x'ff' AS TEXT)",
    ),
}


@pytest.mark.parametrize("damages", DAMAGES.values(), ids=list(DAMAGES))
def test_no_value_ends_the_store_or_a_query(damaged: Damaged, damages: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever type a value has, the store starts, stores, rolls up and numbers on, and each query answers."""
    for damage in damages:
        damaged.execute(damage)
    with damaged.running() as store:
        numbered = store.next_incarnation("n1")
        store.put(Observation(replace(HEALTHY, as_of_ns=damaged.clocks.boot_ns), None))
        store.put_event(CloudEvent(id="e2", source="/n1", type="t", time="2026-01-01T00:00:00Z", data={}), 2)
    place, span = damaged.location, (0, FOR_EVER_NS)
    page = store.outbox_page(0, 1_000)

    assert damaged.problems.empty()
    assert numbered >= 1_700_000_000
    assert len(list(history.samples(place, "ptp", *span))) > SAMPLES - 10
    assert {row.rollup.span_s for row in page.rows if row.rollup} == {60, 3_600}
    assert "e2" in {row["event_id"] for row in history.cloud_events(place, None, *span)}
    assert history.sources(place)["ptp"] == "clock"
    assert list(history.events(place, "ptp", *span)) is not None
    assert len(series.series(place, "n1", "ptp", "offset_ns", 0, damaged.clocks.real_ns)) > 0
    assert "ptp" in series.rollup_sources(place, "n1")
    rows = export.export(place, "ptp", "raw", *span, tmp_path / "ptp.csv", "csv", lambda done, total: None)
    assert rows > SAMPLES - 10


def test_rows_that_wait_for_hubs_survive_their_counter(damaged: Damaged) -> None:
    """Where the counter is damaged, the waiting rows go on in a new stream, numbered from 1."""
    with reading(damaged.location) as connection:
        before = outbox.page(connection, 0, 1_000)
    damaged.execute("UPDATE outbox_counter SET next_sequence = 'abc'")
    with damaged.running() as store:
        store.next_incarnation("n1")
        after = store.outbox_page(0, 1_000)

    assert after.stream > before.stream
    assert [row.event for row in after.rows[: len(before.rows)]] == [row.event for row in before.rows]
    assert [row.sequence for row in after.rows] == list(range(1, after.next_sequence))


def test_a_hub_goes_on_with_a_node_whose_progress_is_damaged(damaged: Damaged) -> None:
    """The node's next batch makes the progress again."""
    batch = HistoryBatch.model_validate(
        {"node": "n2", "incarnation": 1, "sequence": 1, "stream": 1_700_000_000, "floor": 3, "rows": [
            {"sequence": 3, "realtime_ns": 1, "event": {"id": "e", "source": "/n2", "type": "t", "time": "t", "data": {}}}]}
    )  # fmt: skip
    damaged.execute("INSERT INTO received VALUES ('n2', 1700000000, 'abc', 0)")
    with damaged.running() as store:
        store.put_history(batch, 100)

    assert damaged.problems.empty()
    assert damaged.execute("SELECT stream, stored_up_to FROM received") == [(1_700_000_000, 3)]


@pytest.mark.parametrize("value", ["[]", "false", '""', "5"])
def test_a_json_value_of_another_shape_is_damaged(damaged: Damaged, value: str) -> None:
    """It is left out and counted, as a value of another type is."""
    damaged.execute(f"UPDATE clock_sample SET phc = '{value}' WHERE id = 9")

    assert history.damaged_rows(damaged.location, "ptp", 0, FOR_EVER_NS) == 1
    assert len(list(history.samples(damaged.location, "ptp", 0, FOR_EVER_NS))) == SAMPLES - 1


@pytest.mark.parametrize("text", ["9" * 5_000, "1e400", "[" * 100_000, b"\xff", "{"])
def test_what_python_does_not_hold_is_absent(text: str | bytes) -> None:
    """SQLite calls some of it valid."""
    assert decoded(text) is None
