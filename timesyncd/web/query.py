"""What may stand behind the question mark. Each model is read from a request, and told in the OpenAPI document."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from timesyncd.config import validation_text
from timesyncd.messages.node import Status

MAX_LIMIT = 1_000
DEFAULT_LIMIT = 100

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
JOB_ID = "[0-9a-f]{16}"
_UNIX_NS = r"[0-9]{1,18}|[1-8][0-9]{18}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: In the year 2255: what is added to it still has 64 bits.
MAX_TIME_NS = 9 * 10**18


class BadQuery(Exception):
    """What a request asks is not understood; the text says what is allowed."""


def _require_integer(text: Any) -> Any:
    if isinstance(text, str) and not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise ValueError("a whole number is wanted")
    return text


def _require_step_key(text: Any) -> Any:
    """A step's key has 63 bits."""
    if isinstance(text, str) and not re.fullmatch("[0-9]{1,19}", text, re.ASCII):
        raise ValueError("a step's key is wanted, a whole number")
    return text


def parse_time_ns(text: Any) -> int:
    """RFC 3339 or Unix nanoseconds, cut at 1970 and LATEST_NS; a leap second counts as the one that follows. Raises ValueError."""
    if re.fullmatch(_UNIX_NS, text, re.ASCII):
        return int(text)
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("RFC 3339 is wanted, as 2026-03-01T12:00:00Z, or nanoseconds since 1970")
    day, minutes, seconds, fraction, zone = found.groups()
    if int(seconds) > 60:
        raise ValueError("there are at most 60 seconds")
    whole_s = (datetime.fromisoformat(f"{day}T{minutes}:00").replace(tzinfo=_parse_zone(zone)) - _EPOCH) // timedelta(
        seconds=1
    )
    ns = (whole_s + int(seconds)) * 1_000_000_000 + int(f"{fraction or ''}000000000"[:9])
    return min(max(ns, 0), MAX_TIME_NS)


def _parse_zone(text: str) -> timezone:
    if text in "Zz":
        return UTC
    hours, minutes = int(text[1:3]), int(text[4:])
    if minutes > 59:
        raise ValueError("there are at most 59 minutes")
    return timezone((1 if text[0] == "+" else -1) * timedelta(hours=hours, minutes=minutes))


_TIME_FORMATS = "RFC 3339, or nanoseconds since 1970"
_TIME_SCHEMA = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": f"^({_UNIX_NS})$"}]}
Timestamp = Annotated[int, BeforeValidator(parse_time_ns), WithJsonSchema(_TIME_SCHEMA)]
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Names = Annotated[
    str, Field(pattern=rf"^{NAME}(,{NAME})*$", max_length=250_000, description="Names with commas between.")
]


_AS_CURSOR: dict[str, JsonValue] = {"format": "cursor"}


class Query(BaseModel):
    """Nothing may be asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    limit: Annotated[
        int, Field(ge=1, le=MAX_LIMIT, description="The most items."), BeforeValidator(_require_integer)
    ] = DEFAULT_LIMIT
    cursor: Annotated[str | None, Field(description="The `next` of the page before.", json_schema_extra=_AS_CURSOR)] = (
        None
    )


class TimeRangeQuery(Query):
    since: Annotated[Timestamp | None, Field(description=f"The first moment: {_TIME_FORMATS}.")] = None
    until: Annotated[Timestamp | None, Field(description=f"The moment after the last: {_TIME_FORMATS}.")] = None

    def span_ns(self, default_ns: int, now_ns: int) -> tuple[int, int]:
        """Until now and `default_ns` long, where nothing else is said."""
        until_ns = now_ns if self.until is None else self.until
        return (max(0, until_ns - default_ns) if self.since is None else self.since, until_ns)


class NodesQuery(PageQuery):
    status: Annotated[
        Status | None, Field(description="As told first: against UTC on a node that knows no grandmaster.")
    ] = None
    grandmaster: Annotated[Name | None, Field(description="Name or clock identity of the unit that is followed.")] = (
        None
    )
    topology: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", max_length=255, description="A place, and all below it."
        ),
    ] = None
    q: Annotated[str | None, Field(pattern="^[A-Za-z0-9._-]{1,64}$", description="A part of the name.")] = None


class FindingsQuery(PageQuery, TimeRangeQuery):
    standing: Annotated[Literal["true", "false"], Field(description="true: only what holds now.")] = "false"


class EventsQuery(PageQuery, TimeRangeQuery):
    type: Annotated[str | None, Field(pattern="^[A-Za-z0-9._-]{1,255}$", description="The CloudEvent's type.")] = None
    node: Name | None = None


class HistoryQuery(TimeRangeQuery):
    source: Name
    quantity: Annotated[str, Field(pattern="^[a-z0-9_]{1,64}$", description="As /api/v1/history/sources names it.")]
    node: Annotated[Name | None, Field(description="The own one unless given.")] = None


class HistorySourcesQuery(Query):
    node: Annotated[Name | None, Field(description="Whose; this node's own unless given.")] = None


class AlignmentQuery(Query):
    nodes: Names | None = None
    job: Annotated[
        str | None,
        Field(min_length=1, max_length=1_024, description="Id of a job: its nodes; for a reader its name too."),
    ] = None

    @model_validator(mode="after")
    def _one_set(self) -> AlignmentQuery:
        if self.nodes is not None and self.job is not None:
            raise ValueError("give either nodes or job")
        return self


class WindowQuery(Query):
    limit: Annotated[
        int, Field(ge=1, le=MAX_LIMIT, description="The most steps."), BeforeValidator(_require_integer)
    ] = DEFAULT_LIMIT
    from_step: Annotated[
        int,
        Field(ge=0, le=2**63 - 1, description="The first step's key: `next_step` of the page before."),
        BeforeValidator(_require_step_key),
    ] = 0


class StreamQuery(Query):
    kinds: Annotated[
        str | None,
        Field(
            pattern="^[a-z]+(,[a-z]+)*$", max_length=100, description="Only events of these kinds, with commas between."
        ),
    ] = None
    nodes: Annotated[Names | None, Field(description="Of the kind node only these, with commas between.")] = None


Q = TypeVar("Q", bound=Query)


def parse_query(model: type[Q], given: list[tuple[str, str]]) -> Q:
    """Raises BadQuery."""
    for name, times in Counter(name for name, _ in given).items():
        if times > 1:
            raise BadQuery(f"{name}: given more than once")
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise BadQuery(validation_text(error, model=model, noun="parameter")) from None


CursorKey = tuple[int | str, ...]


def encode_cursor(key: CursorKey) -> str:
    """What names an item by its place in the list's order."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str, like: tuple[type, ...]) -> CursorKey:
    """The other way round. Raises BadQuery."""
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        key = None
    if not isinstance(key, list) or tuple(map(type, key)) != like or not all(map(_fits_store, key)):
        raise BadQuery("cursor: this is none; take it from `next` of the page before")
    return tuple(key)


def _fits_store(part: int | str) -> bool:
    return -(2**63) <= part < 2**63 if isinstance(part, int) else part.isprintable()
