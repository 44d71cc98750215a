"""A request that is not answered is told why, in JSON, on one line that helps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

from aiohttp import web

NAMED = 10


def refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps({"error": text}).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def unknown(what: str, wanted: str, known: Iterable[str], count: int) -> web.Response:
    """404, with the first few of those that there are."""
    names = list(islice(known, NAMED))
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return refusal(404, f"there is no {what} {wanted!r}; {what}s known here: {', '.join(names) or 'none'}{more}")
