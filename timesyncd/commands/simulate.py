"""Run a simulated grandmaster that answers SNMP."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timesyncd.simulate import SnmpAgent

SCENARIO_NAMES = ("locked", "holdover", "antenna-cut")

NOTE = """\
{model} "{name}" (simulated) answers SNMP v2c on {host}:{port}, community {community}.

Look at it:
  snmpwalk -v2c -c {community} {host}:{port} 1.3.6.1

Watch it:
  [[grandmaster]]
  name = "{name}"
  driver = "timeprovider"
  identities = ["{identity}"]
  host = "{host}"
  port = {port}
  community = {{ env = "GM_COMMUNITY" }}    # GM_COMMUNITY={community}

Ctrl-C ends it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to answer on (%(default)s)")
    parser.add_argument("--port", type=int, default=1161, help="UDP port, 0 for a free one (%(default)s)")
    parser.add_argument("--community", default="public", help="community that is answered (%(default)s)")
    parser.add_argument("--scenario", choices=SCENARIO_NAMES, default="locked", help="state of the unit (%(default)s)")


def run(args: argparse.Namespace) -> int:
    from timesyncd.simulate import SCENARIOS, Device, SnmpAgent

    device = Device()
    SCENARIOS[args.scenario](device)
    agent = SnmpAgent(device, args.host, args.port, args.community)
    try:
        asyncio.run(_serve(agent))
    except OSError as error:
        print(f"timesyncd simulate: {args.host}:{args.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


async def _serve(agent: SnmpAgent) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with agent:
        print(_note(agent), flush=True)
        await stop.wait()


def _note(agent: SnmpAgent) -> str:
    digits = agent.device.clock_identity.hex()
    return NOTE.format(
        model=agent.device.model,
        name=agent.device.name,
        identity=f"{digits[:6]}.{digits[6:10]}.{digits[10:]}",
        host=agent.host,
        port=agent.port,
        community=agent.community,
    )
