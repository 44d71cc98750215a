"""The TimeProvider driver against the simulated grandmaster, over real UDP: two tables of OIDs, written apart, agree."""

from __future__ import annotations

import asyncio
import time

import pytest
from simulated_timeprovider import COMMUNITY, driver_for, opened, polled, read

from timesyncd.sample import (
    Alarm,
    ClockState,
    InputReference,
    Interface,
    Position,
    PtpPort,
    Satellite,
    format_identity,
)
from timesyncd.simulation.grandmaster import SCENARIOS, Device, Servo, SimulatedAlarm, SimulatedSatellite, SnmpAgent
from timesyncd.simulation.grandmaster.agent import TABLES
from timesyncd.simulation.grandmaster.gnss import SimulatedPosition
from timesyncd.simulation.grandmaster.hardware import SimulatedReference
from timesyncd.simulation.grandmaster.mib import AgentMib, DeviceMib, Tables
from timesyncd.simulation.grandmaster.oids_standard import MIB_2

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("community", "nothing_left")]


STATES = {
    Servo.WARMUP: ClockState.WARMUP,
    Servo.FREERUN: ClockState.FREERUN,
    Servo.FAST_TRACK: ClockState.ACQUIRING,
    Servo.LOCKED: ClockState.LOCKED,
    Servo.HOLDOVER: ClockState.HOLDOVER,
    Servo.BRIDGING: ClockState.HOLDOVER,
    Servo.FAILED: ClockState.FAULT,
    Servo.EXTENDED_HOLDOVER: ClockState.HOLDOVER_OUT_OF_SPEC,
}


#: Where RFC 8173 has no word of its own.
COARSE = {
    Servo.WARMUP: ClockState.FREERUN,
    Servo.FAILED: ClockState.FREERUN,
    Servo.EXTENDED_HOLDOVER: ClockState.HOLDOVER,
}


def expected(device: Device) -> dict[str, object]:
    """What a sample must report of the device, field by field."""
    return {
        "source": "gm-a",
        "sys_descr": f"{device.model}, firmware {device.firmware} (simulated)",
        "sys_name": device.name,
        "sys_object_id": "1.3.6.1.4.1.9070.1.2.5.7.1",
        "model": device.model,
        "serial": device.serial,
        "firmware": device.firmware,
        "clock_identity": format_identity(device.clock_identity),
        "clock_state": STATES[device.servo],
        "clock_class": device.clock_class,
        "clock_accuracy": device.clock_accuracy,
        "offset_scaled_log_variance": device.offset_scaled_log_variance,
        "phase_offset_ns": round(device.phase_offset_ns) if device.has_time_reference else None,
        "utc_offset_s": device.utc_offset_s,
        "time_source": 0x20 if device.has_time_reference else 0xA0,
        "satellites": tuple(Satellite(s.number, s.cn0_db_hz, s.healthy, s.azimuth_deg, s.elevation_deg) for s in device.satellites),
        "selected_reference": "GNSS-1" if device.has_time_reference else None,
        "alarms": tuple(
            Alarm(alarm.id or 0, alarm.index, alarm.severity, alarm.text, "2026-03-04,05:06:07")
            for alarm in device.alarms
            if alarm.severity != "event"
        ),
        "unknown": (),
        "engine_boots": device.engine_boots,
        "priority1": device.priority1,
        "priority2": device.priority2,
        "domain": device.domain,
        "steps_removed": 0,
        "leap": device.leap,
        "references": tuple(InputReference(row.name, row.qualification) for row in sorted(device.references, key=_index)),
        "ports": tuple(
            PtpPort(
                port.name, port.state, port.enabled, port.profile, port.domain, format_identity(port.clock_identity),
                port.clients, port.max_clients, port.load_percent,
            )
            for port in device.ports
        ),
        "position": Position(50.25, -4.75, -12.5),
        "ntp_stratum": device.ntp.stratum,
        "interfaces": tuple(Interface(row.name, row.up, row.speed_mbps) for row in device.interfaces),
    }  # fmt: skip


def _index(reference: SimulatedReference) -> int:
    return reference.if_index


@pytest.mark.parametrize("servo", Servo)
async def test_the_sample_reports_what_the_device_holds(servo: Servo) -> None:
    """For every servo state, each field of the sample is the device's: two tables of OIDs, written apart, agree."""
    raised_s = 1_772_600_767
    device = Device(
        serial="SIM4711", name="gm-b", kind="tp5000e", firmware="2.4.7", domain=44, utc_offset_s=38, phase_offset_ns=1234.5,
        priority1=100, priority2=101, engine_boots=77, leap="insert", client_total=1_234,
    )  # fmt: skip
    device.receiver.position = SimulatedPosition(50.25, -4.75, -12.5)
    device.set_state(
        servo,
        satellites=[SimulatedSatellite(2, 31, healthy=False), SimulatedSatellite(120, 50)],
        alarms=[
            SimulatedAlarm(9, "critical", "Power B lost", 2, raised_s),
            SimulatedAlarm(99, "major", "Fan", 1, raised_s),
            SimulatedAlarm(27, "event", "Clock in normal track", 0, raised_s),
        ],
    )
    async with SnmpAgent(device, community=COMMUNITY) as agent:
        sample = await read(agent)

    assert {field: getattr(sample, field) for field in expected(device)} == expected(device)


@pytest.mark.parametrize("kind", ["tp4100", "tp4500", "s650"])
@pytest.mark.parametrize("servo", Servo)
async def test_other_models_show_the_state_as_far_as_they_can(kind: str, servo: Servo) -> None:
    """RFC 8173 knows fewer states than the grandmaster has, the S650 has words for them, and cuts its list of satellites; no profile reports another state."""
    device = Device(kind=kind)
    device.set_state(servo)
    async with SnmpAgent(device, community=COMMUNITY) as agent:
        sample = await read(agent)

    assert sample.clock_state is (STATES | ({} if kind == "s650" else COARSE))[servo]
    assert sample.model == device.model
    assert sample.unknown == (("satellites=12 counted, 11 listed",) if kind == "s650" else ())


async def test_the_age_of_the_agent_is_reported_in_seconds() -> None:
    """sysUpTime's hundredths become seconds."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        sample = await read(agent)

    assert sample.uptime_s is not None
    assert 259_200 <= sample.uptime_s < 259_260


@pytest.mark.parametrize(
    ("scenario", "seen"),
    [
        ("locked", (ClockState.LOCKED, 6, "locked", [])),
        ("holdover", (ClockState.HOLDOVER, 7, "tracking", [2, 29])),
        ("antenna-cut", (ClockState.HOLDOVER, 7, "antenna_fault", [2, 11, 29])),
    ],
)
async def test_scenarios(scenario: str, seen: object) -> None:
    """A scenario shows as its clock state, class, GNSS state and alarms."""
    device = Device(kind="tp5000e")
    SCENARIOS[scenario](device)
    async with SnmpAgent(device, community=COMMUNITY) as agent:
        sample = await read(agent)

    assert (sample.clock_state, sample.clock_class, sample.gnss_state, [a.id for a in sample.alarms or ()]) == seen


async def test_a_cut_antenna_is_seen_by_the_next_poll() -> None:
    """One open driver follows the grandmaster through a change of state."""
    device = Device(kind="tp5000e")
    async with SnmpAgent(device, community=COMMUNITY) as agent, opened(agent) as driver:
        before = await polled(driver)
        SCENARIOS["antenna-cut"](device)
        after = await polled(driver)

    assert (before.gnss_state, after.gnss_state) == ("locked", "antenna_fault")


async def test_only_the_profiles_that_answer_are_read() -> None:
    """A grandmaster is read by the profiles asked for; the fields of the others are absent."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        sample = await read(agent, profiles=["system", "ptpbase"])

    assert (sample.profiles, sample.clock_state, sample.alarms) == (("system", "ptpbase"), ClockState.LOCKED, None)


async def test_units_share_one_engine() -> None:
    """Grandmasters with the same and with another community are read side by side, and one that goes takes none along."""
    devices = [Device(serial=f"SIM{n}", name=f"gm-{n}") for n in range(3)]
    async with (
        SnmpAgent(devices[0], community=COMMUNITY) as first,
        SnmpAgent(devices[1], community=COMMUNITY) as second,
        SnmpAgent(devices[2], community="guess") as third,
    ):
        drivers = [driver_for(first), driver_for(second), driver_for(third, community={"env": "WRONG_COMMUNITY"})]
        await asyncio.gather(*(driver.open() for driver in drivers))
        await drivers[0].close()
        polls = await asyncio.gather(*(polled(driver) for driver in drivers[1:]))
        for driver in drivers[1:]:
            await driver.close()

    assert [sample.sys_name for sample in polls] == ["gm-1", "gm-2"]


async def test_subtrees_that_come_late_are_found() -> None:
    """An agent that has just started gains subtrees, and the driver finds them without being opened again."""

    class Starting(SnmpAgent):
        complete = False

        def served(self) -> AgentMib:
            standard = [table for table in TABLES["tp5000e"].sorted if table.entry[: len(MIB_2)] == MIB_2]
            return super().served() if self.complete else DeviceMib(self.device, Tables(standard))

    async with (
        Starting(Device(kind="tp5000e", started_s=time.time()), community=COMMUNITY) as agent,
        opened(agent) as driver,
    ):
        before = await polled(driver)
        agent.complete = True
        after = await polled(driver)

    assert (before.profiles, before.alarms) == (("ptpbase", "ntpv4", "system"), None)
    assert (after.profiles, after.alarms) == (("tp5000e", "ptpbase", "ntpv4", "symm-common", "system"), ())
