"""
A load as of many nodes on a broker, from one process: each node's state again and again, and its roll-up each minute. Commands come on
standard input, a line each: `all HOLDOVER` has every node change its status at once; an empty line ends it.
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
from timesyncd.messages.fleet import HistoryBatch, HistoryRow, Rollup, Summary
from timesyncd.messages.node import BoundMessage, NodeState, SourceState

STREAM = 1
GRANDMASTERS = ("001122.fffe.334455", "001122.fffe.334466")
NODES_OF_A_RACK = 40

#: How often the sender looks what is due.
TICK_S = 0.02


def name(index: int) -> str:
    return f"n{index:05d}"


def state(index: int, sequence: int, status: str = "SYNCHRONIZED", now_ns: int | None = None) -> NodeState:
    """The published state of a node with hardware stamps, so with two sources."""
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
            "topology": f"hall-1/rack-{index // NODES_OF_A_RACK:03d}",
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
            "sources": [_source("ptp", "ptp4l", gm), _source("phc0", "phc", None)],
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


def _source(source: str, driver: str, gm: str | None) -> SourceState:
    known: dict[str, Any] = {"offset_ns": 40, "frequency_ppb": -12_345, "age_ns": 40_000_000, "gm": _bound(1_900)}
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

    def __init__(self, port: int, nodes: int, every_s: float, rollups_every_s: float) -> None:
        self._nodes, self._every_s, self._rollups_every_s = nodes, every_s, rollups_every_s
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.max_inflight_messages_set(1_000)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._templates = {status: self._template(status) for status in ("SYNCHRONIZED", "HOLDOVER")}
        self._sequence = 0
        self.status = "SYNCHRONIZED"

    def _template(self, status: str) -> list[tuple[bytes, bytes, bytes]]:
        """Of each node the state's JSON around the sequence and the time of publishing."""
        return [
            _cut(state(index, 999_999_999, status, 999_999_998).model_dump_json().encode())
            for index in range(self._nodes)
        ]

    def send_state(self, index: int) -> None:
        self._sequence += 1
        before, between, after = self._templates[self.status][index]
        payload = b"%b%d%b%d%b" % (before, self._sequence, between, time.time_ns(), after)
        self._client.publish(f"{TOPIC_PREFIX}/node/{name(index)}/state", payload, 0, retain=True)

    def send_all(self) -> None:
        for index in range(self._nodes):
            self.send_state(index)

    def run(self, ended: threading.Event) -> None:
        """Each node in its turn, evenly; a sender that fell behind catches up."""
        began_s, sent, rolled = time.monotonic(), 0, 0
        while not ended.wait(TICK_S):
            passed_s = time.monotonic() - began_s
            while sent < passed_s / self._every_s * self._nodes:
                self.send_state(sent % self._nodes)
                sent += 1
            while rolled < passed_s / self._rollups_every_s * self._nodes:
                index, minute = rolled % self._nodes, rolled // self._nodes + 1
                message = batch(index, minute, time.time_ns())
                self._client.publish(f"{TOPIC_PREFIX}/node/{name(index)}/history", message.model_dump_json(), 1)
                rolled += 1


def _cut(json: bytes) -> tuple[bytes, bytes, bytes]:
    before, rest = json.split(b"999999999", 1)
    between, after = rest.split(b"999999998", 1)
    return before, between, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--every-s", type=float, default=5.0)
    parser.add_argument("--rollups-every-s", type=float, default=60.0)
    args = parser.parse_args()
    load, ended = Load(args.port, args.nodes, args.every_s, args.rollups_every_s), threading.Event()
    sender = threading.Thread(target=load.run, args=(ended,))
    sender.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        load.status = line.split()[1]
        load.send_all()
        print("sent", flush=True)
    ended.set()
    sender.join()


if __name__ == "__main__":
    main()
