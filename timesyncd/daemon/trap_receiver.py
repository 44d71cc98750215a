"""Hears what grandmasters say by themselves (traps, informs, lines of syslog) and has their drivers say what it means."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from timesyncd.clocks import Clocks
from timesyncd.config import Config, SyslogSettings
from timesyncd.driver import AlarmSource
from timesyncd.errors import ConfigError, Unreachable
from timesyncd.sample import AlarmEvent, Trap
from timesyncd.snmp import Community, Listener
from timesyncd.snmp.rate_limit import AddressRateLimit
from timesyncd.snmp.security import revealed, user_of

STRANGER = "its sender is no unit of this configuration"
AMBIGUOUS = "several units have its sender's address"
NOTHING_NEW = "it was heard already, or is no alarm"

#: A trap and the line of syslog that says the same come within this.
SAME_NS = 5_000_000_000
#: Alarms of all units together; their ids come off the wire.
MOST_REMEMBERED = 10_000

#: RFC 5424 section 6.1 has every receiver take 2048 octets; more is not an alarm's line.
MAX_LINE = 2048

PassedSocket = Callable[[str], socket.socket | None]
"""The socket that the service manager opened under a name."""


class TrapReceiver:
    """
    One socket for the traps and informs of all units, one for their lines of syslog. Each alarm event goes to `take`, and
    `request_poll` gets the name of every unit that was heard, so that it is polled soon: also of one whose storm was cut off unread.
    `refused` counts by reason what could not be used.
    """

    def __init__(
        self,
        config: Config,
        alarm_sources: Mapping[str, AlarmSource],
        clocks: Clocks,
        incarnation: int,
        take: Callable[[AlarmEvent], None],
        request_poll: Callable[[str], None],
    ) -> None:
        """Raises ConfigError when a secret cannot be read."""
        self.refused: Counter[str] = Counter()
        self._config = config
        self._alarm_sources = alarm_sources
        self._told_reasons: set[str] = set()
        self._clocks = clocks
        self._take = take
        self._request_poll = request_poll
        self._listener = self._make_listener(incarnation)
        self._line_limit = AddressRateLimit()
        self._last: dict[tuple[str, int | None, int], tuple[str, str, int]] = {}
        self._told: Counter[str] = Counter()
        self._transport: asyncio.DatagramTransport | None = None

    def _make_listener(self, incarnation: int) -> Listener | None:
        traps = self._config.traps
        if traps is None:
            return None
        communities = [revealed(secret, f"traps.communities[{i}]") for i, secret in enumerate(traps.communities)]
        users = [user_of(user, f"traps.users[{i}]") for i, user in enumerate(traps.users)]
        engine_id = engine_id_of(self._config.node.name)
        return Listener(map(Community, communities), users, self._trap, engine_id, incarnation)

    async def open(self, passed: PassedSocket) -> None:
        """Raises ConfigError when a port cannot be had."""
        if self._listener is not None and self._config.traps is not None:
            where = passed("traps") or (self._config.traps.host, self._config.traps.port)
            try:
                await self._listener.start(where)
            except Unreachable as error:
                raise ConfigError(f"traps: {error}; systemd can pass a port below 1024") from error
        if self._config.syslog is not None:
            await self._open_syslog(self._config.syslog, passed("syslog"))

    async def _open_syslog(self, settings: SyslogSettings, ready: socket.socket | None) -> None:
        loop = asyncio.get_running_loop()
        address = None if ready else (settings.host, settings.port)
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: _SyslogSocket(self._line), local_addr=address, sock=ready
            )
        except OSError as error:
            raise ConfigError(
                f"syslog: nothing can be heard at {settings.host}:{settings.port}: {error.strerror}; "
                "systemd can pass a port below 1024"
            ) from error

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        if self._transport is not None:
            self._transport.close()

    @property
    def all_refused(self) -> Counter[str]:
        """What the listener refused too: wrong communities, unknown users."""
        return self.refused + (self._listener.rejected if self._listener else Counter())

    def new_reasons(self) -> list[str]:
        """Why something was refused for the first time since the start: what an operator looks for when no trap arrives."""
        found = sorted(self.all_refused.keys() - self._told_reasons - {NOTHING_NEW})
        self._told_reasons.update(found)
        return found

    def storms(self) -> dict[str, int]:
        """How many datagrams of each unit were cut off, unread, since the last call: the unit is polled instead."""
        found: Counter[str] = Counter()
        told, self._told = self._told, self._suppressed()
        for address, count in self._told.items():
            new = count - told.get(address, 0)
            for unit in self._at(address) if new > 0 else ():
                found[unit] += new
                self._request_poll(unit)
        return dict(found)

    def _suppressed(self) -> Counter[str]:
        by_traps = self._listener.suppressed if self._listener else {}
        return Counter(by_traps) + Counter(self._line_limit.suppressed)

    def _trap(self, trap: Trap) -> None:
        self._heard("trap", trap.address, lambda alarm_source: alarm_source.alarm_event(trap))

    def _line(self, address: str, line: str) -> None:
        now_ns = self._clocks.boottime_ns()
        if self._line_limit.allows(address, now_ns):
            self._heard("line", address, lambda alarm_source: alarm_source.alarm_event_of_line(line, now_ns))

    def _heard(self, way: str, address: str, meaning: Callable[[AlarmSource], AlarmEvent | None]) -> None:
        units = self._at(address)
        if len(units) != 1:
            self.refused[AMBIGUOUS if units else STRANGER] += 1
            for unit in units:
                self._request_poll(unit)
            return
        event = meaning(self._alarm_sources[units[0]])
        if event is None or self._came_the_other_way(way, event):
            self.refused[NOTHING_NEW] += 1
            return
        self._take(event)
        self._request_poll(units[0])

    def _came_the_other_way(self, way: str, event: AlarmEvent) -> bool:
        """A unit that sends traps and syslog says each thing twice."""
        key = (event.source, event.id, event.index)
        last_way, last_action, last_ns = self._last.get(key, (way, "", 0))
        is_recent = event.boottime_ns - last_ns <= SAME_NS
        is_same = event.id is not None and is_recent and last_way != way and last_action == event.action
        if not is_same and (key in self._last or len(self._last) < MOST_REMEMBERED):
            self._last[key] = (way, event.action, event.boottime_ns)
        return is_same

    def _at(self, address: str) -> list[str]:
        return [name for name, alarm_source in self._alarm_sources.items() if address in alarm_source.addresses]


class _SyslogSocket(asyncio.DatagramProtocol):
    def __init__(self, take: Callable[[str, str], None]) -> None:
        self._take = take

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._take(str(addr[0]).removeprefix("::ffff:"), data[:MAX_LINE].decode(errors="replace"))


def engine_id_of(name: str) -> bytes:
    """Ours for ever (RFC 3411, SnmpEngineID): no enterprise, administratively assigned octets."""
    return bytes.fromhex("8000000005") + hashlib.sha256(name.encode()).digest()[:12]
