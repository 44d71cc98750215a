"""Do the clocks of these nodes agree well enough to begin? A hub is asked, over HTTP; the standard library alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from timesyncd.bound import Bound, ClockStatus
from timesyncd.client.api import get_json, is_address, is_private
from timesyncd.errors import Malformed, Refused, SourceError
from timesyncd.units import duration_text, limit_text, span_text

DEFAULT_URL = "http://127.0.0.1:8319/"

#: An unknown alignment is asked for anew so often; one question waits so long, and at least so long when time is nearly up.
QUERY_INTERVAL_S = 1.0
QUERY_TIMEOUT_S = 10.0
LAST_QUERY_TIMEOUT_S = 1.0

NEVER_HEARD_OF = "never heard of"

#: How a daemon refuses for good; another refusal may pass, as that of a job which is not known yet.
_FOR_GOOD = (400, 401, 403, 414, 421)

#: A hub tells of no more nodes than these, the worst first, and so of those that it never heard of.
MAX_LISTED_NODES = 100

_NAMED = 3


@dataclass(frozen=True, slots=True)
class PreflightNode:
    """How far a node's clock may be from what all are compared with; None = unknown, for `reason`."""

    node: str
    status: str
    bound_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """
    `ok`: no two of the nodes' clocks were further apart than allowed when the answer came. `alignment_ns` is how far they may have
    been, `pair` the two of them; None = unknown. `reason` says in one line why not, else by what they were compared. `nodes` has
    the worst first. `url` is the daemon that answered.
    """

    ok: bool
    alignment_ns: int | None
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
    Whether the clocks of these nodes, or of this job's, agree within `max_alignment_ns`. While that is unknown, it is asked for
    anew until `timeout_s` have passed, and `on_wait` is called with what is known; an answer is given at once.

    `job` is a job's name, or its id. `url` is a hub's page, or that of a daemon which knows a hub. `token`: else TIMESYNCD_TOKEN of
    the environment; a hub that was not named by `url` gets it over TLS alone. Whatever the network or a server does is an answer
    that is not ok, with its reason. Raises ValueError for a question that is none.
    """
    question = _Question.of(nodes, job, max_alignment_ns, url, token or os.environ.get("TIMESYNCD_TOKEN"))
    until_s = time.monotonic() + timeout_s
    while True:
        left_s = until_s - time.monotonic()
        answer, is_final = question.ask(min(QUERY_TIMEOUT_S, max(LAST_QUERY_TIMEOUT_S, left_s)))
        left_s = until_s - time.monotonic()
        if is_final or left_s <= 0:
            return answer
        on_wait(answer)
        time.sleep(min(QUERY_INTERVAL_S, left_s))


@dataclass(frozen=True, slots=True)
class _Question:
    """`refused` are the addresses that refuse for good, and how: a token shown there again would count as guessing."""

    nodes: tuple[str, ...]
    job: str | None
    max_ns: int
    url: str
    token: str | None
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[str] | None, job: str | None, max_ns: int, url: str, token: str | None) -> _Question:
        names = () if nodes is None else tuple(dict.fromkeys(nodes))
        if bool(names) == bool(job) or not all(names):
            raise ValueError("preflight() takes either the names of nodes or a job, and none of them is empty")
        if max_ns < 0:
            raise ValueError("max_alignment_ns is at least 0")
        if not is_address(url):
            raise ValueError(f"url = {url!r}: an address as {DEFAULT_URL} is wanted")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: it holds what no token may hold (a line end?)")  # and is not shown
        return cls(names, job, max_ns, url, token)

    def ask(self, within_s: float) -> tuple[PreflightResult, bool]:
        """The answer, and whether asking again is of no use."""
        answer = self._tried(self.url, within_s)
        if answer.alignment_ns is not None:
            return answer, True
        hubs, hint = self._hubs(within_s)
        for url in hubs:
            answer = self._tried(url, within_s)
            if answer.url:
                break
        if answer.alignment_ns is None and hint:
            answer = replace(answer, reason=f"{answer.reason}; {hint}")
        return answer, answer.alignment_ns is not None or set(hubs or [self.url]) <= self.refused.keys()

    def _tried(self, url: str, within_s: float) -> PreflightResult:
        """Its `url` is empty where nobody takes the question."""
        try:
            return self._ask_one(url, within_s)
        except SourceError as error:
            return PreflightResult(False, None, str(error))

    def _ask_one(self, url: str, within_s: float) -> PreflightResult:
        """Raises SourceError; Refused where that is for good."""
        if url in self.refused:
            raise Refused(self.refused[url])
        query = urlencode({"nodes": ",".join(self.nodes)} if self.job is None else {"job": self.job}, safe=",")
        # A hub that was not named by whoever asks, but by the daemon, is not shown the token where others can read it.
        token = self.token if url == self.url or is_private(url) else None
        asked_s = time.monotonic()
        status, told = get_json(f"{url.rstrip('/')}/api/v1/alignment?{query}", token, within_s)
        took_ns = round((time.monotonic() - asked_s) * 1e9)
        if status == 200:
            return self._judged(told, took_ns, url)
        line = _refusal(status, told, url)
        if status in _FOR_GOOD:
            self.refused[url] = line + (_IN_CLEAR if status == 401 and token != self.token else "")
            raise Refused(self.refused[url])
        return PreflightResult(False, None, line, url=url)

    def _hubs(self, within_s: float) -> tuple[list[str], str]:
        """Where else may be asked, the primary hub first: nowhere if who was asked is a hub. And what that says of the answer."""
        page, token = f"{self.url.rstrip('/')}/api/v1", None if self.url in self.refused else self.token
        try:
            status, told = get_json(f"{page}/hubs", token, within_s)
            if status != 200:
                return [], ""
            _, own = get_json(f"{page}/node", token, within_s)
        except SourceError:
            return [], ""
        hubs = sorted(_items(told), key=lambda hub: hub.get("primary") is not True)
        hint = "" if hubs and hubs[0].get("primary") is True else "no hub is primary yet" if hubs else "no hub is heard"
        if isinstance(own, dict) and own.get("node") in [hub.get("node") for hub in hubs]:
            return [], hint
        urls = [url for hub in hubs if isinstance(url := hub.get("url"), str) and is_address(url) and url != self.url]
        return urls, hint or ("" if urls else "the hubs that are heard have no page to ask")

    def _judged(self, told: Any, took_ns: int, url: str) -> PreflightResult:
        """Raises Malformed."""
        answer = _read(told, url)
        told_all = len(answer.nodes) < MAX_LISTED_NODES
        missing = sorted(set(self.nodes) - {node.node for node in answer.nodes}) if told_all else []
        strangers = [PreflightNode(name, ClockStatus.UNKNOWN.name, None, NEVER_HEARD_OF) for name in missing]
        all_nodes = (*strangers, *answer.nodes)
        # Whatever the number says: of a clock by itself it says nothing.
        if not all_nodes or any(node.bound_ns is None for node in all_nodes):
            return replace(answer, alignment_ns=None, nodes=all_nodes, pair=None, reason=_why(all_nodes, answer.reason))
        # The answer is no older than the question; where it is a copy, our clock and the hub's tell its age.
        age_ns = max(took_ns, time.time_ns() - _number(told, "published_realtime_ns", url))
        holds_ns = _count(told, "holds_for_ns", url)
        now_ns = Bound(answer.alignment_ns, _count(told, "growth_ppb", url) or 0).at(age_ns)
        if now_ns is None:
            return replace(answer, reason=_why(answer.nodes, answer.reason))
        if holds_ns is not None and age_ns > holds_ns:
            old = f"{url}: by the clocks here and there its answer is {span_text(age_ns)} old and holds no longer"
            return replace(answer, alignment_ns=None, reason=old)
        if now_ns <= self.max_ns:
            return replace(answer, ok=True, alignment_ns=now_ns)
        return replace(answer, alignment_ns=now_ns, reason=_too_far(answer, now_ns, self.max_ns))


def _items(told: Any) -> list[dict[str, Any]]:
    """Of a list's first page."""
    items = told.get("items") if isinstance(told, dict) else None
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def _refusal(status: int, told: Any, url: str) -> str:
    """In one line."""
    why = told.get("error") if isinstance(told, dict) else None
    line = f"{url}: {why if isinstance(why, str) else f'it answers with status {status}'}"
    return f"{line}; {_ADVICE[status]}" if status in _ADVICE else line


_ADVICE = {
    401: "give a token that it knows",
    403: "give a token that may read",
    414: "too many names for one question: ask for the job",
}
_IN_CLEAR = "; the token goes there over TLS alone, or when you name that address"


def _read(told: Any, url: str) -> PreflightResult:
    """As of the hub's answer. Raises Malformed."""
    if not isinstance(told, dict) or not isinstance(told.get("nodes"), list):
        raise Malformed(f"{url}: its answer is no alignment")
    return PreflightResult(
        ok=False,
        alignment_ns=_count(told, "alignment_ns", url),
        reason=_text(told, "reason", url),
        nodes=tuple(_node(each, url) for each in told["nodes"]),
        pair=_pair(told.get("pair")),
        url=url,
    )


def _pair(told: Any) -> tuple[str, str] | None:
    if not isinstance(told, list) or len(told) != 2 or not all(isinstance(name, str) for name in told):
        return None
    return told[0], told[1]


def _node(told: Any, url: str) -> PreflightNode:
    if not isinstance(told, dict):
        raise Malformed(f"{url}: its answer is no alignment")
    return PreflightNode(
        _text(told, "node", url), _text(told, "status", url), _count(told, "bound_ns", url), _text(told, "reason", url)
    )


def _text(told: dict[str, Any], key: str, url: str) -> str:
    value = told.get(key)
    if not isinstance(value, str):
        raise Malformed(f"{url}: its answer has no {key}")
    return value


def _number(told: dict[str, Any], key: str, url: str) -> int:
    value = told.get(key)
    if type(value) is not int:
        raise Malformed(f"{url}: its answer has no {key}")
    return value


def _count(told: dict[str, Any], key: str, url: str) -> int | None:
    if told.get(key) is None:
        return None
    value = _number(told, key, url)
    if value < 0:
        raise Malformed(f"{url}: {key} = {value} in its answer")
    return value


def _why(nodes: Sequence[PreflightNode], reason: str) -> str:
    """The nodes that fail, each with its reason; where none does, the hub's."""
    failing = [f"{node.node}: {node.reason or node.status}" for node in nodes if node.bound_ns is None]
    more = f"; and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
    return "; ".join(failing[:_NAMED]) + more or reason or "the hub does not say why"


def _too_far(answer: PreflightResult, now_ns: int, max_ns: int) -> str:
    who = "two of them" if answer.pair is None else " and ".join(answer.pair)
    is_near = abs(now_ns - max_ns) * 100 < max_ns
    return f"{who} may be {f'{now_ns} ns' if is_near else duration_text(now_ns)} apart; {limit_text(max_ns)} is allowed"
