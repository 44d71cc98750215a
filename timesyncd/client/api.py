"""One question to a daemon over HTTP, answered within a time or not at all; the standard library alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from timesyncd.errors import Malformed, TimesyncdError, Unreachable

if TYPE_CHECKING:
    from ssl import SSLContext

#: The answer for 100,000 nodes has a sixth of it.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

RESPONSE_TIMEOUT_S = 5.0

_TRUST = "ask (--url) by a name that the certificate has, and let SSL_CERT_FILE name the file of whoever signed it"


def get_json(url: str, token: str | None, within_s: float, trusted: SSLContext | None = None) -> tuple[int, Any]:
    """
    The status and what the JSON holds; `trusted` None: the system's certificates are. Raises Unreachable and Malformed, whose texts
    begin with the address.
    """
    status, body = get(url, token, within_s, trusted)
    try:
        return status, json.loads(body)
    except (ValueError, RecursionError):
        if status >= 500:
            raise Malformed(f"{_server(url)}: what answers there fails (status {status}); its log says why") from None
        raise Malformed(f"{_server(url)}: what answers there (status {status}) is no timesyncd") from None


def get(url: str, token: str | None, within_s: float, trusted: SSLContext | None = None) -> tuple[int, bytes]:
    """No proxy is used and no redirection followed, so the token goes there alone. Raises Unreachable."""
    outcome: SimpleQueue[tuple[int, bytes] | TimesyncdError] = SimpleQueue()
    # In a thread, since neither the look-up of a name nor an answer that drips has an end of its own.
    threading.Thread(target=lambda: outcome.put(_outcome(url, token, within_s, trusted)), daemon=True).start()
    try:
        got = outcome.get(timeout=within_s)
    except Empty:
        raise _late(url, within_s) from None
    if isinstance(got, TimesyncdError):
        raise got
    return got


def fetch_all(url: str) -> dict[str, Any]:
    """
    Node, nodes, grandmasters, jobs and findings as JSON. Raises Unreachable when no daemon answers there, or it wants another
    token than that of the environment.
    """
    lists = ("nodes", "grandmasters", "jobs", "findings")
    return {"node": fetch_part(url, "node")} | {what: list(_items(url, what)) for what in lists}


def _items(url: str, what: str) -> Iterator[Any]:
    """Of a list all pages."""
    page = fetch_part(url, f"{what}?limit=1000")
    yield from page["items"]
    while page["next"] is not None:
        page = fetch_part(url, f"{what}?limit=1000&cursor={page['next']}")
        yield from page["items"]


def fetch_part(url: str, what: str) -> Any:
    """The same of one of them, as it is answered."""
    page, token = url.rstrip("/"), os.environ.get("TIMESYNCD_TOKEN")
    try:
        status, told = get_json(f"{page}/api/v1/{what}", token, RESPONSE_TIMEOUT_S)
    except (Unreachable, Malformed) as error:
        raise Unreachable(f"{error}; is it running? systemctl status timesyncd") from error
    if status == 200:
        return told
    said = told.get("error") if isinstance(told, dict) else None
    advice = "; TIMESYNCD_TOKEN of the environment is shown" if status == 401 else ""
    raise Unreachable(f"{page}: {said or f'it answers with status {status}'}{advice}")


def is_address(url: str) -> bool:
    """Whether it is a whole http or https address."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Whether nobody on the way can read along: TLS, or this machine."""
    parts = urlsplit(url)
    try:
        is_here = ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_here = parts.hostname == "localhost"
    return parts.scheme == "https" or is_here


def _outcome(
    url: str, token: str | None, within_s: float, trusted: SSLContext | None
) -> tuple[int, bytes] | TimesyncdError:
    from http.client import HTTPException  # not loaded by those who only read the clock

    try:
        return _fetch(url, token, within_s, trusted)
    except TimeoutError:
        return _late(url, within_s)
    except (OSError, HTTPException, ValueError) as error:
        return Unreachable(f"{_server(url)}: no timesyncd answers: {_said(error)}")


def _late(url: str, within_s: float) -> Unreachable:
    return Unreachable(f"{_server(url)}: no answer within {within_s:.2g} s")


def _fetch(url: str, token: str | None, within_s: float, trusted: SSLContext | None) -> tuple[int, bytes]:
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = HTTPConnection(host, port, timeout=within_s)
    if parts.scheme == "https":
        connection = HTTPSConnection(host, port, timeout=within_s, context=trusted)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MAX_RESPONSE_BYTES + 1)
    finally:
        connection.close()
    if len(body) > MAX_RESPONSE_BYTES:
        raise ValueError("the answer has no end")
    return answer.status, body


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


def _said(error: Exception) -> str:
    """In one line, and without the error's number."""
    if why := getattr(error, "verify_message", ""):
        return f"certificate verify failed: {why.rstrip('.')}; {_TRUST}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0] if text else type(error).__name__
