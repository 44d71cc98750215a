"""Rows of history, batches of them, and stores that take them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgresql import ready, shared_server
from sqlalchemy import Connection, Engine, StaticPool, create_engine

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow, Rollup, Summary
from timesyncd.store import tables
from timesyncd.store.engine import StoreLocation

MINUTE_NS = 60 * NS_PER_S
STREAM = 1_700_000_000
START_NS = 28_333_334 * MINUTE_NS
SUMMARY = Summary(count=60, minimum=-100, maximum=120, mean=3, p50=2, p99=110)
TABLES = [tables.outbox, tables.outbox_counter, tables.received, tables.rollup, tables.event, tables.incarnation]


def new_engine(url: str = "sqlite://") -> Engine:
    engine = create_engine(url, poolclass=StaticPool) if url == "sqlite://" else create_engine(url)
    tables.metadata.create_all(engine, tables=TABLES)
    return engine


@pytest.fixture(scope="module")
def engine(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Of the kind that `--database` names, as the store opens it."""
    is_file = database == "sqlite"
    location = (
        StoreLocation(path=tmp_path_factory.mktemp("store") / "h.sqlite") if is_file else shared_server().database()
    )
    with ready(location) as engine:
        yield engine


@pytest.fixture
def empty_store(engine: Engine) -> Iterator[Connection]:
    """A transaction, of which nothing stays."""
    with engine.connect() as connection, connection.begin() as transaction:
        yield connection
        transaction.rollback()


def rollup(minute: int = 0, source: str = "ptp", summary: Summary = SUMMARY, offset_ns: int = 0) -> Rollup:
    quantities = {"offset_ns": summary, "path_delay_ns": summary}
    begins_ns = START_NS + minute * MINUTE_NS + offset_ns
    return Rollup(source=source, span_s=60, begins_realtime_ns=begins_ns, quantities=quantities)


def event(number: int = 0, node: str = "n1", **changes: object) -> CloudEvent:
    values = {"id": f"1-{number}", "source": f"/node/{node}", "type": "timesyncd.finding", "data": {"number": number}}
    return CloudEvent.model_validate(values | {"subject": "s", "time": "2026-03-01T12:00:00Z"} | changes)


def row(sequence: int, what: Rollup | CloudEvent | None = None) -> HistoryRow:
    """Every third is an event unless another content is given."""
    realtime_ns = START_NS + sequence * MINUTE_NS
    what = what or (event(sequence) if sequence % 3 == 0 else rollup(sequence))
    if isinstance(what, Rollup):
        return HistoryRow(sequence=sequence, realtime_ns=realtime_ns, rollup=what)
    return HistoryRow(sequence=sequence, realtime_ns=realtime_ns, event=what)


def batch(
    *rows: HistoryRow, floor: int = 1, stream: int = STREAM, node: str = "n1", incarnation: int = STREAM
) -> HistoryBatch:
    return HistoryBatch(node=node, incarnation=incarnation, sequence=1, stream=stream, floor=floor, rows=list(rows))


def rows_of(first: int, last: int) -> list[HistoryRow]:
    return [row(sequence) for sequence in range(first, last + 1)]
