"""One reading and what the model derived from it: the value that updates the daemon's view and the store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from timesyncd.bound import Bound, ErrorBound
from timesyncd.model.assumptions import Refutation
from timesyncd.model.grandmaster import GrandmasterAssessment
from timesyncd.model.selection import Agreement
from timesyncd.sample import Reading


@dataclass(frozen=True, slots=True)
class Observation:
    """
    One reading, and what follows from it. `reading` is None where the bound changed without one: after an event of a
    grandmaster that another daemon published, or a suspend.

    `bound` is the node's bound, None where none follows. `source_bound` is the bound by the reading's source alone, whether
    the ensemble believes it or not. `agreement` is the intersection of the sources now (None: at most one knows UTC).
    `bounded_sources` are the sources that still have a bound; None leaves those of the other sources unchanged.
    `assessment` is the result of a grandmaster's sample. `refutations` are the assumptions of each source that samples have
    refuted so far; sources without any are omitted.
    """

    reading: Reading | None
    bound: ErrorBound | None = None
    source_bound: ErrorBound | None = None
    agreement: Agreement | None = None
    bounded_sources: frozenset[str] | None = None
    assessment: GrandmasterAssessment | None = None
    refutations: Mapping[str, tuple[Refutation, ...]] = field(default_factory=dict)

    @property
    def own_error(self) -> Bound | None:
        """The grandmaster's own error against UTC, where the reading is a grandmaster's sample."""
        return None if self.assessment is None else self.assessment.utc
