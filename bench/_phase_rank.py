"""One rank of a job for bench/phases.py: computes (sleeps), then sends; prints when each step began, in CLOCK_REALTIME ns."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

from timesyncd.client import Job, Kind
from timesyncd.client.phase import PhaseScheduler

#: A rank sends in such pieces, and is at most so much ahead of what it received: a job has the same little in the queue all the time, so that
#: jobs that send at once have equal shares. Left to itself, TCP gives one of them twice as much, which puts jobs apart within some steps.
PIECE, AHEAD = 4_096, 16_384


def connect(rank: int, address: tuple[str, int]) -> socket.socket:
    if rank == 0:
        with socket.create_server(address) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.05)


def all_reduce(link: socket.socket, gradients: memoryview) -> None:
    """What two ranks do for it: each sends all it has while it receives as much."""
    sent = received = 0
    while received < len(gradients):
        while sent < len(gradients) and sent - received < AHEAD:
            sent += link.send(gradients[sent : sent + PIECE])
        received += len(link.recv(min(AHEAD, len(gradients) - received))) or sys.exit("the other rank has gone")


def main(options: argparse.Namespace) -> None:
    job = Job(options.job, options.rank, world_size=2, runtime_dir=options.runtime_dir)
    phaser = PhaseScheduler(job) if options.phases else None
    link = connect(options.rank, (options.address, options.port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.priority:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, options.priority)
    data, starts, held, sent = memoryview(bytes(options.bytes)), [], 0, []
    all_reduce(link, data)  # the connection's window grows once
    time.sleep(max(0.0, options.start_at - time.time()))
    step, goes_on = 0, True
    while goes_on:
        if phaser is not None:
            held += phaser.before_step(step).delay_ns
        starts.append(time.time_ns())
        with job.meter.step(step):
            time.sleep(options.compute_ms / 1000)
            began = time.time_ns()
            with job.meter.sync(step, Kind.ALL_REDUCE, bytes=options.bytes):
                all_reduce(link, data)
            sent.append(time.time_ns() - began)
        goes_on = agreed(link, options.rank, time.time() < options.until)
        step += 1
    job.close()
    if options.rank == 0:
        print(json.dumps({"starts": starts, "held_ns": held, "sent": sent}))


def agreed(link: socket.socket, rank: int, goes_on: bool) -> bool:
    """As rank 0 decides, so that both make the same steps."""
    if rank == 0:
        link.sendall(bytes([goes_on]))
        return goes_on
    return link.recv(1) == b"\1"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("job", str), ("rank", int), ("address", str), ("port", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--priority", type=int, default=0, help="of what is sent: the queue that it goes into")
    for name in ("start-at", "until", "compute-ms"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    main(parser.parse_args())
