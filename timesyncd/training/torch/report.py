"""What a policy did on one rank."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.training.policy.policies import ChangeReason


@dataclass(frozen=True, slots=True)
class Change:
    """From `step` on `policy` was in force. `reason_code` is for programs, `reason` for people."""

    step: int
    policy: str
    reason_code: ChangeReason
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """
    What the policy did so far on this rank.

    `lssr`: the share of steps without a synchronization (SelSync's LSSR, Eq. 4); None: no step yet. `sent_bytes`:
    octets of gradients or parameters that the Synchronizer handed to collectives, without those of DDP's reducer.
    `sync_ns`: time in these collectives, waiting for other ranks included. `rows_waited`, `rows_waited_ns`: how often,
    and how long, this rank waited for rows of other ranks. `changes`: the policies that were in force, oldest first.
    """

    policy: str
    steps: int
    rounds: int
    lssr: float | None
    sent_bytes: int
    sync_ns: int
    rows_waited: int
    rows_waited_ns: int
    replicas_checked: int
    replicas_differed: int
    changes: tuple[Change, ...]
