"""What a policy did so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """From `step` on `policy` was in force."""

    step: int
    policy: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a policy did so far on this rank.

    `lssr`: the share of steps without a synchronization (SelSync's LSSR, Eq. 4); None: no step yet. `sent_bytes`: handed to collectives for gradients
    or parameters, by this class (not by DDP's reducer). `sync_ns`: in them, waiting for the other ranks included. `rows_waited`: how often, and how long, the rows of
    the other ranks were not there when they counted. `changes`: what was in force since when, and why.
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
