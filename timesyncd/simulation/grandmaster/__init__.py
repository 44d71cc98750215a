"""Grandmasters at the wire, for the demo and the tests: a device model, its SNMP agent and its web interface, and scenarios."""

from timesyncd.simulation.grandmaster.actions import SCENARIOS
from timesyncd.simulation.grandmaster.agent import SnmpAgent
from timesyncd.simulation.grandmaster.device import Device, Servo, SimulatedAlarm, SimulatedSatellite

__all__ = ["SCENARIOS", "Device", "Servo", "SimulatedAlarm", "SimulatedSatellite", "SnmpAgent"]
