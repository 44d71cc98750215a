"""What the model concluded from one reading: the one value that the daemon's view and the store are updated with."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.bound import Bound, ErrorBound
from timesyncd.model.grandmaster import GrandmasterAssessment
from timesyncd.model.selection import Agreement
from timesyncd.sample import Reading


@dataclass(frozen=True, slots=True)
class Observation:
    """
    One reading, and what follows from it. `reading` is None where the bound changed without one: a grandmaster's event
    that another daemon published, or a suspend.

    `bound` is the node's bound, None where none follows. `source_bound` is what the reading's source by itself makes of
    it, believed or not. `agreement` is how the sources agree now (None: at most one knows UTC). Only the sources in
    `bounded_sources` still have a bound; None leaves those of the others as they are. `verdict` is of a grandmaster's
    sample.
    """

    reading: Reading | None
    bound: ErrorBound | None = None
    source_bound: ErrorBound | None = None
    agreement: Agreement | None = None
    bounded_sources: frozenset[str] | None = None
    verdict: GrandmasterAssessment | None = None

    @property
    def own_error(self) -> Bound | None:
        """The grandmaster's own error against UTC, where the reading is a grandmaster's sample."""
        return None if self.verdict is None else self.verdict.utc
