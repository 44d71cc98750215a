"""How few elements may be sent: the gain test of GraVAC (Tyagi & Swany, IEEE CLOUD 2023). Pure, and the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

#: What share of the elements is sent, from mild to strong.
RATIOS = (0.25, 0.16, 0.1, 0.06, 0.04, 0.02, 0.01, 0.004, 0.001)

#: A compression is good enough while it keeps so much of the squared norm.
MIN_GAIN = 0.7

#: Steps after which it is decided anew.
WINDOW = 50

#: A stronger rung that saves less than this share of the uncompressed octets is not worth it.
SATURATION = 0.01

#: In windows: after failing again and again, a stronger rung rests no longer than this.
MAX_COOLDOWN = 64


def cost(ratio: float, ranks: int) -> float:
    """
    Octets that cross the links, of those that an uncompressed all-reduce would send.

    Each element goes to n-1 others as value and index, 8 octets; a ring moves 2 (n-1)/n times 4.
    """
    return ratio * ranks


def ladder(ranks: int) -> tuple[float | None, ...]:
    """The ratios worth trying, from mild to strong, below them None: uncompressed. Many ranks leave None alone."""
    rungs: list[float | None] = [None]
    spent = 1.0
    for ratio in RATIOS:
        if spent - cost(ratio, ranks) >= SATURATION:
            rungs.append(ratio)
            spent = cost(ratio, ranks)
    return tuple(rungs)


@dataclass(slots=True)
class Gain:
    """
    Where on the ladder a job is.

    `steps` of this window; `sent` and `whole`: weighted sums of squared norms since this rung was entered; `rest`: windows until a stronger rung is
    tried; `failures`: so often in a row the rung `failed` did not keep enough.
    """

    ranks: int
    rung: int = 1
    steps: int = 0
    sent: float = 0.0
    whole: float = 0.0
    rest: int = 0
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
        """E||sent||^2 / E||whole||^2 on this rung; None: nothing was seen yet. Both averages began at 0, which cancels."""
        return self.sent / self.whole if self.whole > 0 else None

    def saw(self, sent: float, whole: float) -> None:
        """
        One step: the squared norms of what was sent and of what was to be sent, over all ranks and buckets.

        A step that sent all has equal ones; one that says nothing (nothing finite, say) has two zeros.
        """
        factor = min(1.0, self.ranks / 100)
        self.sent += factor * (sent - self.sent)
        self.whole += factor * (whole - self.whole)
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
            self.rest = min(2**self.failures, MAX_COOLDOWN)
            self._enter(self.rung - 1)
        elif self.rest > 0:
            self.rest -= 1
        elif gain >= MIN_GAIN and self.rung + 1 < len(ladder(self.ranks)):
            self._enter(self.rung + 1)

    def _enter(self, rung: int) -> None:
        self.rung = rung
        self.sent = self.whole = 0.0
