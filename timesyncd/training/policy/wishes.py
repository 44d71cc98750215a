"""Which policy a rank was told last: by its own script, or by the plan."""

from __future__ import annotations

import warnings
from typing import Any

from timesyncd.ipc.job_datagram import Plan
from timesyncd.training.policy.decision import Combine
from timesyncd.training.policy.text import Strategy, parse


def collective(text: str) -> Strategy:
    """Raises ValueError for no policy, and for one of a parameter server, which a job has from its start or not at all."""
    strategy = parse(text)
    if strategy.policy.combines is Combine.SERVER:
        raise ValueError(
            f"policy {text!r} needs a parameter server: timesyncd.training.torch.stale.StaleSync begins with one"
        )
    return strategy


class Wishes:
    """`number` counts the policies that this rank was told; the newest one is in force once rank 0's rows have told it to all."""

    def __init__(self) -> None:
        self.number = 0
        self._text = ""
        self._planned = 0, ""

    def tell(self, text: str) -> None:
        """What is written there is checked already."""
        self.number, self._text = self.number + 1, text

    def newest(self, plan: Plan) -> tuple[int, str]:
        """The number and the text. A plan's text that is no policy is refused, with one warning."""
        planned = plan.policy_version, plan.policy
        if plan.policy and planned != self._planned:  # a plan without one: the hub has no wish, or is not heard
            self._planned = planned
            try:
                self.tell(str(collective(plan.policy)))
            except ValueError as error:
                warnings.warn(f"the plan is not followed: {error}", stacklevel=2)
        return self.number, self._text

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "text": self._text, "planned": self._planned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self._text, self._planned = state["number"], state["text"], tuple(state["planned"])
