"""
A stand-in for Kubernetes' API server, for nodes alone, written from the API's documented behaviour (core/v1 Node, meta/v1 Status,
ListMeta and WatchEvent): lists by page, watches with bookmarks, and refuses with 401, 403, 404, 409, 410 and 415.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Body = dict[str, Any]

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
}


@dataclass
class KubernetesStandIn:
    """
    `events` are (resource version, type, object); `oldest` is the first version that a watch can still begin after.
    `forbidden` are verbs that the account may not use; `patches` what was asked for, with its answer's status.
    """

    url: str = ""
    token: str | None = None
    nodes: dict[str, Body] = field(default_factory=dict)
    events: list[tuple[int, str, Body]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    forbidden: set[str] = field(default_factory=set)
    patches: list[tuple[str, Body, int]] = field(default_factory=list)
    lists: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, name: str, taints: list[Body] | None = None, **labels: str) -> Body:
        """Adds or changes a node, as another client does."""
        kind = "MODIFIED" if name in self.nodes else "ADDED"
        present = self.nodes.get(name, {}).get("metadata", {}).get("labels", {"timesyncd.io/node": "true"})
        body: Body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": present | labels},
            "spec": {"taints": taints} if taints else {},
        }
        return self._store(kind, body)

    def remove(self, name: str) -> None:
        self._store("DELETED", self.nodes[name])

    def compact(self) -> None:
        """Forgets the past, as etcd does: a watch cannot begin at an older version, and ones that run are ended."""
        self.version += 1
        self.oldest = self.version
        self.events.clear()
        self._wake()

    def label(self, name: str) -> str | None:
        labels: dict[str, str] = self.nodes[name]["metadata"]["labels"]
        return labels.get("timesyncd.io/bound-ns")

    def taints(self, name: str) -> list[tuple[str, str]]:
        return [(each["key"], each["value"]) for each in self.nodes[name]["spec"].get("taints", [])]

    def _store(self, kind: str, body: Body) -> Body:
        self.version += 1
        stored: Body = json.loads(json.dumps(body))
        stored["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.nodes[stored["metadata"]["name"]]
        else:
            self.nodes[stored["metadata"]["name"]] = stored
        self.events.append((self.version, kind, stored))
        self._wake()
        return stored

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def collection(self, request: web.Request) -> web.StreamResponse:
        verb = "watch" if request.query.get("watch") == "true" else "list"
        if (refusal := self._refusal(request, verb)) is not None:
            return refusal
        assert request.query["labelSelector"] == "timesyncd.io/node=true"
        return await self._watch(request) if verb == "watch" else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        """One node a page, so that every list of two has two."""
        self.lists += 1
        after = request.query.get("continue", "")
        assert int(request.query["limit"]) > 0
        left = [self.nodes[name] for name in sorted(self.nodes) if name > after]
        metadata: Body = {"resourceVersion": str(self.version)}
        if len(left) > 1:
            metadata |= {"continue": left[0]["metadata"]["name"], "remainingItemCount": len(left) - 1}
        return web.json_response({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": left[:1]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """One that begins too early is refused; one that runs gets 410 as its last event."""
        version = int(request.query["resourceVersion"])
        if version < self.oldest:
            return _status(410, f"too old resource version: {version} ({self.oldest})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await _send(
            response, "BOOKMARK", {"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}}
        )
        while True:
            changed = self.changed
            if version < self.oldest:
                await _send(
                    response, "ERROR", _status_body(410, f"too old resource version: {version} ({self.oldest})")
                )
                return response
            for number, kind, body in [each for each in self.events if each[0] > version]:
                await _send(response, kind, body)
                version = number
            await changed.wait()

    async def item(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if (refusal := self._refusal(request, "get" if request.method == "GET" else "patch")) is not None:
            return refusal
        if name not in self.nodes:
            return _status(404, f'nodes "{name}" not found')
        return web.json_response(self.nodes[name]) if request.method == "GET" else await self._patch(request, name)

    async def _patch(self, request: web.Request, name: str) -> web.Response:
        """
        A JSON merge patch (RFC 7386); its resource version is a precondition. To kubectl's strategic merge patch it is equal
        here: the list of taints has no merge key.
        """
        if request.content_type not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            return _status(415, f"the body of the request was in an unknown format: {request.content_type}")
        patch = json.loads(await request.text())
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, self.nodes[name]["metadata"]["resourceVersion"]):
            self.patches.append((name, patch, 409))
            return _status(409, f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')
        self.patches.append((name, patch, 200))
        return web.json_response(self._store("MODIFIED", _merged(self.nodes[name], patch)))

    def _refusal(self, request: web.Request, verb: str) -> web.Response | None:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if verb not in self.forbidden:
            return None
        return _status(
            403, f'nodes is forbidden: User "x" cannot {verb} resource "nodes" in API group "" at the cluster scope'
        )


def _merged(body: Body, patch: Body) -> Body:
    result = dict(body)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged(result.get(key, {}), value)
        else:
            result[key] = value
    return result


def _status_body(code: int, message: str) -> Body:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": _REASONS[code], "code": code,
    }  # fmt: skip


def _status(code: int, message: str) -> web.Response:
    return web.json_response(_status_body(code, message), status=code)


async def _send(response: web.StreamResponse, kind: str, body: Body) -> None:
    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")


#: The discovery documents, by which kubectl finds what a "node" is.
_DISCOVERY: dict[str, Body] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "shortNames": ["no"],
                "verbs": ["get", "list", "patch", "watch"],
            }
        ],
    },
}  # fmt: skip


async def _discovery(request: web.Request) -> web.Response:
    return web.json_response(_DISCOVERY[request.path])


@asynccontextmanager
async def kubernetes() -> AsyncIterator[KubernetesStandIn]:
    stand_in = KubernetesStandIn()
    app = web.Application()
    app.router.add_get("/api/v1/nodes", stand_in.collection)
    app.router.add_get("/api/v1/nodes/{name}", stand_in.item)
    app.router.add_patch("/api/v1/nodes/{name}", stand_in.item)
    for path in _DISCOVERY:
        app.router.add_get(path, _discovery)
    async with TestServer(app) as server:
        stand_in.url = f"http://127.0.0.1:{server.port}"
        yield stand_in
