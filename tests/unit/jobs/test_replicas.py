"""Ranks that keep one model send its hash; the hub finds the ranks with another model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from batches import NOW, batch, mark

from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.joining import DivergedReplicas, Replicas


def published(*marked: tuple[int, int, int]) -> DivergedReplicas | None:
    """Each is a rank, a step and a hash."""
    replicas = Replicas()
    for rank, step, replica in marked:
        replicas.put(rank, step, replica)
    return replicas.diverged()


def test_one_model_is_no_finding() -> None:
    """Neither equal hashes of a step nor a step with the hash of one rank are a finding."""
    assert published((0, 5, 77), (1, 5, 77), (0, 9, 1)) is None
    assert published((0, 5, 77)) is published() is None


@pytest.mark.parametrize(
    ("hashes", "ranks"), [([7, 7, 8], (2,)), ([8, 7, 7, 7], (0,)), ([7, 8], (1,)), ([8, 7], (1,)), ([1, 2, 3], (1, 2))]
)
def test_those_unlike_most_are_named(hashes: list[int], ranks: tuple[int, ...]) -> None:
    """Where no hash is the most frequent, the lowest rank's counts as usual."""
    assert published(*((rank, 5, replica) for rank, replica in enumerate(hashes))) == DivergedReplicas(5, ranks)


def test_the_newest_step_with_two_hashes_counts() -> None:
    """It is over when they are one again; marks may come in any order."""
    assert published((0, 5, 1), (1, 5, 2), (1, 9, 3), (0, 9, 3)) is None
    assert published((0, 9, 1), (1, 5, 2), (0, 5, 2), (1, 9, 3)) == DivergedReplicas(9, (1,))


def test_the_first_hash_of_a_rank_counts() -> None:
    """A mark that comes twice changes nothing."""
    assert published((0, 5, 1), (1, 5, 1), (1, 5, 2)) is None


def test_few_steps_are_kept() -> None:
    """However many hashes arrive."""
    replicas = Replicas()
    for step in range(100):
        replicas.put(0, step, 1)
    replicas.put(1, 3, 2)

    assert replicas.diverged() is None
    replicas.put(1, 98, 2)
    assert replicas.diverged() == DivergedReplicas(98, (1,))


def test_the_hub_finds_it() -> None:
    """The subject is the job; the evidence names rank, step and user. With the next hashes that are one it is over."""
    hub = Hub(HubSettings(), "node-0")

    def send_hashes(step: int, *hashes: int) -> None:
        for rank, replica in enumerate(hashes):
            marked = replace(mark(step), kind=Kind.REPLICA, bytes=replica)
            hub.accept_marks(batch(rank, marked, sequence=step, world_size=len(hashes)), NOW)
        hub.advance(NOW, 0)

    send_hashes(100, 7, 7, 8)
    assert {key: judged.evidence for key, judged in hub.findings().items()} == {
        (
            "replicas-apart",
            "train",
        ): "in step 100 of job 'train' of user 1000 the parameters of rank 2 differed from those of the "
        "other ranks right after a synchronization"
    }
    send_hashes(200, 9, 9, 9)
    assert hub.findings() == {}
