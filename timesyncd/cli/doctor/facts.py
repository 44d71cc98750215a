"""
Looks at this node for the doctor: files, kernel, service, daemon. Changes nothing, and waits for nothing long.

What the doctor gathers of one node, before anything is judged.

What the doctor sees of store, broker and certificates, which may be on other machines.
"""

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
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from cryptography import x509
from pydantic import ValidationError

from timesyncd.cli._common import load_config, page_trust, page_url
from timesyncd.cli._segment_node import segment_node
from timesyncd.cli.check_config import careless, exposed, unusable, unwise
from timesyncd.client.api import get, get_json
from timesyncd.client.paths import runtime_dir as default_runtime_dir
from timesyncd.clocks import NS_PER_S
from timesyncd.config import ClockSource, Config, Grandmaster, Mqtt, validation_text
from timesyncd.driver import build, options_of
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, StoreError
from timesyncd.ipc.clock_segment import NAME as SEGMENT_NAME
from timesyncd.ipc.job_datagram import SOCKET_NAME
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import FindingMessage, NodeState
from timesyncd.sample import KernelSample
from timesyncd.store.engine import Place
from timesyncd.store.history import samples, sources


@dataclass(frozen=True, slots=True)
class Unseen:
    """It was not looked at, and why."""

    why: str


class Unanswered(Unseen):
    """It was asked, and gave no answer that counts."""


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """
    `config` None: it cannot be used, for `error`. `broken` are files and secrets that it names and that cannot be used, `exposed`
    those that everybody can read, each by its key; `careless` is what else is unwise in how the page is guarded.
    """

    path: Path
    config: Config | None
    error: str = ""
    broken: tuple[str, ...] = ()
    notes: tuple[tuple[str, str, str], ...] = ()
    """(driver's entry, id of a finding, evidence) of what is unwise in it."""
    exposed: tuple[tuple[str, Path], ...] = ()
    careless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A file's permission bits, None where there is none. `answers`: of a socket, whether somebody listens."""

    path: Path
    mode: int | None
    answers: bool = False


#: The active states of a service that runs.
RUNS = ("active", "reloading")


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The unit's properties, as systemctl names their values."""

    load: str
    active: str
    result: str
    enabled: str


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What the daemon answers; `health` None = it says that all is well. `hubs` None: it does not tell."""

    url: str
    node: NodeState
    findings: tuple[FindingMessage, ...] = ()
    hubs: tuple[HubState, ...] | None = None
    health: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One poll of a clock source or grandmaster; `error` None = it answered."""

    name: str
    driver: str
    error: str | None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """`newest` is each source's newest sample on CLOCK_REALTIME; `free_bytes` None: the disk is another machine's."""

    place: str
    error: str | None = None
    newest: dict[str, int] = field(default_factory=dict)
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """`connected` False with an `error` of the connection itself; `refused`: it was there and did not want us."""

    where: str
    unreachable: str | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """
    A file of certificates by its key in the configuration, and from when until when it serves: one's own as long as each of its
    chain is valid, those that are trusted as long as any is.
    """

    key: str
    path: Path
    from_realtime_ns: int
    until_realtime_ns: int


Service: TypeAlias = ServiceFacts | Unseen
Daemon: TypeAlias = DaemonFacts | Unseen
Sources: TypeAlias = tuple[SourceFacts, ...] | Unseen


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one moment. `segment` is the node as the clock segment alone tells it. `max_dgram_qlen` None: there is no such setting."""

    realtime_ns: int
    config: ConfigFacts
    folder: PlaceFacts
    segment: PlaceFacts
    segment_node: NodeState
    job_socket: PlaceFacts
    max_dgram_qlen: int | None
    service: Service
    daemon: Daemon
    sources: Sources
    kernel: KernelSample | Unseen
    store: StoreFacts | Unseen
    broker: BrokerFacts | Unseen
    certificates: tuple[CertificateFacts, ...] = ()

    @property
    def is_own(self) -> bool:
        """The daemon that answers is that of this node, and not another one that --url names."""
        return is_own(self.daemon, self.config.config)

    @property
    def is_running(self) -> bool:
        """A daemon of this node: its page answers, or it listens for jobs."""
        return self.is_own or self.job_socket.answers


def is_own(daemon: Daemon, config: Config | None) -> bool:
    return isinstance(daemon, DaemonFacts) and (config is None or daemon.node.node == config.node.name)


BROKER_S = 5.0


def store_facts(config: Config | None, runs: bool) -> StoreFacts | Unseen:
    if config is None:
        return Unseen("the configuration cannot be used")
    if config.store is None:
        return Unseen("no [store]: no history is kept")
    if config.store.url is None and not runs and not config.store.path.exists():
        return Unseen(f"{config.store.path}: the daemon makes it, and none runs")
    free_bytes = None if config.store.url else _free_bytes(config.store.path)
    try:
        place = Place.of(config.store)
        configured = {source.name for source in config.source} | {unit.name for unit in config.grandmaster}
        known = [name for name in sources(place) if name in configured]
        newest = {name: at_ns for name in known if (at_ns := _newest(place, name)) is not None}
    except (ConfigError, StoreError) as error:
        return StoreFacts(config.store.url or str(config.store.path), str(error), {}, free_bytes)
    return StoreFacts(str(place), None, newest, free_bytes)


def _newest(place: Place, source: str) -> int | None:
    return max((record["realtime_ns"] for record in samples(place, source, 0, time.time_ns(), limit=1)), default=None)


def _free_bytes(path: Path) -> int | None:
    """Of the disk that the file is on, or will be; for those who are not root."""
    folder = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


async def broker_facts(config: Config | None, node: str) -> BrokerFacts | Unseen:
    """The connection, then CONNECT with the configured credentials, as a client of its own: the daemon's stays."""
    if config is None:
        return Unseen("the configuration cannot be used")
    if config.mqtt is None:
        return Unseen("no [mqtt]")
    where = f"{config.mqtt.host}:{config.mqtt.broker_port}"
    try:
        async with asyncio.timeout(BROKER_S):
            _, writer = await asyncio.open_connection(config.mqtt.host, config.mqtt.broker_port)
            writer.close()
    except TimeoutError:
        return BrokerFacts(where, unreachable=f"no answer within {BROKER_S:g} s")
    except OSError as error:
        known = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        return BrokerFacts(where, unreachable=known or str(error))
    return BrokerFacts(where, refused=await _refusal(config.mqtt, node))


async def _refusal(settings: Mqtt, node: str) -> str | None:
    import aiomqtt

    from timesyncd.mqtt.tls import tls_context

    try:
        client = aiomqtt.Client(
            settings.host,
            settings.broker_port,
            username=settings.username,
            password=settings.password.reveal().get_secret_value() if settings.password else None,
            identifier=f"timesyncd-{node}-doctor",
            protocol=aiomqtt.ProtocolVersion.V5,
            tls_context=tls_context(settings),
            timeout=BROKER_S,
        )
        async with client:
            return None
    except (aiomqtt.MqttError, ConfigError) as error:
        return str(error.__cause__ or error)


def certificate_facts(config: Config | None) -> tuple[CertificateFacts, ...]:
    """Those that can be read; the others make the configuration unusable."""
    return () if config is None else tuple(_certificates(config))


def _certificates(config: Config) -> Iterator[CertificateFacts]:
    for section, names in (("mqtt", ("ca", "certificate")), ("web", ("certificate", "client_ca"))):
        for name in names:
            path = getattr(getattr(config, section), name, None)
            if path is None:
                continue
            try:
                found = x509.load_pem_x509_certificates(path.read_bytes())
            except (OSError, ValueError):
                continue
            first, last = (min, max) if name.endswith("ca") else (max, min)
            begins = first(certificate.not_valid_before_utc for certificate in found)
            ends = last(certificate.not_valid_after_utc for certificate in found)
            yield CertificateFacts(f"{section}.{name}", path, _unix_ns(begins), _unix_ns(ends))


def _unix_ns(at: datetime) -> int:
    return int(at.timestamp()) * NS_PER_S


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
        why = validation_text(error)
        return Unanswered(f"{page.url}: what answers there is no timesyncd of this version ({why})")


@dataclass(frozen=True, slots=True)
class _Page:
    url: str
    token: str | None
    trusted: SSLContext | None

    def part(self, what: str) -> Any:
        """Raises SourceError."""
        status, told = get_json(f"{self.url.rstrip('/')}/api/v1/{what}", self.token, ANSWER_S, self.trusted)
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
        status, body = get(f"{self.url.rstrip('/')}/healthz", self.token, ANSWER_S, self.trusted)
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
    entries: list[ClockSource | Grandmaster] = [*config.source, *config.grandmaster]
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


async def _polled(entry: ClockSource | Grandmaster, folder: Path) -> SourceFacts:
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
