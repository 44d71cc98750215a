"""The OpenAPI 3.1 document of the HTTP API, generated from the routes that the server serves."""

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
from timesyncd.web.responses import Answer, json_answer
from timesyncd.web.routes import PATH_PATTERNS, Document, DocumentList, PlainText, Route

Json = dict[str, Any]

REF = "#/components/schemas/{model}"
PATH = "/api/v1/openapi.json"

_ERROR: Json = {
    "type": "object",
    "description": "The error, in one line.",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_IN_PATH: dict[str, Json] = {
    "name": {"description": "The name in the configuration.", "example": "gm-a"},
    "id": {
        "description": "The first 16 hexadecimal digits of SHA-256 of uid/job/attempt.",
        "example": "0f3a9c51d2b4e687",
    },
}
_STATUS_DESCRIPTIONS = {
    200: "Success.",
    304: "The copy named by If-None-Match is current.",
    400: "The query is invalid; the error says what is allowed.",
    401: "No valid credentials.",
    403: "The role is too low.",
    404: "It does not exist; the error names some that do.",
    421: "The server listens on a loopback address and the Host header has another name.",
    429: "Too many wrong credentials from this address.",
    500: "A fault of the daemon; its log has the details. Not JSON.",
    503: "Temporarily unavailable; the error says why.",
}
_HEADERS: dict[int, Json] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "required": True}},
    429: {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}, "required": True}},
}
_TAG: Json = {
    "description": "Weak where a field changes with time alone.",
    "schema": {"type": "string"},
    "required": True,
}
_LINK: Json = {"description": "The next page, if there is one.", "schema": {"type": "string"}}


class _ResponseSchema(GenerateJsonSchema):
    """Schemas of responses: every field is present, and a title would only repeat its name."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tuple_schema(self, schema: Any) -> Json:
        """An array of alternatives in place of prefixItems, which many OpenAPI tools do not support."""
        written = super().tuple_schema(schema)
        if "prefixItems" in written:
            written["items"] = {"anyOf": written.pop("prefixItems")}
        return written


class _QuerySchema(_ResponseSchema):
    """Schemas of queries: a parameter with a default is optional."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return bool(field["schema"]["type"] != "default")


def document(routes: Sequence[Route]) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timesyncd over HTTP",
            "version": "1.0.0",
            "description": "Read-only but for `POST /api/v1/notes`: any other method than GET and HEAD gets status 405. Integers are signed 64-bit, "
            "durations and times are nanoseconds, null is absent; a client ignores unknown keys. On a loopback address "
            "without tokens any local client may read. Elsewhere a request needs a bearer token, a client certificate or "
            "a session with the role that the operation names: job < reader < writer < admin.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"certificate": []}, {"session": []}],
        "paths": _paths(routes),
        "components": {"securitySchemes": _security_schemes(), "schemas": _schemas(routes) | {"Error": _ERROR}},
    }


def _paths(routes: Sequence[Route]) -> Json:
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def route() -> Route:
    """The route of the document, which the document includes."""
    return Route(PATH, "This document.", "reader", _serve, Document(None))


async def _serve(request: web.Request, _query: Query) -> Answer:
    return json_answer(request.app[OPENAPI_JSON])


OPENAPI_JSON = web.AppKey("document", bytes)


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": "_".join(re.findall("[a-z0-9]+", route.path.removeprefix("/api/v1"))),
        "summary": route.summary,
        "parameters": [*_in_path(route.path), *_in_query(route.query)],
        "responses": {str(status): _response(route, status) for status in _statuses(route)},
    }
    if route.body is not None:
        schema = route.body.model_json_schema(schema_generator=_QuerySchema)
        operation["operationId"] += "_write"
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.role is None:
        return operation | {"description": "No credentials required.", "security": []}
    return operation | {"description": f"Role: {route.role}."}


def _statuses(route: Route) -> list[int]:
    own = [200, 400, 421, 500, *route.errors]
    documents = [] if isinstance(route.response, PlainText) or route.body is not None else [304]
    access = [] if route.role is None else [401, 403, 429]
    return sorted([*own, *documents, *access])


def _response(route: Route, status: int) -> Json:
    response: Json = {"description": _STATUS_DESCRIPTIONS.get(status, HTTPStatus(status).phrase)}
    headers = dict(_HEADERS.get(status, {}))
    if status in (200, 304) and not isinstance(route.response, PlainText):
        headers["ETag"] = _TAG
    if status == 200 and isinstance(route.response, DocumentList):
        headers["Link"] = _LINK
    if headers:
        response["headers"] = headers
    if status in (304, 500):
        return response
    if isinstance(route.response, PlainText) and (status == 200 or status == 503 and route.role is None):
        return response | {"content": {route.response.content_type: {"schema": {"type": "string"}}}}
    schema = _response_schema(route.response) if status == 200 else {"$ref": REF.format(model="Error")}
    return response | {"content": {"application/json": {"schema": schema}}}


def _response_schema(response: Document | DocumentList | PlainText) -> Json:
    if isinstance(response, PlainText) or response.model is None:
        return {"type": "object"}
    reference = {"$ref": REF.format(model=response.model.__name__)}
    if isinstance(response, Document):
        return reference
    next_page = {"type": ["string", "null"], "description": "The cursor of the next page; null on the last page."}
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
    schema = query.model_json_schema(mode="validation", schema_generator=_QuerySchema)
    required = schema.get("required", ())
    return [_parameter(name, dict(each), required) for name, each in schema["properties"].items()]


def _parameter(name: str, schema: Json, required: Sequence[str]) -> Json:
    """A query cannot carry null, so an optional parameter has the schema of its value alone."""
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
    models = {route.response.model for route in routes if isinstance(route.response, Document | DocumentList)} - {None}
    named = sorted((model for model in models if model is not None), key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "serialization") for model in named], ref_template=REF, schema_generator=_ResponseSchema
    )
    schemas = definitions["$defs"]
    assert isinstance(schemas, dict)
    return dict(sorted(schemas.items()))


def _security_schemes() -> Json:
    return {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of a [[web.token]] section of the configuration.",
        },
        "certificate": {"type": "mutualTLS", "description": "A client certificate signed by [web] client_ca."},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": SESSION_COOKIE,
            "description": "The session cookie of a browser that logged in.",
        },
    }


def text(routes: Sequence[Route]) -> str:
    return json.dumps(document(routes), indent=2) + "\n"
