"""Hears traps and informs on a UDP port."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Unreachable
from timesyncd.snmp.endpoint import DATAGRAMS_A_TURN, MAX_DATAGRAM
from timesyncd.snmp.listener import Receiver
from timesyncd.snmp.rate_limit import StormLimit
from timesyncd.snmp.values import Community, Trap, User


class Listener:
    """
    Traps of SNMPv1, v2c and v3, and informs, which are answered once `on_trap` has them. Nothing that comes raises, and nothing
    is logged of it: `refused` counts by reason what is no notification for us, `suppressed` by address what was too much.

    `engine_id` (5 to 32 octets) is ours for ever, and `engine_boots` counts our starts: whoever sends v3 informs remembers our
    clock, and takes one that went back for a forgery.
    """

    def __init__(
        self,
        communities: Iterable[Community],
        users: Iterable[User],
        on_trap: Callable[[Trap], None],
        engine_id: bytes,
        engine_boots: int,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._on_trap = on_trap
        self._clocks = SystemClocks()
        self._limit = StormLimit()
        self._receiver = Receiver(communities, users, engine_id, engine_boots, self._clocks.boottime_ns())
        self._socket: socket.socket | None = None

    @property
    def suppressed(self) -> dict[str, int]:
        """Datagrams that were not looked at, by the address of who sent too many."""
        return self._limit.suppressed

    async def start(self, where: tuple[str, int] | socket.socket) -> int:
        """
        `where`: host and port (0: a free one), or a bound UDP socket, as systemd passes it, which `stop` closes. Returns the port.
        Raises Unreachable when the address cannot be had.
        """
        self._socket = where if isinstance(where, socket.socket) else await _bound(*where)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._receive, self._socket)
        return int(self._socket.getsockname()[1])

    async def stop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _receive(self, listening: socket.socket) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                datagram, sender = listening.recvfrom(MAX_DATAGRAM)
            except OSError:
                return
            reply = self._take(datagram, sender)
            if reply is not None:
                with suppress(OSError):  # whoever misses an answer asks again
                    listening.sendto(reply, sender)

    def _take(self, datagram: bytes, sender: tuple[Any, ...]) -> bytes | None:
        now_ns = self._clocks.boottime_ns()
        address = sender[0].removeprefix("::ffff:")  # IPv4 on a socket of both families
        if not self._limit.allows(address, now_ns):
            return None
        outcome = self._receiver.receive(datagram, now_ns)
        if outcome.refused is not None:
            self.refused[outcome.refused] += 1
        if (told := outcome.notification) is not None:
            self._on_trap(Trap(address, now_ns, told.oid, told.uptime_ticks, told.variables))
        return outcome.reply


async def _bound(host: str, port: int) -> socket.socket:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"no traps can be heard at {host}:{port}: {error}") from error
    return listening
