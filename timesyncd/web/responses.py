"""
How responses are written: a message as its own JSON, lists in pages, an ETag for conditional requests, and errors as
one line in JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from aiohttp import ETag, web

from timesyncd.messages.node import Message, ageing_fields
from timesyncd.web.query import CursorKey, PageQuery, decode_cursor, encode_cursor

T = TypeVar("T")

#: The most existing names in an error, and the most that are near the wanted one.
MAX_NAMES = 10
MAX_NEAR = 3

#: In one packet of Ethernet nothing is gained.
MIN_COMPRESSED_BYTES = 1_400
#: Compressing so much takes a millisecond, for which the daemon's loop may wait.
COMPRESSED_IN_A_THREAD_BYTES = 65_536
COMPRESSION_LEVEL = 6

#: A comparison takes some 5 us.
MAX_COMPARED = 10_000


@dataclass(slots=True)
class JsonAnswer:
    """
    A JSON document as any client may get it; `response` applies the headers of one request. The tag is weak where the document also
    has what differs at each reading.
    """

    body: bytes
    tag: str
    is_weak: bool
    headers: dict[str, str]
    _compressed: bytes | None = None

    async def response(self, request: web.Request) -> web.Response:
        """
        The document, or 304 where the client's copy is current. A long one is compressed for a client that accepts it; as another
        representation it has another tag.
        """
        is_compressed = len(self.body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", "")
        if any(known.value in (self.tag, f"{self.tag}-gzip", "*") for known in request.if_none_match or ()):
            response = web.Response(status=304)
        else:
            body = await self._in_gzip() if is_compressed else self.body
            response = web.Response(body=body, content_type="application/json", headers=self.headers)
            if is_compressed:
                response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        response.etag = ETag(f"{self.tag}-gzip" if is_compressed else self.tag, is_weak=self.is_weak)
        return response

    async def _in_gzip(self) -> bytes:
        if self._compressed is None and len(self.body) > COMPRESSED_IN_A_THREAD_BYTES:
            self._compressed = await asyncio.to_thread(_gzip, self.body)
        elif self._compressed is None:
            self._compressed = _gzip(self.body)
        return self._compressed


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, COMPRESSION_LEVEL, mtime=0)


#: What a handler answers with.
Answer = JsonAnswer | web.StreamResponse


def message_answer(message: Message) -> JsonAnswer:
    return json_answer(message.model_dump_json().encode(), lasting=_lasting([message]))


def list_answer(request: web.Request, messages: Sequence[Message], next: str | None = None) -> JsonAnswer:
    """A page of a list; `next` is the cursor of the following page, None on the last one."""
    items = b",".join(message.model_dump_json().encode() for message in messages)
    body = b'{"items":[%s],"next":%s}' % (items, json.dumps(next).encode())
    headers = {} if next is None else {"Link": f'<{request.rel_url.update_query(cursor=next)}>; rel="next"'}
    return json_answer(body, headers, _lasting(messages, next))


def _lasting(messages: Sequence[Message], next: str | None = None) -> bytes | None:
    """
    What the tag of a response is made of; None where the messages have no ageing fields, so that the body itself
    serves.
    """
    if not any(ageing_fields(type(message)) for message in messages):
        return None
    return "\n".join([*(message.lasting_json() for message in messages), next or ""]).encode()


def no_grandmaster(name: str) -> web.Response:
    """Of a path whose name is none that a grandmaster may have."""
    return error_response(404, f"unknown grandmaster {name!r}: not a valid name")


def json_answer(body: bytes, headers: dict[str, str] | None = None, lasting: bytes | None = None) -> JsonAnswer:
    """`lasting`: the content without what differs at each reading."""
    return JsonAnswer(body, hashlib.sha256(lasting or body).hexdigest()[:32], lasting is not None, headers or {})


def paginate(items: Sequence[T], key: Callable[[T], CursorKey], query: PageQuery) -> tuple[list[T], str | None]:
    """The items after the query's cursor, in the order of `key`, and the cursor of the next page. Raises BadQuery."""
    remaining = sorted(items, key=key)
    if query.cursor is not None and remaining:
        after = decode_cursor(query.cursor, tuple(map(type, key(remaining[0]))))
        remaining = [item for item in remaining if key(item) > after]
    items_of_page = remaining[: query.limit]
    return items_of_page, encode_cursor(key(items_of_page[-1])) if len(remaining) > len(items_of_page) else None


def error_response(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps({"error": text}).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def not_found_response(what: str, wanted: str, known: Iterable[str], count: int) -> web.Response:
    """Status 404 with the nearest existing names, or the first few where none is near."""
    everything = list(known)
    if near := get_close_matches(wanted, everything[:MAX_COMPARED], n=MAX_NEAR):
        text = f"unknown {what} {wanted!r}; did you mean {', '.join(near)}? ({count} known)"
        return error_response(404, text)
    names = everything[:MAX_NAMES]
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return error_response(404, f"unknown {what} {wanted!r}; the known {what}s are: {', '.join(names) or 'none'}{more}")
