"""The thread that finds processes that ended: what it reports when a rank is late for two reasons at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from timesyncd.training.policy.policies import SSP
from timesyncd.training.torch import server
from timesyncd.training.torch.shard import Shard

RANK_1 = server.rank_name(1)


class FakeRpc:
    """torch's RPC: asynchronous pings stay open, synchronous ones fail for the processes that stand still."""

    def __init__(self, stopped: set[str]) -> None:
        self.stopped = stopped

    def rpc_async(self, name: str, call: Any, timeout: float) -> torch.futures.Future[None]:
        return torch.futures.Future()

    def rpc_sync(self, name: str, call: Any, args: tuple[Any, ...] = (), timeout: float = 0) -> None:
        if name in self.stopped:
            raise RuntimeError("RPC ran for more than set timeout")


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [({RANK_1}, "rank 1 has ended"), (set(), "rank 1 pushed no update for 0 s, while rank 0 waited")],
)
def test_an_overdue_rank_has_ended_only_if_it_does_not_reply(
    monkeypatch: pytest.MonkeyPatch, stopped: set[str], reason: str
) -> None:
    """The shard's patience ends before the ping does: the monitor asks again, so that both orders give one reason."""
    monkeypatch.setattr(server, "rpc", FakeRpc(stopped))
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.01)
    shard = Shard(2)
    shard.use(SSP(0))
    shard.pull(0, 1)
    connection = cast(server.RpcConnection, SimpleNamespace(timeout_s=0.02))

    monitor = server.LivenessMonitor(connection, shard, [RANK_1])

    assert shard.finished.wait(30)
    monitor.stop()
    assert shard.failed == reason
