"""The catalogue of scenarios: what each link of the chain does, and whether that keeps the bound's assumptions."""

from __future__ import annotations

from dataclasses import dataclass, field

from grandmaster_clock import GrandmasterSpec
from local_clock import OscillatorSpec
from network_path import PathSpec


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    `stationary`: its noise is the same at all times, and its path no extreme one, so that a share of instants may be asked of the
    statistical bound.
    `given_share`: at least so many of the rows have a hard bound against the grandmaster. `read_spread` is that of the reading
    interval, as a share of it.
    """

    name: str
    keeps_assumptions: bool = True
    stationary: bool = False
    given_share: float = 0.95
    oscillator: OscillatorSpec = field(default_factory=OscillatorSpec)
    path: PathSpec = field(default_factory=PathSpec)
    grandmaster: GrandmasterSpec = field(default_factory=GrandmasterSpec)
    sync_interval_s: float = 1.0
    read_interval_s: float = 1.0
    read_spread: float = 0.0
    software: bool = False
    delay_filter_length: int = 10
    may_master: bool = False


QUIET_OSCILLATOR = OscillatorSpec(offset_ppb=5_000, wander_ppb=0.05)
SOFTWARE_PATH = PathSpec(40_000, 40_000, jitter_ns=2_000, queue_share=0.2, queue_ns=15_000)

KEEPING = [
    Scenario("quiet", stationary=True, oscillator=QUIET_OSCILLATOR, path=PathSpec(2_000, 2_000, jitter_ns=8)),
    Scenario("lopsided", stationary=True, path=PathSpec(10_000, 30_000)),
    Scenario("one-way", path=PathSpec(200_000, 0, jitter_ns=0)),
    Scenario("drawn delays", path=PathSpec(1_000_000, 1_000_000, drawn=True)),
    Scenario("software stamps", stationary=True, path=SOFTWARE_PATH, software=True),
    Scenario("queues", stationary=True, path=PathSpec(5_000, 5_000, jitter_ns=50, queue_share=0.3, queue_ns=8_000)),
    Scenario("much wander", stationary=True, oscillator=OscillatorSpec(wander_ppb=20)),
    Scenario(
        "temperature",
        oscillator=OscillatorSpec(ramp_ppb_per_s=4, ramp_from_s=300, ramp_until_s=700, sine_ppb=300, sine_period_s=240),
    ),
    Scenario("loss", given_share=0.8, path=PathSpec(loss=0.3)),
    Scenario("reroutes", path=PathSpec(reroute_every_s=90, reroute_ns=250_000)),
    Scenario("small reroutes", path=PathSpec(reroute_every_s=45, reroute_ns=3_000)),
    Scenario("slow reroutes", path=PathSpec(reroute_every_s=120, reroute_ns=60_000, reroute_takes_s=40)),
    Scenario(
        "reroutes, software stamps",
        path=PathSpec(40_000, 40_000, jitter_ns=2_000, reroute_every_s=120, reroute_ns=250_000),
        software=True,
    ),
    Scenario("no Sync at times", given_share=0.8, path=PathSpec(sync_outage_every_s=200, sync_outage_s=30)),
    Scenario("nothing at times", given_share=0.7, path=PathSpec(outage_every_s=200, outage_s=40)),
    Scenario(
        "nothing at times, wander",
        given_share=0.7,
        oscillator=OscillatorSpec(wander_ppb=10),
        path=PathSpec(outage_every_s=200, outage_s=40),
    ),
    Scenario("master at times", given_share=0.5, path=PathSpec(outage_every_s=200, outage_s=40), may_master=True),
    Scenario(
        "outages and reroutes",
        given_share=0.6,
        path=PathSpec(
            10_000,
            12_000,
            jitter_ns=500,
            reroute_every_s=120,
            reroute_ns=60_000,
            loss=0.05,
            outage_every_s=300,
            outage_s=20,
        ),
    ),
    Scenario(
        "grandmaster in holdover",
        grandmaster=GrandmasterSpec(loses_reference_s=300, drift_ppb=0.8),
    ),
    Scenario("8 Syncs a second", stationary=True, sync_interval_s=0.125, path=PathSpec(jitter_ns=200)),
    Scenario(
        "8 Syncs a second, reroutes", sync_interval_s=0.125, path=PathSpec(reroute_every_s=90, reroute_ns=250_000)
    ),
    Scenario("8 readings a second", read_interval_s=0.125, path=PathSpec(reroute_every_s=90, reroute_ns=50_000)),
    Scenario(
        "irregular readings",
        read_interval_s=1.6,
        read_spread=0.9,
        path=PathSpec(reroute_every_s=120, reroute_ns=50_000),
    ),
    Scenario("rare readings", read_interval_s=4.0, path=PathSpec(jitter_ns=200)),
]

#: The test that is named after each states what it breaks.
BREAKING = [
    Scenario("grandmaster steps", False, grandmaster=GrandmasterSpec(steps_s=(300.0, 600.0), step_ns=80_000)),
    Scenario("37 s mistake", False, grandmaster=GrandmasterSpec(steps_s=(300.0,), step_ns=-37e9)),
    Scenario(
        "grandmaster lies of its class",
        False,
        grandmaster=GrandmasterSpec(loses_reference_s=300, drift_ppb=50, lies=True),
    ),
    Scenario(
        "grandmaster drifts fast", False, grandmaster=GrandmasterSpec(loses_reference_s=300, drift_ppb=5_000, lies=True)
    ),
    Scenario("grandmaster dies", False, grandmaster=GrandmasterSpec(dies_s=300)),
    Scenario("corrected below 0", False, path=PathSpec(-30_000, 10_000)),
    Scenario("corrected too much", False, path=PathSpec(-30_000, 36_000)),
    Scenario(
        "oscillator breaks in holdover",
        False,
        oscillator=OscillatorSpec(ramp_ppb_per_s=5_000, ramp_from_s=310, ramp_until_s=370),
        path=PathSpec(ends_at_s=300),
    ),
    Scenario(
        "longer delay filter", False, path=PathSpec(reroute_every_s=200, reroute_ns=250_000), delay_filter_length=60
    ),
]

BY_NAME = {scenario.name: scenario for scenario in KEEPING + BREAKING}
