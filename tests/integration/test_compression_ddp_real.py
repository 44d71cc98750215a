"""Compressors under DDP: two real processes, metered, restarted and trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import Marks, listening, run_ranks

from timesyncd.client import Kind
from timesyncd.training.policy.text import Int8, PowerSGD, TopK

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("compression_child.py")
NAMES = ["powersgd(rank=1)", "topk(ratio=0.1)", "topk", "int8"]


@pytest.fixture(scope="module")
def ran() -> Iterator[tuple[list[dict[str, Any]], Marks]]:
    with listening() as (folder, marks):
        results = run_ranks(CHILD, ["--folder", str(folder)])
        marks.close()
        yield results, marks


Ran = tuple[list[dict[str, Any]], Marks]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_when_ddp_rebuilds_its_buckets(ran: Ran, name: str) -> None:
    """They contain other parameters after the first step; each parameter's gradients arrive, except its residual; the ranks have the same bits."""
    for result in ran[0]:
        facts = result["conserved"][name]
        assert facts["off"] < 1e-14
        assert facts["kept"] > 1e-5
        assert (facts["rebuilt"], facts["same"], facts["lost"]) == (True, True, 0)
        assert facts["sent"][0] < facts["sent"][1] / 2


def test_compressed_buckets_are_metered(ran: Ran) -> None:
    """As those of any hook, of the same number and size on both ranks; collectives in the hook leave no marks of their own."""
    marks = ran[1].of
    for written in (PowerSGD(), TopK(0.1), Int8()):
        (first, second) = (marks[f"kept {written}", rank] for rank in (0, 1))
        assert {mark.kind for mark in first} == {Kind.HOOK, Kind.STEP}
        assert [(m.step, m.sync, m.kind, m.bytes) for m in first if m.kind == Kind.HOOK] == [
            (m.step, m.sync, m.kind, m.bytes) for m in second if m.kind == Kind.HOOK
        ]


@pytest.mark.parametrize("name", ["fp16", *NAMES])
def test_a_restart_continues_to_the_same_bits(ran: Ran, name: str) -> None:
    """From a checkpoint of tensors and plain values in the middle: the parameters and the residuals are the same bits at the end."""
    for result in ran[0]:
        assert result["restarted"][name] == {"same": True, "state": True}


@pytest.mark.parametrize("name", ["fp16", *NAMES])
def test_sparse_gradients_are_sent_uncompressed(ran: Ran, name: str) -> None:
    """Beside buckets that are compressed."""
    assert [result["sparse"][name] for result in ran[0]] == [True, True]


def test_with_residuals_one_element_in_a_hundred_is_enough(ran: Ran) -> None:
    """With residuals nearly all is learned; without them next to nothing, since the largest elements of a rank cancel out on average."""
    learned = ran[0][0]["learned"]

    assert learned["all"] < 0.01
    assert learned["kept"] < 0.2
    assert learned["dropped"] > 0.8
