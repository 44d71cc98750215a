"""The simulated grandmaster: what holds at any time in any scenario, and what each scenario is for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timesyncd.simulation.grandmaster import SCENARIOS, Device, Servo
from timesyncd.simulation.grandmaster.actions import Antenna
from timesyncd.simulation.grandmaster.alarms import KINDS, DeviceEvent, SimulatedAlarm
from timesyncd.simulation.grandmaster.channels import CHANNELS, day_file, metric_ns, points, time_error_ns
from timesyncd.simulation.grandmaster.hardware import MODELS
from timesyncd.simulation.grandmaster.servo import Dwell, next_servo

NOON_S = 1_772_600_400.0
GNSS_1 = CHANNELS[0]
PTP_1 = next(channel for channel in CHANNELS if channel.name == "PTP-1")


def still(clock_s: float = NOON_S) -> Callable[[], float]:
    return lambda: clock_s


def device_after(scenario: str = "steady", seed: int = 1, kind: str = "tp4100") -> Device:
    device = Device(seed=seed, kind=kind, clock=still())
    SCENARIOS[scenario](device)
    return device


def state_of(device: Device) -> tuple[object, ...]:
    """What two grandmasters that lived through the same share."""
    return (
        device.servo, device.clock_class, device.alarms, device.satellites, round(device.phase_offset_ns, 6),
        device.utc_offset_s, device.ports, device.sensors, device.references, device.engine_boots, tuple(device.events),
    )  # fmt: skip


def assert_consistent(device: Device, scenario: str) -> None:
    """The invariants."""
    used = sum(satellite.healthy for satellite in device.satellites)
    alarms = {alarm.name for alarm in device.alarms}
    selected = [reference.name for reference in device.references if reference.qualification == "selected"]

    assert device.clock_class != 6 or device.servo in (Servo.LOCKED, Servo.BRIDGING)
    assert device.servo is not Servo.LOCKED or used >= 4 or device.lying
    assert selected == (["GNSS-1"] if device.servo in (Servo.LOCKED, Servo.FAST_TRACK) else [])
    assert not device.satellites or device.receiver.antenna == "ok"
    assert ("gnss-not-tracking" in alarms) <= (used < 4)
    assert ("holdover" in alarms) == (device.servo is Servo.HOLDOVER)
    assert device.utc_offset_s == 37 or scenario == "wrong-utc-offset"
    assert all(port.clients <= port.max_clients for port in device.ports)
    assert len(device.clients) == sum(port.clients for port in device.ports)
    assert (device.ntp.stratum == 1) == device.servo.held
    assert all(0 <= satellite.azimuth_deg < 360 and satellite.elevation_deg <= 90 for satellite in device.satellites)
    assert all(alarm.severity != "event" for alarm in device.alarms)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SCENARIOS)),
    st.integers(0, 99_999),
    st.lists(st.floats(0, 2_000), min_size=1, max_size=6),
)
def test_a_grandmaster_is_consistent_at_any_time(scenario: str, seed: int, cuts: list[float]) -> None:
    """Through any scenario and at any time its state, class, references, satellites, alarms and NTP agree."""
    device = device_after(scenario, seed)
    for seconds in cuts:
        device.advance(seconds)

        assert_consistent(device, scenario)


@settings(deadline=None)
@given(st.sampled_from(sorted(SCENARIOS)), st.integers(0, 99_999), st.lists(st.floats(0, 600), min_size=2, max_size=6))
def test_how_time_is_cut_changes_nothing(scenario: str, seed: int, cuts: list[float]) -> None:
    """A grandmaster that is read often and one that is not read live through the same, for the same seed."""
    often, once = device_after(scenario, seed), device_after(scenario, seed)
    for seconds in cuts:
        often.advance(seconds)
    once.advance(often.elapsed_s)

    assert state_of(often) == state_of(once)


@settings(deadline=None)
@given(st.sampled_from(sorted(SCENARIOS)), st.integers(0, 999))
def test_events_carry_every_active_alarm(scenario: str, seed: int) -> None:
    """A receiver that keeps the list of raised and not cleared alarms has the grandmaster's own alarms at any time."""
    standing: dict[tuple[str, int], SimulatedAlarm] = {}

    def follow(event: DeviceEvent) -> None:
        if event.action == "restart":
            standing.clear()
        if event.alarm is not None and event.action == "raise":
            standing[event.alarm.name, event.alarm.index] = event.alarm
        if event.alarm is not None and event.action == "clear":
            del standing[event.alarm.name, event.alarm.index]

    device = Device(seed=seed, clock=still())
    device.subscribe(follow)
    SCENARIOS[scenario](device)
    for _ in range(10):
        device.advance(173.0)

        assert set(standing.values()) == set(device.alarms)


def test_another_seed_is_another_grandmaster() -> None:
    """The sky and the noise of two seeds differ."""
    first, second = device_after(seed=1), device_after(seed=2)
    first.advance(100)
    second.advance(100)

    assert first.satellites != second.satellites
    assert first.phase_offset_ns != second.phase_offset_ns


@pytest.mark.parametrize(
    ("scenario", "after_s", "servo", "clock_class", "alarms"),
    [
        ("steady", 3_600, Servo.LOCKED, 6, set()),
        ("antenna-cut", 0, Servo.HOLDOVER, 7, {"gnss-not-tracking", "antenna-open", "holdover"}),
        ("antenna-cut", 90_000, Servo.EXTENDED_HOLDOVER, 140, {"gnss-not-tracking", "antenna-open", "holdover-exceeded"}),
        ("holdover", 0, Servo.HOLDOVER, 7, {"gnss-not-tracking", "holdover"}),
        ("jamming", 40, Servo.LOCKED, 6, {"gnss-signal-low"}),
        ("jamming", 100, Servo.BRIDGING, 6, {"gnss-not-tracking", "bridging"}),
        ("jamming", 1_100, Servo.HOLDOVER, 7, {"gnss-not-tracking", "holdover"}),
        ("jamming", 3_600, Servo.LOCKED, 6, set()),
        ("reboot", 300, Servo.WARMUP, 248, {"warmup"}),
        ("reboot", 1_000, Servo.FAST_TRACK, 248, set()),
        ("reboot", 3_600, Servo.LOCKED, 6, set()),
        ("liar", 3_600, Servo.LOCKED, 6, set()),
        ("2000-clients", 0, Servo.LOCKED, 6, {"near-client-limit"}),
        ("alarm-storm", 61, Servo.LOCKED, 6, set()),
    ],
)  # fmt: skip
def test_a_scenario_brings_the_grandmaster_to_its_state(
    scenario: str, after_s: float, servo: Servo, clock_class: int, alarms: set[str]
) -> None:
    """After that much time a scenario has brought the grandmaster there."""
    device = device_after(scenario)
    device.advance(after_s)

    assert (device.servo, device.clock_class, {alarm.name for alarm in device.alarms}) == (servo, clock_class, alarms)


def test_recovery_from_holdover_keeps_class_7() -> None:
    """A grandmaster that has found its reference again reports class 7 until it is locked, and then 6."""
    device = device_after("antenna-cut")
    device.advance(600)
    device.schedule(0, Antenna(value="ok").apply)
    device.advance(60)
    recovering = (device.servo, device.clock_class)
    device.advance(300)

    assert recovering == (Servo.FAST_TRACK, 7)
    assert (device.servo, device.clock_class) == (Servo.LOCKED, 6)


def test_a_rebooting_grandmaster_is_silent_and_counts_its_boots() -> None:
    """It does not answer for a minute; then its uptime restarts and the count of boots is one higher."""
    device = device_after("reboot")
    before = (device.answering, device.engine_boots)
    device.advance(61)

    assert before == (False, 4)
    assert (device.answering, device.engine_boots, round(device.uptime_s)) == (True, 5, 1)


def test_a_rebooting_grandmaster_forgets_its_alarms() -> None:
    """What stood before the reboot and does not hold any more is gone without a word."""
    device = device_after("2000-clients")
    actions: list[str] = []
    device.subscribe(lambda event: actions.append(event.action))
    device.client_total = 0
    device.reboot()
    device.advance(60)

    assert [alarm.name for alarm in device.alarms] == ["warmup"]
    assert actions == ["restart", "event", "raise"]


@pytest.mark.parametrize(
    ("servo", "reference", "recovering", "after"),
    [
        (Servo.LOCKED, False, False, Servo.BRIDGING),
        (Servo.BRIDGING, True, False, Servo.LOCKED),
        (Servo.BRIDGING, False, False, Servo.BRIDGING),
        (Servo.HOLDOVER, True, False, Servo.FAST_TRACK),
        (Servo.EXTENDED_HOLDOVER, True, False, Servo.FAST_TRACK),
        (Servo.FAST_TRACK, False, True, Servo.HOLDOVER),
        (Servo.FAST_TRACK, False, False, Servo.FREERUN),
        (Servo.FREERUN, True, False, Servo.FAST_TRACK),
        (Servo.WARMUP, True, False, Servo.WARMUP),
        (Servo.FAILED, True, False, Servo.FAILED),
    ],
)
def test_inputs_move_the_servo(servo: Servo, reference: bool, recovering: bool, after: Servo) -> None:
    """What a reference that is there or is lost makes of a state that has just begun."""
    assert next_servo(servo, 0.0, reference, recovering, Dwell()) is after


@pytest.mark.parametrize(
    ("servo", "reference", "after"),
    [
        (Servo.WARMUP, True, Servo.FAST_TRACK),
        (Servo.WARMUP, False, Servo.FREERUN),
        (Servo.FAST_TRACK, True, Servo.LOCKED),
        (Servo.BRIDGING, False, Servo.HOLDOVER),
        (Servo.HOLDOVER, False, Servo.EXTENDED_HOLDOVER),
        (Servo.EXTENDED_HOLDOVER, False, Servo.EXTENDED_HOLDOVER),
        (Servo.LOCKED, True, Servo.LOCKED),
    ],
)
def test_time_moves_the_servo(servo: Servo, reference: bool, after: Servo) -> None:
    """What follows when the time of a state is over."""
    assert next_servo(servo, 1e9, reference, False, Dwell()) is after


def test_the_phase_wanders_in_holdover_and_returns() -> None:
    """Locked, the phase stays within 12 ns; in a day of holdover it leaves that; recovered, it is back."""
    device = device_after()
    device.advance(7_200)
    locked = [abs(metric_ns(device, GNSS_1, "te", device.unix_s - 60 * minute) or 0.0) for minute in range(100)]
    device.dwell.bridging_s = 0
    device.schedule(0, Antenna(value="open").apply)
    device.advance(80_000)
    away_ns = abs(device.phase_offset_ns)
    device.schedule(0, Antenna(value="ok").apply)
    device.advance(1_000)

    assert max(locked) < 12
    assert away_ns > 100
    assert abs(device.phase_offset_ns) < 12


@pytest.mark.parametrize(("oscillator", "limit_ns"), [("rb", 400), ("ocxo", 2_500), ("mini-ocxo", 60_000)])
def test_better_oscillators_hold_longer(oscillator: str, limit_ns: float) -> None:
    """After a day of holdover a kind of oscillator is within a bound of its own, whatever the seed."""
    for seed in range(20):
        device = Device(seed=seed, oscillator_kind=oscillator, clock=still())
        SCENARIOS["antenna-cut"](device)
        device.advance(86_400)

        assert abs(device.phase_offset_ns) < limit_ns


def test_a_spoofer_moves_position_and_time() -> None:
    """While the grandmaster reports lock, its position jumps by 250 m and its time error by 450 ns, and it follows."""
    device = device_after("spoofing")
    moved_deg = device.receiver.position.longitude_deg - Device().receiver.position.longitude_deg
    device.advance(30.0)
    jumped_ns = time_error_ns(device, GNSS_1, device.unix_s)
    device.advance(600)

    assert moved_deg * 68_000 == pytest.approx(250, rel=0.02)
    assert jumped_ns == pytest.approx(-450, abs=15)
    assert device.oscillator.phase_ns == pytest.approx(450, abs=15)
    assert device.servo is Servo.LOCKED


def test_satellites_move_slowly() -> None:
    """In ten minutes a satellite moves by some degrees, in an hour the sky is another."""
    device = device_after()
    before = {satellite.number: satellite for satellite in device.satellites}
    device.advance(600)
    turned = [
        (satellite.azimuth_deg - before[satellite.number].azimuth_deg) % 360
        for satellite in device.satellites
        if satellite.number in before
    ]

    assert all(3 <= degrees <= 7 for degrees in turned)


def test_a_leap_second_comes_at_the_end_of_the_half_year() -> None:
    """It is announced, and when the half-year ends the offset is one larger and nothing is announced any more."""
    device = device_after("leap")
    announced = (device.leap, device.utc_offset_s, device.ntp.leap)
    device.advance((device.leap_at_s or 0) - device.unix_s + 1)

    assert announced == ("insert", 37, "insert")
    assert (device.leap, device.utc_offset_s, device.tai_offset_s) == ("none", 38, 38)


def test_speed_makes_things_happen_faster_and_dates_stay_real() -> None:
    """At sixty times the speed a minute brings an hour of holdover, and the grandmaster's own clock has gone a minute on."""
    now = [NOON_S]
    device = Device(speed=60.0, clock=lambda: now[0])
    SCENARIOS["antenna-cut"](device)
    now[0] += 60
    device.catch_up()

    assert device.elapsed_s == 3_600
    assert device.unix_s == NOON_S + 60
    assert device.next_change_s() == pytest.approx(device.dwell.holdover_s - 3_600)


def test_a_grandmaster_with_a_stopped_clock_changes_nothing() -> None:
    """Without a speed, catching up changes nothing; and in steady state nothing is due."""
    device = device_after()
    before = state_of(device)
    device.catch_up()

    assert state_of(device) == before
    assert device.next_change_s() is None


def test_time_errors_agree_with_the_oscillator() -> None:
    """The GNSS channel reads the phase, cte is the mean and max-te the largest of the last 100 s."""
    device = device_after()
    device.advance(7_200)
    now_s = device.unix_s
    errors = [time_error_ns(device, GNSS_1, now_s - back) or 0.0 for back in range(0, 100, 10)]

    assert metric_ns(device, GNSS_1, "te", now_s) == device.phase_offset_ns
    assert metric_ns(device, GNSS_1, "cte", now_s) == sum(errors) / 10
    assert metric_ns(device, GNSS_1, "max-te", now_s) == max(abs(error) for error in errors)


def test_without_a_reference_there_is_no_time_error() -> None:
    """The GNSS channel has no point since the antenna was cut; a PTP input goes on and shows the drift."""
    device = device_after()
    device.advance(600)
    device.dwell.bridging_s = 0
    device.schedule(0, Antenna(value="open").apply)
    device.advance(600)
    seen = [point.unix_s for point in points(device, GNSS_1, "te", 1_200, 10)]

    assert max(seen) < device.unix_s - 590
    assert time_error_ns(device, PTP_1, device.unix_s) is not None


def test_a_grandmaster_measures_its_peer() -> None:
    """A PTP input reads the other grandmaster's clock against its own, positive = the other is ahead, now and in the past."""
    device, other = device_after(seed=1), device_after("antenna-cut", seed=2)
    device.peer = other
    device.advance(7_200)
    other.advance(7_200)
    apart_ns = other.oscillator.phase_ns - device.oscillator.phase_ns
    before_ns = time_error_ns(device, PTP_1, device.unix_s - 3_600)

    assert time_error_ns(device, PTP_1, device.unix_s) == pytest.approx(apart_ns)
    assert before_ns is not None
    assert abs(before_ns) < abs(apart_ns)


def test_the_day_file_is_what_the_grandmaster_measured() -> None:
    """A row a minute, in the grandmaster's UTC or 37 s ahead in TAI, and no row from before it booted."""
    device = Device(seed=1, clock=still(), started_s=NOON_S - 3_600)
    utc, tai = (day_file(device, GNSS_1, "te", tai).splitlines() for tai in (False, True))

    assert len(utc) == 3 + 61
    assert utc[3].startswith("2026-03-04,04:00:00, ")
    assert tai[3].startswith("2026-03-04,04:00:37, ")
    assert float(utc[-1].split(", ")[1]) == round(device.phase_offset_ns, 1)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_is_whole(kind: str) -> None:
    """Each model has its name, ports, firmware, oscillator, sensors and modules, and lives through a cut antenna."""
    device = device_after("antenna-cut", kind=kind)
    device.advance(3_600)

    assert_consistent(device, "antenna-cut")
    assert device.model == MODELS[kind].name
    assert len(device.ports) == MODELS[kind].ptp_ports
    assert {sensor.kind for sensor in device.sensors} == {"temperature", "fan", "power", "antenna"}
    assert len(device.identities) == (8 if MODELS[kind].web else 1)


def test_a_failed_part_shows_in_the_sensors() -> None:
    """A fan that is raised as failed does not turn, and the other does."""
    device = device_after()
    device.failures.add(("fan", 2))

    assert [(sensor.name, sensor.ok) for sensor in device.sensors if sensor.kind == "fan"] == [
        ("fan 1", True),
        ("fan 2", False),
    ]


def test_every_alarm_has_a_number() -> None:
    """Each condition has a number in at least one numbering, and no numbering uses a number twice."""
    for numbers in ([kind.id for kind in KINDS.values()], [kind.s650_id for kind in KINDS.values()]):
        given_numbers = [number for number in numbers if number is not None]

        assert len(given_numbers) == len(set(given_numbers))
    assert all(kind.id is not None or kind.s650_id is not None for kind in KINDS.values())
