"""
Requests that adapt to an agent: smaller ones where the agent refuses or ignores a large one, until the object at fault is known.

An agent that does not respond is asked for sysUpTime alone before it counts as down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.errors import Malformed, Refused, SourceError
from timesyncd.snmp import ber
from timesyncd.snmp.messages import NO_SUCH_NAME, OPAQUE, STATUS_NAMES, TOO_BIG, Pdu, PduType, Varbind
from timesyncd.snmp.security import SnmpEngine
from timesyncd.snmp.transport import Agent, Silent
from timesyncd.snmp.values import Oid, Opaque, format_oid

#: The most variables that one response should carry, so that it fits a datagram of 1500 octets.
MAX_VARBINDS = 40
#: How many rows a GETBULK requests after a larger one was too much, in this order.
FEWER_REPETITIONS = (10, 1)
#: Every agent has it (RFC 3418).
UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)

#: After so long, what an agent did not manage is tried again.
TRY_AGAIN_AFTER_S = 3_600
#: Requests for parts of an ignored request that wait for their responses at the same time.
MAX_CONCURRENT = 8

NOT_PROVIDED = "not provided: the agent does not respond to a request that names it"
SUSPECTED = "no response yet to a request that names it"

#: An agent that responds to sysUpTime within a millisecond has this long for a part of a request that it ignored as a whole.
MIN_QUICK_S = 0.25
#: That time as a multiple of the time that the response to sysUpTime took.
_QUICK_FACTOR = 8


class TooMuchError(Exception):
    """
    Even the smallest GETBULK of these columns is too much for the agent; `problem` says how it reacted. `quick_s`: it ignored the
    request, and this is how long to wait for parts of it.
    """

    def __init__(self, problem: str, quick_s: float | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.quick_s = quick_s


class DeclinedError(Exception):
    """The agent reports an error for the next object of one column, or of some column; `position` 0: it does not say which."""

    def __init__(self, status: int, position: int) -> None:
        super().__init__(status, position)
        self.is_end = status == NO_SUCH_NAME
        self.position = position
        self.problem = f"the agent reports {STATUS_NAMES[status]}"


@dataclass(slots=True)
class Objects:
    """
    The variable for each OID that was requested. What the agent declined or ignored has a reason in `problems`, what it lacks has not.
    `refused`: the error of one that it declined.
    """

    found: dict[Oid, Varbind]
    problems: dict[Oid, str]
    refused: Refused | None = None


class AgentLimits:
    """
    What an agent was found not to manage. It should outlive a session, since each discovery costs timeouts; after an hour it is tried
    again, as the firmware may have changed or the network may have been bad.

    `suspects`: objects of a request that the agent ignored, each the only one left; asked for alone once more, they become `silent`.
    `divided`: groups of objects that the agent ignores or refuses as a whole.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything: the agent has restarted, or is another one."""
        self.repetitions = MAX_VARBINDS
        self.suspects: set[Oid] = set()
        self.silent: set[Oid] = set()
        self.divided: set[tuple[Oid, ...]] = set()
        self._try_again_s = _now_s() + TRY_AGAIN_AFTER_S

    def refresh(self) -> None:
        if _now_s() >= self._try_again_s:
            doubtful = self.suspects | self.silent
            self.clear()
            self.suspects = doubtful

    def add_silent(self, oid: Oid, is_certain: bool) -> str:
        """The reason why the object is missing. `is_certain`: it was asked for alone, with all patience, and was a suspect before."""
        if is_certain:
            self.suspects.discard(oid)
            self.silent.add(oid)
            return NOT_PROVIDED
        self.suspects.add(oid)
        return SUSPECTED


def _now_s() -> float:
    return time.monotonic()


class AdaptiveRequester:
    """Sends requests to one agent. Errors begin with the device."""

    def __init__(self, agent: Agent, device: str, limits: AgentLimits) -> None:
        self.limits = limits
        self._agent = agent
        self._device = device
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    def verified_engine(self) -> SnmpEngine | None:
        """As `Agent.verified_engine`."""
        return self._agent.verified_engine()

    async def request(
        self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0, within_s: float | None = None
    ) -> Pdu:
        """The response, whatever its error status. `within_s`: the request is sent once, and waits so long for its response."""
        try:
            async with self._slots:
                return await self._agent.request(kind, oids, repetitions, within_s)
        except SourceError as error:
            raise self._named(error) from error

    def _named(self, error: SourceError) -> SourceError:
        named = type(error)(f"{self._device}: {error}")
        if isinstance(named, Silent) and isinstance(error, Silent):
            named.late = error.late
        return named

    @property
    def _first_s(self) -> float | None:
        """One try is enough for an agent that is known to ignore requests: what it ignores is asked for again, in parts."""
        return self._agent.timeout_s if self.limits.suspects or self.limits.silent or self.limits.divided else None

    async def quick_s(self, error: Silent, requested: Sequence[Oid]) -> float:
        """
        How long to wait for parts of a request that the agent ignored: sysUpTime alone shows that it responds at all, and how fast.
        Raises an error if it does not respond, or if a late response shows that it is only slow.
        """
        if error.late or UPTIME in requested and len(requested) == 1:
            raise error
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        await self.request(PduType.GET, (UPTIME,), within_s=self._agent.timeout_s)
        return min(self._agent.timeout_s, max(MIN_QUICK_S, _QUICK_FACTOR * (loop.time() - asked_s)))

    async def objects(self, kind: PduType, oids: Sequence[Oid], confirm: bool = False) -> Objects:
        """
        The variables of a GET or GETNEXT, in as many requests as the agent needs. `confirm`: suspects are asked for again at once, not by
        the next call. Raises Refused if the agent declines every object, so that one that permits nothing is known as such.
        """
        self.limits.refresh()
        suspects = [oid for oid in oids if oid in self.limits.suspects]
        objects = Objects({}, {oid: NOT_PROVIDED for oid in oids if oid in self.limits.silent})
        asked = [oid for oid in oids if oid not in self.limits.suspects and oid not in self.limits.silent]
        await self._add_objects(kind, asked, objects)
        if confirm:
            suspects = [oid for oid in oids if oid in self.limits.suspects]
        await self._add_together(kind, [[oid] for oid in suspects], objects)
        if objects.refused is not None and not objects.found:
            raise objects.refused
        return objects

    async def _add_objects(
        self, kind: PduType, oids: list[Oid], objects: Objects, within_s: float | None = None
    ) -> None:
        """`within_s` is of `request`."""
        while oids:
            if tuple(oids) in self.limits.divided:
                await self._add_halves(kind, oids, objects, within_s)
                return
            try:
                response = await self.request(kind, oids, within_s=within_s or self._first_s)
            except Silent as error:
                await self._add_parts(kind, oids, objects, within_s, await self._patience_s(error, oids, within_s))
                return
            self.limits.suspects.difference_update(oids)
            if not response.status:
                objects.found.update(zip(oids, self._matching(kind, response, oids), strict=True))
                return
            position = response.position if 0 < response.position <= len(oids) else 0
            if len(oids) > 1 and (response.status == TOO_BIG or not position):
                await self._add_halves(kind, oids, objects, within_s)
                return
            self._add_declined(response, oids, max(1, position), objects)
            del oids[max(0, position - 1)]

    async def _patience_s(self, error: Silent, oids: Sequence[Oid], within_s: float | None) -> float:
        return within_s or await self.quick_s(error, oids)

    async def _add_parts(
        self, kind: PduType, oids: list[Oid], objects: Objects, within_s: float | None, quick_s: float
    ) -> None:
        """The agent ignored the request, though it responds to others: one of its objects is at fault."""
        if len(oids) > 1:
            self.limits.divided.add(tuple(oids))
            await self._add_halves(kind, oids, objects, quick_s)
            return
        is_certain = within_s is None and oids[0] in self.limits.suspects
        objects.problems[oids[0]] = self.limits.add_silent(oids[0], is_certain)

    async def _add_halves(self, kind: PduType, oids: list[Oid], objects: Objects, within_s: float | None) -> None:
        middle = len(oids) // 2
        await self._add_together(kind, [oids[:middle], oids[middle:]], objects, within_s)

    async def _add_together(
        self, kind: PduType, groups: Sequence[list[Oid]], objects: Objects, within_s: float | None = None
    ) -> None:
        """All groups at the same time, since each may have to wait for its timeout."""
        added = (self._add_objects(kind, group, objects, within_s) for group in groups)
        for outcome in await asyncio.gather(*added, return_exceptions=True):
            if outcome is not None:
                raise outcome

    def _add_declined(self, response: Pdu, oids: Sequence[Oid], position: int, objects: Objects) -> None:
        refused = self._status_error(response.status, response.position, oids)
        objects.problems.pop(oids[position - 1], None)
        if response.status != NO_SUCH_NAME:
            objects.refused = objects.refused or refused
            objects.problems[oids[position - 1]] = f"the agent reports {STATUS_NAMES[response.status]}"

    def _matching(self, kind: PduType, response: Pdu, oids: Sequence[Oid]) -> list[Varbind]:
        varbinds = self._valued(response)
        if kind is PduType.GET and [varbind.oid for varbind in varbinds] != oids:
            if sorted(varbind.oid for varbind in varbinds) != sorted(oids):
                raise self.malformed("the response contains other objects than the request")
            varbinds.sort(key=lambda varbind: oids.index(varbind.oid))
        if len(varbinds) != len(oids):
            raise self.malformed(f"the response has {len(varbinds)} variables instead of {len(oids)}")
        return varbinds

    async def bulk(self, cursors: Sequence[Oid], wanted: int, within_s: float | None = None) -> list[Varbind]:
        """
        The next variables after each of `cursors`, at most `wanted` rows of them; fewer where the agent refuses or ignores so many.
        `within_s` is of `request`. Raises TooMuchError if even one row is too much, and DeclinedError if the agent reports an error for
        one of the next objects.
        """
        patience_s, quick_s, is_shrunk = within_s or self._first_s, within_s, False
        while True:
            repetitions = max(1, min(wanted, self.limits.repetitions, MAX_VARBINDS // len(cursors)))
            try:
                response = await self.request(PduType.GET_BULK, cursors, repetitions, patience_s)
                problem = "the agent reports tooBig for one row"
            except Silent as error:
                quick_s = quick_s or await self._quick_s_of_rows(error, cursors, repetitions)
                # A slow agent needs more time for ten rows than for sysUpTime.
                patience_s = within_s or (self._agent.timeout_s if repetitions > FEWER_REPETITIONS[0] else quick_s)
                problem = "the agent does not respond to a request for one row"
            else:
                if not response.status:
                    self.limits.repetitions = repetitions if is_shrunk else self.limits.repetitions
                    return self._rows(response)
                if response.status != TOO_BIG:
                    wanted = self._before_error(response, cursors, repetitions)
                    continue
            if repetitions == 1:
                raise TooMuchError(problem, quick_s)
            wanted, is_shrunk = _fewer(repetitions), True

    def _before_error(self, response: Pdu, cursors: Sequence[Oid], repetitions: int) -> int:
        """How many rows to request instead: the object at fault may be some rows ahead. Raises DeclinedError if it is the next."""
        self._status_error(response.status, response.position, cursors)
        if repetitions > 1:
            return repetitions // 4
        raise DeclinedError(response.status, response.position if response.position <= len(cursors) else 0)

    async def _quick_s_of_rows(self, error: Silent, cursors: Sequence[Oid], repetitions: int) -> float:
        """As `quick_s`; where the agent is only slow, the next walk requests fewer rows at once."""
        try:
            return await self.quick_s(error, cursors)
        except Silent as confirmed:
            if confirmed.late:
                self.limits.repetitions = _fewer(repetitions)
            raise

    def _rows(self, response: Pdu) -> list[Varbind]:
        if not response.varbinds:
            raise self.malformed("the response to GETBULK is empty")
        return self._valued(response)

    def _valued(self, response: Pdu) -> list[Varbind]:
        return [varbind if varbind.tag != ber.NULL else _opaque_null(varbind.oid) for varbind in response.varbinds]

    def _status_error(self, status: int, position: int, requested: Sequence[Oid]) -> Refused:
        """Raises Malformed for a status that SNMP does not define."""
        if status >= len(STATUS_NAMES):
            raise self.malformed(f"the response has error status {status}, which SNMP does not define")
        at = f" for {format_oid(requested[position - 1])}" if 0 < position <= len(requested) else ""
        return self.refused(f"the agent reports {STATUS_NAMES[status]}{at}")

    def refused(self, problem: str) -> Refused:
        return Refused(f"{self._device}: {problem}")

    def malformed(self, problem: str) -> Malformed:
        return Malformed(f"{self._device}: {problem}")


def _fewer(repetitions: int) -> int:
    return next((fewer for fewer in FEWER_REPETITIONS if fewer < repetitions), 1)


def _opaque_null(oid: Oid) -> Varbind:
    """NULL is the value of a request; in a response it is neither a value nor "no such object"."""
    return Varbind(oid, OPAQUE, Opaque(b"\x05\x00"))
