"""
Records what the row's ptp4l replies, what its pmc prints of the same, and one event of each kind, for the unit tests:

    sh tests/matrix/row.sh CHROOT EMPTY-FOLDER ptp4l pmc -- .venv/bin/python tests/matrix/matrix_record.py TRANSPORT FILE
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from pathlib import Path

from matrix_pair import Node, pair

from timesyncd.drivers.ptp4l._event_monitor import RxSync, parse_event
from timesyncd.drivers.ptp4l._management import ALL_PORTS, ManagementId, ManagementRequester
from timesyncd.simulation.bed.ptp4l import DOMAIN


def main(transport: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="record-") as short:
        folder = Path(short)
        options: dict[str, object] = {"slave_event_monitor": folder / "events", "uds_address": folder / "uds"}
        events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        events.bind(str(folder / "events"))
        with pair(folder, options, transport) as node:
            kinds = event_octets(events)
            events.close()  # ptp4l would wait for a queue that is not read
            replies, printed = answers(node, folder / "uds")
    recording = {"transport": transport, "replies": replies, "pmc": printed, "events": kinds}
    target.write_text(json.dumps(recording, indent=1) + "\n")


def event_octets(events: socket.socket) -> dict[str, str]:
    """The newest of each kind, after the first few."""
    events.settimeout(60)
    kinds: dict[str, str] = {}
    deadline = time.monotonic() + 60
    received = 0
    while (received < 100 or len(kinds) < 2) and time.monotonic() < deadline:
        datagram = events.recv(2048)
        received += 1
        kinds["sync" if isinstance(parse_event(datagram).record, RxSync) else "delay"] = datagram.hex()
    return kinds


def answers(node: Node, server: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """By the data set's name; the same Sync was the newest before and after each."""
    requester = ManagementRequester(DOMAIN, 0, 0xAABB_CCDD)
    replies, printed = {}, {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(server.with_name("own")))
        end.settimeout(10)
        for number, each in enumerate(ManagementId):
            port = 1 if each.name.startswith("PORT_") else ALL_PORTS
            while True:
                end.sendto(requester.get(each, number, port), str(server))
                first = end.recv(2048)
                text = node.pmc(server, f"GET {each.name}")
                end.sendto(requester.get(each, number, port), str(server))
                if first == end.recv(2048):
                    break
            replies[each.name] = first.hex()
            printed[each.name] = [" ".join(line.split()) for line in text.splitlines()[1:]]
    return replies, printed


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
