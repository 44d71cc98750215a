"""The controller against a stand-in of Kubernetes' API and a hub: watch, 401, 403, 404, 409, 410, and a hub that goes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from authority import Authority
from fake_hub import FakeHub, page, serving
from kubernetes_api import KubernetesStandIn, kubernetes
from node_states import node_state

from timesyncd.__main__ import main
from timesyncd.bound import Bound
from timesyncd.errors import Refused
from timesyncd.kubernetes.api import Forbidden, KubernetesApi
from timesyncd.kubernetes.controller import NodeController
from timesyncd.messages.node import BoundMessage

KEY = "timesyncd.io/bound-ns"
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
PATIENCE_S = 60.0


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving() as hub:
        yield hub


def knows(hub: FakeHub, growth_ppb: int = 0, **bounds: int | None) -> None:
    """What the hub answers: the nodes' bounds, `node_a=187` for node-a."""
    states = [
        node_state(name.replace("_", "-")).model_copy(update={"gm": BoundMessage.of(Bound(bound, growth_ppb))})
        for name, bound in bounds.items()
    ]
    hub.answers["/api/v1/nodes"] = (200, page(*(json.loads(state.model_dump_json()) for state in states)))


class Clock:
    """Monotonic seconds that a test can move on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@asynccontextmanager
async def controlling(
    cluster: KubernetesStandIn, hub: FakeHub, clock: Clock | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """The controller with a limit of 1 us and short rounds."""
    async with KubernetesApi(cluster.url, None) as api:
        controller = NodeController(api, hub.url, "a-token", 1_000, round_s=0.02, monotonic_s=clock or time.monotonic)
        task = asyncio.create_task(controller.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ExceptionGroup):
                await task


async def until(is_met: Callable[[], bool], task: asyncio.Task[None]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_met():
        assert not task.done(), task
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_nodes_are_labelled_and_tainted(hub: FakeHub) -> None:
    """Of a list of several pages: a good one, a wide one, an unknown one, and one that the hub does not know."""
    knows(hub, node_a=187, node_b=3_200, node_c=None)
    async with kubernetes() as cluster:
        for name in ("node-a", "node-b", "node-c", "node-d"):
            cluster.put(name, [OTHER])
        async with controlling(cluster, hub) as task:
            await until(lambda: cluster.label("node-d") is not None, task)
        other = ("nvidia.com/gpu", "present")

        assert [cluster.label(name) for name in cluster.nodes] == ["200", "5000", "unknown", "unknown"]
        assert [cluster.taints(name) for name in cluster.nodes] == [
            [other],
            [other, (KEY, "exceeded")],
            [other, (KEY, "unknown")],
            [other, (KEY, "unknown")],
        ]
        assert len(cluster.patches) == 4
        assert ("/api/v1/nodes", "Bearer a-token") in hub.asked


async def test_a_node_that_joins_is_seen_by_the_watch(hub: FakeHub) -> None:
    """And one that leaves is patched no more; the list is asked for once."""
    knows(hub, node_a=187, node_b=187)
    async with kubernetes() as cluster:
        cluster.put("node-a")
        async with controlling(cluster, hub) as task:
            await until(lambda: cluster.label("node-a") == "200", task)
            cluster.put("node-b")
            await until(lambda: cluster.label("node-b") == "200", task)
            cluster.remove("node-a")
            knows(hub, node_a=3_000, node_b=3_000)
            await until(lambda: cluster.label("node-b") == "5000", task)

        assert cluster.lists == 1
        assert "node-a" not in cluster.nodes


async def test_what_another_client_changed_is_mended(hub: FakeHub) -> None:
    """A label that somebody wrote by hand does not stay."""
    knows(hub, node_a=187)
    async with kubernetes() as cluster:
        cluster.put("node-a")
        async with controlling(cluster, hub) as task:
            await until(lambda: cluster.label("node-a") == "200", task)
            cluster.put("node-a", None, **{KEY: "1"})
            await until(lambda: cluster.label("node-a") == "200", task)


async def test_a_conflict_is_tried_again_with_the_newer_node(hub: FakeHub) -> None:
    """409: the taint that the other client wrote meanwhile is kept."""
    knows(hub, node_a=187)
    async with kubernetes() as cluster:
        cluster.put("node-a")
        async with KubernetesApi(cluster.url, None) as api:
            controller = NodeController(api, hub.url, None, 1_000)
            controller._nodes, _ = await api.nodes()
            cluster.put("node-a", [OTHER])  # no watch runs, so the controller does not know
            await controller._mend("node-a")

        assert [status for _, _, status in cluster.patches] == [409, 200]
        assert cluster.taints("node-a") == [("nvidia.com/gpu", "present"), (KEY, "unknown")]


async def test_a_watch_that_is_too_old_begins_with_a_new_list(hub: FakeHub) -> None:
    """410, as the last event of a watch that runs, and as the answer to a new one."""
    knows(hub, node_a=187, node_b=187)
    async with kubernetes() as cluster:
        cluster.put("node-a")
        async with controlling(cluster, hub) as task:
            await until(lambda: cluster.label("node-a") == "200", task)
            cluster.compact()
            await until(lambda: cluster.lists == 2, task)
            cluster.put("node-b")
            await until(lambda: cluster.label("node-b") == "200", task)
        async with KubernetesApi(cluster.url, None) as api:
            cluster.compact()
            with pytest.raises(Refused, match="too old resource version: 1"):
                await anext(api.watch("1"))


@pytest.mark.parametrize("verb", ["list", "watch", "patch"])
async def test_what_the_account_may_not_do_ends_the_controller(hub: FakeHub, verb: str) -> None:
    """403: with the API's own reason, so that the missing rule is known."""
    knows(hub, node_a=187)
    async with kubernetes() as cluster:
        cluster.put("node-a")
        cluster.forbidden.add(verb)
        async with controlling(cluster, hub) as task:
            with pytest.raises(ExceptionGroup) as caught:
                await asyncio.wait_for(asyncio.shield(task), PATIENCE_S)

    [error] = caught.value.exceptions
    assert isinstance(error, Forbidden)
    assert f'cannot {verb} resource "nodes"' in str(error)


async def test_a_hub_that_refuses_the_token_ends_the_controller(hub: FakeHub) -> None:
    """It would refuse it for ever, and block the address."""
    hub.answers["/api/v1/nodes"] = (401, {"error": "no"})
    async with kubernetes() as cluster, controlling(cluster, hub) as task:
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(asyncio.shield(task), PATIENCE_S)

    assert "the hub refuses the token (status 401)" in str(caught.value.exceptions[0])


async def test_while_the_hub_is_away_the_bound_grows_until_it_expires(hub: FakeHub) -> None:
    """By the clock's own growth: a label never states a bound that is no longer known."""
    knows(hub, growth_ppb=1, node_a=187)
    clock = Clock()
    async with kubernetes() as cluster:
        cluster.put("node-a")
        async with controlling(cluster, hub, clock) as task:
            await until(lambda: cluster.label("node-a") == "200", task)
            hub.answers["/api/v1/nodes"] = (500, b"no JSON")
            clock.ahead_s = 500.0
            await until(lambda: cluster.label("node-a") == "1000", task)
            clock.ahead_s = 10_000.0
            await until(lambda: cluster.label("node-a") == "unknown", task)

            assert cluster.taints("node-a") == [(KEY, "unknown")]


async def test_the_account_s_token_is_read_again(tmp_path: Path) -> None:
    """401 until the kubelet has renewed it."""
    (tmp_path / "token").write_text("old")
    async with kubernetes() as cluster:
        cluster.token = "new"
        Authority(tmp_path).ca.rename(tmp_path / "ca.crt")
        async with KubernetesApi(cluster.url, tmp_path) as api:
            with pytest.raises(Forbidden, match="Unauthorized"):
                await api.nodes()
            (tmp_path / "token").write_text("new\n")

            assert (await api.nodes())[0] == {}


async def test_the_command_ends_with_the_api_s_reason(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1 and one line, which names the verb that the account lacks."""
    knows(hub, node_a=187)
    async with kubernetes() as cluster:
        cluster.forbidden.add("list")
        words = ["kubernetes-controller", "--max-bound", "1us", "--url", hub.url, "--api", cluster.url]
        status = await asyncio.to_thread(main, words)

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("timesyncd: ")]
    assert (status, len(lines)) == (1, 1)
    assert 'cannot list resource "nodes"' in lines[0]


def test_outside_of_a_pod_it_needs_the_api_s_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and the line names the option."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    status = main(["kubernetes-controller", "--max-bound", "1us", "--url", "hub"])

    assert (status, "name the Kubernetes API with --api" in capsys.readouterr().err) == (2, True)
