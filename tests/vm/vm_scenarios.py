"""What is done to a grandmaster and a node while their clocks are compared: a scenario is data and one function."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vm_cache import NEWEST_KERNEL
from vm_pair import Act, Measurement, Setup, unit
from vm_relay import FOLLOW_UP, SYNC

#: Until the daemon has learned the oscillator's rate: forty seconds after the first sample, and the servos are calm.
SETTLE_S = 60

#: Until the pair has recovered from the scenario before.
RECOVER_S = 25

USUAL = Setup()

#: The boundary clock is as good as the path to it, which is a busy host's; in its holdover it leaves that after some 15 s.
BEHIND_A_BOUNDARY_CLOCK = Setup(boundary_clock_error_ns=1_500_000)
RUNAWAY_PPB = 100_000

GRANDMASTER_PHC, NODE_CLOCK = ("grandmaster", "phc"), ("node", "realtime")


@dataclass(frozen=True)
class Scenario:
    """
    `act` runs during `seconds` of measurement. Neighbours in SCENARIOS with one `setup` share a pair; each begins when the pair has settled.
    """

    name: str
    act: Act
    seconds: int = 30
    setup: Setup = USUAL


def quiet(measurement: Measurement) -> None:
    """Nothing happens."""


def grandmaster_step(seconds: float) -> Act:
    def act(measurement: Measurement) -> None:
        time.sleep(8)
        with measurement.disturbing(f"grandmaster's step of {seconds} s", GRANDMASTER_PHC):
            measurement.pair.grandmaster.run(f"phc_ctl -q /dev/ptp0 -- adj {seconds}")

    return act


def steps(measurement: Measurement) -> None:
    """A time in which nothing happens, a step that is smaller than the bound, and one that is larger."""
    for seconds in (20e-6, 20e-3):
        grandmaster_step(seconds)(measurement)
        time.sleep(4)


def frequency_steps(measurement: Measurement) -> None:
    """The grandmaster's oscillator by 50 ppb, then the node's card by 10 ppm and its system clock by 20 ppm: a servo's next update undoes those."""
    grandmaster, node = measurement.pair.grandmaster, measurement.pair.node
    for machine, ppb in ((grandmaster, 50), (node, 10_000), (node, -10_000), (grandmaster, 0)):
        time.sleep(5)
        machine.run(f"phc_ctl -q /dev/ptp0 -- freq {ppb}")


def grandmaster_rate(ppb: int) -> Act:
    """A grandmaster that runs faster from one moment on."""

    def act(measurement: Measurement) -> None:
        time.sleep(8)
        with measurement.disturbing(f"grandmaster's rate of {ppb} ppb"):
            measurement.pair.grandmaster.run(f"phc_ctl -q /dev/ptp0 -- freq {ppb}")

    return act


def changing_path(measurement: Measurement) -> None:
    """From even to lopsided in either direction, by more than the bound, and back."""
    relay = measurement.pair.relay
    assert relay is not None
    for forth_s, back_s in ((0.0005, 0.0005), (0.003, 0.0002), (0.0002, 0.003), (0.01, 0.0), (0.0, 0.0)):
        time.sleep(6)
        relay.directions[0].delay_s, relay.directions[1].delay_s = forth_s, back_s


def sync_loss(measurement: Measurement) -> None:
    """No Sync while delay requests go on; then everything; then nothing at all for longer than holdover begins."""
    relay = measurement.pair.relay
    assert relay is not None
    to_node = relay.directions[0]
    for dropped, seconds in (
        (frozenset({SYNC, FOLLOW_UP}), 4),
        (frozenset(), 6),
        (frozenset(range(16)), 9),
        (frozenset(), 0),
    ):
        time.sleep(3)
        to_node.dropped = dropped
        time.sleep(seconds)


def boundary_clock_in_holdover(measurement: Measurement) -> None:
    """
    The boundary clock gets Announce and no Sync, so it goes on announcing its grandmaster with class 6, while it runs away from it.
    """
    relay, boundary = measurement.pair.relay, measurement.pair.boundary
    assert relay is not None and boundary is not None
    time.sleep(8)
    relay.directions[0].dropped = frozenset({SYNC, FOLLOW_UP})
    boundary.run(f"phc_ctl -q /dev/ptp0 -- freq {RUNAWAY_PPB}")
    time.sleep(30)
    relay.directions[0].dropped = frozenset()


def killed_daemons(measurement: Measurement) -> None:
    """Each daemon is killed and started again, in orders that differ."""
    pair = measurement.pair

    def ptp4l() -> None:
        pair.node.run("systemctl kill --signal=KILL ptp4l@eth0; sleep 1")
        pair.start_ptp4l()

    def steering() -> None:
        pair.node.run("systemctl kill --signal=KILL steering; sleep 1")
        pair.start_steering()

    def timesyncd() -> None:
        pair.node.run("systemctl kill --signal=KILL timesyncd; sleep 8")

    for each in (ptp4l, steering, timesyncd, ptp4l, timesyncd, steering):
        time.sleep(4)
        each()


def clock_set_by_hand(measurement: Measurement) -> None:
    """By less than phc2sys corrects by a step, by more, and so little that no reader notices it."""
    for ns in (500_000_000, -300_000_000, 10_000_000, -3_000_000, 20_000, 1_500):
        time.sleep(5)
        code = f"import time; time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + {ns})"
        measurement.pair.node.run(f"python3 -c '{code}'")


def slewed_by_hand(measurement: Measurement) -> None:
    """At the limit of adjtimex's tick, in both directions."""
    for tick_us in (11_000, 9_000):
        time.sleep(6)
        with measurement.disturbing(f"tick of {tick_us} us", NODE_CLOCK):
            unit(measurement.pair.node, f"slew{tick_us}", f"python3 /usr/local/lib/timesyncd-vm/slew.py {tick_us} 1.5")
            measurement.pair.node.wait_for("[ -e /run/vm/slewing ]", 10)


def paused(measurement: Measurement) -> None:
    """The host stops the node's machine and continues it."""
    node = measurement.pair.node
    for seconds in (0.5, 2.0):
        time.sleep(8)
        with measurement.pausing(f"pause of {seconds} s") as pause:
            node.qmp("stop")
            pause.has_stopped()
            time.sleep(seconds)
            node.qmp("cont")


def suspended(measurement: Measurement) -> None:
    """
    The node sleeps. Until its daemon has seen that, a second at most, programs see a bound that aged through the sleep, while the kernel set
    the clock by one of a second's resolution.
    """
    time.sleep(8)
    with measurement.pausing("suspend to memory") as pause:
        measurement.pair.node.sleep(3, pause.has_stopped)
        time.sleep(1)


def migrated(measurement: Measurement) -> None:
    """
    The node's machine is saved into a file and goes on in another QEMU; its VMClock counts the disruption.

    QEMU 10.0.2 cannot do it yet with the shared memory of the handshakes: tlb_reset_dirty_range_all fails an assertion.
    """
    node = measurement.pair.node
    saved = node.folder / "saved"
    time.sleep(8)
    with measurement.pausing("migration to a file and back") as pause:
        node.save(saved)
        pause.has_stopped()
        node.restore(saved)
    saved.unlink()


SCENARIOS = (
    Scenario("quiet", quiet),
    Scenario("step-20us", grandmaster_step(20e-6)),
    Scenario("step-20ms", grandmaster_step(20e-3)),
    Scenario("steps", steps, 38),
    Scenario("step-2s", grandmaster_step(2)),
    Scenario("frequency-steps", frequency_steps),
    Scenario("grandmaster-rate-20ppm", grandmaster_rate(20_000)),
    Scenario("changing-path", changing_path, 40, Setup(relayed=True)),
    Scenario("sync-loss", sync_loss, 45, Setup(relayed=True)),
    Scenario("killed-daemons", killed_daemons, 75),
    Scenario("chronyd", quiet, setup=Setup(chronyd=True)),
    Scenario("chronyd-step-20ms", grandmaster_step(20e-3), setup=Setup(chronyd=True)),
    Scenario("clock-set-by-hand", clock_set_by_hand, 38),
    Scenario("slewed-by-hand", slewed_by_hand, 25),
    Scenario("paused", paused, 32),
    Scenario("suspended", suspended, 60),
    Scenario("migrated", migrated, 40, Setup(kernel=NEWEST_KERNEL, movable=True)),
    Scenario("virtual-clocks", quiet, setup=Setup(vclocks=2)),
    Scenario("boundary-clock", quiet, setup=BEHIND_A_BOUNDARY_CLOCK),
    Scenario("boundary-clock-holdover", boundary_clock_in_holdover, 60, BEHIND_A_BOUNDARY_CLOCK),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
