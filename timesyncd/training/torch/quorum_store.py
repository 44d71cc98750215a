"""
Hosts the store of the quorums, apart from all ranks: `python -m timesyncd.training.torch.quorum_store [PORT]`.

It prints its port (0, the default: a free one), and serves until it is ended.
"""

from __future__ import annotations

import signal
import sys

from torch._C._distributed_c10d import TCPStore


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    store = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
