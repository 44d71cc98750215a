"""Checks whether the clocks of a set of nodes agree well enough to start a job, by asking a hub over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

from timesyncd.bound import Bound, ClockStatus
from timesyncd.client.api import get_json, is_http_url, is_private
from timesyncd.errors import Malformed, Refused, SourceError
from timesyncd.ipc.wire_types import Code
from timesyncd.units import duration_text, limit_text, span_text

DEFAULT_URL = "http://127.0.0.1:8319/"

#: The interval of queries while the alignment is unknown, the timeout of one query, and its minimum when the time is nearly up.
QUERY_INTERVAL_S = 1.0
QUERY_TIMEOUT_S = 10.0
LAST_QUERY_TIMEOUT_S = 1.0

#: Of a node that the hub does not list: the code and the sentence that the hub itself uses.
NODE_NEVER_REPORTED = "node_never_reported"
NEVER_REPORTED = "has never reported to this hub"

#: A hub that runs for so long knows every node and job there is: a name that it does not know is a wrong one.
SETTLED_NS = 30_000_000_000

#: Statuses of a refusal that stays. Others may pass, as for a job that is not known yet.
_PERMANENT_REFUSALS = (400, 401, 403, 414, 421)

#: A hub lists at most so many nodes, the worst first, and so those that never reported.
MAX_LISTED_NODES = 100

_MAX_NAMED = 3


class PreflightReason(Code):
    """Why the clocks do not pass; OK: they do."""

    OK = "ok"
    TOO_FAR_APART = "too_far_apart"
    NAME_UNKNOWN = "name_unknown"
    NODE_UNKNOWN = "node_unknown"
    ALIGNMENT_UNKNOWN = "alignment_unknown"
    RESPONSE_EXPIRED = "response_expired"
    RESPONSE_INVALID = "response_invalid"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class PreflightNode:
    """
    How far a node's clock may be off, against the reference that the nodes were compared by.

    `bound_ns` None: unknown, for `reason_code` (as in the hub's messages; "ok" where the bound is known) and `reason`.
    """

    node: str
    status: str
    bound_ns: int | None
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """
    Whether the clocks agree.

    `ok`: no two of the nodes' clocks were further apart than allowed when the response came. `alignment_ns` is how far they may have been
    apart, and `pair` names the two nodes; None: unknown. `reason_code` and `reason` give in one line why the nodes do not pass, else
    `reason` gives what they were compared by. `nodes` has the worst first. `url` is the daemon that responded, else empty.
    """

    ok: bool
    alignment_ns: int | None
    reason_code: PreflightReason
    reason: str
    nodes: tuple[PreflightNode, ...] = ()
    pair: tuple[str, str] | None = None
    url: str = ""


def preflight(
    *,
    nodes: Iterable[str] | None = None,
    job: str | None = None,
    max_alignment_ns: int,
    timeout_s: float = 30.0,
    url: str = DEFAULT_URL,
    token: str | None = None,
    on_wait: Callable[[PreflightResult], None] = lambda _: None,
) -> PreflightResult:
    """
    Check whether the clocks of these nodes, or of this job's nodes, agree within `max_alignment_ns`.

    While the alignment is unknown, it asks again until `timeout_s` have passed, and calls `on_wait` with what is known. A known alignment
    is returned at once, and so is a name that no node or job has, by hubs that run for 30 s and do not expect it.

    `job` is a job's name or its id. `url` is the page of a hub, or of a daemon that knows a hub. `token` defaults to TIMESYNCD_TOKEN of the
    environment; a hub that `url` does not name receives it over TLS only. An error of the network or of a server is a result that is not
    ok, with its reason. Raises ValueError for invalid arguments.
    """
    query = _Query.of(nodes, job, max_alignment_ns, url, token or os.environ.get("TIMESYNCD_TOKEN"))
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        result, is_final = query.ask(min(QUERY_TIMEOUT_S, max(LAST_QUERY_TIMEOUT_S, left_s)))
        left_s = deadline_s - time.monotonic()
        if is_final or left_s <= 0:
            return result
        on_wait(result)
        time.sleep(min(QUERY_INTERVAL_S, left_s))


@dataclass(frozen=True, slots=True)
class _Query:
    """`refused`: the addresses that refuse permanently, and why. A token sent there again would count as guessing."""

    nodes: tuple[str, ...]
    job: str | None
    max_ns: int
    url: str
    token: str | None
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[str] | None, job: str | None, max_ns: int, url: str, token: str | None) -> _Query:
        names = () if nodes is None else tuple(dict.fromkeys(nodes))
        if bool(names) == bool(job) or not all(names):
            raise ValueError("preflight(): give either nodes or job, and no empty name")
        if max_ns < 0:
            raise ValueError(f"max_alignment_ns = {max_ns}: give at least 0")
        if not is_http_url(url):
            raise ValueError(f"url = {url!r}: give an http or https address such as {DEFAULT_URL}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError(
                "token: it contains a character that no token may contain (a line end?)"
            )  # and is not shown
        return cls(names, job, max_ns, url, token)

    def ask(self, timeout_s: float) -> tuple[PreflightResult, bool]:
        """The result, and whether another query cannot change it."""
        result = self._try(self.url, timeout_s)
        if result.alignment_ns is not None:
            return result, True
        hubs, hint, settled = self._hubs(timeout_s)
        for url in hubs:
            result = self._try(url, timeout_s)
            if result.url:
                break
        is_hub_s = not hubs or result.url in hubs
        if settled is not None and is_hub_s and (name := self._unknown_name(result, settled)) is not None:
            return self._name_unknown(result, name, timeout_s), True
        if result.alignment_ns is None and hint:
            result = replace(result, reason=f"{result.reason}; {hint}")
        return result, result.alignment_ns is not None or set(hubs or [self.url]) <= self.refused.keys()

    def _unknown_name(self, result: PreflightResult, expected: Collection[str]) -> str | None:
        """The first name that the hub does not know. A node that it expects may still start."""
        if result.reason_code is PreflightReason.NAME_UNKNOWN:
            return self.job
        never = (node.node for node in result.nodes if node.reason_code == NODE_NEVER_REPORTED)
        return next((name for name in never if name not in expected), None) if self.job is None else None

    def _name_unknown(self, result: PreflightResult, name: str, timeout_s: float) -> PreflightResult:
        """With the nearest names, where the token may read them."""
        text = result.reason
        if self.job is None:
            text = f"{name}: {NEVER_REPORTED}"
            with suppress(SourceError):
                page = f"{result.url.rstrip('/')}/api/v1/nodes/{quote(name, safe='')}"
                status, body = get_json(page, self._token_for(result.url), timeout_s)
                text = _refusal(status, body, result.url) if status == 404 else text
        return replace(result, reason_code=PreflightReason.NAME_UNKNOWN, reason=text)

    def _token_for(self, url: str) -> str | None:
        """A hub that the daemon named, not the caller, does not receive the token where others can read it."""
        return self.token if url == self.url or is_private(url) else None

    def _try(self, url: str, timeout_s: float) -> PreflightResult:
        """Its `url` is empty if that daemon did not answer the query."""
        try:
            return self._ask_one(url, timeout_s)
        except Malformed as error:
            code = PreflightReason.RESPONSE_INVALID
            return PreflightResult(False, None, code, str(error))
        except Refused as error:
            return PreflightResult(False, None, PreflightReason.REFUSED, str(error))
        except SourceError as error:
            return PreflightResult(False, None, PreflightReason.UNREACHABLE, str(error))

    def _ask_one(self, url: str, timeout_s: float) -> PreflightResult:
        """Raises SourceError; Refused if the refusal is permanent."""
        if url in self.refused:
            raise Refused(self.refused[url])
        parameters = urlencode({"nodes": ",".join(self.nodes)} if self.job is None else {"job": self.job}, safe=",")
        token = self._token_for(url)
        asked_s = time.monotonic()
        status, body = get_json(f"{url.rstrip('/')}/api/v1/alignment?{parameters}", token, timeout_s)
        took_ns = round((time.monotonic() - asked_s) * 1e9)
        if status == 200:
            return self._judge(body, took_ns, url)
        line = _refusal(status, body, url)
        if status in _PERMANENT_REFUSALS:
            self.refused[url] = line + (_TLS_ONLY if status == 401 and token != self.token else "")
            raise Refused(self.refused[url])
        code = PreflightReason.NAME_UNKNOWN if status == 404 and self.job is not None else PreflightReason.REFUSED
        return PreflightResult(False, None, code, line, url=url)

    def _hubs(self, timeout_s: float) -> tuple[list[str], str, list[str] | None]:
        """
        Other addresses to ask, the primary hub's first (none if `url` is a hub itself), what the list of hubs adds to the
        reason, and the nodes that hubs expect and do not hear; None: no hub can tell which names are wrong.
        """
        page, token = f"{self.url.rstrip('/')}/api/v1", None if self.url in self.refused else self.token
        try:
            status, body = get_json(f"{page}/hubs", token, timeout_s)
            if status != 200:
                return [], "", None
            _, own = get_json(f"{page}/node", token, timeout_s)
        except SourceError:
            return [], "", None
        hubs = sorted(_items(body), key=lambda hub: hub.get("primary") is not True)
        has_primary = bool(hubs) and hubs[0].get("primary") is True
        hint = "" if has_primary else "no hub is primary yet" if hubs else "no hub is reporting"
        if isinstance(own, dict) and own.get("node") in [hub.get("node") for hub in hubs]:
            return [], hint, _expected_of_settled(hubs)
        urls = [url for hub in hubs if isinstance(url := hub.get("url"), str) and is_http_url(url) and url != self.url]
        if not urls:
            return urls, hint or "the reporting hubs have no web page", None
        return urls, hint, _expected_of_settled(hubs)

    def _judge(self, body: Any, took_ns: int, url: str) -> PreflightResult:
        """Raises Malformed."""
        result = _read(body, url)
        lists_all = len(result.nodes) < MAX_LISTED_NODES
        missing = sorted(set(self.nodes) - {node.node for node in result.nodes}) if lists_all else []
        unknown = ClockStatus.UNKNOWN.name
        never = [PreflightNode(name, unknown, None, NODE_NEVER_REPORTED, NEVER_REPORTED) for name in missing]
        nodes = (*never, *result.nodes)
        # Whatever the number is: one clock by itself always agrees.
        if not nodes or any(node.bound_ns is None for node in nodes):
            return _unknown(replace(result, nodes=nodes))
        # The response is no older than the query; where it is a copy, our clock and the hub's give its age.
        age_ns = max(took_ns, time.time_ns() - _number(body, "published_realtime_ns", url))
        holds_ns = _count(body, "holds_for_ns", url)
        now_ns = Bound(result.alignment_ns, _count(body, "growth_ppb", url) or 0).at(age_ns)
        if now_ns is None:
            return _unknown(result)
        if holds_ns is not None and age_ns > holds_ns:
            text = f"{url}: its response is {span_text(age_ns)} old, by the clocks here and there, and has expired"
            return replace(result, alignment_ns=None, reason_code=PreflightReason.RESPONSE_EXPIRED, reason=text)
        if now_ns <= self.max_ns:
            return replace(result, ok=True, alignment_ns=now_ns, reason_code=PreflightReason.OK)
        text = _too_far_text(result, now_ns, self.max_ns)
        return replace(result, alignment_ns=now_ns, reason_code=PreflightReason.TOO_FAR_APART, reason=text)


def _expected_of_settled(hubs: list[dict[str, Any]]) -> list[str] | None:
    """The nodes that these hubs expect and do not hear; None: none is primary, or one runs for less than SETTLED_NS."""
    if not any(hub.get("primary") is True for hub in hubs):
        return None
    expected = list[str]()
    for hub in hubs:
        now_ns, started_ns = hub.get("published_realtime_ns"), hub.get("started_realtime_ns")
        if type(now_ns) is not int or type(started_ns) is not int or now_ns - started_ns < SETTLED_NS:
            return None
        missing = hub.get("missing")
        expected += [each for each in missing if isinstance(each, str)] if isinstance(missing, list) else []
    return expected


def _items(body: Any) -> list[dict[str, Any]]:
    """The items on a list's first page."""
    items = body.get("items") if isinstance(body, dict) else None
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def _refusal(status: int, body: Any, url: str) -> str:
    """In one line."""
    why = body.get("error") if isinstance(body, dict) else None
    line = f"{url}: {why if isinstance(why, str) else f'it responded with status {status}'}"
    return f"{line}; {_ADVICE[status]}" if status in _ADVICE else line


_ADVICE = {
    401: "use a valid token",
    403: "use a token with read permission",
    414: "too many node names for one query: give the job instead",
}
_TLS_ONLY = "; the token is sent there only over TLS, or if you give that address as the url"


def _read(body: Any, url: str) -> PreflightResult:
    """As of the hub's response. Raises Malformed."""
    if not isinstance(body, dict) or not isinstance(body.get("nodes"), list):
        raise Malformed(f"{url}: its response is not an alignment")
    return PreflightResult(
        ok=False,
        alignment_ns=_count(body, "alignment_ns", url),
        reason_code=PreflightReason.ALIGNMENT_UNKNOWN,
        reason=_text(body, "reason", url),
        nodes=tuple(_node(each, url) for each in body["nodes"]),
        pair=_pair(body.get("pair")),
        url=url,
    )


def _pair(names: Any) -> tuple[str, str] | None:
    if not isinstance(names, list) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        return None
    return names[0], names[1]


def _node(body: Any, url: str) -> PreflightNode:
    if not isinstance(body, dict):
        raise Malformed(f"{url}: its response is not an alignment")
    return PreflightNode(
        node=_text(body, "node", url),
        status=_text(body, "status", url),
        bound_ns=_count(body, "bound_ns", url),
        reason_code=_text(body, "reason_code", url),
        reason=_text(body, "reason", url),
    )


def _text(body: dict[str, Any], key: str, url: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise Malformed(f"{url}: its response has no valid {key}")
    return value


def _number(body: dict[str, Any], key: str, url: str) -> int:
    value = body.get(key)
    if type(value) is not int:
        raise Malformed(f"{url}: its response has no valid {key}")
    return value


def _count(body: dict[str, Any], key: str, url: str) -> int | None:
    if body.get(key) is None:
        return None
    value = _number(body, key, url)
    if value < 0:
        raise Malformed(f"{url}: its response has {key} = {value}; at least 0 is allowed")
    return value


def _unknown(result: PreflightResult) -> PreflightResult:
    """Without an alignment: it names the nodes without a bound, each with its reason; if there are none, it has the hub's reason."""
    failing = [f"{node.node}: {node.reason or node.status}" for node in result.nodes if node.bound_ns is None]
    more = f"; and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    text = "; ".join(failing[:_MAX_NAMED]) + more or result.reason or "the hub gives no reason"
    code = PreflightReason.NODE_UNKNOWN if failing else PreflightReason.ALIGNMENT_UNKNOWN
    return replace(result, alignment_ns=None, pair=None, reason_code=code, reason=text)


def _too_far_text(result: PreflightResult, now_ns: int, max_ns: int) -> str:
    names = "two of them" if result.pair is None else " and ".join(result.pair)
    is_near = abs(now_ns - max_ns) * 100 < max_ns
    return (
        f"{names} may be {f'{now_ns} ns' if is_near else duration_text(now_ns)} apart; {limit_text(max_ns)} is allowed"
    )
