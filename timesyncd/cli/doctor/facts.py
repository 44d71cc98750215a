"""Looks at this node for the doctor: files, kernel, service, daemon. Changes nothing, and waits for nothing long."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from timesyncd.cli._common import load_config, page_trust, page_url
from timesyncd.cli._segment_node import segment_node
from timesyncd.cli.check_config import careless, exposed, unusable, unwise
from timesyncd.cli.doctor._doctor_facts import (
    BrokerFacts,
    ConfigFacts,
    Daemon,
    DaemonFacts,
    Facts,
    PlaceFacts,
    Service,
    ServiceFacts,
    SourceFacts,
    Sources,
    Unanswered,
    Unseen,
    is_own,
)
from timesyncd.cli.doctor._doctor_services import broker_facts, certificate_facts, store_facts
from timesyncd.client.api import ask, fetch
from timesyncd.client.places import runtime_dir as default_runtime_dir
from timesyncd.config import Config, Grandmaster, Source
from timesyncd.driver import build, options_of
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError
from timesyncd.ipc.clock_segment import NAME as SEGMENT_NAME
from timesyncd.ipc.job_datagram import SOCKET_NAME
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import FindingMessage, NodeState
from timesyncd.sample import KernelSample

MAX_DGRAM_QLEN = Path("/proc/sys/net/unix/max_dgram_qlen")
UNIT = "timesyncd.service"
SYSTEMD_RUNS = Path("/run/systemd/system")
ANSWER_S = 5.0


def gather(args: Namespace) -> Facts:
    config = config_facts(args)
    known = config.config
    folder = default_runtime_dir() if known is None else known.node.runtime_dir
    job_socket = place_facts(folder / SOCKET_NAME)
    daemon = daemon_facts(args, known)
    runs = job_socket.answers or is_own(daemon, known)
    sources, kernel, broker = asyncio.run(_asked(known, folder, runs))
    return Facts(
        realtime_ns=time.time_ns(),
        config=config,
        folder=place_facts(folder),
        segment=place_facts(folder / SEGMENT_NAME),
        segment_node=segment_node(folder),
        job_socket=job_socket,
        max_dgram_qlen=max_dgram_qlen(MAX_DGRAM_QLEN),
        service=service_facts(),
        daemon=daemon,
        sources=sources,
        kernel=kernel,
        store=store_facts(known, runs),
        broker=broker,
        certificates=certificate_facts(known),
    )


def config_facts(args: Namespace) -> ConfigFacts:
    try:
        config = load_config(args)
    except ConfigError as error:
        return ConfigFacts(args.config, None, str(error))
    broken, notes = unusable(config), []
    try:
        notes = unwise(config)
    except ConfigError as error:
        broken.append(str(error))
    unguarded = tuple(exposed(config)), tuple(careless(config))
    return ConfigFacts(args.config, config, "", tuple(broken), tuple(notes), *unguarded)


def place_facts(path: Path) -> PlaceFacts:
    """A socket is connected to, which sends nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return PlaceFacts(path, None)
    return PlaceFacts(path, stat.S_IMODE(mode), stat.S_ISSOCK(mode) and _listens(path))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        try:
            end.connect(str(path))
        except OSError:
            return False
    return True


def max_dgram_qlen(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def service_facts() -> Service:
    systemctl = shutil.which("systemctl")
    if systemctl is None or not SYSTEMD_RUNS.exists():
        return Unseen("systemd does not run here")
    wanted = ("LoadState", "ActiveState", "Result", "UnitFileState")
    try:
        command = [systemctl, "show", UNIT, *(f"--property={name}" for name in wanted)]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unseen(f"systemctl: {error}")
    values = dict(line.partition("=")[::2] for line in told.splitlines())
    return ServiceFacts(*(values.get(name, "") or "unknown" for name in wanted))


def daemon_facts(args: Namespace, config: Config | None) -> Daemon:
    """What the page tells; a part that this daemon does not have is left out."""
    try:
        page = _page(args, config)
    except ConfigError as error:
        return Unseen(str(error))
    try:
        return _told(page)
    except SourceError as error:
        return Unanswered(str(error))
    except ValidationError as error:
        why = str(error).splitlines()[0]
        return Unanswered(f"{page.url}: what answers there is no timesyncd of this version ({why})")


@dataclass(frozen=True, slots=True)
class _Page:
    url: str
    token: str | None
    trusted: SSLContext | None

    def part(self, what: str) -> Any:
        """Raises SourceError."""
        status, told = ask(f"{self.url.rstrip('/')}/api/v1/{what}", self.token, ANSWER_S, self.trusted)
        if status != 200:
            why = told.get("error") if isinstance(told, dict) else None
            raise Refused(f"{self.url}: {why or f'status {status}'}")
        return told

    def items(self, what: str) -> list[Any]:
        """Of a list's first page. Raises SourceError."""
        told = self.part(what)
        items = told.get("items") if isinstance(told, dict) else None
        if not isinstance(items, list):
            raise Malformed(f"{self.url}: what answers there is no timesyncd of this version")
        return items

    def health(self) -> str | None:
        """Raises SourceError."""
        status, body = fetch(f"{self.url.rstrip('/')}/healthz", self.token, ANSWER_S, self.trusted)
        said = body.decode(errors="replace").splitlines() or ["it says that it is not well"]
        return None if status == 200 else said[0]


def _page(args: Namespace, config: Config | None) -> _Page:
    """What the configuration holds is for its own daemon alone: --url may name anybody. Raises ConfigError."""
    token = os.environ.get("TIMESYNCD_TOKEN")
    if args.url is not None or config is None:
        return _Page(args.url or page_url(args), token, None)
    return _Page(page_url(args), token or _token(config), page_trust(config))


def _told(page: _Page) -> DaemonFacts:
    """Raises SourceError and ValidationError."""
    node = NodeState.model_validate(page.part("node"))
    findings = [FindingMessage.model_validate(each) for each in page.items("findings?standing=true&limit=1000")]
    standing = tuple(finding for finding in findings if finding.until_realtime_ns is None)
    return DaemonFacts(page.url, node, standing, _hubs(page), page.health())


def _token(config: Config) -> str | None:
    """One of the daemon's own that may read, for whoever may read the file that it is in. Raises ConfigError."""
    tokens = [token for token in config.web.token if token.role != "job"] if config.web else []
    return tokens[0].secret.reveal().get_secret_value() if tokens else None


def _hubs(page: _Page) -> tuple[HubState, ...] | None:
    try:
        return tuple(HubState.model_validate(each) for each in page.items("hubs"))
    except (SourceError, ValidationError):
        return None


async def _asked(
    config: Config | None, folder: Path, runs: bool
) -> tuple[Sources, KernelSample | Unseen, BrokerFacts | Unseen]:
    name = "" if config is None else config.node.name
    return await asyncio.gather(_source_facts(config, folder, runs), _kernel(folder), broker_facts(config, name))


async def _source_facts(config: Config | None, folder: Path, runs: bool) -> Sources:
    """Only where no daemon asks them: two who ask under one name get each other's answers."""
    if config is None:
        return Unseen("the configuration cannot be used")
    if runs:
        return Unseen("the daemon asks them; its findings tell")
    entries: list[Source | Grandmaster] = [*config.source, *config.grandmaster]
    with _writable(folder) as place:
        return tuple(await asyncio.gather(*(_polled(entry, place) for entry in entries)))


@contextmanager
def _writable(folder: Path) -> Iterator[Path]:
    """Where ptp4l's answers come in: the runtime folder, or one that stands in for it and goes again."""
    if os.access(folder, os.W_OK):
        yield folder
        return
    with TemporaryDirectory(prefix="timesyncd-doctor-", dir="/run" if os.access("/run", os.W_OK) else None) as other:
        Path(other).chmod(0o755)
        yield Path(other)


async def _polled(entry: Source | Grandmaster, folder: Path) -> SourceFacts:
    error = None
    try:
        driver = build(entry.name, entry.driver, entry.options, folder)
        try:
            async with asyncio.timeout(driver.timeout_s):
                await driver.open()
                await driver.poll()
        except TimeoutError:
            error = f"no answer within {driver.timeout_s:g} s"
        finally:
            await driver.close()
    except (ConfigError, SourceError) as wrong:
        error = str(wrong)
    return SourceFacts(entry.name, entry.driver, error)


async def _kernel(folder: Path) -> KernelSample | Unseen:
    """As the kernel driver reads it, which changes nothing."""
    try:
        driver = build("kernel", "kernel", options_of("kernel")(), folder)
        await driver.open()
        [sample] = await driver.poll()
    except (ConfigError, SourceError) as error:
        return Unseen(str(error))
    assert isinstance(sample, KernelSample)
    return sample
