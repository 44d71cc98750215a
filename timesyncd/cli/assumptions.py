"""
What a node's bounds rest on: the values of `[source.bounds]`, and what no sample can show. Pure.

docs/error-bound.md lists the same assumptions by the same codes, with what happens when each breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, NamedTuple, Self

from timesyncd.cli.budget import knows_utc, sources_of_utc
from timesyncd.messages.node import NodeState, SourceState
from timesyncd.model.assumptions import Assumption

_CLOCKBOUND = "clockbound"

#: The unit of a value is in its name in the file.
_UNITS = {"ppb": "ppb", "ns": "ns", "s": "s", "length": "measurements"}


class AssumedValue(NamedTuple):
    """
    A value on which the bounds of `source` rest (None: not set). `in_force` counts instead where samples refute it, or where
    a leap second has passed. `refuted` None: no sample can refute it.
    """

    source: str
    name: str
    value: int | None
    unit: str
    origin: Literal["configured", "default"]
    in_force: int | None
    refuted: bool | None


def assumed_values(node: NodeState) -> list[AssumedValue]:
    """In the order of the sources, and of the configuration's keys."""
    return [
        AssumedValue(
            source.name,
            name,
            value,
            _UNITS.get(name.rpartition("_")[2], ""),
            "configured" if name in source.configured else "default",
            source.refuted.get(name, _in_force(source, name, value)),
            name in source.refuted if name in set(Assumption) else None,
        )
        for source in node.sources
        for name, value in source.assumed.items()
    ]


def _in_force(source: SourceState, name: str, value: int | None) -> int | None:
    """After a leap second that leap-seconds.list has, the announced UTC offset counts."""
    return source.utc_seconds_removed or value if name == "utc_offset_s" else value


class Unobservable(StrEnum):
    """An assumption that no sample of its source can show to be wrong, at least not at once. The value is its code."""

    text: str

    def __new__(cls, code: str, text: str) -> Self:
        assumption = str.__new__(cls, code)
        assumption._value_ = code
        assumption.text = text
        return assumption

    DELAYS_NOT_NEGATIVE = (
        "delays_not_negative",
        "no correction on the path removes more than the delay of one direction",
    )
    STEERING_READ = "steering_read", "no servo corrects the clock, and undoes it, between two readings"
    SERVO_UNTIL_READING = (
        "servo_until_reading",
        "for a hub's figures: between a Sync and its reading a servo does at most three times what it did before",
    )
    DELAYS_MEASURED = "delays_measured", "the path delay is measured again and again, so ptp4l's delay filter forgets"
    OSCILLATOR_GOES_ON = (
        "oscillator_goes_on",
        "without samples the oscillator stays within the drift that is assumed of it",
    )
    REFERENCE_STEPS = "reference_steps", "the reference does not step: between two Syncs nothing shows that it did"
    DELAY_RENEWED_ONCE = "delay_renewed_once", "ptp4l renews the path delay at most once between a Sync and its reading"
    SYNC_SHOWS_AT_ONCE = "sync_shows_at_once", "ptp4l shows a Sync within a second of its receipt"
    UTC_OFFSET_OF_PTP4L = "utc_offset_of_ptp4l", "ptp4l removes the UTC offset utc_offset_s"
    CLOCKS_RUN_IN_SUSPEND = "clocks_run_in_suspend", "this machine does not sleep, or its clocks run on while it does"
    NO_HOST_PAUSE = "no_host_pause", "if this machine is virtual: its host never stops it, unless a VMClock reports it"
    BOUNDARY_CLOCK_HOLDOVER = (
        "boundary_clock_holdover",
        "each boundary clock is within boundary_clock_error_ns, also one in holdover that announces class 6",
    )
    ANNOUNCED_ACCURACY = "announced_accuracy", "the grandmaster is as accurate as it announces"
    MAJORITY_RIGHT = "majority_right", "more than half of the independent groups of UTC sources are right"
    DECLARED_INDEPENDENT = (
        "declared_independent",
        "sources that independent_of declares independent share no cause of error",
    )
    ROOT_DISPERSION = (
        "root_dispersion",
        "chronyd's root delay and dispersion are right, and so is error_ns of each reference clock in refclocks",
    )
    CLOCKBOUND_CLAIM = (
        "clockbound_claim",
        "ClockBound's bound and max_drift_ppb are right, and what it follows does not smear a leap second",
    )
    STATISTICAL_PRIOR = (
        "statistical_prior",
        "of the statistical bound: noise and wander go on, and the asymmetry of the path is as its prior has it",
    )
    GM_LOCKED_ACCURACY = (
        "gm_locked_accuracy",
        "while it is locked, the grandmaster is within the accuracy that it reports",
    )
    GM_HOLDOVER_CURVE = "gm_holdover_curve", "in holdover the grandmaster stays within the curve of its oscillator"
    GM_PHASE_CONTINUOUS = "gm_phase_continuous", "the grandmaster's phase does not jump when it loses its reference"
    GM_RESTART = "gm_restart", "a grandmaster that restarts is off by anything until it is locked again"
    GM_BETWEEN_POLLS = "gm_between_polls", "what begins and ends between two polls of the grandmaster is no step"
    GM_RATE = "gm_rate", "the grandmaster's phase moves by at most 100 ppb, also while it acquires"
    GM_INPUTS = "gm_inputs", "a grandmaster that is locked to satellites lists some"
    GM_POLLER_REALTIME = (
        "gm_poller_realtime",
        "the polling daemon's CLOCK_REALTIME did not go back while that daemon was away",
    )
    GM_IDENTITIES = "gm_identities", "the grandmaster's clock identities are all configured, or it reports them"
    GM_IDENTITY_UNIQUE = "gm_identity_unique", "no two grandmasters have one clock identity"


class UnobservableAssumption(NamedTuple):
    """It holds of the bounds of these sources; of the node's, where there are none."""

    assumption: Unobservable
    sources: list[str]


def unobservable_assumptions(node: NodeState) -> list[UnobservableAssumption]:
    """Those on which the bounds rest that the node has now."""
    if node.age_ns is None:
        return []
    bounded = [source for source in node.sources if source.age_ns is not None]
    of_sources = {code: [source.name for source in bounded if holds(source)] for code, holds in _OF_SOURCES.items()}
    of_node = {code for code, holds in _OF_NODE.items() if holds(node)}
    return [
        UnobservableAssumption(code, of_sources.get(code, []))
        for code in Unobservable
        if of_sources.get(code) or code in of_node
    ]


def _is_ptp(source: SourceState) -> bool:
    return source.kind == "ptp"


def _is_behind_boundary_clocks(source: SourceState) -> bool:
    return _is_ptp(source) and (source.steps_removed or 0) > 1


def _bounds_utc(source: SourceState) -> bool:
    return source.utc is not None and source.utc.bound_ns is not None


def _votes(node: NodeState) -> bool:
    """Whether several independent groups decide on UTC."""
    return sum(source.name not in node.utc_dependent for source in sources_of_utc(node)) > 1


def _bounds_a_polled_grandmaster(node: NodeState) -> bool:
    return node.grandmaster is not None and any(_is_ptp(each) and knows_utc(each, node) for each in node.sources)


def _is_statistical(node: NodeState) -> bool:
    return node.parent_stat is not None and node.parent_stat.bound_ns is not None


_OF_SOURCES: dict[Unobservable, Callable[[SourceState], bool]] = {
    Unobservable.DELAYS_NOT_NEGATIVE: _is_ptp,
    Unobservable.STEERING_READ: _is_ptp,
    Unobservable.SERVO_UNTIL_READING: _is_ptp,
    Unobservable.DELAYS_MEASURED: _is_ptp,
    Unobservable.OSCILLATOR_GOES_ON: _is_ptp,
    Unobservable.REFERENCE_STEPS: _is_ptp,
    Unobservable.DELAY_RENEWED_ONCE: _is_ptp,
    Unobservable.SYNC_SHOWS_AT_ONCE: _is_ptp,
    Unobservable.UTC_OFFSET_OF_PTP4L: lambda source: _is_ptp(source) and _bounds_utc(source),
    Unobservable.BOUNDARY_CLOCK_HOLDOVER: _is_behind_boundary_clocks,
    Unobservable.ANNOUNCED_ACCURACY: lambda source: _is_ptp(source) and _bounds_utc(source),
    Unobservable.ROOT_DISPERSION: lambda source: source.kind == "utc" and source.driver != _CLOCKBOUND,
    Unobservable.CLOCKBOUND_CLAIM: lambda source: source.kind == "utc" and source.driver == _CLOCKBOUND,
}

_OF_NODE: dict[Unobservable, Callable[[NodeState], bool]] = {
    Unobservable.CLOCKS_RUN_IN_SUSPEND: lambda node: True,
    Unobservable.NO_HOST_PAUSE: lambda node: True,
    Unobservable.MAJORITY_RIGHT: _votes,
    Unobservable.DECLARED_INDEPENDENT: _votes,
    Unobservable.STATISTICAL_PRIOR: _is_statistical,
    Unobservable.GM_LOCKED_ACCURACY: _bounds_a_polled_grandmaster,
    Unobservable.GM_HOLDOVER_CURVE: _bounds_a_polled_grandmaster,
    Unobservable.GM_PHASE_CONTINUOUS: _bounds_a_polled_grandmaster,
    Unobservable.GM_RESTART: _bounds_a_polled_grandmaster,
    Unobservable.GM_BETWEEN_POLLS: _bounds_a_polled_grandmaster,
    Unobservable.GM_RATE: _bounds_a_polled_grandmaster,
    Unobservable.GM_INPUTS: _bounds_a_polled_grandmaster,
    Unobservable.GM_POLLER_REALTIME: _bounds_a_polled_grandmaster,
    Unobservable.GM_IDENTITIES: _bounds_a_polled_grandmaster,
    Unobservable.GM_IDENTITY_UNIQUE: _bounds_a_polled_grandmaster,
}


def assumptions_json(node: NodeState) -> dict[str, object]:
    return {
        "values": [each._asdict() for each in assumed_values(node)],
        "unobservable": [
            {"code": assumption.value, "text": assumption.text, "sources": sources}
            for assumption, sources in unobservable_assumptions(node)
        ],
    }
