"""
Ranks as real processes without each of them importing torch: a parent that has imported it forks them.

Importing torch takes a process about two seconds of a core, and the tests start hundreds. Two parents are kept, each with a seed of its
own for Python's hashes, and neighbouring ranks come from different ones: what depends on the order of a set still differs between ranks.
A script that is started here runs as `python script` does: its own arguments, environment, standard streams and process.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

PARENTS = 2


class RankProcess:
    """One rank, with what the tests use of subprocess.Popen."""

    def __init__(self, parent: socket.socket, command: Sequence[str], environ: Mapping[str, str]) -> None:
        (given, self_in), (self_out, out), (self_err, err) = os.pipe(), os.pipe(), os.pipe()
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"command": list(command), "environ": dict(environ), "folder": os.getcwd()}).encode()
        descriptors = array.array("i", [given, out, err, theirs.fileno()])
        parent.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        for descriptor in (given, out, err):
            os.close(descriptor)
        theirs.close()
        self.stdin: IO[str] = os.fdopen(self_in, "w")
        self.stdout: IO[str] = os.fdopen(self_out)
        self.stderr: IO[str] = os.fdopen(self_err)
        self.pid = int(self._status.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, minus the signal's number where one ended it. Raises subprocess.TimeoutExpired."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._status.settimeout(timeout if timeout != 0 else 1e-6)
            try:
                self.returncode = int(self._status.recv(64))
            except (TimeoutError, BlockingIOError):
                return None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it prints until it ends. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self.stdin.closed:
            self.stdin.close()
        printed: dict[int, bytes] = {0: b"", 1: b""}
        with selectors.DefaultSelector() as selector:
            for number, stream in enumerate((self.stdout, self.stderr)):
                if not stream.closed:
                    selector.register(stream.fileno(), selectors.EVENT_READ, number)
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                ready = selector.select(left)
                if not ready:
                    raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
                for key, _ in ready:
                    data = os.read(key.fd, 65_536)
                    printed[key.data] += data
                    if not data:
                        selector.unregister(key.fd)
        self.wait(None if deadline is None else max(0.001, deadline - time.monotonic()))
        for stream in (self.stdout, self.stderr):
            stream.close()
        self._status.close()
        return printed[0].decode(), printed[1].decode()


@cache
def _parent(number: int) -> socket.socket:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(theirs.fileno(), True)
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(number + 1)}
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env=environ,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


def start(script: Path, arguments: Sequence[str], rank: int, environ: Mapping[str, str]) -> RankProcess:
    """`python script arguments` as a process of its own. `environ` is all of its environment; OMP_NUM_THREADS is 1."""
    return RankProcess(_parent(rank % PARENTS), [str(script), *arguments], environ)


def _serve(control: socket.socket) -> None:
    """The parent's loop: one request, one fork; a child's end is reported on the socket that came with its request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    request, descriptors = _received(control)
                    if request is None:
                        for pid, _ in running.values():
                            os.kill(pid, signal.SIGKILL)
                        return
                    status = socket.socket(fileno=descriptors[3])
                    pid = os.fork()
                    if pid == 0:
                        _become(request, descriptors[:3], [control.detach(), status.detach()])
                    for descriptor in descriptors[:3]:
                        os.close(descriptor)
                    status.send(str(pid).encode())
                    watched = os.pidfd_open(pid)
                    running[watched] = pid, status
                    selector.register(watched, selectors.EVENT_READ)
                else:
                    pid, status = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _report(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _received(control: socket.socket) -> tuple[Any, list[int]]:
    data, ancillary, _, _ = control.recvmsg(1 << 20, socket.CMSG_LEN(4 * 4))
    numbers = array.array("i")
    for _, _, content in ancillary:
        numbers.frombytes(content)
    return (json.loads(data) if data else None), list(numbers)


def _report(status: socket.socket, code: int) -> None:
    try:
        status.send(str(code).encode())
    except OSError:
        pass  # the test has gone
    status.close()


def _become(request: dict[str, Any], streams: list[int], unwanted: list[int]) -> None:
    """Run the script in this child as `python script` would, then end without going back into the parent's loop."""
    import runpy
    import threading
    import traceback

    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in {*streams, *unwanted}:
        if descriptor > 2:
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    script, *arguments = request["command"]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 (as the interpreter itself does)
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _main(descriptor: int) -> None:
    import torch.distributed
    import torch.distributed.fsdp
    import torch.nn.parallel
    import torch.optim  # noqa: F401

    _serve(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
