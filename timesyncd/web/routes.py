"""What a route is: the server is built from these, and the OpenAPI document too, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from timesyncd.config import Role
from timesyncd.web.query import JOB_ID, NAME, BadQuery, Query, parse_query
from timesyncd.web.responses import error_response

#: What stands in a path, by the name that it has there.
PATH_PATTERNS = {"name": NAME, "id": JOB_ID}


@dataclass(frozen=True, slots=True)
class Document:
    """A document: a message; None: an object of no model."""

    model: type[BaseModel] | None


@dataclass(frozen=True, slots=True)
class DocumentList:
    """A list, with items of this model."""

    model: type[BaseModel]


@dataclass(frozen=True, slots=True)
class PlainText:
    content_type: str


@dataclass(frozen=True, slots=True)
class Route:
    """
    `handler` gets what was asked as a `query`; `role` is the least that may, None: everybody. `fails` are the refusals of its own, by
    status.
    """

    path: str
    summary: str
    role: Role | None
    handler: Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
    answer: Document | DocumentList | PlainText
    query: type[Query] = Query
    fails: tuple[int, ...] = ()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self.handler(request, parse_query(self.query, list(request.query.items())))
        except BadQuery as error:
            return error_response(400, str(error))
