"""`launch.py N SCRIPT`: ranks by fork, so that torch is imported once. The status is the first one above 0."""

import atexit
import os
import runpy
import socket
import sys
import traceback

import torch
import torch.distributed
import torch.nn.parallel


def rank_status(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001  the status is the launcher's, whatever ended the rank
        traceback.print_exc()
        return 1
    return 0


def main(ranks: int, script: str) -> int:
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            own = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_PORT": port,
            }
            os.environ.update({name: str(value) for name, value in own.items()}, MASTER_ADDR="127.0.0.1")
            sys.argv = [script]
            status = rank_status(script)
            sys.stdout.flush()
            atexit._run_exitfuncs()
            os._exit(status)
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
