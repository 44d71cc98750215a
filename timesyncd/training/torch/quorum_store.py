"""
Hosts the store of the quorums, apart from all ranks: `python -m timesyncd.training.torch.quorum_store [PORT]`.

It prints its port (0, the default: a free one), and serves until it is ended. Exit status 1: it cannot listen on the port; 2: usage error.
"""

from __future__ import annotations

import argparse
import signal
import sys

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m timesyncd.training.torch.quorum_store",
        description="Hosts the store of the quorums until it is ended; prints its port.",
    )
    parser.add_argument("port", nargs="?", type=port_of, default=0, help="0, the default: a free one")
    port = parser.parse_args().port
    try:
        store = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        reason = str(error).partition("\n")[0]
        print(f"{parser.prog}: cannot listen on port {port}: {reason}; give another port", file=sys.stderr)
        return 1
    print(store.port, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


def port_of(text: str) -> int:
    """Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
