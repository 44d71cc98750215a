"""The client socket to chronyd, over UDP or its UNIX socket: one request at a time."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from timesyncd.drivers.chrony._protocol import ChronyRequest, Command, Content, parse
from timesyncd.errors import Malformed, SourceError, Unreachable

#: A UNIX socket's path, or host and port.
Address = Path | tuple[str, int]

UNIX_ADDRESS = Path("/run/chrony/chronyd.sock")
UDP_ADDRESS = ("127.0.0.1", 323)

T = TypeVar("T", bound=Content)


class ChronyClient(asyncio.DatagramProtocol):
    """
    A client with one pending request. The socket is connected, so that the kernel drops other senders' datagrams; a late reply is
    recognized by its sequence number. It fails for ever once chronyd has stopped: close it and open it again.
    """

    def __init__(self) -> None:
        self._sequence = 0
        self._reply: asyncio.Future[Content] | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._own: Path | None = None

    async def open(self, address: Address, name: str) -> None:
        """Raises Unreachable."""
        try:
            if isinstance(address, Path):
                await self._open_unix(address, name)
            else:
                await self._connect(socket.AF_UNSPEC, None, address)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded
            self.close()
            raise Unreachable(f"{address_text(address)}: {os_error_text(error)}") from error

    async def request(self, kind: type[T], command: Command, index: int | None = None) -> T:
        """Send a request and wait for its reply, without a timeout. Raises Unreachable, Malformed and Refused."""
        if self._transport is None:
            raise Unreachable("not open")
        self._sequence = secrets.randbits(32)
        self._reply = asyncio.get_running_loop().create_future()
        try:
            self._transport.sendto(ChronyRequest(command, self._sequence, index).to_bytes())
            content = await self._reply
        finally:
            self._reply = None
        if not isinstance(content, kind):
            raise Malformed(f"{type(content).__name__} instead of {kind.__name__}")
        return content

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._own is not None:
            with suppress(OSError):
                self._own.unlink(missing_ok=True)
            self._own = None

    def datagram_received(self, data: bytes, addr: object) -> None:
        try:
            reply = parse(data)
            if self._reply is None or self._reply.done() or reply.sequence != self._sequence:
                return
            self._reply.set_result(reply.content())
        except SourceError as error:
            self._fail(error)

    def error_received(self, exc: Exception) -> None:
        self._fail(Unreachable(os_error_text(exc)))

    async def _open_unix(self, server: Path, name: str) -> None:
        """Bind beside chronyd's own socket, as chronyc does: chronyd may write there even if it is confined."""
        _remove_stale(server.parent, name)
        self._own = server.parent / f"timesyncd.{name}.{os.getpid()}.sock"
        await self._connect(socket.AF_UNIX, str(self._own), str(server))
        self._own.chmod(0o666)  # chronyd runs as another user

    async def _connect(self, family: int, own: str | None, server: str | tuple[str, int]) -> None:
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=own, remote_addr=server, family=family
        )

    def _fail(self, error: SourceError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


def default_address() -> Address:
    """chronyd's UNIX socket if this process may use it (as root or chronyd's own user), else UDP."""
    usable = os.access(UNIX_ADDRESS, os.W_OK) and os.access(UNIX_ADDRESS.parent, os.W_OK)
    return UNIX_ADDRESS if usable else UDP_ADDRESS


def parse_address(text: str) -> Address:
    """A path that begins with /, host:port or [IPv6]:port. Raises ValueError."""
    if "\0" in text:
        raise ValueError("an address cannot contain NUL")
    if text.startswith("/"):
        return Path(text)
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[3]) <= 65535:
        raise ValueError("give the path of a UNIX socket, host:port or [IPv6]:port")
    host = found[1] or found[2]
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host}: not a host name: {error}") from error
    return host, int(found[3])


def address_text(address: Address) -> str:
    """The inverse of `parse_address`."""
    if isinstance(address, Path):
        return str(address)
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def os_error_text(error: Exception) -> str:
    """What the error means for a connection to chronyd, and what to do."""
    match error:
        case ConnectionRefusedError():
            return "connection refused: is chronyd running, and does it listen on this address?"
        case FileNotFoundError():
            return "no such socket: is chronyd running?"
        case PermissionError():
            return "permission denied: only root and chronyd's user may use its UNIX socket; every user may use UDP 127.0.0.1:323"
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _remove_stale(folder: Path, name: str) -> None:
    """Remove the socket files that killed processes of this source left behind."""
    pattern = re.compile(rf"timesyncd\.{re.escape(name)}\.(\d+)\.sock")
    for path in folder.iterdir():
        found = pattern.fullmatch(path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            path.unlink(missing_ok=True)
