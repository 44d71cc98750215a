"""Which policy the ranks of each job are to follow: what a user asked for last, else what the configuration says. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from timesyncd.jobs.joining import Job
from timesyncd.messages.jobs import Plan


class Policies:
    """
    What is in force stands in the job's plan, so whoever takes the plan over has it. `configured` is by the jobs' names, and counts for a
    job of which nothing was ever said: a job that runs keeps what it has, whatever a hub's configuration says later.
    """

    def __init__(self, configured: Mapping[str, str]) -> None:
        self._configured = configured
        self._asked: dict[str, str] = {}

    def ask(self, job_id: str, policy: str) -> None:
        """For the next round alone: who asked does so again until it is in the plan."""
        self._asked[job_id] = policy

    def end_round(self) -> None:
        """What was not taken up is forgotten: a hub that does not plan must not find it when it does."""
        self._asked.clear()

    def fields(self, job: Job, last: Plan) -> dict[str, object]:
        """Of the plan after `last`."""
        wanted = self._asked.get(job.id)
        if wanted is None and last.policy_version == 0:
            wanted = self._configured.get(job.name)
        if wanted is None or wanted == last.policy:
            return {"policy": last.policy, "policy_version": last.policy_version}
        return {"policy": wanted, "policy_version": last.policy_version + 1}
