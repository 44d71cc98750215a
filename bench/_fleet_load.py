"""
A load as of many nodes on a broker, from one process: each node's state again and again, and its roll-up each minute; with `--jobs`, the
marks of two ranks a job each `--marks-every-s`. Commands come on standard input, a line each: `all HOLDOVER` has every node change its status at once,
`next MOVED` from its next connection on, with which every node publishes its state at once; an empty line ends it. A node that MOVED is
in another hall: that shows which of its states a hub knows.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any, Literal

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.config import TOPIC_PREFIX
from timesyncd.ipc.job_datagram import Mark
from timesyncd.messages.fleet import HistoryBatch, HistoryRow, Rollup, Summary
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import BoundMessage, NodeState, SourceState
from timesyncd.mqtt.topics import topic_of

STREAM = 1
GRANDMASTERS = ("001122.fffe.334455", "001122.fffe.334466")
NODES_OF_A_RACK = 40

MOVED = "MOVED"
#: SYNCHRONIZED with another offset: with `--changing` a node's states take turns, so each one differs from the one before.
OTHER = "OTHER"

#: Steps and ranks of the jobs, whose users have 50 each.
MARKS_A_TURN, USERS = 5, 20

#: How often the sender looks what is due.
TICK_S = 0.02


def name(index: int) -> str:
    return f"n{index:05d}"


def state(index: int, sequence: int, status: str = "SYNCHRONIZED", now_ns: int | None = None) -> NodeState:
    """The published state of a node with hardware stamps, so with two sources."""
    hall, offset_ns = "hall-2" if status == MOVED else "hall-1", 41 if status == OTHER else 40
    status = "SYNCHRONIZED" if status in (MOVED, OTHER) else status
    gm = GRANDMASTERS[index % 2]
    bounds = {what: _bound(error_ns) for what, error_ns in _BOUNDS.items()}
    return NodeState.model_validate(
        bounds
        | {
            "node": name(index),
            "incarnation": 1,
            "sequence": sequence,
            "published_realtime_ns": now_ns or time.time_ns(),
            "age_ns": 40_000_000 if status == "SYNCHRONIZED" else 6_000_000_000,
            "boot_id": f"{index:032x}",
            "time_namespace": 4_026_531_834,
            "topology": f"{hall}/rack-{index // NODES_OF_A_RACK:03d}",
            "status": status,
            "utc_status": status,
            "reason": "" if status == "SYNCHRONIZED" else "no fresh sample",
            "reason_code": "ok" if status == "SYNCHRONIZED" else "stale",
            "since_realtime_ns": 1_790_000_000_000_000_000,
            "terms": _TERMS,
            "stat_terms": _STAT_TERMS,
            "rates": _RATES,
            "grandmaster_identity": gm,
            "parent_identity": gm,
            "utc_seconds_removed": 37,
            "clock": "phc:0",
            "sources": [_source("ptp", "ptp4l", gm, offset_ns), _source("phc0", "phc", None, offset_ns)],
        }
    )


_BOUNDS = {"parent": 1_900, "gm": 1_900, "utc": 2_150, "parent_stat": 240, "gm_stat": 240, "utc_stat": 490}
_TERMS = {
    "offset": 40, "path_delay": 1_200, "path_memory": 310, "granularity": 8, "step_tolerance": 100,
    "asymmetry_uncertainty": 0, "reading_age": 35, "phc_reading": 150, "phc_to_system": 57,
}  # fmt: skip
_STAT_TERMS = {"mean": 31, "spread": 120, "drift": 9, "asymmetry": 80}
_RATES = {"local_drift": 900, "frequency_offset": 40, "steering": 210, "grandmaster_rate": 100}


def _bound(error_ns: int) -> BoundMessage:
    return BoundMessage(bound_ns=error_ns, growth_ppb=1_250, reason="")


def _source(source: str, driver: str, gm: str | None, offset_ns: int) -> SourceState:
    known: dict[str, Any] = {
        "offset_ns": offset_ns,
        "frequency_ppb": -12_345,
        "age_ns": 40_000_000,
        "gm": _bound(1_900),
    }
    if gm is not None:
        known |= {
            "port_state": "SLAVE",
            "path_delay_ns": 1_200,
            "clock_class": 6,
            "clock_accuracy": 33,
            "steps_removed": 1,
        }
        known |= {"domain": 24, "ptp_timescale": True, "grandmaster_identity": gm, "current_utc_offset_s": 37}
    kind: Literal["phc", "ptp"] = "phc" if gm is None else "ptp"
    return SourceState(name=source, driver=driver, reachable=True, kind=kind, poll_duration_ns=310_000, **known)


def batch(index: int, minute: int, now_ns: int) -> HistoryBatch:
    """The roll-up of the minute that is over, of one source."""
    summary = Summary(count=480, minimum=-90, maximum=120, mean=12, p50=11, p99=101)
    quantities = dict.fromkeys(("offset_ns", "path_delay_ns", "frequency_ppb", "gm_bound_ns", "utc_bound_ns"), summary)
    begins_ns = (now_ns // 60_000_000_000 - 1) * 60_000_000_000
    rollup = Rollup(source="ptp", span_s=60, begins_realtime_ns=begins_ns, quantities=quantities)
    row = HistoryRow(sequence=minute, realtime_ns=now_ns, rollup=rollup)
    return HistoryBatch(
        node=name(index), incarnation=1, sequence=1_000_000 + minute, stream=STREAM, floor=minute, rows=[row]
    )


class Load:
    """Publishes what is due; a state is made from its template, whose three numbers alone change."""

    def __init__(
        self,
        port: int,
        nodes: int,
        every_s: float,
        rollups_every_s: float,
        jobs: int = 0,
        changing: bool = False,
        marks_every_s: float = 5.0,
    ) -> None:
        self._changing, self._marks_every_s = changing, marks_every_s
        self._nodes, self._every_s, self._rollups_every_s, self._jobs = nodes, every_s, rollups_every_s, jobs
        self._reconnected = False
        self._next_status = self.status = "SYNCHRONIZED"
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.max_inflight_messages_set(1_000)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._templates = {status: self._template(status) for status in ("SYNCHRONIZED", "HOLDOVER", MOVED, OTHER)}
        self._sequence = 0

    def _on_connect(self, *_: object) -> None:
        self._reconnected = True

    def announce(self, status: str) -> None:
        """The status of every node from the next connection on."""
        self._reconnected, self._next_status = False, status

    def _template(self, status: str) -> list[tuple[bytes, bytes, bytes]]:
        """Of each node the state's JSON around the sequence and the time of publishing."""
        return [
            _cut(state(index, 999_999_999, status, 999_999_998).model_dump_json().encode())
            for index in range(self._nodes)
        ]

    def send_state(self, index: int) -> None:
        self._sequence += 1
        is_other = self._changing and self.status == "SYNCHRONIZED" and self._sequence // self._nodes % 2
        before, between, after = self._templates[OTHER if is_other else self.status][index]
        payload = b"%b%d%b%d%b" % (before, self._sequence, between, time.time_ns(), after)
        self._client.publish(f"{TOPIC_PREFIX}/node/{name(index)}/state", payload, 0, retain=True)

    def send_all(self) -> None:
        for index in range(self._nodes):
            self.send_state(index)

    def run(self, ended: threading.Event) -> None:
        """Each node in its turn, evenly; a sender that fell behind catches up."""
        began_s, sent, rolled, marked = time.monotonic(), 0, 0, 0
        while not ended.wait(TICK_S):
            passed_s = time.monotonic() - began_s
            if self._reconnected and self._next_status != self.status:
                self.status = self._next_status
                self.send_all()
            while marked < passed_s / self._marks_every_s * self._jobs:
                job, turn = marked % self._jobs, marked // self._jobs
                for rank in (0, 1):
                    self._send_marks(job, rank, turn)
                marked += 1
            while sent < passed_s / self._every_s * self._nodes:
                self.send_state(sent % self._nodes)
                sent += 1
            while rolled < passed_s / self._rollups_every_s * self._nodes:
                index, minute = rolled % self._nodes, rolled // self._nodes + 1
                message = batch(index, minute, time.time_ns())
                self._client.publish(f"{TOPIC_PREFIX}/node/{name(index)}/history", message.model_dump_json(), 1)
                rolled += 1

    def _send_marks(self, job: int, rank: int, turn: int) -> None:
        index, now_ns = (2 * job + rank) % self._nodes, time.time_ns()
        self._sequence += 1
        begin_ns = now_ns + rank * 1_000_000
        marks = [
            Mark(MARKS_A_TURN * turn + step, 0, 1, begin_ns, begin_ns, now_ns + 2_000_000, 8)
            for step in range(MARKS_A_TURN)
        ]
        message = MarkBatch(
            node=name(index), incarnation=1, sequence=self._sequence, uid=job % USERS, pid=100 + job, job=f"job{job}",
            attempt=0, rank=rank, world_size=2, boot_id=f"{index:032x}", time_namespace=4_026_531_834,
            real_minus_boot_ns=1_700_000_000_000_000_000, gm_bound_ns=2_000, utc_bound_ns=3_000, status="SYNCHRONIZED",
            grandmaster_identity=GRANDMASTERS[0], utc_seconds_removed=37, lost=0, joined_ns=5, marks=marks,
        )  # fmt: skip
        self._client.publish(topic_of(message, TOPIC_PREFIX, name(index)), message.model_dump_json())


def _cut(json: bytes) -> tuple[bytes, bytes, bytes]:
    before, rest = json.split(b"999999999", 1)
    between, after = rest.split(b"999999998", 1)
    return before, between, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--changing", action="store_true")
    parser.add_argument("--every-s", type=float, default=5.0)
    parser.add_argument("--marks-every-s", type=float, default=5.0)
    parser.add_argument("--rollups-every-s", type=float, default=60.0)
    args = parser.parse_args()
    load, ended = (
        Load(args.port, args.nodes, args.every_s, args.rollups_every_s, args.jobs, args.changing, args.marks_every_s),
        threading.Event(),
    )
    sender = threading.Thread(target=load.run, args=(ended,))
    sender.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        when, status = line.split()
        if when == "next":
            load.announce(status)
        else:
            load.status = load._next_status = status
            load.send_all()
        print("sent", flush=True)
    ended.set()
    sender.join()


if __name__ == "__main__":
    main()
