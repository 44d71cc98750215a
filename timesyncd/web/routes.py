"""The definition of a route. Both the server and the OpenAPI document are generated from it, so they cannot differ."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel

from timesyncd.config import Role
from timesyncd.web.query import JOB_ID, NAME, BadQuery, Query, parse_query
from timesyncd.web.responses import Answer, JsonAnswer, error_response
from timesyncd.web.shared import SHARED, accepted_age_s

#: The pattern of each parameter in a path.
PATH_PATTERNS = {"name": NAME, "id": JOB_ID}


@dataclass(frozen=True, slots=True)
class Document:
    """The route responds with one message of this model; None: with a JSON object without a model."""

    model: type[BaseModel] | None


@dataclass(frozen=True, slots=True)
class DocumentList:
    """The route responds with a page of a list, with items of this model."""

    model: type[BaseModel]


@dataclass(frozen=True, slots=True)
class PlainText:
    """The route responds with text of this type."""

    content_type: str


@dataclass(frozen=True, slots=True)
class Route:
    """
    `handler` gets the request and its parsed `query`. `role` is the lowest role that may use the route, None: no
    credentials needed. A route with a `body`, the model of its JSON, is for POST. `errors` are the error statuses that this route has beside those of every route.
    """

    path: str
    summary: str
    role: Role | None
    handler: Callable[[web.Request, Any], Coroutine[Any, Any, Answer]]
    response: Document | DocumentList | PlainText
    query: type[Query] = Query
    errors: tuple[int, ...] = ()
    body: type[BaseModel] | None = None

    @property
    def method(self) -> Literal["GET", "POST"]:
        return "GET" if self.body is None else "POST"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        try:
            answer, age_s = await self._answer(request, parse_query(self.query, list(request.query.items())))
        except BadQuery as error:
            return error_response(400, str(error))
        if not isinstance(answer, JsonAnswer):
            return answer
        response = await answer.response(request)
        if age_s:
            response.headers["Age"] = str(age_s)
        return response

    async def _answer(self, request: web.Request, query: Query) -> tuple[Answer, int]:
        """
        The answer, and its age in whole seconds. An answer for readers depends on path and query alone, so readers may share it.
        """
        accepted_s = accepted_age_s(request) if self.role == "reader" and self.body is None else 0
        if accepted_s == 0:
            return await self.handler(request, query), 0
        return await request.app[SHARED].answer(request.path_qs, accepted_s, partial(self.handler, request, query))
