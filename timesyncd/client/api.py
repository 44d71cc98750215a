"""HTTP requests to a daemon's API, each with a timeout, by the standard library alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from timesyncd.errors import Malformed, TimesyncdError, Unreachable

if TYPE_CHECKING:
    from ssl import SSLContext

#: The response for 100,000 nodes has a sixth of this size.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

RESPONSE_TIMEOUT_S = 5.0

_TRUST = "use a host name of the certificate (--url), and set SSL_CERT_FILE to the file of the CA that signed it"


_RUNNING = "is timesyncd running there? See `systemctl status timesyncd`"


def get_json(url: str, token: str | None, timeout_s: float, trusted: SSLContext | None = None) -> tuple[int, Any]:
    """
    The status and the decoded JSON of a GET. `trusted` None: the system's certificates are trusted.

    Raises Unreachable and Malformed, whose texts begin with the address.
    """
    status, body = get(url, token, timeout_s, trusted)
    try:
        return status, json.loads(body)
    except (ValueError, RecursionError):
        if status >= 500:
            raise Malformed(f"{_server(url)}: the server failed with status {status}; see its log") from None
        raise Malformed(f"{_server(url)}: the response (status {status}) is not from timesyncd; {_RUNNING}") from None


def get(url: str, token: str | None, timeout_s: float, trusted: SSLContext | None = None) -> tuple[int, bytes]:
    """The status and the body of a GET. It uses no proxy and follows no redirect, so no other server gets the token. Raises Unreachable."""
    outcome: SimpleQueue[tuple[int, bytes] | TimesyncdError] = SimpleQueue()
    # In a thread, since neither a name look-up nor a slow response has a timeout of its own.
    threading.Thread(target=lambda: outcome.put(_outcome(url, token, timeout_s, trusted)), daemon=True).start()
    try:
        result = outcome.get(timeout=timeout_s)
    except Empty:
        raise _timed_out(url, timeout_s) from None
    if isinstance(result, TimesyncdError):
        raise result
    return result


def fetch_all(url: str) -> dict[str, Any]:
    """
    Node, nodes, grandmasters, jobs, findings and the fleet's overview as JSON.

    Raises Unreachable if no daemon responds there, or if it does not accept the token TIMESYNCD_TOKEN of the environment, and
    Malformed for a list of another form.
    """
    lists = ("nodes", "grandmasters", "jobs", "findings")
    single = {"node": fetch_part(url, "node"), "overview": fetch_part(url, "fleet/overview")}
    return single | {name: fetch_list(url, name) for name in lists} | {"cost": _cost(url)}


def fetch_list(url: str, path: str) -> list[dict[str, Any]]:
    """The items on all pages of a list. Raises Unreachable as `fetch_all` does, and Malformed."""
    return list(list_items(lambda query: fetch_part(url, query), url, path))


def _cost(url: str) -> Any:
    """What the daemon costs; None: it is of a version that does not measure it."""
    try:
        return fetch_part(url, "cost")
    except TimesyncdError:
        return None


def list_items(fetch: Callable[[str], Any], url: str, path: str) -> Iterator[dict[str, Any]]:
    """
    The items on all pages of the list at `path`; `fetch` gets one page by its path. Raises Malformed for a page of another
    form, and for one that returns to an earlier page.
    """
    cursor, cursors = "", {""}
    while True:
        page = fetch(f"{path}?limit=1000{cursor}")
        items, more = (page.get("items"), page.get("next", False)) if isinstance(page, dict) else (None, None)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise unlike_timesyncd(url, path, "no list of items")
        yield from items
        if more is None:
            return
        cursor = f"&cursor={more}"
        if not isinstance(more, str) or cursor in cursors:
            raise unlike_timesyncd(url, path, f"next is {str(more)[:80]!r}, which names no further page")
        cursors.add(cursor)


def unlike_timesyncd(url: str, path: str, reason: str) -> Malformed:
    """The error for a reply whose form is not that of this version's API."""
    return Malformed(
        f"{_server(url)}: the reply to /api/v1/{path} is not as timesyncd gives it: {reason}; "
        "name a daemon's address with --url, and use the same version of timesyncd on both sides"
    )


def fetch_part(url: str, path: str, token: str | None = None, timeout_s: float = RESPONSE_TIMEOUT_S) -> Any:
    """
    One of them, or any other path of the API, as JSON. `token` None: TIMESYNCD_TOKEN of the environment. Raises Unreachable as
    `fetch_all` does.
    """
    page, token = url.rstrip("/"), os.environ.get("TIMESYNCD_TOKEN") if token is None else token
    try:
        status, body = get_json(f"{page}/api/v1/{path}", token, timeout_s)
    except Malformed as error:
        raise Unreachable(str(error)) from error
    if status == 200:
        return body
    text = body.get("error") if isinstance(body, dict) else None
    advice = "; set TIMESYNCD_TOKEN to a valid token" if status == 401 else ""
    raise Unreachable(f"{page}: {text or f'it responded with status {status}'}{advice}")


def is_http_url(url: str) -> bool:
    """Whether it is a complete http or https address."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Whether no other machine can read the traffic: it uses TLS, or stays on this machine."""
    parts = urlsplit(url)
    try:
        is_here = ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_here = parts.hostname == "localhost"
    return parts.scheme == "https" or is_here


def _outcome(
    url: str, token: str | None, timeout_s: float, trusted: SSLContext | None
) -> tuple[int, bytes] | TimesyncdError:
    from http.client import HTTPException  # not loaded where only the clock is read

    try:
        return _fetch(url, token, timeout_s, trusted)
    except TimeoutError:
        return _timed_out(url, timeout_s)
    except (OSError, HTTPException, ValueError) as error:
        return Unreachable(f"{_server(url)}: timesyncd cannot be reached: {_error_text(error)}")


def _timed_out(url: str, timeout_s: float) -> Unreachable:
    return Unreachable(f"{_server(url)}: no response within {timeout_s:.2g} s; {_RUNNING}")


def _fetch(url: str, token: str | None, timeout_s: float, trusted: SSLContext | None) -> tuple[int, bytes]:
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = HTTPConnection(host, port, timeout=timeout_s)
    if parts.scheme == "https":
        connection = HTTPSConnection(host, port, timeout=timeout_s, context=trusted)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
        with connection.getresponse() as response:
            body = response.read(MAX_RESPONSE_BYTES + 1)
    finally:
        connection.close()
    if len(body) > MAX_RESPONSE_BYTES:
        raise ValueError(f"the response exceeds {MAX_RESPONSE_BYTES} bytes")
    return response.status, body


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


def _error_text(error: Exception) -> str:
    """In one line, without the error's number, and with what to do."""
    if why := getattr(error, "verify_message", ""):
        return f"certificate verify failed: {why.rstrip('.')}; {_TRUST}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{text.splitlines()[0] if text else type(error).__name__}; {_RUNNING}"
