"""
The routes of a clock's stability: what `timesyncd stability` computes, from this daemon's store and from the readings that
another node's daemon serves, and the readings themselves.

They read in a thread, one answer at a time and of a bounded number of readings, since it costs the daemon's own time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, TypeVar

from aiohttp import web
from pydantic import Field, ValidationError

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Refused, SourceError, StoreError
from timesyncd.messages.node import Message
from timesyncd.messages.stability import (
    MaskMessage,
    StabilityAnswer,
    StabilityReportMessage,
    StabilitySeries,
    TimeErrorReadings,
)
from timesyncd.stability.masks import MASKS
from timesyncd.stability.readings import Reading
from timesyncd.stability.report import StabilityReport, pair_stability, stability_of
from timesyncd.store.engine import StoreLocation
from timesyncd.store.history import sources
from timesyncd.store.time_errors import channel_readings, offset_readings, time_error_channels
from timesyncd.web.api import STORE, VIEW, not_found
from timesyncd.web.peers import PeerNode
from timesyncd.web.query import NAME, Name, TimeRangeQuery
from timesyncd.web.responses import Answer, error_response, message_answer
from timesyncd.web.routes import Document, Route

#: An hour at 8 readings a second is 28,800. A reading takes some 30 us.
MAX_READINGS = 40_000
DEFAULT_SPAN_NS = 3_600 * NS_PER_S
#: So long a request waits for the answer before it; a page that opens two views asks twice.
WAIT_S = 5.0
_RETRY_S = 0.05
_NO_STORE = "this daemon has no [store]"
#: The kind of a source of which the store has nothing.
_NOT_STORED = "not stored"

#: So many answers of a past span are kept: the viewers of one page ask for the same.
MAX_KEPT = 16
#: A sample reaches the store so long after it was taken.
_LATE_NS = 10 * NS_PER_S

_computing = threading.Lock()
#: Of its own: two daemons that compare themselves with one another need each other's readings while both compute.
_reading = threading.Lock()

PEERS = web.AppKey("peers", Mapping[str, PeerNode])
KEPT = web.AppKey("kept stability", OrderedDict[Hashable, StabilityAnswer])

MASK_MESSAGES = [MaskMessage.model_validate(asdict(mask)) for mask in MASKS]

_Answer = TypeVar("_Answer", bound=Message)


class ReadingsQuery(TimeRangeQuery):
    source: Annotated[
        str, Field(pattern=f"^{NAME}$", description="A clock source of this daemon, or a grandmaster that it polls.")
    ]


class StabilityQuery(ReadingsQuery):
    node: Annotated[
        Name | None,
        Field(description="The source's node: this daemon's own by default, or another that a `[[web.peer]]` names."),
    ] = None
    against: Annotated[
        Name | None,
        Field(description="A second such node, whose source of the same name is subtracted at equal times."),
    ] = None


@dataclass(frozen=True, slots=True)
class _Question:
    """What one answer computes; `store` None: this daemon has none."""

    store: StoreLocation | None
    own: str
    peers: Mapping[str, PeerNode]
    source: str
    node: str
    against: str | None
    span: tuple[int, int]

    def readings(self, node: str) -> list[Reading]:
        """Of the source of this name on `node`. Raises StoreError, and SourceError with the reason why they are unknown."""
        if node == self.own:
            if self.store is None:
                raise Refused(_NO_STORE)
            found = offset_readings(self.store, self.source, *self.span)
            if found is None:
                raise Refused(f"{node} has no source {self.source!r} that measures an offset")
        elif node in self.peers:
            found = self.peers[node].readings(self.source, *self.span)
        else:
            raise Refused(
                f"this daemon stores single offsets of its own node alone, and no [[web.peer]] is named {node!r}; "
                f"named are: {', '.join(sorted(self.peers)) or 'none'}"
            )
        used = list(islice(found, MAX_READINGS + 1))
        if len(used) > MAX_READINGS:
            raise Refused(_too_many())
        return used


async def stability(request: web.Request, query: StabilityQuery) -> Answer:
    now_ns, own = time.time_ns(), request.app[VIEW].node().node
    span = query.span_ns(DEFAULT_SPAN_NS, now_ns)
    peers, node = request.app.get(PEERS, {}), query.node or own
    question = _Question(request.app.get(STORE), own, peers, query.source, node, query.against, span)
    answer = StabilityAnswer(
        as_of_realtime_ns=now_ns,
        node=node,
        source=query.source,
        against=query.against,
        begin_realtime_ns=span[0],
        end_realtime_ns=span[1],
        series=[],
        problem=_NO_STORE,
        peers=sorted({own, *peers} - {node}),
        masks=MASK_MESSAGES,
    )
    if node == own and question.store is None:
        return message_answer(answer)
    kept, key = request.app[KEPT], (query, node)
    if query.until is not None and key in kept:
        return message_answer(kept[key])

    def computed(kind: str | None) -> StabilityAnswer:
        return answer.model_copy(update=_fields(question, kind))

    response, found = await _answer(
        request, _computing, question.store if node == own else None, query.source, computed
    )
    if found is not None and span[1] + _LATE_NS <= now_ns and _is_lasting(found):
        kept[key] = found
        if len(kept) > MAX_KEPT:
            kept.popitem(last=False)
    return response


async def _acquired(lock: threading.Lock) -> bool:
    """Whether it became free in time. A waiting request takes no thread."""
    ends = time.monotonic() + WAIT_S
    while not lock.acquire(blocking=False):
        if time.monotonic() >= ends:
            return False
        await asyncio.sleep(_RETRY_S)
    return True


def _configured(request: web.Request) -> set[str]:
    """The clock sources and grandmasters that this daemon polls: some may have no reading in the store."""
    view = request.app[VIEW]
    return {source.name for source in view.node().sources} | {each.name for each in view.grandmasters()}


def _is_lasting(answer: StabilityAnswer) -> bool:
    """Whether the same question gets the same answer later: a node that does not respond may respond again."""
    return answer.problem is None and any(series.report for series in answer.series)


async def readings(request: web.Request, query: ReadingsQuery) -> Answer:
    now_ns, place = time.time_ns(), request.app.get(STORE)
    since_ns, until_ns = query.span_ns(DEFAULT_SPAN_NS, now_ns)
    answer = TimeErrorReadings(
        as_of_realtime_ns=now_ns,
        node=request.app[VIEW].node().node,
        source=query.source,
        begin_realtime_ns=since_ns,
        end_realtime_ns=until_ns,
        at_ns=[],
        te_ns=[],
        reference=[],
        problem=_NO_STORE,
    )
    if place is None:
        return message_answer(answer)

    def read(kind: str | None) -> TimeErrorReadings:
        return answer.model_copy(update=_columns(place, query.source, kind, since_ns, until_ns))

    return (await _answer(request, _reading, place, query.source, read))[0]


async def _answer(
    request: web.Request,
    lock: threading.Lock,
    store: StoreLocation | None,
    source: str,
    answer: Callable[[str | None], _Answer],
) -> tuple[Answer, _Answer | None]:
    """What `answer` returns in a thread; it gets the source's kind in `store` (None: the source is another node's)."""
    if not await _acquired(lock):
        return error_response(503, "another answer about stability is being computed: try again"), None
    try:
        kind = None
        if store is not None:
            known = await asyncio.to_thread(sources, store)
            if source not in known and source not in _configured(request):
                return not_found("source", source, list(known)), None
            kind = known.get(source, _NOT_STORED)
        found = await asyncio.to_thread(answer, kind)
        return message_answer(found), found
    except StoreError as error:
        return error_response(503, str(error)), None
    finally:
        lock.release()


def _columns(place: StoreLocation, source: str, kind: str | None, since_ns: int, until_ns: int) -> dict[str, object]:
    """The fields of TimeErrorReadings that depend on the store. Raises StoreError."""
    if kind == _NOT_STORED:
        return {"problem": f"the store has no reading of {source} yet"}
    found = offset_readings(place, source, since_ns, until_ns)
    if found is None:
        return {"problem": f"a source of kind {kind} measures no offset from a reference"}
    used = list(islice(found, MAX_READINGS + 1))
    if len(used) > MAX_READINGS:
        return {"problem": f"more than {MAX_READINGS:,} readings: ask for a shorter span"}
    at_ns, te_ns, reference = zip(*used, strict=True) if used else ((), (), ())
    return {"at_ns": list(at_ns), "te_ns": list(te_ns), "reference": list(reference), "problem": None}


def _fields(question: _Question, kind: str | None) -> dict[str, object]:
    """The series of the answer, or the problem. Raises StoreError."""
    try:
        found = _all_series(question, kind)
    except SourceError as error:
        return {"problem": str(error)}
    return {"series": found, "problem": None if found else "the store has no time errors of its channels in this span"}


def _all_series(question: _Question, kind: str | None) -> list[StabilitySeries]:
    """`kind` None: of another node. Raises StoreError, and SourceError with the reason why it is unknown."""
    span, store, source = question.span, question.store, question.source
    if kind == _NOT_STORED:
        raise Refused(f"the store has no reading of {source} yet")
    if question.against is not None:
        return [_pair(question, question.against, kind)]
    if store is None or kind is None:
        return [_series(None, iter(question.readings(question.node)), MAX_READINGS, span)]
    if kind == "grandmaster":
        channels = time_error_channels(store, source, *span)
        left = MAX_READINGS // max(1, len(channels))
        return [_series(channel, channel_readings(store, source, channel, *span), left, span) for channel in channels]
    readings = offset_readings(store, source, *span)
    if readings is None:
        problem = f"a source of kind {kind} measures no offset from a reference"
        return [StabilitySeries(channel=None, report=None, problem=problem)]
    return [_series(None, readings, MAX_READINGS, span)]


def _pair(question: _Question, against: str, kind: str | None) -> StabilitySeries:
    """The question's node minus `against`. Raises as `_all_series`."""
    if kind == "grandmaster":
        raise Refused(f"a pair is of two nodes, and {question.source} is a grandmaster")
    if against == question.node:
        raise Refused(f"{against} is compared with itself: name another node")
    span = question.span
    found = pair_stability(question.readings(question.node), question.readings(against), max(span[1] - span[0], 1))
    report, problem = (None, found.problem) if found.report is None else _reported(found.report)
    return StabilitySeries(
        channel=None,
        report=report,
        problem=problem,
        references=list(found.references),
        left_out=found.left_out,
    )


def _series(channel: str | None, readings: Iterator[Reading], most: int, span: tuple[int, int]) -> StabilitySeries:
    used = list(islice(readings, most + 1))
    if len(used) > most:
        return StabilitySeries(channel=channel, report=None, problem=_too_many(most))
    report = stability_of(used, max(span[1] - span[0], 1))
    if report is None:
        return StabilitySeries(channel=channel, report=None, problem="fewer than two readings in this span")
    message, problem = _reported(report)
    return StabilitySeries(channel=channel, report=message, problem=problem)


def _reported(report: StabilityReport) -> tuple[StabilityReportMessage | None, str | None]:
    """The message, or why there is none."""
    try:
        return StabilityReportMessage.model_validate(asdict(report)), None
    except ValidationError:
        return None, "its time errors are too far apart for 64 bits: a stored value is damaged"


def _too_many(most: int | None = None) -> str:
    return f"more than {most or MAX_READINGS:,} readings: ask for a shorter span, or use `timesyncd stability`"


ROUTES = (
    Route(
        "/api/v1/stability",
        "MTIE, TDEV, ADEV and time error of a source or of a pair of nodes, and how they compare with the masks of ITU-T.",
        "reader",
        stability,
        Document(StabilityAnswer),
        StabilityQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/stability/readings",
        "The measured offsets of a source, which `timesyncd stability --against` subtracts from another node's.",
        "reader",
        readings,
        Document(TimeErrorReadings),
        ReadingsQuery,
        (404, 503),
    ),
)
