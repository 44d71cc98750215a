"""Sends a unit's alarms as the lines that its alarm daemon writes, over UDP."""

from __future__ import annotations

import asyncio
from typing import Self

from timesyncd.simulation.grandmaster.alarms import DeviceEvent
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.notifications import syslog_line


class SyslogSender(asyncio.DatagramProtocol):
    """`async with` it, and hand it each event of the device."""

    def __init__(self, device: Device, host: str, port: int) -> None:
        self._device = device
        self._target = (host, port)

    async def __aenter__(self) -> Self:
        """Raises OSError when the receiver's name is none."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=self._target)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        await asyncio.sleep(0)

    def report(self, event: DeviceEvent) -> None:
        line = syslog_line(event, self._device.made_of.alarm_family, self._device.name)
        if line is not None:
            self._transport.sendto(line)
