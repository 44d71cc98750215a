"""
How an answer is written: messages as they are, lists page by page, and a tag by which a copy is known to hold still.

A request that is not answered is told why, in JSON, on one line that helps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from aiohttp import ETag, web

from timesyncd.messages.node import Message
from timesyncd.web.query import CursorKey, PageQuery, decode_cursor, encode_cursor

T = TypeVar("T")

#: What is another one in every answer while nothing changed. A quote within a text is escaped, so that no text looks like this.
_AGES = re.compile(rb'"(?:age_ns|sequence|published_realtime_ns)":-?[0-9]+')


def message_response(request: web.Request, message: Message) -> web.Response:
    return json_response(request, message.model_dump_json().encode())


def list_response(request: web.Request, messages: Sequence[Message], next: str | None = None) -> web.Response:
    """A page; `next` is the cursor of the one after it."""
    items = b",".join(message.model_dump_json().encode() for message in messages)
    body = b'{"items":[%s],"next":%s}' % (items, json.dumps(next).encode())
    headers = {} if next is None else {"Link": f'<{request.rel_url.update_query(cursor=next)}>; rel="next"'}
    return json_response(request, body, headers)


def json_response(request: web.Request, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    """JSON, or 304 where the copy that was named says the same."""
    lasting = _AGES.sub(b"", body)
    tag = ETag(hashlib.sha256(lasting).hexdigest()[:32], is_weak=lasting != body)
    if any(known.value in (tag.value, "*") for known in request.if_none_match or ()):
        response = web.Response(status=304)
    else:
        response = web.Response(body=body, content_type="application/json", headers=headers)
    response.etag = tag
    return response


def paginate(items: Sequence[T], key: Callable[[T], CursorKey], query: PageQuery) -> tuple[list[T], str | None]:
    """
    Of the items in their order by `key` those after the cursor, and the cursor of the next page. Raises BadQuery.
    """
    left = sorted(items, key=key)
    if query.cursor is not None and left:
        after = decode_cursor(query.cursor, tuple(map(type, key(left[0]))))
        left = [item for item in left if key(item) > after]
    shown = left[: query.limit]
    return shown, encode_cursor(key(shown[-1])) if len(left) > len(shown) else None


MAX_NAMES = 10


def error_response(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps({"error": text}).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def not_found_response(what: str, wanted: str, known: Iterable[str], count: int) -> web.Response:
    """404, with the first few of those that there are."""
    names = list(islice(known, MAX_NAMES))
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return error_response(404, f"there is no {what} {wanted!r}; {what}s known here: {', '.join(names) or 'none'}{more}")
