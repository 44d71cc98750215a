"""The part of Kubernetes' API that the controller uses: list, watch, read and patch nodes (core/v1)."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable
from timesyncd.kubernetes.nodes import SELECTOR, KubernetesNode, node_of

#: What each pod is given (Kubernetes, "Accessing the Kubernetes API from a Pod").
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

REQUEST_TIMEOUT_S = 30.0
#: The API ends a watch after this time; the controller begins the next one.
WATCH_S = 300
PAGE = 500

#: Larger than any Node object: etcd takes 1.5 MiB.
MAX_EVENT_BYTES = 4 * 1_048_576

_NODES = "/api/v1/nodes"


class Conflict(Refused):
    """409: another client changed the object meanwhile."""


class Gone(Refused):
    """410: the resource version is too old; list again."""


class Missing(Refused):
    """404: there is no such object."""


class Forbidden(Refused):
    """401 or 403: the account may not do that."""


_ERRORS: dict[int, type[Refused]] = {401: Forbidden, 403: Forbidden, 404: Missing, 409: Conflict, 410: Gone}


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event of a watch. `node` None: a bookmark, which only has a newer `resource_version`."""

    is_deleted: bool
    node: KubernetesNode | None
    resource_version: str


class KubernetesApi:
    """A context manager. Its methods raise SourceError; the text has the API's own reason."""

    def __init__(self, url: str, account: Path | None) -> None:
        """`account` None: a server that needs no credential, such as `kubectl proxy`."""
        self._url = url.rstrip("/")
        self._account = account
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_cluster(cls) -> KubernetesApi:
        """Raises ConfigError outside of a pod."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (ACCOUNT / "token").exists():
            raise ConfigError("this is no pod with a service account: name the Kubernetes API with --api")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", ACCOUNT)

    async def __aenter__(self) -> Self:
        trusted = None
        if self._account is not None:
            try:
                trusted = ssl.create_default_context(cafile=self._account / "ca.crt")
            except OSError as error:
                raise ConfigError(f"{self._account / 'ca.crt'}: {error.strerror or error}") from error
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted if trusted else True))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def nodes(self) -> tuple[dict[str, KubernetesNode], str]:
        """All nodes with the selector's label by name, and the resource version from which a watch goes on."""
        found: dict[str, KubernetesNode] = {}
        query = {"labelSelector": SELECTOR, "limit": str(PAGE)}
        while True:
            body = await self._json("GET", _NODES, query)
            try:
                metadata, items = body["metadata"], body["items"]
                found |= {(node := node_of(each)).name: node for each in items}
                version, more = str(metadata["resourceVersion"]), metadata.get("continue")
            except (AttributeError, KeyError, TypeError) as error:
                raise Malformed(f"{self._url}: the Kubernetes API's answer is no list of nodes: {error!r}") from error
            if not more:
                return found, version
            query["continue"] = more

    async def node(self, name: str) -> KubernetesNode:
        return node_of(await self._json("GET", f"{_NODES}/{name}", {}))

    async def patch(self, name: str, patch: dict[str, Any]) -> KubernetesNode:
        """The node as it is then."""
        return node_of(await self._json("PATCH", f"{_NODES}/{name}", {"fieldManager": "timesyncd"}, patch))

    async def watch(self, resource_version: str) -> AsyncIterator[NodeEvent]:
        """The changes since then, until the API ends the watch. Raises Gone where that is too long ago."""
        query = {
            "labelSelector": SELECTOR, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S),
            "resourceVersion": resource_version,
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=None, connect=REQUEST_TIMEOUT_S, sock_read=WATCH_S + REQUEST_TIMEOUT_S)
        async with self._request("GET", _NODES, query, timeout) as response:
            rest = b""
            async for part in response.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield self._event(line)
                if len(rest) > MAX_EVENT_BYTES:
                    raise Malformed(f"{self._url}: an event of the watch exceeds {MAX_EVENT_BYTES} bytes")

    def _event(self, line: bytes) -> NodeEvent:
        try:
            event = json.loads(line)
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                raise _refusal(int(body.get("code", 500)), body, self._url)
            if kind == "BOOKMARK":
                return NodeEvent(False, None, str(body["metadata"]["resourceVersion"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Malformed(f"{self._url}: an event of the watch cannot be read: {error!r}") from error
        node = node_of(body)
        return NodeEvent(kind == "DELETED", node, node.resource_version)

    async def _json(self, method: str, path: str, query: dict[str, str], body: object = None) -> Any:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with self._request(method, path, query, timeout, body) as response:
            try:
                return json.loads(await response.read())
            except ValueError as error:
                raise Malformed(f"{self._url}{path}: the answer is no JSON") from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, query: dict[str, str], timeout: aiohttp.ClientTimeout, body: object = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        headers = {"Accept": "application/json"} | self._authorization()
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        data = None if body is None else json.dumps(body)
        url = f"{self._url}{path}"
        try:
            async with self._session.request(
                method, url, params=query, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise _refusal(response.status, await _status(response), url)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{url}: {error or 'no answer in time'}") from error

    def _authorization(self) -> dict[str, str]:
        """The token is read for each request, since the kubelet renews it."""
        if self._account is None:
            return {}
        try:
            return {"Authorization": f"Bearer {(self._account / 'token').read_text().strip()}"}
        except OSError as error:
            raise Unreachable(f"{self._account / 'token'}: {error.strerror or error}") from error


async def _status(response: aiohttp.ClientResponse) -> Any:
    """The Status object (meta/v1) of an error; None: there is none."""
    try:
        return json.loads(await response.read())
    except ValueError:
        return None


def _refusal(status: int, body: Any, url: str) -> SourceError:
    """With the message of the Status object."""
    message = body.get("message") if isinstance(body, dict) else None
    text = f"{url}: {message or f'the Kubernetes API responded with status {status}'}"
    return _ERRORS.get(status, Refused)(text)
