"""A server that answers as a hub does, or as none should."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from timesyncd.messages.fleet import AlignmentState, HubState, NodeAlignment

Answer = tuple[int, Any]
"""Status and what is sent: bytes as they are, anything else as JSON."""


@dataclass
class FakeHub:
    """`answers` by path; a callable is given the query. `asked` are the paths and their Authorization headers."""

    url: str
    answers: dict[str, Answer | Callable[[dict[str, list[str]]], Answer]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def agree(self, alignment_ns: int | None = 400, names: str = "a,b", **changes: Any) -> None:
        self.answers["/api/v1/alignment"] = lambda _: (200, aligned(alignment_ns, names, **changes))


def aligned(alignment_ns: int | None, names: str = "a,b", **changes: Any) -> dict[str, Any]:
    """As the hub writes it, of this moment."""
    known = alignment_ns is not None
    state = AlignmentState(
        published_realtime_ns=time.time_ns(),
        alignment_ns=alignment_ns,
        growth_ppb=0 if known else None,
        holds_for_ns=10**12 if known else None,
        pair=names.split(",")[:2] if known else None,
        reason="one grandmaster" if known else "",
        nodes=[node(name, 200 if known else None) for name in names.split(",")],
    )
    return json.loads(state.model_dump_json()) | changes  # type: ignore[no-any-return]


def node(name: str, bound_ns: int | None = 200, reason: str = "") -> NodeAlignment:
    silent = reason or "no message for 12 s"
    status, why = ("SYNCHRONIZED", reason) if bound_ns is not None else ("UNKNOWN", silent)
    code = "ok" if bound_ns is not None else "node_silent"
    return NodeAlignment.model_validate(
        {"node": name, "status": status, "bound_ns": bound_ns, "reason_code": code, "reason": why}
    )


def page(*items: dict[str, Any]) -> dict[str, Any]:
    """The only one of a list."""
    return {"items": list(items), "next": None}


def hub_state(name: str, url: str | None, primary: bool = False) -> dict[str, Any]:
    state = HubState(
        node=name, incarnation=1, sequence=1, published_realtime_ns=time.time_ns(), started_realtime_ns=0, primary=primary,
        url=url, nodes_live=2, nodes_known=2, nodes_expected=2,
    )  # fmt: skip
    return json.loads(state.model_dump_json())  # type: ignore[no-any-return]


@contextmanager
def serving() -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = FakeHub(f"http://127.0.0.1:{server.server_port}/")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        hub.asked.append((parts.path, self.headers.get("Authorization")))
        answer = hub.answers.get(parts.path, (404, {"error": f"there is no {parts.path}"}))
        status, reply = answer(parse_qs(parts.query)) if callable(answer) else answer
        body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
