"""Run simulated grandmasters that reply to SNMP and HTTPS."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

from timesyncd.cli._parser import FileName

if TYPE_CHECKING:
    from timesyncd.simulation.grandmaster.simulated import Address, SimulatedGrandmaster, SimulationPlan

MODELS = ("tp4100", "tp4500", "tp5000e", "s650")
SCENARIO_NAMES = (
    "steady", "locked", "holdover", "antenna-cut", "jamming", "spoofing", "reboot", "alarm-storm", "leap",
    "wrong-utc-offset", "slow-agent", "lossy", "liar", "2000-clients", "old-firmware",
)  # fmt: skip

INSTRUCTIONS = """\
{model} "{name}" (simulated) answers SNMP on {snmp}.

Read it:
  snmpwalk -v2c -c {community} {snmp} 1.3.6.1
  snmpwalk -v3 -l authPriv -u {user} -a SHA-256 -A {auth_pass} -x AES -X {priv_pass} {snmp} 1.3.6.1
{look}
Monitor it, with this in the daemon's environment and configuration:
  export GM_AUTH={auth_pass} GM_PRIV={priv_pass}{export}

  [[grandmaster]]
  name = "{name}"
  driver = "timeprovider"
  identities = {identities}
  host = "{host}"
  port = {port}
  user = {{ name = "{user}", auth_pass = {{ env = "GM_AUTH" }}, priv_pass = {{ env = "GM_PRIV" }} }}
{watch}
Ctrl-C ends the simulation."""

CURL = "curl -sk -c cookies -b cookies -H 'X-Requested-With: XMLHttpRequest'"
HTTPS_COMMANDS = f"""\
  {CURL} -d txtuname={{username}} -d txtpasswd={{password}} -d action=applylogin https://{{https}}/login
  {CURL} -d tgrp=-1 https://{{https}}/channels_thresholdValue
"""
HTTPS_CONFIGURATION = """\
  https = {{ port = {web_port}, username = "{username}", password = {{ env = "GM_WEB" }}, fingerprint = "{fingerprint}" }}
"""


EXAMPLES = (
    "timesyncd simulate",
    "timesyncd simulate --model tp4500 --count 3 --scenario antenna-cut --speed 60",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    scenarios = f"{', '.join(SCENARIO_NAMES)}; a TOML file of timed actions; or the folder of a recording (default: %(default)s)"
    parser.add_argument(
        "--model", choices=MODELS, default="tp4100", help="model of the grandmasters (default: %(default)s)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--snmp-port", type=_port, default=0, metavar="N", help="UDP port (default: a free one)")
    parser.add_argument("--https-port", type=_port, default=0, metavar="N", help="TCP port (default: a free one)")
    parser.add_argument(
        "--count", type=_count, default=1, metavar="N", help="number of grandmasters, on consecutive ports"
    )
    parser.add_argument("--scenario", type=FileName, default="steady", metavar="NAME|FILE", help=scenarios)
    parser.add_argument(
        "--seed", type=int, metavar="N", help="random seed: the same seed gives the same grandmasters (default: random)"
    )
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="X", help="speed of the simulated time (default: %(default)s)"
    )
    parser.add_argument("--trap-to", type=_address, metavar="HOST:PORT", help="send SNMP v2c traps to this address")
    parser.add_argument(
        "--syslog-to", type=_address, metavar="HOST:PORT", help="send syslog messages to this address, over UDP"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON with addresses and credentials when ready"
    )


def run(args: argparse.Namespace) -> int:
    from timesyncd.simulation.grandmaster.simulated import SimulationPlan

    names = ("model", "host", "snmp_port", "https_port", "count", "scenario", "speed", "trap_to", "syslog_to")
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    if args.seed is not None:
        given["seed"] = args.seed
    asyncio.run(_serve(SimulationPlan(**given), args.json))
    return 0


async def _serve(plan: SimulationPlan, as_json: bool) -> None:
    """Runs the grandmasters until SIGINT or SIGTERM. Raises TimesyncdError."""
    from timesyncd.simulation.grandmaster.simulated import running

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(plan) as grandmasters:
        print(_line(grandmasters) if as_json else _instructions(grandmasters), flush=True)
        await stop.wait()


def _line(grandmasters: list[SimulatedGrandmaster]) -> str:
    facts = [grandmaster.facts() for grandmaster in grandmasters]
    return json.dumps(facts[0] if len(facts) == 1 else {"grandmasters": facts})


def _instructions(grandmasters: list[SimulatedGrandmaster]) -> str:
    """How to query the first grandmaster, after the addresses of all of them."""
    facts = grandmasters[0].facts()
    values = {**facts, **facts["v3"], "look": "", "export": "", "watch": ""}
    values |= {"host": grandmasters[0].plan.host, "port": facts["snmp"].rpartition(":")[2]}
    values |= {"model": grandmasters[0].device.model, "identities": json.dumps(facts["identities"])}
    if "https" in facts:
        values |= {"web_port": facts["https"].rpartition(":")[2], "export": f" GM_WEB={facts['password']}"}
        values |= {"look": HTTPS_COMMANDS.format_map(values), "watch": HTTPS_CONFIGURATION.format_map(values)}
    listed = [_row(grandmaster.facts()) for grandmaster in grandmasters] if len(grandmasters) > 1 else []
    return "\n".join([*listed, INSTRUCTIONS.format_map(values)])


def _row(facts: dict[str, Any]) -> str:
    web = f"  https {facts['https']} {facts['username']} {facts['password']}" if "https" in facts else ""
    return f"{facts['name']}  snmp {facts['snmp']} {facts['community']}{web}"


def _port(text: str) -> int:
    return _within(int(text), 0, 65_535)


def _count(text: str) -> int:
    return _within(int(text), 1, 999)


def _within(number: int, lowest: int, highest: int) -> int:
    if not lowest <= number <= highest:
        raise argparse.ArgumentTypeError(f"{number} is not from {lowest} to {highest}")
    return number


def _speed(text: str) -> float:
    speed = float(text)
    if not 0 < speed <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 100000")
    return speed


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), _port(port)
