"""The store on a server of PostgreSQL that is killed, and that wants a password."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
from postgresql import GUARDED_USER, USER, Server, database_of, own_server, rows_of, settings_of, shared_server
from pydantic import SecretStr
from samples import HEALTHY
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from timesyncd.clocks import NS_PER_S, SystemClocks, real_minus_boot_ns
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import CloudEvent
from timesyncd.model.observation import Observation
from timesyncd.simulation.bed.host import End, Namespace, join
from timesyncd.store import engine as store_engine
from timesyncd.store import history, writer
from timesyncd.store.engine import StoreLocation, migrate, reader_engine, writer_engine
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

pytestmark = pytest.mark.integration

CLOCKS = SystemClocks()


def put(store: Store, number: int) -> None:
    now_ns = CLOCKS.boottime_ns()
    sample = replace(HEALTHY, as_of_ns=now_ns, real_minus_boot_ns=real_minus_boot_ns(CLOCKS), offset_ns=number)
    store.put(Observation(sample, None))
    event = CloudEvent(id=str(number), source="/n1", type="timesyncd.test", time="t", data={})
    store.put_event(event, CLOCKS.realtime_ns())


def test_a_server_that_is_killed_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed amid writing and started again: every sample and event is there once and in order; one problem is reported, and its end."""
    monkeypatch.setattr(writer, "RETRY_S", 0.2)
    monkeypatch.setattr(writer, "BATCH_S", 0.05)
    reported: Queue[str | None] = Queue()
    with own_server() as server:
        location = server.database()
        store = Store(
            settings_of(location), CLOCKS, reported.put, node="n1", outbox=OutboxLimits(10_000, 3_600 * NS_PER_S)
        )
        store.start()
        store.next_incarnation("n1")
        stopping = threading.Event()
        putting = threading.Thread(target=put_until, args=(store, stopping))
        putting.start()
        time.sleep(1)
        server.kill()
        problem = reported.get(timeout=60)
        time.sleep(1)
        server.start()
        over = reported.get(timeout=60)
        stopping.set()
        putting.join()
        store.stop()
        offsets = [row["offset_ns"] for row in history.samples(location, "ptp", 0, 2**62)]
        events = rows_of(location, "SELECT sequence, event_id FROM event ORDER BY sequence")
        waiting = rows_of(location, "SELECT sequence FROM outbox WHERE CAST(\"row\" AS TEXT) LIKE '%event%' ORDER BY 1")

    assert len(offsets) > 100
    assert offsets == list(range(len(offsets)))
    assert [int(number) for _, number in events] == offsets
    assert waiting == [(sequence,) for sequence, _ in events]
    assert (str(problem).startswith(f"{location}: "), over, store.dropped, reported.empty()) == (True, None, 0, True)


def put_until(store: Store, stopping: threading.Event) -> None:
    number = 0
    while not stopping.wait(0.01):
        put(store, number)
        number += 1


#: From TCP within a network of its own to the server's UNIX socket.
FORWARD = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)

async def serve(reader, writer):
    server_reader, server_writer = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pump(reader, server_writer), pump(server_reader, writer))

async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", 5432)
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def far_server(server: Server, name: str) -> Iterator[tuple[StoreLocation, Namespace]]:
    """A database behind a network that can be cut: the interface on its side is `far`."""
    network, near = Namespace(), f"near{os.getpid()}"
    socket = str(server.folder / ".s.PGSQL.5432")
    try:
        join(End(near, "198.18.77.1/30"), End("far", "198.18.77.2/30", network))
        command = network.enter([sys.executable, "-c", FORWARD, socket])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarder:
            try:
                assert forwarder.stdout is not None and forwarder.stdout.readline() == "ready\n"
                yield StoreLocation(url=f"postgresql://{USER}@198.18.77.2/{name}"), network
            finally:
                forwarder.kill()
    finally:
        network.close()


def test_a_server_that_vanishes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is not closed and no response arrives: pending statements fail nevertheless."""
    monkeypatch.setattr(store_engine, "GONE_S", 1.0)
    server = shared_server()
    with far_server(server, database_of(server.database())) as (location, network), ThreadPoolExecutor(1) as pool:
        engine = writer_engine(location)
        with engine.connect() as connection:
            asked = pool.submit(connection.execute, text("SELECT pg_sleep(30)"))
            time.sleep(0.5)
            network.run(["ip", "link", "set", "far", "down"])
            try:
                error = asked.exception(60)
            finally:
                network.run(["ip", "link", "set", "far", "up"])
            connection.invalidate()
        engine.dispose()

    assert isinstance(error, OperationalError)


def test_a_statement_that_never_ends_is_an_error() -> None:
    """For the writer, whose statements are short; migrations and readers have no such limit."""
    location = shared_server().database()
    limits = []
    for engine in (writer_engine(location), reader_engine(location)):
        with engine.connect() as connection:
            limits.append(connection.scalar(text("SHOW statement_timeout")))
        engine.dispose()

    assert limits == ["1min", "0"]


def test_a_password_is_used_and_never_printed() -> None:
    """The right password opens the store; for a wrong or missing one, the error reports it without the password."""
    server = shared_server()
    name = database_of(server.database())
    server.sql(
        f"CREATE ROLE {GUARDED_USER} LOGIN PASSWORD 'right-horse'; ALTER DATABASE {name} OWNER TO {GUARDED_USER}"
    )
    url = server.url(name, GUARDED_USER)
    migrate(StoreLocation(url=url, password=SecretStr("right-horse")))
    messages = []
    for question in (history.sources, migrate):
        with pytest.raises(StoreError) as wrong:
            question(StoreLocation(url=url, password=SecretStr("wrong-horse")))
        messages.append(str(wrong.value))

    assert history.sources(StoreLocation(url=url, password=SecretStr("right-horse"))) == {}
    assert all("password authentication failed" in text and "horse" not in text for text in messages)
    assert "horse" not in repr(StoreLocation(url=url, password=SecretStr("right-horse")))


def test_without_psycopg_the_extra_is_named() -> None:
    """One line that states what to install."""
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from timesyncd.store import history; from timesyncd.store.engine import StoreLocation\n"
        "try: history.sources(StoreLocation(url='postgresql://h/d'))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert (
        printed
        == "StoreError postgresql://h/d: psycopg is not installed: in timesyncd's source folder, pip install '.[postgresql]'\n"
    )


def test_no_server_is_one_line(tmp_path: Path) -> None:
    """Without a server, the error names the location."""
    with pytest.raises(
        StoreError, match=r"^postgresql://localhost/x\?host=.*: connection [^\n]* failed: No such file or directory$"
    ):
        history.sources(StoreLocation(url=f"postgresql://localhost/x?host={tmp_path}"))


def test_a_text_with_nul_is_stored() -> None:
    """No text of PostgreSQL holds one, and what a device states shall not cost the batch."""
    location = shared_server().database()
    store = Store(settings_of(location), CLOCKS, print)
    store.start()
    now = replace(HEALTHY, as_of_ns=CLOCKS.boottime_ns(), real_minus_boot_ns=real_minus_boot_ns(CLOCKS))
    store.put(Observation(replace(now, source="a\0b"), None))
    store.stop()

    assert rows_of(location, "SELECT source FROM clock_sample") == [("a\N{REPLACEMENT CHARACTER}b",)]


def test_removed_tables_are_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database is emptied, the store reports it once and continues, as with a removed file."""
    monkeypatch.setattr(writer, "RETRY_S", 0.2)
    reported: Queue[str | None] = Queue()
    location = shared_server().database()
    store = Store(settings_of(location), CLOCKS, reported.put)
    store.start()
    store.next_incarnation("n1")
    shared_server().sql(
        "SET client_min_messages = error; DROP SCHEMA public CASCADE; CREATE SCHEMA public", database_of(location)
    )
    put(store, 0)
    problem, over = reported.get(timeout=60), reported.get(timeout=60)
    store.stop()

    assert ("does not exist" in str(problem), over) == (True, None)
    assert rows_of(location, "SELECT count(*) FROM clock_sample") == [(1,)]
