"""A hub that starts late on a broker that keeps no messages: it requests the states, and every daemon answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_relay import BrokerRelay
from late_hubs import RunningBroker, check_late_hubs

from timesyncd.simulation.bed.broker import Mosquitto

pytestmark = pytest.mark.integration


async def test_late_hubs_know_every_node_although_no_state_is_due(mosquitto: Mosquitto, folder: Path) -> None:
    """On a Mosquitto that keeps none of the daemons' messages."""
    async with BrokerRelay(mosquitto.port, keeps=False) as relay:
        broker = RunningBroker(relay.port)
        await check_late_hubs(folder, broker, (broker, broker))
