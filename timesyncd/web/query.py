"""The query parameters of each route: models that parse a request, and that the OpenAPI document is generated from."""

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


#: In the year 2255, so that a sum with it still fits 64 bits.
MAX_TIME_NS = 9 * 10**18


class BadQuery(Exception):
    """The query of a request is invalid; the text names the parameter, its value and what is allowed."""


def require_integer(text: Any) -> Any:
    if isinstance(text, str) and not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise ValueError("expected a whole number")
    return text


def _require_step_key(text: Any) -> Any:
    """A step's key is a whole number of 63 bits."""
    if isinstance(text, str) and not re.fullmatch("[0-9]{1,19}", text, re.ASCII):
        raise ValueError("expected a step's key, a whole number")
    return text


def parse_time_ns(text: Any) -> int:
    """
    RFC 3339 or Unix time in ns, limited to 1970 and MAX_TIME_NS; a leap second counts as the second after it. Raises
    ValueError.
    """
    if re.fullmatch(_UNIX_NS, text, re.ASCII):
        return int(text)
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("expected RFC 3339, for example 2026-03-01T12:00:00Z, or nanoseconds since 1970")
    day, minutes, seconds, fraction, zone = found.groups()
    if int(seconds) > 60:
        raise ValueError("the seconds are 0 to 60")
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
        raise ValueError("the minutes of a time zone are 0 to 59")
    return timezone((1 if text[0] == "+" else -1) * timedelta(hours=hours, minutes=minutes))


_TIME_FORMATS = "RFC 3339, or nanoseconds since 1970"
_TIME_SCHEMA = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": f"^({_UNIX_NS})$"}]}
Timestamp = Annotated[int, BeforeValidator(parse_time_ns), WithJsonSchema(_TIME_SCHEMA)]
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Names = Annotated[
    str, Field(pattern=rf"^{NAME}(,{NAME})*$", max_length=250_000, description="Names, separated by commas.")
]


_AS_CURSOR: dict[str, JsonValue] = {"format": "cursor"}


class Query(BaseModel):
    """A query without parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    limit: Annotated[
        int, Field(ge=1, le=MAX_LIMIT, description="The maximum number of items."), BeforeValidator(require_integer)
    ] = DEFAULT_LIMIT
    cursor: Annotated[str | None, Field(description="`next` of the previous page.", json_schema_extra=_AS_CURSOR)] = (
        None
    )


class TimeRangeQuery(Query):
    since: Annotated[Timestamp | None, Field(description=f"Start of the time range, inclusive: {_TIME_FORMATS}.")] = (
        None
    )
    until: Annotated[Timestamp | None, Field(description=f"End of the time range, exclusive: {_TIME_FORMATS}.")] = None

    def span_ns(self, default_ns: int, now_ns: int) -> tuple[int, int]:
        """The range in ns since 1970; by default it ends now and is `default_ns` long."""
        until_ns = now_ns if self.until is None else self.until
        return (max(0, until_ns - default_ns) if self.since is None else self.since, until_ns)


class NodesQuery(PageQuery):
    status: Annotated[
        Status | None,
        Field(
            description="The main status: against UTC on a node without a grandmaster, else against the grandmaster."
        ),
    ] = None
    grandmaster: Annotated[
        Name | None, Field(description="Name or clock identity of the grandmaster that the node follows.")
    ] = None
    topology: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$",
            max_length=255,
            description="A place; includes the places below it.",
        ),
    ] = None
    q: Annotated[str | None, Field(pattern="^[A-Za-z0-9._-]{1,64}$", description="A part of the node's name.")] = None


class OverviewQuery(Query):
    findings: Annotated[
        int, Field(ge=0, le=100, description="The maximum number of findings."), BeforeValidator(require_integer)
    ] = 100


class FindingsQuery(PageQuery, TimeRangeQuery):
    active: Annotated[Literal["true", "false"], Field(description="true: only findings that have not ended.")] = "false"


class EventsQuery(PageQuery, TimeRangeQuery):
    type: Annotated[str | None, Field(pattern="^[A-Za-z0-9._-]{1,255}$", description="The CloudEvent's type.")] = None
    node: Name | None = None


class HistoryQuery(TimeRangeQuery):
    source: Name
    quantity: Annotated[str, Field(pattern="^[a-z0-9_]{1,64}$", description="A quantity of /api/v1/history/sources.")]
    node: Annotated[Name | None, Field(description="The node; by default this daemon's own.")] = None


class HistorySourcesQuery(Query):
    node: Annotated[Name | None, Field(description="The node; by default this daemon's own.")] = None


class AlignmentQuery(Query):
    nodes: Names | None = None
    job: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=1_024,
            description="The nodes of this job, by its id, or, with the role reader, by its name.",
        ),
    ] = None

    @model_validator(mode="after")
    def _one_set(self) -> AlignmentQuery:
        if self.nodes is not None and self.job is not None:
            raise ValueError("give nodes or job, not both")
        return self


class WindowQuery(Query):
    limit: Annotated[
        int, Field(ge=1, le=MAX_LIMIT, description="The maximum number of steps."), BeforeValidator(require_integer)
    ] = DEFAULT_LIMIT
    from_step: Annotated[
        int,
        Field(ge=0, le=2**63 - 1, description="The first step's key: `next_step` of the previous page."),
        BeforeValidator(_require_step_key),
    ] = 0


class StreamQuery(Query):
    kinds: Annotated[
        str | None,
        Field(
            pattern="^[a-z]+(,[a-z]+)*$", max_length=100, description="Only events of these kinds, separated by commas."
        ),
    ] = None
    nodes: Annotated[Names | None, Field(description="Of the kind node only these nodes, separated by commas.")] = None


Q = TypeVar("Q", bound=Query)


def parse_query(model: type[Q], given: list[tuple[str, str]]) -> Q:
    """The parsed query. Raises BadQuery."""
    for name, times in Counter(name for name, _ in given).items():
        if times > 1:
            raise BadQuery(f"{name}: given {times} times; give it once")
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise BadQuery(validation_text(error, model=model, noun="parameter")) from None


CursorKey = tuple[int | str, ...]


def encode_cursor(key: CursorKey) -> str:
    """An opaque text that names an item by its key in the list's order."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str, types: tuple[type, ...]) -> CursorKey:
    """The key of a cursor, with parts of these types. Raises BadQuery."""
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        key = None
    if not isinstance(key, list) or tuple(map(type, key)) != types or not all(map(_fits_store, key)):
        raise BadQuery("cursor: not a cursor of this list; use `next` of the previous page")
    return tuple(key)


def _fits_store(part: int | str) -> bool:
    return -(2**63) <= part < 2**63 if isinstance(part, int) else part.isprintable()
