"""
What nodes and ranks of a whole site publish, over a few shared connections: each node's state each `--every-s` and
its roll-up a minute, and of each rank of each job a batch of four marks a second. Each state differs from the node's
last one. With `--probe` one more node publishes each half second.

It writes MQTT 3.1.1 itself, at QoS 0: paho's client would take ten times as long. An empty line on standard input
ends it; then it prints as JSON what it sent, and by how much it was late.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time

from _fleet_load import GRANDMASTERS, NODES_OF_A_RACK, OTHER, batch, name, state

from timesyncd.config import TOPIC_PREFIX
from timesyncd.ipc.job_datagram import Kind, Mark, job_id, job_part
from timesyncd.messages.jobs import MarkBatch
from timesyncd.mqtt.topics import MARKS

CONNECTIONS = 8
TICK_S = 0.02
PROBE_EVERY_S = 0.5
USERS, RANKS_OF_A_NODE = 20, 8
NS_PER_S = 1_000_000_000

#: In a template they stand for what differs from message to message.
_SEQUENCE, _PUBLISHED, _STEP, _ARRIVAL, _BEGIN, _END = (4_000_000_000_000_000_001 + number for number in range(6))


class Connection:
    """To the broker; what is published waits for `flush`."""

    def __init__(self, port: int, identifier: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._waiting: list[bytes] = []
        client = identifier.encode()
        body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(client).to_bytes(2, "big") + client
        self._socket.sendall(b"\x10" + _length(len(body)) + body)
        if self._socket.recv(4)[-1:] != b"\x00":
            raise SystemExit("the broker refuses the load's connection")

    def publish(self, topic: bytes, payload: bytes, is_retained: bool = False) -> None:
        body = len(topic).to_bytes(2, "big") + topic
        head = b"\x31" if is_retained else b"\x30"
        self._waiting.append(head + _length(len(body) + len(payload)) + body + payload)

    def flush(self) -> None:
        """Blocks while the broker accepts nothing."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._socket.sendall(b"".join(waiting))


def _length(number: int) -> bytes:
    found = bytearray()
    while True:
        number, part = divmod(number, 128)
        found.append(part | (128 if number else 0))
        if not number:
            return bytes(found)


def _template(text: str, *numbers: int) -> bytes:
    """With a %d in the place of each number."""
    octets = text.encode().replace(b"%", b"%%")
    for number in numbers:
        octets = octets.replace(b"%d" % number, b"%d")
    return octets


def state_templates(nodes: int) -> list[tuple[bytes, bytes]]:
    """Of each node its state's JSON in two versions, with a %d for its sequence and the time of publication."""
    first = [
        _template(state(0, _SEQUENCE, each, _PUBLISHED).model_dump_json(), _SEQUENCE, _PUBLISHED)
        for each in ("SYNCHRONIZED", OTHER)
    ]
    found = []
    for index in range(nodes):
        changes = {
            name(0): name(index),
            f"{0:032x}": f"{index:032x}",
            "rack-000": f"rack-{index // NODES_OF_A_RACK:03d}",
            GRANDMASTERS[0]: GRANDMASTERS[index % 2],
        }
        one, other = first
        for before, after in changes.items():
            one, other = (each.replace(before.encode(), after.encode()) for each in (one, other))
        found.append((one, other))
    return found


def marks_template(job: int, rank: int, ranks: int, nodes: int) -> tuple[bytes, bytes]:
    """The topic, and the batch's JSON with a %d for its sequence, and for each mark step, arrival, begin and end."""
    index = (job * ranks + rank) // RANKS_OF_A_NODE % nodes
    kinds = (Kind.ALL_REDUCE, Kind.ALL_REDUCE, Kind.ALL_REDUCE, Kind.STEP)
    message = MarkBatch(
        node=name(index), incarnation=1, sequence=_SEQUENCE, uid=1_000 + job % USERS, pid=100 + rank, job=f"job{job}",
        attempt=0, rank=rank, world_size=ranks, boot_id=f"{index:032x}", time_namespace=4_026_531_834,
        real_minus_boot_ns=1_700_000_000_000_000_000, gm_bound_ns=2_000, utc_bound_ns=3_000, status="SYNCHRONIZED",
        grandmaster_identity=GRANDMASTERS[0], utc_seconds_removed=37, lost=0, joined_ns=5,
        marks=[Mark(_STEP, sync, kind, _ARRIVAL, _BEGIN, _END, 1_048_576) for sync, kind in enumerate(kinds)],
    )  # fmt: skip
    topic = MARKS.topic(TOPIC_PREFIX, name(index), job_part(job_id(message.uid, message.job, message.attempt)))
    return topic.encode(), _template(message.model_dump_json(), _SEQUENCE, _STEP, _ARRIVAL, _BEGIN, _END)


class Sender:
    """Publishes what is due. All ranks' marks of a step have its times; their batches go out in the second after it."""

    def __init__(self, port: int, nodes: int, jobs: int, ranks: int, every_s: float, has_probe: bool) -> None:
        self._nodes, self._every_s, self._ranks, self._has_probe = nodes, every_s, ranks, has_probe
        self._connections = [Connection(port, f"load-{number}") for number in range(CONNECTIONS)]
        self._states = state_templates(nodes + has_probe)
        self._topics = [f"{TOPIC_PREFIX}/node/{name(index)}".encode() for index in range(nodes + has_probe)]
        self._marks = [marks_template(job, rank, ranks, nodes) for job in range(jobs) for rank in range(ranks)]
        self._sequence = 0
        self.counts = {"states": 0, "batches": 0, "rollups": 0, "probes": 0}
        self.late_s: list[float] = []

    def run(self, ended: threading.Event) -> None:
        began_s = time.monotonic()
        self._began_ns = time.time_ns()
        counts = self.counts
        while not ended.wait(TICK_S):
            passed_s = time.monotonic() - began_s
            while self._has_probe and counts["probes"] < passed_s / PROBE_EVERY_S:
                self._send_state("probes", counts["probes"], self._nodes)
            while counts["states"] < passed_s / self._every_s * self._nodes:
                self._send_state("states", *divmod(counts["states"], self._nodes))
            while counts["batches"] < passed_s * len(self._marks):
                self._send_marks(counts["batches"])
            while counts["rollups"] < passed_s / 60 * self._nodes:
                self._send_rollup(counts["rollups"])
            for connection in self._connections:
                connection.flush()
            self.late_s.append(time.monotonic() - began_s - passed_s)

    def _connection(self, index: int) -> Connection:
        return self._connections[index % CONNECTIONS]

    def _send_state(self, kind: str, turn: int, index: int) -> None:
        self._sequence += 1
        payload = self._states[index][turn % 2] % (self._sequence, time.time_ns())
        self._connection(index).publish(self._topics[index] + b"/state", payload, is_retained=True)
        self.counts[kind] += 1

    def _send_marks(self, number: int) -> None:
        turn, index = divmod(number, len(self._marks))
        rank = index % self._ranks
        topic, template = self._marks[index]
        self._sequence += 1
        # Four marks of 200 ms each, the ranks 10 us apart, within the second before.
        first_ns = self._began_ns + (turn - 1) * NS_PER_S
        numbers = [self._sequence]
        for place in range(4):
            at_ns = first_ns + place * 200_000_000
            arrival_ns = at_ns + (rank * 10_000 if place < 3 else 0)
            numbers += [turn, arrival_ns, arrival_ns, at_ns + 2_000_000]
        self._connection(index).publish(topic, template % tuple(numbers))
        self.counts["batches"] += 1

    def _send_rollup(self, number: int) -> None:
        turn, index = divmod(number, self._nodes)
        payload = batch(index, turn + 1, time.time_ns()).model_dump_json().encode()
        self._connection(index).publish(self._topics[index] + b"/history", payload)
        self.counts["rollups"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--every-s", type=float, required=True)
    parser.add_argument("--probe", action="store_true")
    args = parser.parse_args()
    sender = Sender(args.port, args.nodes, args.jobs, args.ranks, args.every_s, args.probe)
    ended = threading.Event()
    thread = threading.Thread(target=sender.run, args=(ended,))
    thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    ended.set()
    thread.join()
    late_s = sorted(sender.late_s)
    print(json.dumps(sender.counts | {"connections": CONNECTIONS, "late_p99_s": late_s[len(late_s) * 99 // 100]}))


if __name__ == "__main__":
    main()
