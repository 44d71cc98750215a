"""Grandmasters at the wire, for the demo and the tests: a device model, its SNMP agent and its web interface, and scenarios."""

from timesyncd.simulate.agent import SnmpAgent
from timesyncd.simulate.device import Device, Servo, SimulatedAlarm, SimulatedSatellite
from timesyncd.simulate.scenarios import SCENARIOS

__all__ = ["SCENARIOS", "Device", "Servo", "SimulatedAlarm", "SimulatedSatellite", "SnmpAgent"]
