"""The rate of the links at which BSP's communication takes so many times as long as its computing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Of one step of flat BSP (compute, then one all-reduce), medians over the steps and means over the ranks. `rate_mbit` None: unshaped."""

    rate_mbit: float | None
    compute_ms: float
    communication_ms: float

    @property
    def ratio(self) -> float:
        return self.communication_ms / self.compute_ms


def first_mbit(ratio: float, free: Measured, nbytes: int, ranks: int) -> float:
    """A guess: what a ring sends, and nothing else."""
    sent_bits = 8 * nbytes * 2 * (ranks - 1) / ranks
    return sent_bits / 1000 / max(0.1, ratio * free.compute_ms - free.communication_ms)


def fitted_mbit(ratio: float, free: Measured, shaped: Measured) -> float | None:
    """
    From communication = a + b / rate, where a is what the unshaped link takes. None: no rate is needed, the unshaped link has that ratio
    already.
    """
    assert shaped.rate_mbit is not None
    wanted_ms = ratio * (free.compute_ms + shaped.compute_ms) / 2
    slope = (shaped.communication_ms - free.communication_ms) * shaped.rate_mbit
    if wanted_ms <= free.communication_ms or slope <= 0:
        return None
    return slope / (wanted_ms - free.communication_ms)
