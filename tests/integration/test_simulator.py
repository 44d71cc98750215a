"""The TimeProvider driver against the simulated unit, over real UDP: two tables of OIDs, written apart, agree."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time

import pytest
from snmp_units import COMMUNITY, driver_for, opened, read

from timesyncd.commands import simulate
from timesyncd.sample import Alarm, ClockState, GrandmasterSample, Satellite, format_identity
from timesyncd.simulate import SCENARIOS, Device, Servo, SimulatedAlarm, SimulatedSatellite, SnmpAgent
from timesyncd.simulate.oids import MIB_2, View

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("community", "nothing_left")]


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode()


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


def expected(device: Device) -> dict[str, object]:
    """What a sample must say of the device, field by field, but for its age and the state of GNSS."""
    return {
        "source": "gm-a",
        "profiles": ("tp5000e", "ptpbase", "symm-common", "system"),
        "sys_descr": f"{device.model}, firmware {device.firmware} (simulated)",
        "sys_name": device.name,
        "sys_object_id": "1.3.6.1.4.1.8072.3.2.10",
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
        "satellites": tuple(Satellite(s.number, s.cn0_db_hz, s.healthy) for s in device.satellites),
        "selected_reference": "GNSS-1" if device.has_time_reference else None,
        "alarms": tuple(
            Alarm(alarm.id, alarm.index, alarm.severity, alarm.text, "2026-03-04,05:06:07")
            for alarm in device.alarms
            if alarm.severity != "event"
        ),
        "unknown": (),
    }


def told(sample: GrandmasterSample) -> dict[str, object]:
    fields = set(GrandmasterSample.__dataclass_fields__) - {"boottime_ns", "uptime_s", "gnss_state"}
    return {field: getattr(sample, field) for field in fields}


@pytest.mark.parametrize("servo", Servo)
async def test_the_sample_says_what_the_device_holds(servo: Servo) -> None:
    """For every servo state, each field of the sample is the device's: two tables of OIDs, written apart, agree."""
    raised_s = 1_772_600_767
    device = Device(serial="SIM4711", name="gm-b", firmware="2.4.7", domain=44, utc_offset_s=38, phase_offset_ns=1234.5)
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

    assert told(sample) == expected(device)


async def test_the_age_of_the_agent_is_told_in_seconds() -> None:
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
        ("antenna-cut", (ClockState.HOLDOVER, 7, "antenna_fault", [2, 12, 29])),
    ],
)
async def test_scenarios(scenario: str, seen: object) -> None:
    """A scenario shows as its clock state, class, GNSS state and alarms."""
    device = Device()
    SCENARIOS[scenario](device)
    async with SnmpAgent(device, community=COMMUNITY) as agent:
        sample = await read(agent)

    assert (sample.clock_state, sample.clock_class, sample.gnss_state, [a.id for a in sample.alarms or ()]) == seen


async def test_a_cut_antenna_is_seen_by_the_next_poll() -> None:
    """One open driver follows the unit through a change of state."""
    device = Device()
    async with SnmpAgent(device, community=COMMUNITY) as agent, opened(agent) as driver:
        (before,) = await driver.poll()
        SCENARIOS["antenna-cut"](device)
        (after,) = await driver.poll()

    assert (before.gnss_state, after.gnss_state) == ("locked", "antenna_fault")


async def test_only_the_profiles_that_answer_are_read() -> None:
    """A unit is read by the profiles asked for; the fields of the others are absent."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        sample = await read(agent, profiles=["system", "ptpbase"])

    assert (sample.profiles, sample.clock_state, sample.alarms) == (("system", "ptpbase"), ClockState.LOCKED, None)


async def test_units_share_one_engine() -> None:
    """Units with the same and with another community are read side by side, and one that goes takes none along."""
    devices = [Device(serial=f"SIM{n}", name=f"gm-{n}") for n in range(3)]
    async with (
        SnmpAgent(devices[0], community=COMMUNITY) as first,
        SnmpAgent(devices[1], community=COMMUNITY) as second,
        SnmpAgent(devices[2], community="guess") as third,
    ):
        drivers = [driver_for(first), driver_for(second), driver_for(third, community={"env": "WRONG_COMMUNITY"})]
        await asyncio.gather(*(driver.open() for driver in drivers))
        await drivers[0].close()
        polls = await asyncio.gather(*(driver.poll() for driver in drivers[1:]))
        for driver in drivers[1:]:
            await driver.close()

    assert [sample.sys_name for (sample,) in polls] == ["gm-1", "gm-2"]


async def test_subtrees_that_come_late_are_found() -> None:
    """An agent that has just started gains subtrees, and the driver finds them without being opened again."""

    class Starting(SnmpAgent):
        complete = False

        def served(self) -> View:
            everything = super().served()
            return everything if self.complete else {oid: everything[oid] for oid in everything if oid[:5] == MIB_2[:5]}

    async with Starting(Device(started_s=time.time()), community=COMMUNITY) as agent, opened(agent) as driver:
        (before,) = await driver.poll()
        agent.complete = True
        (after,) = await driver.poll()

    assert (before.profiles, before.alarms) == (("ptpbase", "system"), None)
    assert (after.profiles, after.alarms) == (("tp5000e", "ptpbase", "symm-common", "system"), ())


async def test_snmpwalk_reads_the_agent() -> None:
    """net-snmp's snmpwalk and snmpbulkwalk see the same objects, in order, with the values of the device."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        where = ["-v2c", "-c", COMMUNITY, "-On", f"{agent.host}:{agent.port}", "1.3.6.1"]
        walked = await output_of("snmpwalk", *where)
        bulk_walked = await output_of("snmpbulkwalk", *where)
    lines = walked.splitlines()
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)

    assert values[".1.3.6.1.2.1.1.5.0"] == 'STRING: "gm-a"'
    assert values[".1.3.6.1.2.1.241.1.2.3.1.9.24.1.0"] == "INTEGER: 6"
    assert values[".1.3.6.1.4.1.9070.1.2.5.7.1.8.1.1.1.2.2.1"] == "INTEGER: 4"
    assert re.sub(r"Timeticks.*", "", walked) == re.sub(r"Timeticks.*", "", bulk_walked)


async def test_the_agent_is_read_only() -> None:
    """SET is refused with notWritable, and nothing changes."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        where = ["-v2c", "-c", COMMUNITY, f"{agent.host}:{agent.port}", "1.3.6.1.2.1.1.5.0"]
        refused = await output_of("snmpset", *where, "s", "other")
        still = await output_of("snmpget", *where)

    assert "notWritable" in refused
    assert "gm-a" in still


async def test_simulate_command_runs_until_interrupted() -> None:
    """`simulate` prints a command to look with and a config to paste, serves, and ends with 0 on Ctrl-C."""
    program = (
        "import argparse; from timesyncd.commands import simulate as s; p = argparse.ArgumentParser();"
        "s.add_arguments(p); raise SystemExit(s.run(p.parse_args()))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--port", "0", "--scenario", "holdover",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        note = (await process.stdout.readuntil(b"Ctrl-C ends it.")).decode()
        line = next(line for line in note.splitlines() if "snmpwalk" in line)
        walked = await output_of(*line.split(), "-On")
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert "[[grandmaster]]" in note
    assert "1.241.1.2.3.1.9.24.1.0 = INTEGER: 7" in walked
    assert process.returncode == 0


def test_the_command_offers_every_scenario() -> None:
    """The command lists scenarios without importing the simulator, so that a bare client install can show its help."""
    assert tuple(SCENARIOS) == simulate.SCENARIO_NAMES
