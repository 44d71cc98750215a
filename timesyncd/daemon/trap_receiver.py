"""
Receives what grandmasters report by themselves (traps, informs, syslog messages); their drivers decode it into alarm
events.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from timesyncd.clocks import Clocks
from timesyncd.config import Config, SyslogSettings
from timesyncd.driver import AlarmSource
from timesyncd.errors import ConfigError, Unreachable
from timesyncd.sample import AlarmEvent, EngineTime, Trap
from timesyncd.snmp import Community, Listener
from timesyncd.snmp.listener import AddressRateLimit
from timesyncd.snmp.security import revealed, user_of


class Rejection(StrEnum):
    """Why a trap or a syslog message is not used, as the log gives it."""

    UNKNOWN_SENDER = "the sender is not a configured grandmaster"
    AMBIGUOUS_SENDER = "several grandmasters have the sender's address"
    DUPLICATE = "it is a duplicate, or not an alarm"


#: A grandmaster sends the trap and the syslog message of one alarm within this.
DUPLICATE_NS = 5_000_000_000
#: Alarms of all grandmasters together; their ids come off the wire.
MAX_REMEMBERED = 10_000

#: RFC 5424 section 6.1 requires receivers to accept 2048 octets; an alarm's message is shorter.
MAX_LINE = 2048

PassedSocket = Callable[[str], socket.socket | None]
"""The socket that the service manager opened under a name."""


class TrapReceiver:
    """
    One socket for the traps and informs of all grandmasters, one for their syslog messages. Each alarm event goes to
    `on_event`. `request_poll` gets the name of every grandmaster that sent something, so that it is polled soon: also
    of one whose storm of traps was dropped unread. `rejected` counts by reason what could not be used.
    """

    def __init__(
        self,
        config: Config,
        alarm_sources: Mapping[str, AlarmSource],
        clocks: Clocks,
        incarnation: int,
        on_event: Callable[[AlarmEvent], None],
        request_poll: Callable[[str], None],
    ) -> None:
        """Raises ConfigError when a secret cannot be read."""
        self.rejected: Counter[str] = Counter()
        self._config = config
        self._alarm_sources = alarm_sources
        self._reported: set[str] = set()
        self._clocks = clocks
        self._on_event = on_event
        self._request_poll = request_poll
        self._listener = self._make_listener(incarnation)
        self._line_limit = AddressRateLimit()
        self._last: dict[tuple[str, int | None, int], tuple[str, str, int]] = {}
        self._counted: Counter[str] = Counter()
        self._transport: asyncio.DatagramTransport | None = None

    def _make_listener(self, incarnation: int) -> Listener | None:
        traps = self._config.traps
        if traps is None:
            return None
        communities = [revealed(secret, f"traps.communities[{i}]") for i, secret in enumerate(traps.communities)]
        users = [user_of(user, f"traps.users[{i}]") for i, user in enumerate(traps.users)]
        engine_id = engine_id_of(self._config.node.name)
        return Listener(
            map(Community, communities), users, self._receive_trap, engine_id, incarnation, self._verified_engine,
            self._poll_stale,
        )  # fmt: skip

    def _verified_engine(self, engine_id: bytes) -> EngineTime | None:
        """A grandmaster's engine clock, as its poller has it under a valid signature."""
        engines = (alarm_source.verified_engine() for alarm_source in self._alarm_sources.values())
        return next((engine for engine in engines if engine is not None and engine[0] == engine_id), None)

    def _poll_stale(self, address: str) -> None:
        """A signed trap outside of the time window: the poll shows whether the grandmaster was reset or the trap is a recorded one."""
        for grandmaster in self._grandmasters_at(address):
            self._request_poll(grandmaster)

    async def open(self, passed: PassedSocket) -> None:
        """Raises ConfigError when a port cannot be opened."""
        if self._listener is not None and self._config.traps is not None:
            where = passed("traps") or (self._config.traps.host, self._config.traps.port)
            try:
                await self._listener.start(where)
            except Unreachable as error:
                raise ConfigError(f"traps: {error}; a port below 1024 needs a socket that systemd passes") from error
        if self._config.syslog is not None:
            await self._open_syslog(self._config.syslog, passed("syslog"))

    async def _open_syslog(self, settings: SyslogSettings, ready: socket.socket | None) -> None:
        loop = asyncio.get_running_loop()
        address = None if ready else (settings.host, settings.port)
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: _SyslogSocket(self._receive_line), local_addr=address, sock=ready
            )
        except OSError as error:
            raise ConfigError(
                f"syslog: cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
                "a port below 1024 needs a socket that systemd passes"
            ) from error

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        if self._transport is not None:
            self._transport.close()

    @property
    def all_rejected(self) -> Counter[str]:
        """With what the listener rejected: wrong communities, unknown users."""
        return self.rejected + (self._listener.rejected if self._listener else Counter())

    def new_rejections(self) -> list[str]:
        """
        The reasons that occurred for the first time since the start: what an operator looks for when no trap arrives.
        """
        found = sorted(self.all_rejected.keys() - self._reported - {Rejection.DUPLICATE})
        self._reported.update(found)
        return found

    def dropped_in_storms(self) -> dict[str, int]:
        """
        How many datagrams of each grandmaster were dropped unread since the last call. These grandmasters are polled
        instead.
        """
        found: Counter[str] = Counter()
        counted, self._counted = self._counted, self._suppressed()
        for address, count in self._counted.items():
            new = count - counted.get(address, 0)
            for grandmaster in self._grandmasters_at(address) if new > 0 else ():
                found[grandmaster] += new
                self._request_poll(grandmaster)
        return dict(found)

    def _suppressed(self) -> Counter[str]:
        by_traps = self._listener.suppressed if self._listener else {}
        return Counter(by_traps) + Counter(self._line_limit.suppressed)

    def _receive_trap(self, trap: Trap) -> None:
        self._receive("trap", trap.address, lambda alarm_source: alarm_source.alarm_event(trap))

    def _receive_line(self, address: str, line: str) -> None:
        now_ns = self._clocks.boottime_ns()
        if self._line_limit.allows(address, now_ns):
            self._receive("line", address, lambda alarm_source: alarm_source.alarm_event_of_line(line, now_ns))

    def _receive(self, channel: str, address: str, decode: Callable[[AlarmSource], AlarmEvent | None]) -> None:
        grandmasters = self._grandmasters_at(address)
        if len(grandmasters) != 1:
            self.rejected[Rejection.AMBIGUOUS_SENDER if grandmasters else Rejection.UNKNOWN_SENDER] += 1
            for grandmaster in grandmasters:
                self._request_poll(grandmaster)
            return
        event = decode(self._alarm_sources[grandmasters[0]])
        if event is None or self._is_duplicate(channel, event):
            self.rejected[Rejection.DUPLICATE] += 1
            return
        self._on_event(event)
        self._request_poll(grandmasters[0])

    def _is_duplicate(self, channel: str, event: AlarmEvent) -> bool:
        """A grandmaster that sends traps and syslog messages reports each alarm on both channels."""
        key = (event.source, event.id, event.index)
        last_channel, last_action, last_ns = self._last.get(key, (channel, "", 0))
        is_recent = event.boottime_ns - last_ns <= DUPLICATE_NS
        is_same = event.id is not None and is_recent and last_channel != channel and last_action == event.action
        if not is_same and (key in self._last or len(self._last) < MAX_REMEMBERED):
            self._last[key] = (channel, event.action, event.boottime_ns)
        return is_same

    def _grandmasters_at(self, address: str) -> list[str]:
        return [name for name, alarm_source in self._alarm_sources.items() if address in alarm_source.addresses]


class _SyslogSocket(asyncio.DatagramProtocol):
    def __init__(self, receive: Callable[[str, str], None]) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._receive(str(addr[0]).removeprefix("::ffff:"), data[:MAX_LINE].decode(errors="replace"))


def engine_id_of(name: str) -> bytes:
    """The same at every start (RFC 3411, SnmpEngineID): no enterprise, administratively assigned octets."""
    return bytes.fromhex("8000000005") + hashlib.sha256(name.encode()).digest()[:12]
