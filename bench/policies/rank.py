"""
A rank's place: waits for orders, one a line, and forks for each, so that every run has a new process with torch and the data already there.

    python -m policies.rank TASK ORDERS

The last place has no rank: it is the parameter server's, for the methods that have one.

Writes `result.json` (rank 0, or the rank that fails first) and `done-<rank>.json`, the bytes that left its namespace, into each run's folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from policies.plan import Method
from policies.training import Order, Work, measure, train, work_of

#: How long the others may go on once there is a result.
GRACE_S = 3.0

#: Beside the port where gloo's ranks meet.
RPC_PORT = 1_000
TX_BYTES = Path("/sys/class/net/eth0/statistics/tx_bytes")
TIMEOUT = timedelta(seconds=60)


def ordered(fields: dict[str, Any]) -> Order:
    method = Method(**fields["method"])
    return Order(**{name: fields[name] for name in Order.__annotations__ if name != "method"}, method=method)


def serve(ranks: int) -> None:
    from timesyncd.training.torch import server

    server.serve(ranks)


def work(fields: dict[str, Any], given: Work) -> None:
    """The forked process; it never returns."""
    folder = Path(fields["folder"])
    try:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        order = ordered(fields)
        os.environ["MASTER_PORT"] = str(fields["port"] + RPC_PORT)
        if rank == ranks:
            if order.method.servers:
                serve(ranks)
            os._exit(0)
        meeting = f"tcp://{os.environ['MASTER_ADDR']}:{fields['port']}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=TIMEOUT)
        torch.manual_seed(fields["seed"])
        network = given.network()
        result = (measure if fields["kind"] == "measure" else train)(order, network, given)
        if rank == 0:
            write(folder / "result.json", result)
    except BaseException as error:  # noqa: BLE001  it is in the result
        traceback.print_exc()
        if not (folder / "result.json").exists():
            write(folder / "result.json", {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def write(path: Path, value: object) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(value))
    partial.replace(path)


def attend(child: int, folder: Path) -> None:
    """Until the child has ended; it is ended `GRACE_S` after there is a result."""
    until: float | None = None
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if until is None and (folder / "result.json").exists():
            until = time.monotonic() + GRACE_S
        if until is not None and time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return
        time.sleep(0.05)


def main(task: str, orders: str) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    given = work_of(task)
    with open(orders) as lines:
        for line in lines:
            fields = json.loads(line)
            before = int(TX_BYTES.read_text())
            child = os.fork()
            if child == 0:
                work(fields, given)
            attend(child, Path(fields["folder"]))
            sent = int(TX_BYTES.read_text()) - before
            write(Path(fields["folder"]) / f"done-{os.environ['RANK']}.json", sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
