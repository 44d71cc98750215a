"""
A job's parameter servers by RPC: the rendezvous with the ranks, requests to the shards, the liveness of all processes,
a server's process.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import rpc
from torch.distributed.rpc.functions import async_execution

from timesyncd.client.torch.peer_loss import first_sentence
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import SyncError
from timesyncd.training.torch.shard import RejectedRequest, Shard

#: How long a rank or a server may be silent while others wait for it.
TIMEOUT_S = 300.0

#: Interval of the liveness checks.
_HEARTBEAT_S = 1.0

#: Time-out of the message that reports a failure to one process.
_REPORT_TIMEOUT_S = 5.0

_rendezvous_numbers = itertools.count()
_local_shard: Shard | None = None

_P = ParamSpec("_P")
_Value = TypeVar("_Value")


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def server_name(server: int) -> str:
    return f"parameter-server-{server}"


class RpcConnection:
    """
    This process's RPC connection to the ranks and servers of a job, until `close`. `shard`: the shard that it serves,
    if any.

    Raises SyncError where not all processes joined within `timeout_s`, ValueError where MASTER_ADDR or MASTER_PORT is
    not set.
    """

    def __init__(self, name: str, names: Sequence[str], timeout_s: float, shard: Shard | None, monitor: bool) -> None:
        global _local_shard
        self.timeout_s = timeout_s
        _local_shard = shard
        self._store = _rendezvous(name, names, timeout_s)
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=timeout_s, _transports=["uv"], _channels=["basic"])
        with _as_sync_error(f"{_display_name(name)} cannot join the job's RPC"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # torch itself calls it so
            rpc.init_rpc(name, None, names.index(name), len(names), options)  # type: ignore[no-untyped-call]
        atexit.register(self.close, False)
        others = [other for other in names if other != name]
        self._monitor = LivenessMonitor(self, shard, others) if shard is not None and monitor else None

    def request(
        self,
        host: str,
        method: Callable[Concatenate[Shard, _P], torch.futures.Future[_Value]],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> torch.futures.Future[_Value]:
        """Call a method of the host's shard. It has no time-out; `reply` checks that the host is alive."""
        with _as_sync_error(f"{_display_name(host)} has ended"):
            requested: torch.futures.Future[_Value] = rpc.rpc_async(
                host, _run, (method, *arguments), keywords, timeout=0
            )
        return requested

    def reply(self, host: str, requested: torch.futures.Future[_Value | RejectedRequest]) -> _Value:
        """Wait for the reply. Raises SyncError where the host has ended, or its shard rejects the request."""
        done = threading.Event()
        requested.add_done_callback(lambda _: done.set())
        try:
            while not done.wait(self.timeout_s / 2):
                rpc.rpc_sync(host, _ping, timeout=self.timeout_s / 2)
            value = requested.value()
        except RuntimeError as error:
            known = _local_shard.failed if _local_shard is not None else ""
            raise SyncError(known or f"{_display_name(host)} has ended: {first_sentence(error)}") from error
        if isinstance(value, RejectedRequest):
            raise SyncError(value.reason)
        return value

    def wait_until_ended(self, names: Sequence[str]) -> None:
        """Wait until none of these processes replies any more, at most for the time-out."""
        until_s = time.monotonic() + self.timeout_s
        while time.monotonic() < until_s and any(_replies(name) for name in names):
            time.sleep(_HEARTBEAT_S)

    def close(self, graceful: bool) -> None:
        """`graceful`: wait until all processes close theirs. Raises SyncError where one does not."""
        global _local_shard
        atexit.unregister(self.close)
        if self._monitor is not None:
            self._monitor.stop()
        with _as_sync_error("a rank or parameter server did not reach the job's end"):
            rpc.shutdown(graceful=graceful, timeout=self.timeout_s)
        _local_shard = None


class LivenessMonitor:
    """
    A thread that detects processes that ended or are silent, and reports them to all shards, so that no rank waits in
    vain.
    """

    def __init__(self, connection: RpcConnection, shard: Shard, others: Sequence[str]) -> None:
        self._connection = connection
        self._shard = shard
        self._pings: dict[str, torch.futures.Future[None]] = dict.fromkeys(others, _completed())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timesyncd-liveness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_HEARTBEAT_S):
            ended = next((name for name in self._pings if not self._is_alive(name)), None)
            overdue = self._shard.overdue(int(self._connection.timeout_s * NS_PER_S))
            if ended is None and overdue is not None and overdue.rank is not None:
                # The shard may find a stopped process before its ping expires: the reason must not depend on which is first.
                ended = None if _replies(rank_name(overdue.rank)) else rank_name(overdue.rank)
            if ended is not None:
                return self._report(f"{_display_name(ended)} has ended")
            if overdue is not None:
                return self._report(overdue.reason)

    def _is_alive(self, name: str) -> bool:
        """False: the process has ended, or did not reply for the connection's time-out."""
        if not self._pings[name].done():
            return True
        try:
            self._pings[name].value()
            self._pings[name] = rpc.rpc_async(name, _ping, timeout=self._connection.timeout_s)
        except RuntimeError:  # raised for a broken connection and for a time-out
            return False
        return True

    def _report(self, reason: str) -> None:
        """
        To the others first: a rank that reads the failure from this shard may end at once, and this process with it.
        """
        for host in self._pings:
            with contextlib.suppress(RuntimeError):  # that process has ended too
                rpc.rpc_sync(host, _fail, args=(reason,), timeout=_REPORT_TIMEOUT_S)
        self._shard.fail(reason)


def serve(ranks: int, server: int = 0, servers: int = 1, timeout_s: float = TIMEOUT_S) -> None:
    """
    Run parameter server number `server` of a job, in a process that does nothing else, until all ranks are done.

    MASTER_ADDR and MASTER_PORT must be the job's. Raises SyncError when a rank or another server has ended or is
    silent.
    """
    shard = Shard(ranks)
    connection = RpcConnection(server_name(server), process_names(ranks, servers), timeout_s, shard, monitor=True)
    try:
        shard.finished.wait()
        if shard.failed:
            connection.wait_until_ended(
                process_names(ranks, 0)
            )  # otherwise the ranks would report this server's end instead
            raise SyncError(shard.failed)
    except BaseException:
        connection.close(graceful=False)
        raise
    connection.close(graceful=True)


def process_names(ranks: int, servers: int) -> list[str]:
    """The names of all processes: the ranks, then the separate servers."""
    return [rank_name(rank) for rank in range(ranks)] + [server_name(server) for server in range(servers)]


@async_execution  # type: ignore[untyped-decorator]
def _run(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    if _local_shard is None:
        raise RuntimeError("this process serves no shard of a parameter server")
    return method(_local_shard, *arguments, **keywords)


def _fail(reason: str) -> None:
    if _local_shard is not None:
        _local_shard.fail(reason)


def _ping() -> None:
    pass


def _replies(name: str) -> bool:
    try:
        rpc.rpc_sync(name, _ping, timeout=_REPORT_TIMEOUT_S)
    except RuntimeError:  # the process has ended, or does not run
        return False
    return True


def _completed() -> torch.futures.Future[None]:
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future


def _rendezvous(name: str, names: Sequence[str], timeout_s: float) -> Store:
    """
    Wait until all processes have joined. torch's RPC would wait for half an hour, and would not report for which
    process.
    """
    if not rpc.is_available():
        raise SyncError("this build of torch has no RPC, which the parameter server needs")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} not set; set the job's address, as torchrun does")
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    prefix = f"timesyncd-servers-{next(_rendezvous_numbers)}-"
    with _as_sync_error(f"{_display_name(name)} cannot reach the job's store"):
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=name == rank_name(0) and not is_agents,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set(prefix + name, "")
        try:
            store.wait([prefix + each for each in names], timedelta(seconds=timeout_s))
        except RuntimeError:
            absent = [_display_name(each) for each in names if not store.check([prefix + each])]
            raise SyncError(f"{', '.join(absent)} did not join the job within {timeout_s:g} s") from None
    return store


@contextlib.contextmanager
def _as_sync_error(what: str) -> Iterator[None]:
    """A RuntimeError of torch's RPC becomes a SyncError of one line."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(f"{what}: {first_sentence(error)}") from error


def _display_name(name: str) -> str:
    return name.replace("-", " ")
