"""
The share of elements that top-k sends, by the gain test of GraVAC (Tyagi and Swany, IEEE CLOUD 2023). Pure; the same on
every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Shares of the elements that may be sent, from mild to strong compression.
RATIOS = (0.25, 0.16, 0.1, 0.06, 0.04, 0.02, 0.01, 0.004, 0.001)

#: A compression is good enough while it keeps at least this share of the squared norm.
MIN_GAIN = 0.7

#: Number of steps between two decisions.
WINDOW = 50

#: A stronger rung must save at least this share of the uncompressed octets.
MIN_SAVING = 0.01

#: Number of windows, at most, during which a rung that failed repeatedly is not tried again.
MAX_COOLDOWN = 64


def cost(ratio: float, ranks: int) -> float:
    """
    Octets on the links, as a share of those of an uncompressed all-reduce.

    Each element goes to n - 1 other ranks as value and index, 8 octets; a ring all-reduce moves 2 (n - 1) / n times 4
    octets.
    """
    return ratio * ranks


def ladder(ranks: int) -> tuple[float | None, ...]:
    """
    The ratios worth trying: first None (uncompressed), then from mild to strong. With many ranks only None is left.
    """
    rungs: list[float | None] = [None]
    spent = 1.0
    for ratio in RATIOS:
        if spent - cost(ratio, ranks) >= MIN_SAVING:
            rungs.append(ratio)
            spent = cost(ratio, ranks)
    return tuple(rungs)


@dataclass(slots=True)
class Gain:
    """
    The job's rung on the ladder.

    `steps`: number of steps in this window. `sent` and `total`: weighted sums of squared norms since the job entered
    this rung. `cooldown`: number of windows until a stronger rung is tried. `failures`: how many times in a row the
    rung `failed` kept too little.
    """

    ranks: int
    rung: int = 1
    steps: int = 0
    sent: float = 0.0
    total: float = 0.0
    cooldown: int = 0
    failures: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.rung = min(self.rung, len(ladder(self.ranks)) - 1)

    @property
    def ratio(self) -> float | None:
        """None: uncompressed."""
        return ladder(self.ranks)[self.rung]

    @property
    def value(self) -> float | None:
        """
        E||sent||^2 / E||total||^2 on this rung; None: no step was added yet. Both averages began at 0, which cancels.
        """
        return self.sent / self.total if self.total > 0 else None

    def add_step(self, sent: float, total: float) -> None:
        """
        The squared norms of one step, over all ranks and buckets: of what was sent, and of what there was to send.

        They are equal where everything was sent. Both are zero for a step that carries no information, as one that was
        not finite.
        """
        factor = min(1.0, self.ranks / 100)
        self.sent += factor * (sent - self.sent)
        self.total += factor * (total - self.total)
        self.steps += 1
        if self.steps == WINDOW:
            self.steps = 0
            self._decide()

    def _decide(self) -> None:
        gain = self.value
        if gain is None:
            return
        if gain >= MIN_GAIN and self.rung >= self.failed:
            self.failures = 0
        if gain < MIN_GAIN and self.rung > 0:
            self.failures, self.failed = self.failures + 1, self.rung
            self.cooldown = min(2**self.failures, MAX_COOLDOWN)
            self._enter(self.rung - 1)
        elif self.cooldown > 0:
            self.cooldown -= 1
        elif gain >= MIN_GAIN and self.rung + 1 < len(ladder(self.ranks)):
            self._enter(self.rung + 1)

    def _enter(self, rung: int) -> None:
        self.rung = rung
        self.sent = self.total = 0.0
