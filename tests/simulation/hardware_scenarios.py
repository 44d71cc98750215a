"""The scenarios with hardware timestamps: what card, clocks, network and daemon do, and whether that keeps the assumptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from grandmaster_clock import GrandmasterSpec
from local_clock import OscillatorSpec
from network_path import PathSpec, Reroute

NS_PER_S = 1e9


class Discipline(Enum):
    """What steers the system clock: nothing, phc2sys by the PHC, or chronyd by an NTP server of its own."""

    NONE = auto()
    PHC2SYS = auto()
    CHRONYD = auto()


@dataclass(frozen=True, slots=True)
class CardSpec:
    """
    A network card with a PHC. Its oscillator is off by up to 200 ppm, its servo reaches `max_adj_ppb`. A reading of it
    falls anywhere into a window of a width from `width_ns`, some ms after the Sync.

    `frequency_readable`: Linux 6.15 or newer. `limit_known`: the device can be opened. `read_at_sync`: the driver ptp4l
    reads it, else a source `phc` does once a second.
    """

    oscillator: OscillatorSpec = field(default_factory=lambda: OscillatorSpec(offset_ppb=200_000))
    max_adj_ppb: int = 62_499_999
    width_ns: tuple[float, float] = (500.0, 5_000.0)
    read_after_s: tuple[float, float] = (0.000_5, 0.010)
    frequency_readable: bool = False
    read_at_sync: bool = True
    granularity_ns: int = 8


@dataclass(frozen=True, slots=True)
class HardwareScenario:
    """
    `given_share`: at least so many of the rows have a hard bound against the grandmaster. `missed_share`: so many Syncs
    the daemon does not read. `follow_up_s`: ptp4l acts on a Sync so long after it was stamped. `step_threshold_ns`: of
    ptp4l; by default it never steps again. `monitored`: ptp4l passes on each delay exchange. `wrong_ns`: the NTP server
    is off by up to so much, and every so often by another amount.
    """

    name: str
    keeps_assumptions: bool = True
    given_share: float = 0.9
    seconds: float = 600.0
    card: CardSpec = field(default_factory=CardSpec)
    system: OscillatorSpec = field(default_factory=lambda: OscillatorSpec(offset_ppb=50_000))
    discipline: Discipline = Discipline.PHC2SYS
    path: PathSpec = field(default_factory=lambda: PathSpec(800, 800, jitter_ns=10))
    grandmaster: GrandmasterSpec = field(default_factory=GrandmasterSpec)
    sync_interval_s: float = 1.0
    follow_up_s: tuple[float, float] = (0.000_1, 0.002)
    missed_share: float = 0.0
    step_threshold_ns: float = float("inf")
    monitored: bool = False
    counters_served: bool = True
    wrong_ns: float = 0.0
    server_changes_every_s: float = 120.0


QUIET = PathSpec(800, 800, jitter_ns=10)
QUEUES = PathSpec(5_000, 5_000, jitter_ns=50, queue_share=0.3, queue_ns=8_000)
REROUTES = PathSpec(10_000, 10_000, reroute_every_s=60, reroute_ns=250_000)
SLOW = PathSpec(reroute_every_s=90, reroute_ns=60_000, reroute_takes_s=40)
SLOW_AT_ONCE = PathSpec(reroutes=(Reroute(12 * NS_PER_S, 52 * NS_PER_S, 90_000, 10_000),))
UNDISTURBED = OscillatorSpec(offset_ppb=50_000, wander_ppb=0.05)
WARM = OscillatorSpec(
    offset_ppb=50_000, ramp_ppb_per_s=4, ramp_from_s=200, ramp_until_s=500, sine_ppb=300, sine_period_s=240
)
READABLE = CardSpec(frequency_readable=True)
APART = CardSpec(read_at_sync=False, frequency_readable=True)
WIDE = CardSpec(width_ns=(5_000, 25_000))
FAST_CARD = CardSpec(max_adj_ppb=10**9)
SLOW_CARD = CardSpec(max_adj_ppb=32_000_000)

KEEPING_HARDWARE = [
    HardwareScenario("hw: quiet", system=UNDISTURBED),
    HardwareScenario("hw: quiet, readable frequency", card=READABLE, system=UNDISTURBED),
    HardwareScenario("hw: wide windows", card=WIDE),
    HardwareScenario("hw: free system clock", discipline=Discipline.NONE),
    HardwareScenario("hw: temperature", system=WARM, discipline=Discipline.NONE),
    HardwareScenario("hw: temperature, phc2sys", system=WARM),
    HardwareScenario("hw: queues", path=QUEUES, card=SLOW_CARD),
    HardwareScenario("hw: queues, exchanges", path=QUEUES, monitored=True, discipline=Discipline.NONE),
    HardwareScenario("hw: reroutes", path=REROUTES),
    HardwareScenario("hw: reroutes, free system clock", path=REROUTES, discipline=Discipline.NONE, card=READABLE),
    HardwareScenario("hw: reroutes, exchanges", path=REROUTES, monitored=True),
    HardwareScenario("hw: slow reroutes", path=SLOW),
    HardwareScenario("hw: slow reroutes, free system clock", path=SLOW, discipline=Discipline.NONE),
    HardwareScenario("hw: slow reroute at once", path=SLOW_AT_ONCE, seconds=120, given_share=0.0),
    HardwareScenario(
        "hw: slow reroute at once, free", path=SLOW_AT_ONCE, seconds=120, given_share=0.0, discipline=Discipline.NONE
    ),
    HardwareScenario("hw: loss", path=PathSpec(loss=0.3), given_share=0.7),
    HardwareScenario(
        "hw: loss and reroutes", path=PathSpec(loss=0.2, reroute_every_s=60, reroute_ns=250_000), given_share=0.7
    ),
    HardwareScenario("hw: no Sync at times", path=PathSpec(sync_outage_every_s=60, sync_outage_s=15), given_share=0.7),
    HardwareScenario(
        "hw: no Sync at times, reroutes",
        path=PathSpec(sync_outage_every_s=60, sync_outage_s=5, reroute_every_s=30, reroute_ns=250_000),
        given_share=0.5,
    ),
    HardwareScenario("hw: nothing at times", path=PathSpec(outage_every_s=120, outage_s=40), given_share=0.4),
    HardwareScenario(
        "hw: 8 Syncs a second", sync_interval_s=0.125, path=PathSpec(jitter_ns=200), seconds=300, card=FAST_CARD
    ),
    HardwareScenario("hw: 8 Syncs a second, reroutes", sync_interval_s=0.125, path=REROUTES, seconds=300),
    HardwareScenario("hw: 16 Syncs a second", sync_interval_s=0.0625, seconds=180),
    HardwareScenario("hw: 16 Syncs a second, reroutes", sync_interval_s=0.0625, path=REROUTES, seconds=180),
    HardwareScenario("hw: 16 Syncs a second, half unread", sync_interval_s=0.0625, seconds=180, missed_share=0.5),
    HardwareScenario("hw: half the Syncs unread", missed_share=0.5, given_share=0.7),
    HardwareScenario("hw: chronyd slews", discipline=Discipline.CHRONYD, wrong_ns=50_000),
    HardwareScenario("hw: chronyd slews far", discipline=Discipline.CHRONYD, wrong_ns=20_000_000),
    HardwareScenario(
        "hw: chronyd slews, loss",
        discipline=Discipline.CHRONYD,
        wrong_ns=2_000_000,
        path=PathSpec(loss=0.3),
        given_share=0.7,
    ),
    HardwareScenario(
        "hw: chronyd slews, 8 Syncs a second",
        discipline=Discipline.CHRONYD,
        wrong_ns=5_000_000,
        sync_interval_s=0.125,
        seconds=300,
    ),
    HardwareScenario("hw: read apart", card=APART, path=SLOW, given_share=0.0),
    HardwareScenario(
        "hw: negative path delays, chronyd slews",
        card=CardSpec(max_adj_ppb=500_000, read_after_s=(0.01, 0.1)),
        discipline=Discipline.CHRONYD,
        wrong_ns=20_000_000,
        server_changes_every_s=20,
        path=PathSpec(
            500, 1_000, jitter_ns=200, queue_share=0.36, queue_ns=14_000, reroute_every_s=150, reroute_ns=80_000
        ),
        sync_interval_s=2.0,
        given_share=0.3,
    ),
    HardwareScenario(
        "hw: much loss, old ptp4l",
        path=PathSpec(15_000, 15_000, loss=0.6),
        sync_interval_s=2.0,
        counters_served=False,
        given_share=0.0,
    ),
    HardwareScenario(
        "hw: ptp4l steps for a queue",
        path=PathSpec(10_000, 1_000, queue_share=0.4, queue_ns=26_000),
        sync_interval_s=0.25,
        seconds=200,
        step_threshold_ns=20_000,
    ),
    HardwareScenario("hw: old ptp4l without counters", counters_served=False, path=REROUTES),
    HardwareScenario("hw: grandmaster in holdover", grandmaster=GrandmasterSpec(loses_reference_s=200, drift_ppb=0.8)),
]

STEPS = GrandmasterSpec(steps_s=(200.0, 400.0), step_ns=20_000_000)

#: The test that is named after each states what it breaks.
BREAKING_HARDWARE = [
    HardwareScenario("hw: grandmaster steps", False, grandmaster=STEPS),
    HardwareScenario("hw: grandmaster steps, readable", False, grandmaster=STEPS, card=READABLE),
    HardwareScenario("hw: grandmaster steps, free", False, grandmaster=STEPS, discipline=Discipline.NONE),
    HardwareScenario("hw: grandmaster steps, fast card", False, grandmaster=STEPS, card=FAST_CARD),
    HardwareScenario("hw: grandmaster steps, slow card", False, grandmaster=STEPS, card=SLOW_CARD),
    HardwareScenario("hw: grandmaster steps, ptp4l too", False, grandmaster=STEPS, step_threshold_ns=1_000),
    HardwareScenario(
        "hw: grandmaster steps, ptp4l too, chronyd", False, grandmaster=STEPS, step_threshold_ns=1_000,
        discipline=Discipline.CHRONYD, wrong_ns=20_000_000,
    ),
    HardwareScenario(
        "hw: grandmaster steps, 16 Syncs a second", False, grandmaster=STEPS, sync_interval_s=0.0625, seconds=300
    ),
    HardwareScenario(
        "hw: grandmaster steps, unread", False, grandmaster=STEPS, sync_interval_s=0.0625, seconds=300, missed_share=0.7
    ),
    HardwareScenario(
        "hw: grandmaster steps, no Sync after", False, grandmaster=GrandmasterSpec(steps_s=(200.0,), step_ns=20_000_000),
        path=PathSpec(sync_ends_at_s=201.0), seconds=300,
    ),
]  # fmt: skip

HARDWARE_BY_NAME = {scenario.name: scenario for scenario in KEEPING_HARDWARE + BREAKING_HARDWARE}
