"""The controller: watches nodes, asks the hub, and patches what differs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from timesyncd.client.api import get_json, list_items, unlike_timesyncd
from timesyncd.config import validation_text
from timesyncd.errors import Refused, SourceError
from timesyncd.kubernetes.api import Conflict, Forbidden, Gone, KubernetesApi, Missing
from timesyncd.kubernetes.nodes import KubernetesNode, bound_ns, patch_of
from timesyncd.messages.node import NodeState

log = logging.getLogger(__name__)

ROUND_S = 10.0
HUB_TIMEOUT_S = 10.0

_PAUSE_S = 1.0
_CONFLICTS = 5

States = dict[str, NodeState]


class NodeController:
    """Labels and taints the nodes of a cluster. `limit_ns`: a node with a wider bound is tainted."""

    def __init__(
        self, api: KubernetesApi, hub: str, token: str | None, limit_ns: int, round_s: float = ROUND_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._api = api
        self._hub = hub.rstrip("/")
        self._token = token
        self._limit_ns = limit_ns
        self._round_s = round_s
        self._monotonic_s = monotonic_s
        self._nodes: dict[str, KubernetesNode] = {}
        self._states: States = {}
        self._asked_s = monotonic_s()

    async def run(self) -> None:
        """Until it is cancelled. Raises Forbidden where the account may not read or patch nodes, and Refused where the hub refuses the token."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._rounds())

    async def _watch(self) -> None:
        """Keeps `_nodes`: a list, then the changes since; again where the API no longer has them."""
        version: str | None = None
        while True:
            try:
                if version is None:
                    self._nodes, version = await self._api.nodes()
                    log.info("%d nodes", len(self._nodes))
                async for event in self._api.watch(version):
                    version = event.resource_version
                    if event.node is not None:
                        self._update(event.node, event.is_deleted)
            except Forbidden:
                raise
            except Gone as error:
                log.info("listing the nodes again: %s", error)
                version = None
            except SourceError as error:
                log.warning("watching nodes: %s", error)
                version = None
            # Also where the API ends each watch at once.
            await asyncio.sleep(_PAUSE_S)

    def _update(self, node: KubernetesNode, is_deleted: bool) -> None:
        if is_deleted:
            self._nodes.pop(node.name, None)
        else:
            self._nodes[node.name] = node

    async def _rounds(self) -> None:
        while True:
            await self._ask_hub()
            for name in sorted(self._nodes):
                await self._mend(name)
            await asyncio.sleep(self._round_s)

    async def _ask_hub(self) -> None:
        """While the hub does not answer, the bounds of its last answer grow, until they expire. Raises Refused."""
        asked_s = self._monotonic_s()
        try:
            self._states = await asyncio.to_thread(fleet_states, self._hub, self._token)
            self._asked_s = asked_s
        except Refused:
            raise
        except SourceError as error:
            log.warning("the hub does not answer: %s", error)

    def _bound_ns(self, name: str) -> int | None:
        state = self._states.get(name)
        return None if state is None else bound_ns(state, round((self._monotonic_s() - self._asked_s) * 1e9))

    async def _mend(self, name: str) -> None:
        """Patches the node where it differs; where another client was faster, by what the node is then."""
        try:
            for _ in range(_CONFLICTS):
                node = self._nodes.get(name)
                patch = None if node is None else patch_of(node, self._bound_ns(name), self._limit_ns)
                if patch is None:
                    return
                try:
                    self._nodes[name] = await self._api.patch(name, patch)
                    log.info("%s: label %s", name, self._nodes[name].label)
                    return
                except Conflict:
                    self._nodes[name] = await self._api.node(name)
        except Missing:
            self._nodes.pop(name, None)
        except Forbidden:
            raise
        except SourceError as error:
            log.warning("%s: not patched: %s", name, error)


def fleet_states(hub: str, token: str | None) -> States:
    """The state of each node that the hub knows, by name. Raises SourceError; Refused for a wrong token."""

    def fetched(path: str) -> Any:
        status, body = get_json(f"{hub}/api/v1/{path}", token, HUB_TIMEOUT_S)
        if status in (401, 403):
            raise Refused(f"{hub}/: the hub refuses the token (status {status}); it takes one of the role reader")
        return body

    try:
        states = [NodeState.model_validate(each) for each in list_items(fetched, hub, "nodes")]
    except ValidationError as error:
        raise unlike_timesyncd(hub, "nodes", validation_text(error, with_value=False)) from error
    return {state.node: state for state in states}
