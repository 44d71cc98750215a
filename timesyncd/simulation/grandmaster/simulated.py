"""
Grandmasters that run: each a device with its SNMP agent, its web interface where it has one, and what it reports by itself.

What was recorded of a real grandmaster, to be played by the agent: a folder with `walk.snmprec`, and `https/` with one file an
answer. Neither records how the grandmaster changes: a recording does not change.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timesyncd.client.files import read_file
from timesyncd.errors import ConfigError, Malformed, TimesyncdError
from timesyncd.sample import format_identity
from timesyncd.simulation.grandmaster.actions import SCENARIOS, Scenario, load_scenario
from timesyncd.simulation.grandmaster.agent import SnmpAgent
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.hardware import MODELS
from timesyncd.simulation.grandmaster.https import WebInterface
from timesyncd.simulation.grandmaster.mib import RecordedMib
from timesyncd.simulation.grandmaster.snmprec import parse_snmprec
from timesyncd.simulation.grandmaster.traps import SyslogSender, TrapSender
from timesyncd.simulation.grandmaster.wire import UsmUser

WALK = "walk.snmprec"

#: Of a device with every table full.
MAX_WALK_BYTES = 1 << 26


@dataclass(frozen=True)
class PlayedRecording:
    """`https` holds the bodies by file name."""

    mib: RecordedMib
    https: dict[str, bytes]


def load_recording(folder: Path) -> PlayedRecording:
    """Raises ConfigError when there is no such folder or its walk cannot be read."""
    try:
        objects = parse_snmprec(read_file(folder / WALK, MAX_WALK_BYTES).decode())
        bodies = {path.name: read_file(path) for path in sorted(folder.glob("https/*"))}
    except (OSError, UnicodeDecodeError, Malformed) as error:
        raise ConfigError(f"recording {folder}: {error}") from error
    return PlayedRecording(RecordedMib(objects), bodies)


Address = tuple[str, int]

_HIGHEST_PORT = 65_535
#: How often a grandmaster at which nothing is due is looked at, in case something was done to it.
_IDLE_S = 5.0


@dataclass(frozen=True)
class SimulationPlan:
    """
    What to run: `count` grandmasters of `model`, their ports consecutive from `snmp_port` and `https_port`, 0 for free ones.
    `scenario` is a name, a TOML file, or the folder of a recording. Without a `seed` each run has its own.
    """

    model: str = "tp4100"
    host: str = "127.0.0.1"
    snmp_port: int = 0
    https_port: int = 0
    count: int = 1
    scenario: str = "steady"
    seed: int = field(default_factory=lambda: secrets.randbelow(100_000))
    speed: float = 1.0
    trap_to: Address | None = None
    syslog_to: Address | None = None


@dataclass(frozen=True)
class SimulatedGrandmaster:
    """One that runs. Its secrets are its own, made for this run."""

    plan: SimulationPlan
    device: Device
    agent: SnmpAgent
    user: UsmUser
    web: WebInterface | None
    username: str
    password: str

    def facts(self) -> dict[str, Any]:
        """What somebody needs to know to read it."""
        user, device = self.user, self.device
        v3 = {"user": user.name, "auth": user.auth, "auth_pass": user.auth_pass}
        description: dict[str, Any] = {
            "name": device.name,
            "model": device.kind,
            "serial": device.serial,
            "identities": [format_identity(identity) for identity in device.identities],
            "snmp": _written(self.agent.host, self.agent.port),
            "community": self.agent.community,
            "v3": {**v3, "priv": user.priv, "priv_pass": user.priv_pass},
        }
        if self.web is not None:
            description["https"] = _written(self.web.host, self.web.port)
            description |= {"username": self.username, "password": self.password}
            description |= {"fingerprint": self.web.certificate.fingerprint, "certificate": self.web.certificate.pem}
        return {**description, "scenario": self.plan.scenario, "seed": self.plan.seed, "speed": self.plan.speed}


@asynccontextmanager
async def running(plan: SimulationPlan) -> AsyncIterator[list[SimulatedGrandmaster]]:
    """
    The grandmasters, answering. Raises ConfigError for a plan that cannot be, TimesyncdError when a port is taken or an address is
    none of this machine.
    """
    played = _played(plan.scenario)
    for port in (plan.snmp_port, plan.https_port):
        if port + plan.count - 1 > _HIGHEST_PORT:
            raise ConfigError(f"{plan.count} ports from {port} on: the highest is {_HIGHEST_PORT}")
    devices = [_device(plan, number) for number in range(1, plan.count + 1)]
    for place, device in enumerate(devices):
        device.peer = devices[(place + 1) % plan.count] if plan.count > 1 else None
    async with AsyncExitStack() as stack:
        grandmasters = [await _start(stack, plan, place, device, played) for place, device in enumerate(devices)]
        for grandmaster in grandmasters:
            if isinstance(played, Scenario):
                played.begin(grandmaster.device)
        yield grandmasters


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _played(name: str) -> Scenario | PlayedRecording:
    """Raises ConfigError."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    if not os.path.exists(name):
        raise ConfigError(f"scenario {name!r} is no file and none of {', '.join(SCENARIOS)}")
    return load_recording(Path(name)) if os.path.isdir(name) else load_scenario(Path(name))


def _device(plan: SimulationPlan, number: int) -> Device:
    name = "gm-a" if plan.count == 1 else f"gm-{number}"
    serial = f"SIM{plan.seed:05d}{number:03d}"
    return Device(serial=serial, name=name, kind=plan.model, seed=plan.seed * 1_000 + number, speed=plan.speed)


async def _start(
    stack: AsyncExitStack, plan: SimulationPlan, place: int, device: Device, played: Scenario | PlayedRecording
) -> SimulatedGrandmaster:
    recording = played if isinstance(played, PlayedRecording) else None
    username, password = f"watch-{secrets.token_hex(2)}", secrets.token_hex(8)
    user = UsmUser(f"watch-{secrets.token_hex(2)}", "sha256", secrets.token_hex(8), "aes128", secrets.token_hex(8))
    port = plan.snmp_port + place if plan.snmp_port else 0
    agent = SnmpAgent(device, plan.host, port, secrets.token_hex(6), user, recording.mib if recording else None)
    await _bound(agent.start, f"{plan.host}, UDP port {port}")
    stack.push_async_callback(agent.stop)
    web = None
    if MODELS[plan.model].web and (recording is None or recording.https):
        port = plan.https_port + place if plan.https_port else 0
        recorded = recording.https if recording else None
        web = WebInterface(device, plan.host, port, username=username, password=password, recorded=recorded)
        await _bound(web.start, f"{plan.host}, TCP port {port}")
        stack.push_async_callback(web.stop)
    await _report(stack, plan, device, agent)
    return SimulatedGrandmaster(plan, device, agent, user, web, username, password)


async def _bound(start: Callable[[], Awaitable[object]], place: str) -> None:
    try:
        await start()
    except OSError as error:
        # asyncio puts its own sentence, with the address again, in place of the system's.
        raise TimesyncdError(f"{place}: {os.strerror(error.errno) if error.errno else error}") from error


async def _report(stack: AsyncExitStack, plan: SimulationPlan, device: Device, agent: SnmpAgent) -> None:
    """Only a grandmaster that reports something by itself needs a task."""
    senders: list[TrapSender | SyslogSender] = []
    if plan.trap_to is not None:
        senders.append(TrapSender(agent, *plan.trap_to))
    if plan.syslog_to is not None:
        senders.append(SyslogSender(device, *plan.syslog_to))
    for sender in senders:
        try:
            await stack.enter_async_context(sender)
        except OSError as error:
            raise TimesyncdError(f"no receiver: {error.strerror or error}") from error
        device.subscribe(sender.report)
    if senders:
        task = asyncio.create_task(_live(device))
        stack.push_async_callback(_end, task)


async def _live(device: Device) -> None:
    """Carry the grandmaster to each moment at which something happens."""
    while True:
        next_s = device.next_change_s()
        await asyncio.sleep(_IDLE_S if next_s is None else min(_IDLE_S, next_s / device.speed))
        device.catch_up()


async def _end(task: asyncio.Task[None]) -> None:
    """What the task failed of, if it did, comes out here."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
