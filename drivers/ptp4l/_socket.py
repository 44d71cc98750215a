"""Our end of ptp4l's management socket: questions with their answers, and pushes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from timesyncd.drivers.ptp4l._management import Content, ManagementId, ManagementRequester, ManagementResponse, parse
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

RESPONSE_TIMEOUT_S = 0.8

#: ptp4l waits for ever in sendto() while our queue (net.unix.max_dgram_qlen, 10 by default) is full, and keeps no time
#: meanwhile. One question has one answer, so never more of them may be under way.
MAX_QUERIES = 8

_LARGEST = 2048

_SO_ATTACH_FILTER = 26
_FILTER_INSTRUCTION_SIZE = 8

#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)

ManagementQuery = tuple[ManagementId, int]


class NoResponse(Unreachable):
    """The questions went out, and nothing came back."""


def new_requester(domain: int, transport_specific: int) -> ManagementRequester:
    """With a random identity: process ids repeat among containers, and two sockets of one identity share a subscription."""
    return ManagementRequester(domain, transport_specific, secrets.randbits(32) | 1)


class Ptp4lSocket:
    """A datagram socket bound to a file, so that ptp4l can answer from another network namespace too; never connected."""

    def __init__(self, own: Path, server: Path, take: Callable[[bytes], bool]) -> None:
        """`take` says whether more is expected at once. Raises Unreachable when the file cannot be made."""
        self._own = own
        self._server = str(server)
        self._take = take
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
            raise Unreachable(f"{own}: cannot be bound: {error.strerror or error}") from error
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    def send(self, datagram: bytes) -> None:
        """Raises Unreachable."""
        try:
            self._socket.sendto(datagram, self._server)
        except BlockingIOError as error:
            raise Unreachable(f"{self._server}: ptp4l does not read its socket") from error
        except OSError as error:
            raise Unreachable(f"{self._server}: {error.strerror or error}") from error

    def admit(self, program: bytes) -> None:
        """The kernel tosses what this classic BPF program returns 0 for, as if delivered. Raises Unreachable."""
        instructions = ctypes.create_string_buffer(program, len(program))
        count = len(program) // _FILTER_INSTRUCTION_SIZE
        described = struct.pack("@HP", count, ctypes.addressof(instructions))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
        except OSError as error:
            raise Unreachable(f"{self._own}: no filter can be attached: {error.strerror or error}") from error

    def is_in_place(self) -> bool:
        """Whether our file is still the one that ptp4l finds."""
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
            more = sender_uid(ancillary) in self._trusted and self._take(datagram)


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def sender_uid(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """Who sent a datagram, as the kernel says: anybody may write to our file, and only ptp4l's owner is believed."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack(data)[1])
    return None


class ManagementClient:
    """Asks several things at once and gathers the answers; strangers' and late answers are dropped."""

    def __init__(self, own: Path, server: Path, asker: ManagementRequester) -> None:
        """Raises Unreachable."""
        self.clock_identity: bytes | None = None
        self._channel = Ptp4lSocket(own, server, self._take)
        self._asker = asker
        self._sequence = secrets.randbits(16)
        self._awaited: dict[tuple[int, int], int] = {}
        self._answers: list[Content | Refused | None] = []
        self._complete: asyncio.Future[None] | None = None

    async def ask(self, questions: Sequence[ManagementQuery]) -> list[Content | Refused]:
        """The answers in the order of the questions. Raises Unreachable and Malformed."""
        assert len(questions) <= MAX_QUERIES
        loop = asyncio.get_running_loop()
        self._awaited.clear()
        self._answers = [None] * len(questions)
        self._complete = loop.create_future()
        alarm = loop.call_later(
            RESPONSE_TIMEOUT_S, self._fail, NoResponse(f"no answer within {RESPONSE_TIMEOUT_S:g} s")
        )
        try:
            for index, (management_id, port) in enumerate(questions):
                self._sequence = (self._sequence + 1) & 0xFFFF
                self._awaited[self._sequence, management_id] = index
                self._channel.send(self._asker.get(management_id, self._sequence, port))
            await self._complete
        finally:
            alarm.cancel()
            self._complete = None
        return [answer for answer in self._answers if answer is not None]

    def close(self) -> None:
        self._channel.close()

    def _take(self, datagram: bytes) -> bool:
        if self._complete is None:
            return False
        try:
            self._sort(parse(datagram))
        except Malformed as error:
            self._fail(error)
        return not self._complete.done()

    def _sort(self, answer: ManagementResponse) -> None:
        if self.clock_identity not in (None, answer.identity):
            return
        index = self._awaited.pop((answer.sequence, answer.management_id), None)
        if index is None:
            return
        try:
            self._answers[index] = answer.content()
        except Refused as refusal:
            self._answers[index] = refusal
        if not self._awaited and self._complete is not None and not self._complete.done():
            self._complete.set_result(None)

    def _fail(self, error: SourceError) -> None:
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(error)


def own_path(runtime_dir: Path, name: str, purpose: str) -> Path:
    return runtime_dir / f"ptp4l.{name}.{os.getpid()}{purpose}.sock"


def remove_stale(runtime_dir: Path, name: str) -> None:
    """The files of this source's former processes, which were killed. Raises Unreachable when the folder cannot be read."""
    pattern = re.compile(rf"ptp4l\.{re.escape(name)}\.(\d+)(\.push)?\.sock")
    try:
        for path in runtime_dir.iterdir():
            found = pattern.fullmatch(path.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise Unreachable(f"{runtime_dir}: {error.strerror or error}") from error
