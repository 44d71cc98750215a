"""`/api/v1/stability` of another node and of a pair of nodes: real stores, each served by a daemon's real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView
from filled_store import filled_store
from samples import HEALTHY, nth

from timesyncd import config
from timesyncd.clocks import NS_PER_S
from timesyncd.config import PeerSettings, WebSettings
from timesyncd.errors import ConfigError
from timesyncd.model.observation import Observation
from timesyncd.store.engine import StoreLocation
from timesyncd.web.app import WebServer, serve
from timesyncd.web.auth import access_warnings

SAMPLES = 64
START_NS = HEALTHY.as_of_ns + HEALTHY.real_minus_boot_ns
SPAN = f"since={START_NS - 60 * NS_PER_S}&until={START_NS + 3_600 * NS_PER_S}"
OWN, OTHER = "trainer-01", "trainer-02"


def stored(path: Path, node: str, offset_ns: int, **changes: Any) -> StoreLocation:
    """The offset of the source ptp is a constant plus a saw tooth of 2 ns."""
    samples = (nth(index, offset_ns=offset_ns + index % 3, **changes) for index in range(SAMPLES))
    return filled_store(path, node, (Observation(sample, None) for sample in samples))


def view_of(node: str) -> FakeView:
    recorded = FakeView().states
    return FakeView(states=[recorded[0].model_copy(update={"node": node}), *recorded[1:]])


class Nodes:
    """The daemon of OWN with the peers that it is given, and the daemons of other nodes."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.peers: list[PeerSettings] = []
        self.served: list[WebServer] = []

    async def serve(self, node: str, offset_ns: int, **changes: Any) -> WebServer:
        store = stored(self._folder / f"{node}.sqlite", node, offset_ns, **changes)
        server = await serve(WebSettings(port=0, peer=self.peers), view_of(node), store)
        self._stack.push_async_callback(server.close)
        return server

    async def add_peer(self, offset_ns: int, node: str = OTHER, **changes: Any) -> None:
        server = await self.serve(node, offset_ns, **changes)
        self.peers = [PeerSettings(name=OTHER, url=server.url)]

    async def answer(self, query: str) -> Any:
        if not self.served:
            self.served = [await self.serve(OWN, 40)]
        async with (
            aiohttp.ClientSession(self.served[0].url) as http,
            http.get(f"/api/v1/stability?source=ptp&{SPAN}&{query}") as response,
        ):
            assert response.status == 200, await response.text()
            return await response.json()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def test_a_pair_is_this_node_minus_the_other_one(nodes: Nodes) -> None:
    """At the same Syncs, with the reference that both were compared against."""
    await nodes.add_peer(-60)
    answer = await nodes.answer(f"against={OTHER}")

    [series] = answer["series"]
    assert (answer["node"], answer["against"], answer["peers"], answer["problem"]) == (OWN, OTHER, [OTHER], None)
    assert (series["report"]["samples"], series["report"]["max_abs_te_ns"]) == (SAMPLES, 100)
    assert series["report"]["deviations"][0]["mtie_ns"] == 0
    assert (series["references"], series["left_out"]) == ([HEALTHY.grandmaster_identity], "")


async def test_another_node_s_numbers_are_of_its_own_readings(nodes: Nodes) -> None:
    """This daemon's store has no single offset of it; as the first of a pair it is the minuend."""
    await nodes.add_peer(-60)
    alone, pair = await nodes.answer(f"node={OTHER}"), await nodes.answer(f"node={OTHER}&against={OWN}")

    assert (alone["series"][0]["report"]["max_abs_te_ns"], alone["peers"]) == (60, [OWN])
    assert pair["series"][0]["report"]["max_abs_te_ns"] == 100


async def test_nodes_with_different_references_have_no_difference(nodes: Nodes) -> None:
    """Unknown, and the reason states how often."""
    await nodes.add_peer(-60, grandmaster_identity="ffeedd.fffe.000001")
    [series] = (await nodes.answer(f"against={OTHER}"))["series"]

    assert series["report"] is None
    assert series["problem"] == f"the nodes followed different references at {SAMPLES} of the equal times"


async def test_an_address_at_which_another_node_answers_is_refused(nodes: Nodes) -> None:
    """Its offsets would be those of another clock than the viewer selected."""
    await nodes.add_peer(-60, node="trainer-03")
    answer = await nodes.answer(f"against={OTHER}")

    assert answer["series"] == []
    assert f"the daemon there is the node trainer-03, not {OTHER}" in answer["problem"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("against=trainer-09", "no [[web.peer]] is named 'trainer-09'; named are: trainer-02"),
        (f"against={OWN}", "trainer-01 is compared with itself"),
    ],
)
async def test_a_pair_that_cannot_be_had_is_unknown_with_the_reason(nodes: Nodes, query: str, reason: str) -> None:
    """A node whose address is not configured, and a node beside itself."""
    await nodes.add_peer(-60)
    answer = await nodes.answer(query)

    assert (answer["series"], reason in answer["problem"]) == ([], True), answer["problem"]


async def test_a_daemon_that_does_not_respond_is_the_reason_and_is_asked_again(nodes: Nodes) -> None:
    """Only an answer with numbers is kept for the next viewer."""
    await nodes.add_peer(-60)
    [gone] = [await serve(WebSettings(port=0), view_of("trainer-04"))]
    await gone.close()
    nodes.peers.append(PeerSettings(name="trainer-04", url=gone.url))
    first, second = await nodes.answer("against=trainer-04"), await nodes.answer("against=trainer-04")

    assert "is timesyncd running there" in first["problem"]
    assert first["as_of_realtime_ns"] < second["as_of_realtime_ns"]


async def test_viewers_of_one_past_span_share_an_answer(nodes: Nodes) -> None:
    """The second one costs the daemon no computation, and states as of when it was computed."""
    first, second, other = await nodes.answer(""), await nodes.answer(""), await nodes.answer(f"node={OWN}")

    assert first["as_of_realtime_ns"] == second["as_of_realtime_ns"]
    assert first["series"] == other["series"]


async def test_the_masks_come_with_the_answer(nodes: Nodes) -> None:
    """So that a chart draws the limits by which the verdicts were made."""
    masks = {mask["name"]: mask for mask in (await nodes.answer(""))["masks"]}
    [mtie] = [limit for limit in masks["G.8272 PRTC-A"]["limits"] if limit["quantity"] == "MTIE"]

    assert mtie["segments"][0] == {"after_s": 0.1, "until_s": 273, "base_ns": 25, "slope_ns_per_s": 0.275}


async def test_a_daemon_without_a_store_states_that(nodes: Nodes) -> None:
    """Of its own node it knows nothing."""
    server = await serve(WebSettings(port=0), view_of(OWN))
    async with aiohttp.ClientSession(server.url) as http, http.get("/api/v1/stability?source=ptp") as response:
        answer = await response.json()
    await server.close()

    assert (answer["series"], answer["problem"]) == ([], "this daemon has no [store]")


async def test_two_peers_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is an address that is none; a token that crosses the network in the open is a warning."""
    twice = [PeerSettings(name=OTHER, url="http://n2:8319"), PeerSettings(name=OTHER, url="http://n3:8319")]
    with pytest.raises(ConfigError, match=r"web\.peer\[1\]\.name = 'trainer-02': another peer has this name"):
        await serve(WebSettings(port=0, peer=twice), FakeView())
    with pytest.raises(ValueError, match="expected an address as"):
        PeerSettings(name=OTHER, url="n2:8319")
    monkeypatch.setenv("PEER_TOKEN", "a-secret-of-thirty-characters!")
    open_one = PeerSettings(name=OTHER, url="http://n2:8319", token=config.SecretSettings(env="PEER_TOKEN"))
    assert access_warnings(WebSettings(peer=[open_one])) == [
        "the token of the peer trainer-02 crosses the network unencrypted: give it an https address"
    ]


async def test_a_peer_s_token_is_shown_to_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of the configuration, and not the one of the environment's TIMESYNCD_TOKEN."""
    monkeypatch.setenv("PEER_TOKEN", "a-secret-of-thirty-characters!")
    secret = config.SecretSettings(env="PEER_TOKEN")
    guarded = WebSettings(port=0, token=[config.TokenSettings(name="n1", secret=secret)])
    server = await serve(guarded, view_of(OTHER), stored(Path(nodes._folder) / "guarded.sqlite", OTHER, -60))
    nodes.peers = [PeerSettings(name=OTHER, url=server.url, token=secret)]
    known = await nodes.answer(f"against={OTHER}")
    await server.close()

    assert known["series"][0]["report"]["max_abs_te_ns"] == 100
