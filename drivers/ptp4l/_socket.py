"""
Client sockets for ptp4l's management socket, a client that sends several queries at once, and a subscription to pushes.

A push (linuxptp 4.0 and later) is a TIME_STATUS_NP at every Sync; it only triggers a reading.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.driver import current_traffic
from timesyncd.drivers.ptp4l._management import (
    Content,
    ManagementId,
    ManagementRequester,
    ManagementResponse,
    TimeStatus,
    parse,
)
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

RESPONSE_TIMEOUT_S = 0.8

#: ptp4l blocks in sendto() while our queue (net.unix.max_dgram_qlen, 10 by default) is full, and does not discipline its clock
#: meanwhile. Each query has one response, so at most this many queries may be pending.
MAX_QUERIES = 8

_LARGEST = 2048

_SO_ATTACH_FILTER = 26
_FILTER_INSTRUCTION_SIZE = 8

#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)

ManagementQuery = tuple[ManagementId, int]


class QueryTimeout(Unreachable):
    """The queries were sent, and not all were answered in time."""


def new_requester(domain: int, transport_specific: int) -> ManagementRequester:
    """A requester with a random identity: process ids repeat among containers, and sockets of one identity share a subscription."""
    return ManagementRequester(domain, transport_specific, secrets.randbits(32) | 1)


class Ptp4lSocket:
    """A datagram socket bound to a file, so that ptp4l can respond from another network namespace too; never connected."""

    def __init__(self, own: Path, server: Path, on_datagram: Callable[[bytes], bool]) -> None:
        """
        `on_datagram` returns whether to read another datagram at once. `sender_pid` is the process that sent the newest one; None: it
        is in a pid namespace that is not visible here. Raises Unreachable if the file cannot be bound.
        """
        self.sender_pid: int | None = None
        self._own = own
        self._server = str(server)
        self._on_datagram = on_datagram
        self._traffic = current_traffic()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self._trusted = {0, server.stat().st_uid}
            self._own.unlink(missing_ok=True)
            self._socket.bind(str(own))
            self._own.chmod(0o666)  # ptp4l may run as another user
            self._file = _file_of(own)
        except OSError as error:
            self._socket.close()
            raise Unreachable(f"{own}: cannot bind the socket: {error.strerror or error}") from error
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    def send(self, datagram: bytes) -> None:
        """Raises Unreachable."""
        try:
            self._socket.sendto(datagram, self._server)
        except BlockingIOError as error:
            raise Unreachable(f"{self._server}: its queue is full: ptp4l does not read its socket") from error
        except OSError as error:
            raise Unreachable(f"{self._server}: {error.strerror or error}") from error
        self._traffic.sent(len(datagram))

    def admit(self, program: bytes) -> None:
        """Attach a classic BPF program: the kernel discards, as if delivered, what it returns 0 for. Raises Unreachable."""
        instructions = ctypes.create_string_buffer(program, len(program))
        count = len(program) // _FILTER_INSTRUCTION_SIZE
        described = struct.pack("@HP", count, ctypes.addressof(instructions))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
        except OSError as error:
            raise Unreachable(f"{self._own}: cannot attach a socket filter: {error.strerror or error}") from error

    def is_in_place(self) -> bool:
        """Whether the path still names our socket."""
        return _file_of(self._own) == self._file

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self.is_in_place():
            self._own.unlink(missing_ok=True)

    def _readable(self) -> None:
        more = True
        while more:
            try:
                datagram, ancillary, _, _ = self._socket.recvmsg(_LARGEST, _CREDENTIALS_SPACE)
            except BlockingIOError:
                return
            sender = sender_of(ancillary)
            if sender is None or sender.uid not in self._trusted:
                return
            self._traffic.received(len(datagram))
            self.sender_pid = sender.pid or None
            more = self._on_datagram(datagram)


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


@dataclass(frozen=True, slots=True)
class Sender:
    pid: int
    uid: int


def sender_of(ancillary: Sequence[tuple[int, int, bytes]]) -> Sender | None:
    """The sender, from the kernel: every user may write to our file, and only datagrams of ptp4l's owner are accepted."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
            return Sender(pid, uid)
    return None


class ManagementClient:
    """Sends several queries at once and collects the responses; it drops late responses and other instances' responses."""

    def __init__(self, own: Path, server: Path, requester: ManagementRequester) -> None:
        """Raises Unreachable."""
        self.clock_identity: bytes | None = None
        self._socket = Ptp4lSocket(own, server, self._receive)
        self._requester = requester
        self._sequence = secrets.randbits(16)
        self._pending: dict[tuple[int, int], int] = {}
        self._responses: list[Content | Refused | None] = []
        self._complete: asyncio.Future[None] | None = None

    @property
    def server_pid(self) -> int | None:
        """The process id of the ptp4l that responded last; None where its pid namespace is not visible here."""
        return self._socket.sender_pid

    async def query(self, queries: Sequence[ManagementQuery]) -> list[Content | Refused]:
        """The responses in the order of the queries. Raises Unreachable and Malformed."""
        assert len(queries) <= MAX_QUERIES
        loop = asyncio.get_running_loop()
        self._pending.clear()
        self._responses = [None] * len(queries)
        self._complete = loop.create_future()
        timeout = QueryTimeout(f"no answer within {RESPONSE_TIMEOUT_S:g} s")
        timer = loop.call_later(RESPONSE_TIMEOUT_S, self._fail, timeout)
        try:
            for index, (management_id, port) in enumerate(queries):
                self._sequence = (self._sequence + 1) & 0xFFFF
                self._pending[self._sequence, management_id] = index
                self._socket.send(self._requester.get(management_id, self._sequence, port))
            await self._complete
        finally:
            timer.cancel()
            self._complete = None
        return [response for response in self._responses if response is not None]

    def close(self) -> None:
        self._socket.close()

    def _receive(self, datagram: bytes) -> bool:
        if self._complete is None:
            return False
        try:
            self._assign(parse(datagram))
        except Malformed as error:
            self._fail(error)
        return not self._complete.done()

    def _assign(self, response: ManagementResponse) -> None:
        if self.clock_identity not in (None, response.identity):
            return
        index = self._pending.pop((response.sequence, response.management_id), None)
        if index is None:
            return
        try:
            self._responses[index] = response.content()
        except Refused as error:
            self._responses[index] = error
        if not self._pending and self._complete is not None and not self._complete.done():
            self._complete.set_result(None)

    def _fail(self, error: SourceError) -> None:
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(error)


def own_path(runtime_dir: Path, name: str, purpose: str) -> Path:
    return runtime_dir / f"ptp4l.{name}.{os.getpid()}{purpose}.sock"


def remove_stale(runtime_dir: Path, name: str) -> None:
    """Remove the socket files of this source's killed processes. Raises Unreachable if the folder cannot be read."""
    pattern = re.compile(rf"ptp4l\.{re.escape(name)}\.(\d+)(\.push)?\.sock")
    try:
        for path in runtime_dir.iterdir():
            found = pattern.fullmatch(path.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise Unreachable(f"{runtime_dir}: {error.strerror or error}") from error


#: A sender's buffer (net.core.wmem_default) holds 278 small datagrams, to all our sockets together.
_SENDER_QUEUE = 128


def queue_length() -> int:
    """The number of datagrams that ptp4l can send to one of our UNIX sockets before it blocks."""
    try:
        kernel = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    except (OSError, ValueError):
        kernel = 10
    return min(kernel, _SENDER_QUEUE)


_WAIT_S = 0.5
_MAX_DURATION_S = 60
_MIN_DURATION_S = 3
_SYNCS_UNTIL_POLLING = 3


class PushSubscription:
    """
    A subscription with its own socket and identity, because pushes have their own sequence numbers. A granted subscription proves
    nothing (3.1.1 grants it and pushes nothing): `active` is True from the first push until none came for three Sync intervals.
    """

    def __init__(self, own: Path, server: Path, requester: ManagementRequester, clocks: Clocks) -> None:
        """Raises Unreachable."""
        self.active = False
        self._requester = requester
        self._clocks = clocks
        self._socket = Ptp4lSocket(own, server, self._receive)
        self._arrived = asyncio.Event()
        self._latest_ns = 0
        self._renew_at_ns = 0

    async def next(self, sync_interval_ns: int) -> bool:
        """Wait for a push; False if none came within _WAIT_S, which may end `active`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await self._arrived.wait()
        # A process that was held up finds the push and the timeout at once.
        if self._arrived.is_set():
            self._arrived.clear()
            return True
        self.active = self._clocks.boottime_ns() - self._latest_ns <= _SYNCS_UNTIL_POLLING * sync_interval_ns
        return False

    def renew(self, sync_interval_ns: int) -> None:
        """Subscribe, or renew the subscription after a third of its duration. Raises Unreachable."""
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._renew_at_ns:
            return
        duration_s = subscription_s(queue_length(), sync_interval_ns)
        if duration_s:
            self._socket.send(self._requester.subscribe(duration_s, 0))
        self._renew_at_ns = now_ns + (duration_s or _MAX_DURATION_S) * NS_PER_S // 3

    def close(self) -> None:
        try:
            self._socket.send(self._requester.subscribe(0, 0))
        except Unreachable:
            pass  # then no ptp4l is left that could push
        self._socket.close()

    def _receive(self, datagram: bytes) -> bool:
        try:
            content = parse(datagram).content()
        except (Malformed, Refused):
            return False
        if isinstance(content, TimeStatus):
            self.active = True
            self._latest_ns = self._clocks.boottime_ns()
            self._arrived.set()
        return False


def subscription_s(queue: int, sync_interval_ns: int) -> int:
    """
    The longest subscription, in seconds, whose pushes all fit into our queue even if this process is stopped: ptp4l blocks, and
    does not discipline its clock, while a subscriber's queue is full. 0: too short to be useful.
    """
    longest_s = min(_MAX_DURATION_S, (queue - 2) * sync_interval_ns // NS_PER_S)
    return longest_s if longest_s >= _MIN_DURATION_S else 0
