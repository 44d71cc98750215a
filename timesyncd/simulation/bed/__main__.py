"""
The helper process of a `PtpBed`: the relay, the namespaces, the parent of every ptp4l.

Its argument is a `Topology` as JSON. It writes one line when all runs, then obeys one JSON line after another from its
standard input and answers each with one, until that closes; then it removes everything.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed.bed import GRANDMASTER, Topology
from timesyncd.simulation.bed.host import End, Namespace, join
from timesyncd.simulation.bed.ptp4l import Ptp4lProcess
from timesyncd.simulation.bed.relay import Relay


class _Inside:
    """What the helper holds; `stack` undoes it."""

    def __init__(self, topology: Topology, stack: ExitStack) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="timesyncd-bed-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.relays: dict[str, Relay] = {}
        self.ptp4ls: dict[str, Ptp4lProcess] = {}
        self._stack = stack
        self._is_transparent = topology.is_transparent
        names = [*topology.direct, *topology.relayed]
        grandmaster = self._namespace()
        namespaces = {name: self._namespace() for name in names}
        for index, name in enumerate(names):
            join_node = self._relay if name in topology.relayed else self._direct
            join_node(name, index, grandmaster, namespaces[name])
        ports = [f"node{index}" for index in range(len(names))]
        self._run(GRANDMASTER, grandmaster, ports, is_grandmaster=True, identity=topology.identity)
        for name in names:
            self._run(name, namespaces[name], ["ptp0"], is_grandmaster=False)

    def _namespace(self) -> Namespace:
        namespace = Namespace()
        self._stack.callback(namespace.close)
        return namespace

    def _direct(self, name: str, index: int, grandmaster: Namespace, node: Namespace) -> None:
        subnet = f"10.199.{2 * index}"
        join(End(f"node{index}", f"{subnet}.1/24", grandmaster), End("ptp0", f"{subnet}.2/24", node))

    def _relay(self, name: str, index: int, grandmaster: Namespace, node: Namespace) -> None:
        near, far = f"10.199.{2 * index}", f"10.199.{2 * index + 1}"
        join(End(f"node{index}", f"{near}.1/24", grandmaster), End(f"near{index}", f"{near}.2/24"))
        join(End("ptp0", f"{far}.2/24", node), End(f"far{index}", f"{far}.1/24"))
        self.relays[name] = Relay(f"near{index}", f"far{index}", self._is_transparent)
        self._stack.callback(self.relays[name].close)

    def _run(
        self, name: str, namespace: Namespace, interfaces: list[str], is_grandmaster: bool, identity: str = ""
    ) -> None:
        self.ptp4ls[name] = Ptp4lProcess(name, self.folder, namespace, interfaces, is_grandmaster, identity)
        self._stack.callback(self.ptp4ls[name].kill)

    def description(self) -> dict[str, Any]:
        return {
            name: {"pid": p.pid, "namespace_pid": p.namespace.pid, "uds_address": str(p.uds_address)}
            for name, p in self.ptp4ls.items()
        }

    def obey(self, request: dict[str, Any]) -> dict[str, Any]:
        """`{"restart": NAME}` or `{"relay": NODE, ...}`, as `PtpBed` asks."""
        if "restart" in request:
            self.ptp4ls[request["restart"]].restart()
            return {"pid": self.ptp4ls[request["restart"]].pid}
        relay = self.relays[request["relay"]]
        relay.to_node.delay_ns = request["delay_to_node_ns"]
        relay.to_grandmaster.delay_ns = request["delay_to_grandmaster_ns"]
        piece = relay.profile.next_piece(
            time.clock_gettime_ns(time.CLOCK_REALTIME), request["x_ns"], request["rate_ppb"]
        )
        relay.profile.pieces.append(piece)
        return {"piece": [piece.start_ns, piece.x_ns, piece.rate_ppb]}


async def _serve(topology: Topology) -> None:
    requests = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    with ExitStack() as stack:
        try:
            inside = _Inside(topology, stack)
        except TimesyncdError as error:
            _say({"error": str(error)})
            return
        _say(inside.description())
        while line := await requests.readline():
            try:
                _say(inside.obey(json.loads(line)))
            except TimesyncdError as error:
                _say({"error": str(error)})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Topology.from_json(sys.argv[1])))
