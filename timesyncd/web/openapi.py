"""The OpenAPI 3.1 document of the HTTP side, made from the routes that the server serves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from timesyncd.web.auth import SESSION_COOKIE
from timesyncd.web.query import Query
from timesyncd.web.responses import json_response as answered
from timesyncd.web.routes import PATH_PATTERNS, Document, DocumentList, PlainText, Route

Json = dict[str, Any]

REF = "#/components/schemas/{model}"
PATH = "/api/v1/openapi.json"

_ERROR: Json = {
    "type": "object",
    "description": "Why there is no answer, on one line.",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_IN_PATH: dict[str, Json] = {
    "name": {"description": "As in the configuration.", "example": "gm-a"},
    "id": {
        "description": "The first 16 hexadecimal digits of SHA-256 of uid/job/attempt.",
        "example": "0f3a9c51d2b4e687",
    },
}
_STATUS_DESCRIPTIONS = {
    200: "The answer.",
    304: "The copy that If-None-Match names says the same.",
    400: "The query is not understood; the error says what is allowed.",
    401: "Nothing that counts was shown.",
    403: "The role does not reach.",
    404: "There is none; the error names some that there are.",
    421: "A loopback address answers to its own names alone.",
    429: "Too many wrong credentials from this address.",
    500: "A fault of the daemon; its log says more. No JSON.",
    503: "Not now; the error says why.",
}
_HEADERS: dict[int, Json] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "required": True}},
    429: {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}, "required": True}},
}
_TAG: Json = {"description": "Weak where states age by themselves.", "schema": {"type": "string"}, "required": True}
_LINK: Json = {"description": "The next page, where there is one.", "schema": {"type": "string"}}


class _ResponseSchema(GenerateJsonSchema):
    """Every field is in every answer; a field's title would only repeat its name."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tuple_schema(self, schema: Any) -> Json:
        """Item by item would say more, but many a reader of OpenAPI does not know prefixItems."""
        written = super().tuple_schema(schema)
        if "prefixItems" in written:
            written["items"] = {"anyOf": written.pop("prefixItems")}
        return written


class _QuerySchema(_ResponseSchema):
    """What is asked need not be whole."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return bool(field["schema"]["type"] != "default")


def document(routes: Sequence[Route]) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timesyncd over HTTP",
            "version": "1.0.0",
            "description": "Read-only: what is neither GET nor HEAD is answered 405. Integers are signed 64-bit, durations "
            "and times nanoseconds, null is absent; a reader ignores keys that it does not know. On loopback without tokens "
            "everybody may read; elsewhere a bearer token, a client certificate or a session is wanted, with the role that "
            "each operation names: job < reader < admin.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"certificate": []}, {"session": []}],
        "paths": {route.path: {"get": _operation(route)} for route in routes},
        "components": {"securitySchemes": _security_schemes(), "schemas": _schemas(routes) | {"Error": _ERROR}},
    }


def route() -> Route:
    """The document's own; it stands in itself."""
    return Route(PATH, "This document.", "reader", _serve, Document(None))


async def _serve(request: web.Request, _query: Query) -> web.Response:
    return answered(request, request.app[OPENAPI_JSON])


OPENAPI_JSON = web.AppKey("document", bytes)


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": "_".join(re.findall("[a-z0-9]+", route.path.removeprefix("/api/v1"))),
        "summary": route.summary,
        "parameters": [*_in_path(route.path), *_in_query(route.query)],
        "responses": {str(status): _response(route, status) for status in _statuses(route)},
    }
    if route.role is None:
        return operation | {"description": "For everybody.", "security": []}
    return operation | {"description": f"Role: {route.role}."}


def _statuses(route: Route) -> list[int]:
    own = [200, 400, 421, 500, *route.fails]
    documents = [] if isinstance(route.answer, PlainText) else [304]
    guarded = [] if route.role is None else [401, 403, 429]
    return sorted([*own, *documents, *guarded])


def _response(route: Route, status: int) -> Json:
    response: Json = {"description": _STATUS_DESCRIPTIONS.get(status, HTTPStatus(status).phrase)}
    headers = dict(_HEADERS.get(status, {}))
    if status in (200, 304) and not isinstance(route.answer, PlainText):
        headers["ETag"] = _TAG
    if status == 200 and isinstance(route.answer, DocumentList):
        headers["Link"] = _LINK
    if headers:
        response["headers"] = headers
    if status in (304, 500):
        return response
    if isinstance(route.answer, PlainText) and (status == 200 or status == 503 and route.role is None):
        return response | {"content": {route.answer.content_type: {"schema": {"type": "string"}}}}
    schema = _response_schema(route.answer) if status == 200 else {"$ref": REF.format(model="Error")}
    return response | {"content": {"application/json": {"schema": schema}}}


def _response_schema(answer: Document | DocumentList | PlainText) -> Json:
    if isinstance(answer, PlainText) or answer.model is None:
        return {"type": "object"}
    reference = {"$ref": REF.format(model=answer.model.__name__)}
    if isinstance(answer, Document):
        return reference
    next_page = {"type": ["string", "null"], "description": "The cursor of the next page; null: this is the last."}
    properties = {"items": {"type": "array", "items": reference}, "next": next_page}
    return {"type": "object", "properties": properties, "required": ["items", "next"]}


def _in_path(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{PATH_PATTERNS[name]}$"},
        }
        | _IN_PATH[name]
        for name in re.findall(r"{(\w+)}", path)
    ]


def _in_query(query: type[Query]) -> list[Json]:
    asked = query.model_json_schema(mode="validation", schema_generator=_QuerySchema)
    return [_parameter(name, dict(schema), asked.get("required", ())) for name, schema in asked["properties"].items()]


def _parameter(name: str, schema: Json, required: Sequence[str]) -> Json:
    """A text cannot be null: a parameter that is not given is left out."""
    description = schema.pop("description", None)
    schema.pop("default", None) if schema.get("default", 0) is None else None
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if "anyOf" in schema:
        del schema["anyOf"]
        schema |= options[0] if len(options) == 1 else {"anyOf": options}
    description = description or schema.pop("description", None)
    parameter: Json = {"name": name, "in": "query", "required": name in required, "schema": schema}
    return parameter | ({"description": description} if description else {})


def _schemas(routes: Sequence[Route]) -> Json:
    models = {route.answer.model for route in routes if isinstance(route.answer, Document | DocumentList)} - {None}
    named = sorted((model for model in models if model is not None), key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "serialization") for model in named], ref_template=REF, schema_generator=_ResponseSchema
    )
    schemas = definitions["$defs"]
    assert isinstance(schemas, dict)
    return dict(sorted(schemas.items()))


def _security_schemes() -> Json:
    return {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A [[web.token]] of the configuration."},
        "certificate": {"type": "mutualTLS", "description": "Signed by [web] client_ca."},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": SESSION_COOKIE,
            "description": "A browser that logged in.",
        },
    }


def text(routes: Sequence[Route]) -> str:
    return json.dumps(document(routes), indent=2) + "\n"
