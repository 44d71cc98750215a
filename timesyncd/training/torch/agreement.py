"""What the ranks compare before they do something together."""

from __future__ import annotations

import dataclasses

from timesyncd.training.policy.row import Purpose, Row, check_in_step, check_passes
from timesyncd.training.torch.notices import Notices
from timesyncd.training.torch.passes import Passes
from timesyncd.training.torch.rows import RowExchange
from timesyncd.training.torch.topology_groups import TwoLevel


class StepAgreement:
    """
    Nothing is applied before all ranks have confirmed by a row that they are in the same step, for the same purpose.

    `begun`: the step in which the averaging in progress was confirmed, without waiting for the other ranks. The methods
    raise SyncError where a rank is elsewhere, and RuntimeError where torch does.
    """

    def __init__(self, exchange: RowExchange, passes: Passes, notices: Notices) -> None:
        self._exchange, self._passes, self._notices = exchange, passes, notices
        self.begun: int | None = None

    def send(self, row: Row) -> None:
        self._exchange.send(self._complete(row))

    def confirm(self, row: Row) -> None:
        self.send(row)
        self._notices.receive(self._exchange.receive(row.step, row.purpose))

    def confirm_among(self, groups: TwoLevel, row: Row) -> None:
        """With the ranks of this rank's innermost group only."""
        rows = [Row.from_words(words) for words in groups.gather(self._complete(row).words(), 0)]
        check_in_step(rows)
        check_passes(rows, range(len(rows)))

    def begin(self, row: Row) -> None:
        """The rows are compared later, by `end`."""
        self.send(row)
        self.begun = row.step

    def end(self) -> None:
        """Does nothing where nothing was begun."""
        begun, self.begun = self.begun, None
        if begun is not None:
            self._notices.receive(self._exchange.receive(begun, Purpose.SYNCHRONIZE))

    def _complete(self, row: Row) -> Row:
        return dataclasses.replace(self._passes.complete(row), unfit=self._notices.unfit)
