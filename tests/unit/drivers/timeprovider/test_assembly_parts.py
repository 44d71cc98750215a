"""The objects of one poll together: a grandmaster's ports, interfaces, sensors and parts."""

from __future__ import annotations

import pytest
from recorded_rows import (
    CLOCK,
    ENTITY,
    ENTITY_STATE,
    HARDWARE,
    IF_NAME,
    IF_SPEED,
    IF_STATE,
    PTPBASE,
    SENSOR,
    SYMM_PTP,
    SYMM_PTP_CONFIG,
    TP5000E,
    Served,
    alarm,
    sample,
)

from timesyncd.sample import Interface, PtpPort, Sensor
from timesyncd.snmp.values import Raw

pytestmark = pytest.mark.disable_socket


def test_a_port_is_joined_from_all_tables_that_know_it() -> None:
    """Status and configuration of the vendor, and RFC 8173's port tables, are one port, named as its interface."""
    vendor, standard = (3, 1), (*CLOCK, 1)
    read = sample({
        IF_NAME: {(3,): b"eth3"},
        f"{SYMM_PTP}.2": {vendor: 1}, f"{SYMM_PTP}.3": {vendor: b"00:A0:69:FF:FE:11:22:33"}, f"{SYMM_PTP}.4": {vendor: 6},
        f"{SYMM_PTP}.8": {vendor: 12}, f"{SYMM_PTP}.9": {vendor: b"4 %"}, f"{SYMM_PTP_CONFIG}.10": {vendor: 256},
        f"{SYMM_PTP_CONFIG}.6": {vendor: 44},
        f"{PTPBASE}.9.1.5": {standard: b"port one"}, f"{PTPBASE}.9.1.6": {standard: 6}, f"{PTPBASE}.9.1.8": {standard: 3},
        f"{PTPBASE}.7.1.10": {standard: 11},
    })  # fmt: skip

    assert read.ports == (PtpPort("eth3", "master", True, "G.8275.1", 24, "00a069.fffe.112233", 11, 256, 4),)


def test_ports_without_an_interface_keep_their_names() -> None:
    """A port's own name counts where no interface is known, and two ports on one interface stay two."""
    read = sample({
        f"{PTPBASE}.9.1.5": {(*CLOCK, 1): b"port one"}, f"{PTPBASE}.9.1.6": {(*CLOCK, 1): 9, (*CLOCK, 2): 3},
        f"{SYMM_PTP}.8": {(7, 1): 1, (7, 2): 2},
    })  # fmt: skip

    assert [(port.name, port.state, port.clients) for port in read.ports or ()] == [
        ("port one", "slave", None), ("port 2", "disabled", None), ("port 7", None, 1), ("port 7/2", None, 2),
    ]  # fmt: skip


def test_a_disabled_port_is_reported() -> None:
    """Enable is 1, disable is 2."""
    read = sample({f"{SYMM_PTP}.2": {(1, 1): 1, (2, 1): 2}})

    assert [port.enabled for port in read.ports or ()] == [True, False]


def test_interfaces_by_name_and_state() -> None:
    """Up is up, all that is not up and known is down, and a name is ifName before ifDescr before a number."""
    read = sample({
        IF_NAME: {(1,): b"eth1"}, "1.3.6.1.2.1.2.2.1.2": {(1,): b"Ethernet 1", (2,): b"Ethernet 2"},
        IF_STATE: {(1,): 1, (2,): 7, (3,): 4}, IF_SPEED: {(1,): 1000},
    })  # fmt: skip

    assert read.interfaces == (
        Interface("eth1", True, 1000), Interface("Ethernet 2", False, None), Interface("if3", None, None)
    )  # fmt: skip


def sensor(index: int, **columns: Raw) -> Served:
    numbers = {"type": 1, "scale": 2, "precision": 3, "value": 4, "status": 5}
    values: dict[str, Raw] = {"type": 8, "scale": 9, "precision": 1, "value": 385, "status": 1}
    served: Served = {f"{SENSOR}.{numbers[name]}": {(index,): raw} for name, raw in (values | columns).items()}
    return served | {f"{ENTITY}.7": {(index,): b"board"}}


@pytest.mark.parametrize(
    ("columns", "reported"),
    [
        ({}, Sensor("board", "temperature", 38.5, "C", True)),
        ({"type": 5, "scale": 8, "value": 240}, Sensor("board", "current", 0.024, "A", True)),
        ({"type": 7, "scale": 11, "precision": 0, "value": 10}, Sensor("board", "frequency", 10e6, "Hz", True)),
        ({"precision": -2, "value": 38}, Sensor("board", "temperature", 38.0, "C", True)),
        ({"status": 2}, Sensor("board", "temperature", None, "C", None)),
        ({"status": 3}, Sensor("board", "temperature", None, "C", False)),
        ({"type": 99}, Sensor("board", "other", 38.5, None, True)),
    ],
)
def test_a_sensor_s_scale_and_precision_count(columns: dict[str, Raw], reported: Sensor) -> None:
    """Scale is a power of 1000 around 9, precision counts decimals; a sensor that is not ok has no value."""
    assert sample(sensor(100, **columns)).sensors == (reported,)


def test_a_sensor_of_an_unknown_scale_has_no_value() -> None:
    """What cannot be scaled is reported with what came, and is never shown as if it were right."""
    read = sample(sensor(100, scale=40))

    assert read.sensors == (Sensor("board", "temperature", None, "C", True),)
    assert read.unknown == ("entities.sensor_value=385 with scale 40 and precision 1",)


def test_fans_and_power_supplies_are_rated_by_their_state() -> None:
    """An entity that is a fan or a power supply and measures nothing is ok while it is enabled."""
    read = sample(
        {f"{ENTITY}.5": {(1,): 3, (4,): 6, (5,): 7, (6,): 7}, f"{ENTITY_STATE}.3": {(1,): 3, (4,): 3, (5,): 2}}
    )

    assert read.sensors == (
        Sensor("entity 4", "power", None, None, True), Sensor("entity 5", "fan", None, None, False),
        Sensor("entity 6", "fan", None, None, None),
    )  # fmt: skip


def test_an_alarm_about_a_fan_is_a_sensor() -> None:
    """Where nothing else rates fans and power, the family's alarm ids do."""
    read = sample(alarm(1, id=99, text=b"Fan 2"))

    assert read.sensors == (Sensor("Fan 2", "fan", None, None, False),)


def test_hardware_status_text_is_read_line_by_line() -> None:
    """Key and value of each line: a number with its grandmaster is measured, a word rates."""
    read = sample({f"{TP5000E}.1.2.1.2": {(2,): HARDWARE % b"ok"}})

    assert read.antenna == "ok"
    assert read.sensors == (
        Sensor("-48V-A", "power", None, None, True), Sensor("-48V-B", "power", None, None, False),
        Sensor("Temperature", "temperature", 38.0, "C", None), Sensor("GPS Current", "current", 24.0, "mA", None),
    )  # fmt: skip
