"""
A fleet for the page's pictures and tests: a real daemon that is hub and node, with a real broker, two simulated
grandmasters at the wire, a simulated ptp4l, and as many nodes and a training job as one MQTT client can publish.

Its incident is a script: the antenna of gm-2 is cut, a boundary clock loses its upstream, a rank of the job is late.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.clocks import NS_PER_S
from timesyncd.config import TOPIC_PREFIX
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import BoundMessage, NodeState, SourceState
from timesyncd.mqtt.topics import encode, topic_of
from timesyncd.sample import format_identity
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l
from timesyncd.simulation.grandmaster import SCENARIOS, Device, SnmpAgent

HUB = "h1-r01-n00"
GRANDMASTERS = ("gm-1", "gm-2")
HALLS, RACKS_OF_A_HALL, NODES_OF_A_RACK = 3, 6, 10
#: The racks behind one boundary clock, and the boundary clock that loses its upstream.
RACKS_OF_A_CLOCK = 3
LOST_CLOCK = 1
EVERY_S = 2.0

RANKS_OF_A_NODE, STEP_NS, LATE_NS = 4, NS_PER_S, 9_100_000
#: So many steps are published at once, as of the last minutes; the late rank is late from the second third on.
PAST_STEPS = 130
BUCKETS = 3


@dataclass(frozen=True)
class RunningJob:
    """Its ranks are on the nodes from `first_node` on."""

    name: str
    ranks: int
    first_node: int
    late_rank: int | None = None

    def node(self, rank: int) -> int:
        return self.first_node + rank // RANKS_OF_A_NODE


#: The second one has ranks behind the lost clock.
JOBS = (RunningJob("llm-70b", 64, 1, late_rank=13), RunningJob("vision-3", 16, 28))

#: It follows the table of the last grandmaster, whose oscillator it names.
_MORE = """oscillator = "ocxo"

[oscillator.ocxo]
holdover = [[0, 100], [3600, 260], [14400, 1500], [28800, 4200]]

[limits]
fleet_alignment_ns = 100_000
job_alignment_ns = 20_000
node_bound_ns = 50_000
"""


def rack_name(rack: int) -> str:
    return f"hall-{rack // RACKS_OF_A_HALL + 1}/rack-{rack % RACKS_OF_A_HALL + 1:02d}"


def node_name(index: int) -> str:
    rack, place = divmod(index, NODES_OF_A_RACK)
    return f"h{rack // RACKS_OF_A_HALL + 1}-r{rack % RACKS_OF_A_HALL + 1:02d}-n{place:02d}"


class FleetLoad:
    """
    Publishes the nodes in a thread of its own, and the jobs once `has_jobs`: a hub that starts misses marks.
    `lost_since_ns`: the lost clock's nodes have no bound.
    """

    def __init__(self, port: int, identities: tuple[str, str], racks: int = HALLS * RACKS_OF_A_HALL) -> None:
        self.nodes = racks * NODES_OF_A_RACK
        self.lost_since_ns: int | None = None
        self.has_jobs = False
        self._identities = identities
        self._chance = random.Random(7)
        self._base_ns = [round(1_450 * math.exp(self._chance.gauss(0, 0.22))) for _ in range(self.nodes)]
        self._sequence = 0
        self._first_step_ns = time.time_ns() - PAST_STEPS * STEP_NS
        self._next_step = 0
        self._ended = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, name="fleet load")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.loop_stop()
        self._client.disconnect()

    def _run(self) -> None:
        """Every node at once, then each in its turn, evenly; the job's steps as they end."""
        for index in range(1, self.nodes):
            self._send_state(index)
        began_s, sent = time.monotonic(), 0
        while not self._ended.wait(0.05):
            while sent < (time.monotonic() - began_s) / EVERY_S * self.nodes:
                sent += 1
                if sent % self.nodes:
                    self._send_state(sent % self.nodes)
            if self.has_jobs:
                self._send_steps()

    def _publish(self, message: NodeState | MarkBatch, retain: bool = False) -> None:
        self._client.publish(topic_of(message, TOPIC_PREFIX, message.node), encode(message), 0, retain=retain)

    def _send_state(self, index: int) -> None:
        self._sequence += 1
        state = self._state(index)
        self._publish(state, retain=True)

    def _state(self, index: int) -> NodeState:
        now_ns, clock = time.time_ns(), index // NODES_OF_A_RACK // RACKS_OF_A_CLOCK
        is_lost = self.lost_since_ns is not None and clock == LOST_CLOCK
        grandmaster = self._identities[1 if clock >= HALLS * RACKS_OF_A_HALL // RACKS_OF_A_CLOCK - 2 else 0]
        bound_ns = round(self._base_ns[index] * self._chance.uniform(0.96, 1.08))
        offset_ns = round(self._chance.gauss(0, 45))
        none = BoundMessage(bound_ns=None, growth_ppb=0, reason="no fresh sample: port LISTENING", reason_code="stale")
        bounds = dict.fromkeys(("parent", "gm", "utc", "parent_stat", "gm_stat", "utc_stat"), none)
        if not is_lost:
            widths = {"parent": 0, "gm": 0, "utc": 250, "parent_stat": -900, "gm_stat": -900, "utc_stat": -650}
            bounds = {
                name: BoundMessage(bound_ns=max(300, bound_ns + more), growth_ppb=1_250, reason="")
                for name, more in widths.items()
            }
        return NodeState.model_validate(
            bounds
            | {
                "node": node_name(index), "incarnation": 1, "sequence": self._sequence, "published_realtime_ns": now_ns,
                "age_ns": 40_000_000, "every_ns": round(EVERY_S * NS_PER_S), "boot_id": f"{index:032x}",
                "time_namespace": 4_026_531_834, "topology": rack_name(index // NODES_OF_A_RACK),
                "status": "DISRUPTED" if is_lost else "SYNCHRONIZED", "utc_status": "DISRUPTED" if is_lost else "SYNCHRONIZED",
                "reason": none.reason if is_lost else "", "reason_code": "stale" if is_lost else "ok",
                "since_realtime_ns": self.lost_since_ns if is_lost else self._first_step_ns,
                "terms": {} if is_lost else _terms(bound_ns, offset_ns), "rates": {"local_drift": 900, "frequency_offset": 40, "steering": 310},
                "grandmaster_identity": grandmaster, "parent_identity": f"00b0c1.fffe.0000{clock:02x}", "utc_seconds_removed": 37,
                "clock": "phc:0", "sources": [_source(grandmaster, offset_ns, is_lost)],
            }
        )  # fmt: skip

    def _send_steps(self) -> None:
        """The marks of every rank of the steps that ended, a datagram for some steps of a rank."""
        ended = (time.time_ns() - self._first_step_ns) // STEP_NS
        while self._next_step < ended:
            steps = range(self._next_step, min(ended, self._next_step + 8))
            self._next_step = steps.stop
            for job in JOBS:
                marks: dict[int, list[Mark]] = {rank: [] for rank in range(job.ranks)}
                for step in steps:
                    for rank, mark in self._marks(job, step):
                        marks[rank].append(mark)
                for rank, its in marks.items():
                    self._send_marks(job, rank, its)

    def _marks(self, job: RunningJob, step: int) -> list[tuple[int, Mark]]:
        """A step of 870 ms: backward makes its gradients ready bucket by bucket, and the last bucket is exposed."""
        begin_ns = self._first_step_ns + step * STEP_NS
        late = job.late_rank if step > PAST_STEPS // 3 else None
        shift_ns = [
            round(abs(self._chance.gauss(0, 120_000))) + (LATE_NS if rank == late else 0) for rank in range(job.ranks)
        ]
        found: list[tuple[int, Mark]] = []
        for bucket in range(BUCKETS):
            ready_ns = [begin_ns + 560_000_000 + bucket * 110_000_000 + shift for shift in shift_ns]
            end_ns = max(ready_ns) + 42_000_000 + self._chance.randrange(3_000_000)
            for rank, arrival_ns in enumerate(ready_ns):
                waits_ns = max(arrival_ns, begin_ns + 780_000_000 + shift_ns[rank])
                found.append(
                    (rank, Mark(step, bucket, Kind.BUCKET, arrival_ns, min(waits_ns, end_ns), end_ns, 8 << 20))
                )
        for rank, shift in enumerate(shift_ns):
            began_ns, gradients_ns = begin_ns + 1_000_000, begin_ns + 780_000_000 + shift
            found.append((rank, Mark(step, 0, Kind.STEP, began_ns, gradients_ns, begin_ns + 870_000_000, 0)))
        return found

    def _send_marks(self, job: RunningJob, rank: int, marks: list[Mark]) -> None:
        index = job.node(rank)
        self._sequence += 1
        message = MarkBatch(
            node=node_name(index), incarnation=1, sequence=self._sequence, uid=1_000, pid=100 + rank, job=job.name, attempt=0, rank=rank,
            world_size=job.ranks, boot_id=f"{index:032x}", time_namespace=4_026_531_834, real_minus_boot_ns=1_700_000_000_000_000_000,
            gm_bound_ns=2_000, utc_bound_ns=2_300, status="SYNCHRONIZED", grandmaster_identity=self._identities[0],
            utc_seconds_removed=37, lost=0, joined_ns=5, past_growth_ppb=1_000, marks=marks,
        )  # fmt: skip
        self._publish(message)


def _terms(bound_ns: int, offset_ns: int) -> dict[str, int]:
    """Named parts that add up to the bound."""
    known = {
        "offset": abs(offset_ns),
        "granularity": 8,
        "step_tolerance": 100,
        "phc_reading": 150,
        "path_memory": bound_ns // 6,
    }
    return {"path_delay": max(0, bound_ns - sum(known.values()))} | known


def _source(grandmaster: str, offset_ns: int, is_lost: bool) -> SourceState:
    known: dict[str, Any] = {
        "offset_ns": offset_ns, "frequency_ppb": -12_345, "age_ns": 40_000_000, "path_delay_ns": 1_100, "clock_class": 6,
        "clock_accuracy": 33, "steps_removed": 2, "domain": 24, "ptp_timescale": True, "grandmaster_identity": grandmaster,
        "current_utc_offset_s": 37,
    }  # fmt: skip
    lost = {"reason": "no fresh sample", "reason_code": "stale"} if is_lost else {}
    state = "LISTENING" if is_lost else "SLAVE"
    return SourceState(
        name="ptp",
        driver="ptp4l",
        reachable=True,
        kind="ptp",
        poll_duration_ns=310_000,
        port_state=state,
        **(known | lost),
    )


#: Writes a store's past, of these grandmasters.
Prepare = Callable[[Path, dict[str, Device]], None]


class PageFleet:
    """What `page_fleet` runs. `cut_antenna`, `lose_clock` and `silence_ptp4l` are the incident."""

    def __init__(self, hub: DaemonProcess, load: FleetLoad, devices: dict[str, Device], ptp4l: SimulatedPtp4l) -> None:
        self.hub, self.load, self._devices, self._ptp4l = hub, load, devices, ptp4l

    def cut_antenna(self) -> None:
        SCENARIOS["antenna-cut"](self._devices["gm-2"])

    async def silence_ptp4l(self, seconds: float) -> None:
        """The hub's own: it is gone, and then back."""
        await self._ptp4l.__aexit__()
        await asyncio.sleep(seconds)
        await self._ptp4l.__aenter__()

    def lose_clock(self) -> None:
        self.load.lost_since_ns = time.time_ns()


@asynccontextmanager
async def page_fleet(
    folder: Path, more: str = "", prepare: Prepare | None = None, racks: int = HALLS * RACKS_OF_A_HALL
) -> AsyncIterator[PageFleet]:
    """
    The fleet, healthy; `more` is added to the daemon's configuration, and `prepare` may write its store before it starts.
    `folder` has to be short: it holds a socket.
    """
    async with AsyncExitStack() as stack:
        marker = new_marker()
        broker = stack.enter_context(Mosquitto(marker=marker))
        devices = {
            name: Device(name=name, serial=f"SIM-{name}", kind="tp5000e", seed=seed, speed=1.0)
            for seed, name in enumerate(GRANDMASTERS, 3)
        }
        agents = {name: await stack.enter_async_context(SnmpAgent(device)) for name, device in devices.items()}
        address = folder / "ptp4l"
        ptp4l = SimulatedPtp4l(address, 0, is_traceable=True, grandmaster_identity=devices["gm-1"].clock_identity)
        ptp4l._port = replace(ptp4l._port, path_delay_ns=1_900, noise_ns=160)
        await stack.enter_async_context(ptp4l)
        ports = {name: agent.port for name, agent in agents.items()}
        hub = DaemonProcess(
            HUB,
            folder / HUB,
            str(address),
            marker,
            broker,
            hub=True,
            grandmasters=ports,
            more=_MORE + more,
            topology=rack_name(0),
        )
        hub.configure()
        if prepare is not None:
            prepare(hub.store, devices)
        hub.launch()
        stack.callback(hub.stop)
        first, second = (format_identity(devices[name].clock_identity) for name in GRANDMASTERS)
        load = FleetLoad(broker.port, (first, second), racks)
        stack.callback(load.close)
        yield PageFleet(hub, load, devices, ptp4l)
