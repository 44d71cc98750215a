"""The exchange of rows, on gloo groups in this process."""

from __future__ import annotations

import pytest
from compression_lab import ranks

from timesyncd.training.policy.row import Row
from timesyncd.training.torch import rows
from timesyncd.training.torch.rows import RowExchange


@pytest.mark.parametrize("limit", [64, 2])
def test_rows_reach_every_rank(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, several in transit at a time; each to each, or down a tree where there are more ranks than a limit."""
    monkeypatch.setattr(rows, "MAX_RANKS_EACH_TO_EACH", limit)
    with ranks(5) as group:
        exchanges = [RowExchange(each) for each in group.groups]

        def run(rank: int) -> list[list[int]]:
            for step in range(3):
                exchanges[rank].send(Row(step, compute_ns=100 * step + rank))
            return [[row.compute_ns for row in exchanges[rank].receive(step)] for step in range(3)]

        received = group.all(run)

    assert received == [[[100 * step + rank for rank in range(5)] for step in range(3)]] * 5


@pytest.mark.parametrize("limit", [64, 1])
def test_rows_of_a_silent_rank_raise(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the group's time-out, as torch's own collectives do."""
    monkeypatch.setattr(rows, "MAX_RANKS_EACH_TO_EACH", limit)
    with ranks(2, timeout_s=1) as group:
        exchange = RowExchange(group.groups[0])
        exchange.send(Row(0))
        with pytest.raises(RuntimeError, match="Timed out"):
            exchange.receive(0)
