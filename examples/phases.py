"""
One rank of a two-rank job that shares a link with other jobs: each step waits for its slot, which the hub plans.

    python examples/phases.py --job a --rank 0 --address ADDRESS --port PORT       # rank 0 listens there, rank 1 connects

The nodes' daemons have `[node] link = "..."`. Without a daemon, a hub or a second job on the link no step is delayed.
"""

import argparse
import socket
import threading
import time

from timesyncd.client import Job, Kind, PhaseScheduler

OPTIONS = {"job": "a", "rank": 0, "address": "127.0.0.1", "port": 29_600, "steps": 1_000, "size": 2_000_000, "ms": 100}


def connect(rank: int, address: tuple[str, int]) -> socket.socket:
    if rank == 0:
        with socket.create_server(address) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.05)


def all_reduce(link: socket.socket, gradients: bytes) -> None:
    """What two ranks do for it: each sends all it has while it receives as much."""
    sender = threading.Thread(target=link.sendall, args=(gradients,))
    sender.start()
    received = 0
    while received < len(gradients) and (data := link.recv(min(1 << 20, len(gradients) - received))):
        received += len(data)
    sender.join()


def main(options: argparse.Namespace) -> None:
    job = Job(options.job, options.rank, world_size=2)
    scheduler = PhaseScheduler(job)
    link = connect(options.rank, (options.address, options.port))
    for step in range(options.steps):
        delay = scheduler.before_step(step)
        with job.meter.step(step):
            time.sleep(options.ms / 1000)  # forward and backward
            with job.meter.sync(step, Kind.ALL_REDUCE, bytes=options.size):
                all_reduce(link, bytes(options.size))
        if options.rank == 0 and step % 10 == 9:
            print(f"step {step}: delayed {delay.delay_ns} ns; {delay.reason or 'in its slot'}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    main(parser.parse_args())
