"""The heap's trimmer: what a flood took is collected and given back once it is gone."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from timesyncd.daemon import memory
from timesyncd.daemon.memory import CHECK_EVERY_NS, HeapTrimmer

ROOT = Path(__file__).parents[3]


def test_a_hub_is_installed_with_the_allocator_that_returns_memory() -> None:
    """Python's own keeps whole arenas after a flood; the floods of a hub are judged with the C library's."""
    assert "`Environment=PYTHONMALLOC=malloc`" in (ROOT / "docs/fleet.md").read_text()
    assert "{ name: PYTHONMALLOC, value: malloc }" in (ROOT / "deploy/kubernetes/base/hub.yaml").read_text()
    assert '"PYTHONMALLOC=malloc"' in (ROOT / "tests/integration/test_floods_hub.py").read_text()


def test_a_full_collection_follows_where_much_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its time from the clocks, so it comes once, when the last of a flood is gone."""
    blocks, collected = [1_000], list[int]()
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks[0])
    monkeypatch.setattr(gc, "collect", lambda: collected.append(blocks[0]))
    trimmer = HeapTrimmer()
    for number, now in enumerate((1_000, 4_000, 3_900, 3_900, 3_000, 2_000, 1_995, 1_995, 1_990), 1):
        blocks[0] = now
        trimmer.tick(number * CHECK_EVERY_NS)

    assert collected == [1_995]


def test_it_looks_no_more_often_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon calls it each second."""
    looked: list[int] = []

    def pages() -> int:
        looked.append(1)
        return 1

    monkeypatch.setattr(memory, "_resident_pages", pages)
    trimmer = HeapTrimmer()
    for number in range(10):
        trimmer.tick(number)
    once = len(looked)
    trimmer.tick(CHECK_EVERY_NS)

    assert once == 2 and len(looked) > once
