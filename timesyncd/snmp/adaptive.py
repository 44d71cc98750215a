"""
Requests that adapt to an agent: a smaller one where the agent refuses or ignores a large one.

An agent that does not respond is asked for sysUpTime alone before it counts as down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.errors import Malformed, Refused, SourceError
from timesyncd.snmp import ber
from timesyncd.snmp.messages import NO_SUCH_NAME, OPAQUE, STATUS_NAMES, TOO_BIG, Pdu, PduType, Varbind
from timesyncd.snmp.transport import Agent, Silent
from timesyncd.snmp.values import Oid, Opaque, format_oid

#: The most variables that one response should carry, so that it fits a datagram of 1500 octets.
MAX_VARBINDS = 40
#: How many rows a GETBULK requests after a larger one was too much, in this order.
FEWER_REPETITIONS = (10, 1)
#: Every agent has it (RFC 3418).
UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)

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


@dataclass(frozen=True, slots=True)
class Objects:
    """The variable for each OID that was requested. What the agent declined has a reason in `problems`, what it lacks has not."""

    found: dict[Oid, Varbind]
    problems: dict[Oid, str]


@dataclass(slots=True)
class AgentLimits:
    """What an agent was found not to manage. It should outlive a session, since each discovery costs timeouts."""

    repetitions: int = MAX_VARBINDS

    def clear(self) -> None:
        """Forget everything: the agent has restarted, or is another one."""
        self.repetitions = MAX_VARBINDS


class AdaptiveRequester:
    """Sends requests to one agent. Errors begin with the device."""

    def __init__(self, agent: Agent, device: str, limits: AgentLimits) -> None:
        self.limits = limits
        self._agent = agent
        self._device = device

    async def request(
        self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0, within_s: float | None = None
    ) -> Pdu:
        """The response, whatever its error status. `within_s`: the request is sent once, and waits so long for its response."""
        try:
            return await self._agent.request(kind, oids, repetitions, within_s)
        except SourceError as error:
            raise self._named(error) from error

    def _named(self, error: SourceError) -> SourceError:
        named = type(error)(f"{self._device}: {error}")
        if isinstance(named, Silent) and isinstance(error, Silent):
            named.late = error.late
        return named

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

    async def objects(self, kind: PduType, oids: Sequence[Oid]) -> Objects:
        """
        The variables of a GET or GETNEXT, in as many requests as the agent needs. Raises Refused if it declines every object, so that
        an agent that permits nothing is known as such.
        """
        objects = Objects({}, {})
        refused = await self._add_objects(kind, list(oids), objects)
        if refused is not None and not objects.found:
            raise refused
        return objects

    async def _add_objects(self, kind: PduType, oids: list[Oid], objects: Objects) -> Refused | None:
        """Returns the error of an object that the agent declined."""
        refused = None
        while oids:
            response = await self.request(kind, oids)
            if not response.status:
                objects.found.update(zip(oids, self._matching(kind, response, oids), strict=True))
                return refused
            error = self._status_error(response.status, response.position, oids)
            position = response.position if 0 < response.position <= len(oids) else 0
            if response.status == TOO_BIG or not position:
                if len(oids) > 1:
                    middle = len(oids) // 2
                    halves = [await self._add_objects(kind, half, objects) for half in (oids[:middle], oids[middle:])]
                    return refused or halves[0] or halves[1]
                position = 1
            declined = oids.pop(position - 1)
            if response.status != NO_SUCH_NAME:
                refused = refused or error
                objects.problems[declined] = f"the agent reports {STATUS_NAMES[response.status]}"
        return refused

    def _matching(self, kind: PduType, response: Pdu, oids: Sequence[Oid]) -> list[Varbind]:
        varbinds = self._valued(response)
        if kind is PduType.GET and [varbind.oid for varbind in varbinds] != oids:
            raise self.malformed("the response contains other objects than the request")
        if len(varbinds) != len(oids):
            raise self.malformed(f"the response has {len(varbinds)} variables instead of {len(oids)}")
        return varbinds

    async def bulk(self, cursors: Sequence[Oid], wanted: int, within_s: float | None = None) -> list[Varbind]:
        """
        The next variables after each of `cursors`, at most `wanted` rows of them; fewer where the agent refuses or ignores so many.
        `within_s` is of `request`. Raises TooMuchError if even one row is too much, and DeclinedError if the agent reports an error for
        one of the next objects.
        """
        learnt, quick_s = self.limits.repetitions, within_s
        while True:
            repetitions = max(1, min(wanted, self.limits.repetitions, MAX_VARBINDS // len(cursors)))
            try:
                response = await self.request(PduType.GET_BULK, cursors, repetitions, within_s)
                if not response.status:
                    return self._rows(response)
                problem = "the agent reports tooBig for one row"
            except Silent as error:
                quick_s = quick_s or await self._quick_s_of_rows(error, cursors, repetitions)
                within_s = within_s or self._agent.timeout_s
                problem = "the agent does not respond to a request for one row"
            else:
                if response.status != TOO_BIG:
                    wanted = self._before_error(response, cursors, repetitions)
                    continue
            if repetitions == 1:
                self.limits.repetitions = learnt  # the number of rows is not the reason
                raise TooMuchError(problem, quick_s)
            self._shrink(repetitions)

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
                self._shrink(repetitions)
            raise

    def _shrink(self, repetitions: int) -> None:
        self.limits.repetitions = next((fewer for fewer in FEWER_REPETITIONS if fewer < repetitions), 1)

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


def _opaque_null(oid: Oid) -> Varbind:
    """NULL is the value of a request; in a response it is neither a value nor "no such object"."""
    return Varbind(oid, OPAQUE, Opaque(b"\x05\x00"))
