"""A job's parameter servers by RPC: how they and the ranks meet, the way to each shard, the watch over all, a server's process."""

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

#: So long a rank or a server may be silent while others wait for it.
TIMEOUT_S = 300.0

#: How often a host looks after all others.
_BEAT_S = 1.0

#: So long the news of a failure may take.
_TELLING_S = 5.0

_meetings = itertools.count()
_here: Shard | None = None

_P = ParamSpec("_P")
_Value = TypeVar("_Value")


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def server_name(server: int) -> str:
    return f"parameter-server-{server}"


class RpcConnection:
    """
    This process among the ranks and servers of a job, until it leaves. `shard`: what it keeps for all, if anything.

    Raises SyncError: not all came within `timeout_s`; ValueError: MASTER_ADDR or MASTER_PORT is missing.
    """

    def __init__(self, me: str, names: Sequence[str], timeout_s: float, shard: Shard | None, watch: bool) -> None:
        global _here
        self.timeout_s = timeout_s
        _here = shard
        self._store = _meet(me, names, timeout_s)
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=timeout_s, _transports=["uv"], _channels=["basic"])
        with _reported(f"{_said(me)} cannot join the job's RPC"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # torch's own call
            rpc.init_rpc(me, None, names.index(me), len(names), options)  # type: ignore[no-untyped-call]
        atexit.register(self.leave, False)
        others = [name for name in names if name != me]
        self._watch = LivenessMonitor(self, shard, others) if shard is not None and watch else None

    def ask(
        self,
        host: str,
        method: Callable[Concatenate[Shard, _P], torch.futures.Future[_Value]],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> torch.futures.Future[_Value]:
        """However long the answer takes: it is for `answer` to see that the host is there."""
        with _reported(f"{_said(host)} is gone"):
            asked: torch.futures.Future[_Value] = rpc.rpc_async(host, _run, (method, *arguments), keywords, timeout=0)
        return asked

    def answer(self, host: str, asked: torch.futures.Future[_Value | RejectedRequest]) -> _Value:
        """Raises SyncError: the host is gone, or says why it refuses."""
        came = threading.Event()
        asked.add_done_callback(lambda _: came.set())
        try:
            while not came.wait(self.timeout_s / 2):
                rpc.rpc_sync(host, _alive, timeout=self.timeout_s / 2)
            value = asked.value()
        except RuntimeError as error:
            known = _here.failed if _here is not None else ""
            raise SyncError(known or f"{_said(host)} is gone: {first_sentence(error)}") from error
        if isinstance(value, RejectedRequest):
            raise SyncError(value.reason)
        return value

    def wait_until_alone(self, names: Sequence[str]) -> None:
        """Until none of them answers any more, or for the time-out."""
        until_s = time.monotonic() + self.timeout_s
        while time.monotonic() < until_s and any(_answers(name) for name in names):
            time.sleep(_BEAT_S)

    def leave(self, together: bool) -> None:
        """`together`: when all do. Raises SyncError where one does not come."""
        global _here
        atexit.unregister(self.leave)
        if self._watch is not None:
            self._watch.stop()
        with _reported("some rank or parameter server did not come to the job's end"):
            rpc.shutdown(graceful=together, timeout=self.timeout_s)
        _here = None


class LivenessMonitor:
    """A thread that finds out who is gone, and tells it to all shards, so that nobody waits in vain."""

    def __init__(self, connection: RpcConnection, shard: Shard, others: Sequence[str]) -> None:
        self._connection = connection
        self._shard = shard
        self._signs: dict[str, torch.futures.Future[None]] = dict.fromkeys(others, _sign_of_life())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="timesyncd-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(_BEAT_S):
            gone = next((name for name in self._signs if not self._lives(name)), None)
            reason = self._shard.overdue(int(self._connection.timeout_s * NS_PER_S))
            if gone is not None:
                reason = f"{_said(gone)} is gone"
            if reason:
                return self._tell(reason)

    def _lives(self, name: str) -> bool:
        """False: its process has ended, or did not answer for the connection's time-out."""
        if not self._signs[name].done():
            return True
        try:
            self._signs[name].value()
            self._signs[name] = rpc.rpc_async(name, _alive, timeout=self._connection.timeout_s)
        except RuntimeError:  # torch's word for a broken connection, and for a time-out
            return False
        return True

    def _tell(self, reason: str) -> None:
        """The others first: who is told here may leave at once, and take this shard along."""
        for host in self._signs:
            with contextlib.suppress(RuntimeError):  # that one is gone as well
                rpc.rpc_sync(host, _fail, args=(reason,), timeout=_TELLING_S)
        self._shard.fail(reason)


def serve(ranks: int, server: int = 0, servers: int = 1, timeout_s: float = TIMEOUT_S) -> None:
    """
    Be the parameter server number `server` of a job, in a process that does nothing else, until all its ranks are done.

    MASTER_ADDR and MASTER_PORT are the job's. Raises SyncError when a rank or another server is gone.
    """
    shard = Shard(ranks)
    connection = RpcConnection(server_name(server), process_names(ranks, servers), timeout_s, shard, watch=True)
    try:
        shard.over.wait()
        if shard.failed:
            connection.wait_until_alone(process_names(ranks, 0))  # else the news would be that this server is gone
            raise SyncError(shard.failed)
    except BaseException:
        connection.leave(together=False)
        raise
    connection.leave(together=True)


def process_names(ranks: int, servers: int) -> list[str]:
    """Of all processes: the ranks, then the servers that are no ranks."""
    return [rank_name(rank) for rank in range(ranks)] + [server_name(server) for server in range(servers)]


@async_execution  # type: ignore[untyped-decorator]
def _run(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    if _here is None:
        raise RuntimeError("this process keeps no shard of a parameter server")
    return method(_here, *arguments, **keywords)


def _fail(reason: str) -> None:
    if _here is not None:
        _here.fail(reason)


def _alive() -> None:
    pass


def _answers(name: str) -> bool:
    try:
        rpc.rpc_sync(name, _alive, timeout=_TELLING_S)
    except RuntimeError:  # its process has ended, or stands still
        return False
    return True


def _sign_of_life() -> torch.futures.Future[None]:
    sign: torch.futures.Future[None] = torch.futures.Future()
    sign.set_result(None)
    return sign


def _meet(me: str, names: Sequence[str], timeout_s: float) -> Store:
    """Until all are there: torch's RPC would wait for half an hour, and not say for whom."""
    if not rpc.is_available():
        raise SyncError("this build of torch has no RPC, which the parameter server needs")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} not set: the job's address, as torchrun sets it")
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    meeting = f"timesyncd-servers-{next(_meetings)}-"
    with _reported(f"{_said(me)} cannot reach the job's store"):
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=me == rank_name(0) and not is_agents,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set(meeting + me, "")
        try:
            store.wait([meeting + name for name in names], timedelta(seconds=timeout_s))
        except RuntimeError:
            absent = [_said(name) for name in names if not store.check([meeting + name])]
            raise SyncError(f"{', '.join(absent)} did not come within {timeout_s:g} s") from None
    return store


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """torch says with RuntimeErrors that somebody is gone; here it is in one line."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(f"{what}: {first_sentence(error)}") from error


def _said(name: str) -> str:
    return name.replace("-", " ")
