"""
Floods of each entry point of a real daemon that need no credential: its memory stays bounded, and an honest client is served.

Each lasts TIMESYNCD_FLOOD_S seconds (3; `make floods`: 60). What is bounded is bytes, not time.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

import pytest
from authority import Authority
from floods import is_served, judge, until

from timesyncd.bound import ClockStatus
from timesyncd.ipc.job_datagram import _MARK as MARK
from timesyncd.ipc.job_datagram import Header, encode_header
from timesyncd.simulation.bed.broker import free_port
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

pytestmark = pytest.mark.integration

SENDERS = 4


@pytest.fixture
def own(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with HTTP on loopback, and a broker that is away."""
    more = f'\n[mqtt]\nhost = "127.0.0.1"\nport = {free_port()}\n'
    with DaemonProcess("n1", tmp_path / "n1", "", new_marker(), has_store=False, more=more) as daemon:
        yield daemon


@pytest.fixture
def with_tls(tmp_path: Path) -> Iterator[DaemonProcess]:
    identity = Authority(tmp_path).identity("server", "127.0.0.1")
    daemon = DaemonProcess("n1", tmp_path / "n1", "", new_marker(), has_store=False)
    daemon.configure()
    text = daemon.config.read_text()
    keys = f'[web]\ncertificate = "{identity.certificate}"\nkey = "{identity.key}"\n'
    daemon.config.write_text(text.replace("[web]\n", keys))
    daemon.page = daemon.page.replace("http://", "https://")
    daemon.launch()
    try:
        until(lambda: is_served(daemon))
        yield daemon
    finally:
        daemon.stop()


def connections(
    daemon: DaemonProcess, number: int, first: bytes, more: bytes = b"", wrap: ssl.SSLContext | None = None
) -> Callable[[Event], None]:
    """Open so many again and again, send `first`, then `more` for as long as it is taken, and read nothing."""

    def flood(ended: Event) -> None:
        with ExitStack() as stack:
            while not ended.is_set():
                opened = [each for _ in range(number) if (each := connected(stack)) is not None]
                for _ in range(40):
                    if ended.is_set() or not opened:
                        break
                    for each in opened:
                        with suppress(OSError):
                            each.send(more or b"\0")
                    ended.wait(0.05)
                stack.close()

    def connected(stack: ExitStack) -> socket.socket | None:
        each: socket.socket = stack.enter_context(socket.socket())
        each.settimeout(10)
        try:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            each.connect(("127.0.0.1", daemon.port))
            if wrap is not None:
                each = stack.enter_context(wrap.wrap_socket(each))
            each.sendall(first)
            each.setblocking(False)
        except OSError:
            return None
        return each

    return flood


def datagrams(daemon: DaemonProcess, number: int) -> Callable[[Event], None]:
    """As many marks as fit into a datagram, of many jobs, as fast as they are taken."""

    def flood(ended: Event) -> None:
        step = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(daemon.folder / "job.sock"))
            while not ended.is_set():
                header = Header(
                    job=f"flood{number}", attempt=0, rank=step % 2, world_size=2, node="x", boot_id=5, time_namespace=6,
                    real_minus_boot_ns=7, status=ClockStatus.SYNCHRONIZED, gm_bound_ns=8, utc_bound_ns=9, utc_seconds_removed=37,
                    grandmaster_identity="00a069.fffe.0000a1", lost=0, joined_ns=2,
                )  # fmt: skip
                now = time.time_ns()
                marks = b"".join(MARK.pack(step + k, 0, 1, now, now + 1, now + 2, 4) for k in range(512))
                step += 256
                with suppress(OSError, struct.error):
                    sender.send(encode_header(header, 512) + marks)

    return flood


def test_marks_of_every_user(own: DaemonProcess) -> None:
    """Marks wait for a broker that is away, in bounded bytes and for their ten seconds."""
    judge(own, *(datagrams(own, number) for number in range(SENDERS)))


def test_requests_that_never_end(own: DaemonProcess) -> None:
    """Hundreds of request lines and headers grow and are not completed."""
    lines = connections(own, 100, b"GET /?", b"a" * 16_384)
    headers = connections(own, 100, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X-Y: " + b"b" * 4_000 + b"\r\n")
    judge(own, lines, headers)


def test_compressed_bodies(own: DaemonProcess) -> None:
    """31 kB that hold 31 MiB: no request needs a compressed body, so none is unpacked."""
    bomb = gzip.compress(bytes(31 * 1_048_576))
    head = (
        f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb) + 1}\r\n\r\n"
    )
    judge(own, *(connections(own, 100, head.encode() + bomb) for _ in range(2)))


def test_viewers_and_clients_that_read_nothing(own: DaemonProcess) -> None:
    """Their answers wait in bounded bytes."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
    clients = connections(own, 100, asked, asked)
    viewers = connections(own, 50, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    judge(own, clients, viewers)


def test_tls_handshakes_that_never_end(with_tls: DaemonProcess) -> None:
    """Hundreds of connections that send nothing, and hundreds that begin a handshake."""
    hello = client_hello()
    idle = connections(with_tls, 200, b"")
    begun = connections(with_tls, 100, hello)
    judge(with_tls, idle, begun)


def test_tls_connections_without_a_request(with_tls: DaemonProcess) -> None:
    """Whoever completes the handshake without credentials takes a bounded share too."""
    context = ssl._create_unverified_context()
    judge(with_tls, *(connections(with_tls, 60, b"GET /", b"a" * 1_024, context) for _ in range(2)))


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl._create_unverified_context().wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
