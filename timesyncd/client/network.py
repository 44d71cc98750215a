"""
Reads what this process and its host know of the network, and writes it beside the marks: the process's own TCP
connections (TCP_INFO), the counters of the host's interfaces, and what packing cost.

It needs no privilege, and changes nothing: a socket is read through a duplicate of its descriptor, by getsockopt and
getpeername alone. A `socket.socket` would make the job's socket non-blocking where the script has a default timeout.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any

from timesyncd.client.packing import packing_times
from timesyncd.errors import Malformed
from timesyncd.ipc.network_record import (
    COUNTERS,
    MAX_CONNECTIONS,
    MAX_INTERFACES,
    Connection,
    Endpoint,
    NetworkRecord,
    encode_network,
)
from timesyncd.ipc.tcp_info import ESTABLISHED, MAX_BYTES, parse_tcp_info

#: The first interval between two readings; each is twice as long, up to the longest. One takes about a millisecond.
FIRST_INTERVAL_NS, MAX_INTERVAL_NS = 1_000_000_000, 60_000_000_000

#: So many connections are written, those that carried most: gloo connects all ranks of a group, and uses a few pairs.
MAX_WRITTEN = 64

#: A process with more descriptors is not searched.
_MAX_DESCRIPTORS = 65_536

_ADDRESS_BYTES = 128
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40 if ctypes.sizeof(ctypes.c_void_p) == 8 else 32

_DESCRIPTORS = Path("/proc/self/fd")
_INTERFACES = Path("/sys/class/net")
_IF_INET6 = Path("/proc/net/if_inet6")

_libc = ctypes.CDLL(None, use_errno=True)


def connections() -> list[Connection]:
    """The established TCP connections of this process; one that closes meanwhile is left out."""
    found = []
    for descriptor in _sockets():
        with suppress(OSError, Malformed, ValueError):
            connection = _connection(descriptor)
            if connection is not None:
                found.append(connection)
        if len(found) >= MAX_CONNECTIONS:
            break
    return found


def _sockets() -> Iterator[int]:
    """The descriptors of this process that are sockets."""
    with suppress(OSError):
        names = os.listdir(_DESCRIPTORS)
        for name in names[:_MAX_DESCRIPTORS]:
            with suppress(OSError):
                if os.readlink(_DESCRIPTORS / name).startswith("socket:"):
                    yield int(name)


def _connection(descriptor: int) -> Connection | None:
    """None: it is no established TCP connection. Raises OSError where it is closed meanwhile."""
    own = os.dup(descriptor)
    try:
        if _option(own, socket.SO_PROTOCOL) != socket.IPPROTO_TCP or _option(own, socket.SO_TYPE) != socket.SOCK_STREAM:
            return None
        info = parse_tcp_info(_raw_option(own, socket.IPPROTO_TCP, socket.TCP_INFO, MAX_BYTES))
        if info.state != ESTABLISHED:
            return None
        return Connection(_name_of(own, _libc.getsockname), _name_of(own, _libc.getpeername), info)
    finally:
        os.close(own)


def _option(descriptor: int, option: int) -> int:
    return int.from_bytes(_raw_option(descriptor, socket.SOL_SOCKET, option, 4), sys.byteorder)


def _raw_option(descriptor: int, level: int, option: int, size: int) -> bytes:
    """As long as the kernel makes it."""
    buffer, length = ctypes.create_string_buffer(size), ctypes.c_uint32(size)
    if _libc.getsockopt(descriptor, level, option, buffer, ctypes.byref(length)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    return buffer.raw[: length.value]


def _name_of(descriptor: int, call: Any) -> Endpoint:
    """`call`: getsockname or getpeername. Raises OSError, ValueError for another family than IP."""
    buffer, length = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint32(_ADDRESS_BYTES)
    if call(descriptor, buffer, ctypes.byref(length)):
        raise OSError(ctypes.get_errno(), "no name")
    return endpoint_of(buffer.raw[: length.value])


def endpoint_of(data: bytes) -> Endpoint:
    """A `struct sockaddr_in` or `sockaddr_in6`. Raises ValueError for another family, or too few octets."""
    family = int.from_bytes(data[:2], sys.byteorder)
    port = int.from_bytes(data[2:4], "big")
    if family == socket.AF_INET and len(data) >= 8:
        return Endpoint(str(ipaddress.IPv4Address(data[4:8])), port)
    if family == socket.AF_INET6 and len(data) >= 24:
        return Endpoint(_text_of(ipaddress.IPv6Address(data[8:24])), port)
    raise ValueError(f"family {family} with {len(data)} octets is no IP address")


def _text_of(address: ipaddress.IPv6Address) -> str:
    """An IPv4 address, where the socket maps one."""
    return str(address.ipv4_mapped or address)


def addresses() -> dict[str, str]:
    """This host's IP addresses, in this process's network namespace, each with its interface."""
    found: dict[str, str] = {}
    with suppress(OSError):
        found |= _ipv4_addresses()
    with suppress(OSError, ValueError):
        for line in _IF_INET6.read_text().splitlines():
            number, *_, name = line.split()
            found[str(ipaddress.IPv6Address(bytes.fromhex(number)))] = name
    return found


def _ipv4_addresses() -> dict[str, str]:
    """netdevice(7): an array of `struct ifreq`. Raises OSError."""
    size = _IFREQ_BYTES * 4 * MAX_INTERFACES
    buffer = ctypes.create_string_buffer(size)
    asked = struct.pack("iP", size, ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        used, _ = struct.unpack("iP", fcntl.ioctl(asking.fileno(), _SIOCGIFCONF, asked))
    found = {}
    for at in range(0, used, _IFREQ_BYTES):
        name = buffer.raw[at : at + 16].partition(b"\0")[0].decode(errors="replace")
        found[str(ipaddress.IPv4Address(buffer.raw[at + 20 : at + 24]))] = name.partition(":")[0]
    return found


def interface_counters(names: Iterable[str]) -> dict[str, dict[str, int]]:
    """By interface; one that is gone, or that gives no counters, is left out."""
    found: dict[str, dict[str, int]] = {}
    for name in sorted(set(names))[:MAX_INTERFACES]:
        with suppress(OSError, ValueError):
            folder = _INTERFACES / name / "statistics"
            found[name] = {counter: int((folder / counter).read_text()) for counter in COUNTERS}
    return found


def _carried(connection: Connection) -> int:
    """The octets in both directions, as far as the kernel counts them."""
    return (connection.info.bytes_acked or 0) + (connection.info.bytes_received or 0)


class NetworkRecorder:
    """
    Writes the network of this process to `path`, as a whole each time: some seconds after the start, then ever more
    rarely, and at the end. It never raises. After a fork it does nothing in the child.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._began_ns = time.monotonic_ns()
        self._interval_ns = FIRST_INTERVAL_NS
        self._due_ns = self._began_ns + FIRST_INTERVAL_NS
        self._before = interface_counters(set(addresses().values()) - {"lo"})
        self._known: dict[tuple[Endpoint, Endpoint], Connection] = {}

    def read_if_due(self) -> None:
        """Called by a thread of its own once a second, so that no step waits for it."""
        if time.monotonic_ns() >= self._due_ns:
            self._interval_ns = min(2 * self._interval_ns, MAX_INTERVAL_NS)
            self._due_ns = time.monotonic_ns() + self._interval_ns
            self.read()

    def read(self) -> None:
        """A connection that is closed meanwhile keeps its last counters."""
        if os.getpid() != self._pid or not self._lock.acquire(blocking=False):
            return
        try:
            for one in connections():
                self._known[one.local, one.peer] = one
            while len(self._known) > MAX_CONNECTIONS:
                del self._known[next(iter(self._known))]
            self._write(encode_network(self._record()))
        finally:
            self._lock.release()

    def _record(self) -> NetworkRecord:
        own = addresses()
        return NetworkRecord(
            began_ns=self._began_ns,
            read_ns=time.monotonic_ns(),
            addresses=own,
            before=self._before,
            after=interface_counters(set(own.values()) - {"lo"}),
            connections=tuple(nlargest(MAX_WRITTEN, self._known.values(), key=_carried)),
            packing=packing_times(),
        )

    def _write(self, content: bytes) -> None:
        part = self._path.with_name(f".{self._path.name}")
        with suppress(OSError):  # a rank without marks has no folder, and the marks are what matters
            part.write_bytes(content)
            part.replace(self._path)
