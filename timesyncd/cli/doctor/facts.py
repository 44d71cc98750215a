"""
Gathers what the doctor judges: files, kernel, service, daemon, sources, store, broker and certificates of one node.

It reads and asks, and changes nothing; every request has a timeout of a few seconds.
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
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from cryptography import x509
from pydantic import ValidationError

from timesyncd.cli._common import is_missing, load_config, page_trust, page_url
from timesyncd.cli._segment_node import segment_node
from timesyncd.cli.check_config import driver_warnings, readable_secrets, unusable_files, web_warnings
from timesyncd.client.api import get, get_json
from timesyncd.client.clock import find_runtime_dir
from timesyncd.client.files import read_file
from timesyncd.clocks import NS_PER_S
from timesyncd.config import ClockSource, Config, Grandmaster, MqttSettings, validation_text
from timesyncd.driver import build_driver, options_of
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, StoreError
from timesyncd.ipc.clock_segment import NAME as SEGMENT_NAME
from timesyncd.ipc.job_datagram import SOCKET_NAME
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import FindingMessage, NodeState
from timesyncd.sample import KernelSample
from timesyncd.store.engine import StoreLocation
from timesyncd.store.history import samples, sources


@dataclass(frozen=True, slots=True)
class NotChecked:
    """This was not checked, for the reason `why`."""

    why: str


class NoReply(NotChecked):
    """The daemon was asked, and gave no valid reply."""


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """
    `config` None: the file is invalid, as `error` states. `unusable_files` are errors of the files and secrets that it
    names; `readable_secrets` are (key, path) of those that every user of this machine can read. `driver_warnings` are
    (entry, id of a finding, evidence); `web_warnings` concern the access to the page.
    """

    path: Path
    config: Config | None
    error: str = ""
    unusable_files: tuple[str, ...] = ()
    driver_warnings: tuple[tuple[str, str, str], ...] = ()
    readable_secrets: tuple[tuple[str, Path], ...] = ()
    web_warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileFacts:
    """
    `mode`: the permission bits; None: there is no such file. `listens`: it is a socket on which a process listens.
    """

    path: Path
    mode: int | None
    listens: bool = False


#: The values of ActiveState of a service that runs.
RUNNING_STATES = ("active", "reloading")


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Properties of the systemd unit: LoadState, ActiveState, Result, UnitFileState."""

    load: str
    active: str
    result: str
    enabled: str


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's replies; `health` None: it reports itself healthy. `hubs` None: it did not reply with them."""

    url: str
    node: NodeState
    findings: tuple[FindingMessage, ...] = ()
    hubs: tuple[HubState, ...] | None = None
    health: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One poll of a clock source or grandmaster; `error` None: it replied."""

    name: str
    driver: str
    error: str | None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """
    `newest`: by source, its newest sample's CLOCK_REALTIME in ns; `free_bytes` None: the disk is on another machine.
    """

    place: str
    error: str | None = None
    newest: dict[str, int] = field(default_factory=dict)
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """`unreachable`: why no connection was made; `refused`: why the broker rejected it."""

    where: str
    unreachable: str | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """
    A file of certificates by its key in the configuration, and its validity: that of the daemon's own certificate is
    the intersection over its chain, that of trusted ones the union.
    """

    key: str
    path: Path
    from_realtime_ns: int
    until_realtime_ns: int


Service: TypeAlias = ServiceFacts | NotChecked
Daemon: TypeAlias = DaemonFacts | NotChecked
Sources: TypeAlias = tuple[SourceFacts, ...] | NotChecked


@dataclass(frozen=True, slots=True)
class Facts:
    """
    All facts of one moment. `segment_node`: the node's state by its clock segment. `max_dgram_qlen` None: no such
    setting.
    """

    realtime_ns: int
    config: ConfigFacts
    folder: FileFacts
    segment: FileFacts
    segment_node: NodeState
    job_socket: FileFacts
    max_dgram_qlen: int | None
    service: Service
    daemon: Daemon
    sources: Sources
    kernel: KernelSample | NotChecked
    store: StoreFacts | NotChecked
    broker: BrokerFacts | NotChecked
    certificates: tuple[CertificateFacts, ...] = ()

    @property
    def is_own(self) -> bool:
        """The daemon that replied is this node's, and not another one that --url names."""
        return is_own(self.daemon, self.config.config)

    @property
    def is_running(self) -> bool:
        """This node's daemon runs: its page replies, or it listens on the job socket."""
        return self.is_own or self.job_socket.listens


def lost_sources(daemon: Daemon) -> frozenset[str]:
    """The clock sources and grandmasters that did not reply to the daemon's last poll."""
    if isinstance(daemon, NotChecked):
        return frozenset()
    named = {finding.subject for finding in daemon.findings if finding.id in LOST_FINDINGS}
    return frozenset(named | {each.name for each in daemon.node.sources if not each.reachable})


#: The daemon's findings that a poll by the doctor replaces.
LOST_FINDINGS = frozenset({"source-lost", "grandmaster-lost"})


def is_own(daemon: Daemon, config: Config | None) -> bool:
    return isinstance(daemon, DaemonFacts) and (config is None or daemon.node.node == config.node.name)


BROKER_TIMEOUT_S = 5.0


def store_facts(config: Config | None, runs: bool) -> StoreFacts | NotChecked:
    if config is None:
        return NotChecked("the configuration is invalid")
    if config.store is None:
        return NotChecked("no [store] section: the daemon stores no history")
    if config.store.url is None and not runs and is_missing(config.store.path):
        return NotChecked(f"{config.store.path}: the daemon creates it, and no daemon runs")
    free_bytes = None if config.store.url else _free_bytes(config.store.path)
    try:
        place = StoreLocation.of(config.store)
        configured = {source.name for source in config.source} | {
            grandmaster.name for grandmaster in config.grandmaster
        }
        known = [name for name in sources(place) if name in configured]
        newest = {name: at_ns for name in known if (at_ns := _newest(place, name)) is not None}
    except (ConfigError, StoreError) as error:
        return StoreFacts(config.store.url or str(config.store.path), str(error), {}, free_bytes)
    return StoreFacts(str(place), None, newest, free_bytes)


def _newest(place: StoreLocation, source: str) -> int | None:
    return max((record["realtime_ns"] for record in samples(place, source, 0, time.time_ns(), limit=1)), default=None)


def _free_bytes(path: Path) -> int | None:
    """Bytes that a process without root may still write on the file's disk."""
    folder = next((folder for folder in path.absolute().parents if not is_missing(folder)), Path("/"))
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


async def broker_facts(config: Config | None, node: str) -> BrokerFacts | NotChecked:
    """
    Connects over TCP, then sends CONNECT with the configured credentials; its own client id leaves the daemon's session
    alone.
    """
    if config is None:
        return NotChecked("the configuration is invalid")
    if config.mqtt is None:
        return NotChecked("no [mqtt] section")
    where = f"{config.mqtt.host}:{config.mqtt.broker_port}"
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            _, writer = await asyncio.open_connection(config.mqtt.host, config.mqtt.broker_port)
            writer.close()
    except TimeoutError:
        return BrokerFacts(where, unreachable=f"no answer within {BROKER_TIMEOUT_S:g} s")
    except OSError as error:
        known = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        return BrokerFacts(where, unreachable=known or str(error))
    return BrokerFacts(where, refused=await _refusal(config.mqtt, node))


async def _refusal(settings: MqttSettings, node: str) -> str | None:
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
            timeout=BROKER_TIMEOUT_S,
        )
        async with client:
            return None
    except (aiomqtt.MqttError, ConfigError) as error:
        return str(error.__cause__ or error)


def certificate_facts(config: Config | None) -> tuple[CertificateFacts, ...]:
    """Only readable ones; the others are among `ConfigFacts.unusable_files`."""
    return () if config is None else tuple(_certificates(config))


def _certificates(config: Config) -> Iterator[CertificateFacts]:
    for section, names in (("mqtt", ("ca", "certificate")), ("web", ("certificate", "client_ca"))):
        for name in names:
            path = getattr(getattr(config, section), name, None)
            if path is None:
                continue
            try:
                found = x509.load_pem_x509_certificates(read_file(path))
            except (OSError, ValueError):
                continue
            first, last = (min, max) if name.endswith("ca") else (max, min)
            begins = first(certificate.not_valid_before_utc for certificate in found)
            ends = last(certificate.not_valid_after_utc for certificate in found)
            yield CertificateFacts(f"{section}.{name}", path, _unix_ns(begins), _unix_ns(ends))


def _unix_ns(at: datetime) -> int:
    return int(at.timestamp()) * NS_PER_S


MAX_DGRAM_QLEN = Path("/proc/sys/net/unix/max_dgram_qlen")
SERVICE = "timesyncd.service"
SYSTEMD_FOLDER = Path("/run/systemd/system")
REPLY_TIMEOUT_S = 5.0


def gather(args: Namespace) -> Facts:
    config = config_facts(args)
    known = config.config
    folder = find_runtime_dir() if known is None else known.node.runtime_dir
    job_socket = file_facts(folder / SOCKET_NAME)
    daemon = daemon_facts(args, known)
    runs = job_socket.listens or is_own(daemon, known)
    lost = lost_sources(daemon) if is_own(daemon, known) else frozenset[str]()
    sources, kernel, broker = asyncio.run(_polled_facts(known, folder, runs, lost))
    return Facts(
        realtime_ns=time.time_ns(),
        config=config,
        folder=file_facts(folder),
        segment=file_facts(folder / SEGMENT_NAME),
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
    unusable, warnings = unusable_files(config), []
    try:
        warnings = driver_warnings(config)
    except ConfigError as error:
        unusable.append(str(error))
    return ConfigFacts(
        args.config,
        config,
        "",
        tuple(unusable),
        tuple(warnings),
        tuple(readable_secrets(config)),
        tuple(web_warnings(config)),
    )


def file_facts(path: Path) -> FileFacts:
    """Connects to a socket, which sends nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return FileFacts(path, None)
    return FileFacts(path, stat.S_IMODE(mode), stat.S_ISSOCK(mode) and _listens(path))


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
    if systemctl is None or not SYSTEMD_FOLDER.exists():
        return NotChecked("systemd does not run here")
    wanted = ("LoadState", "ActiveState", "Result", "UnitFileState")
    try:
        command = [systemctl, "show", SERVICE, *(f"--property={name}" for name in wanted)]
        output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return NotChecked(f"systemctl: {error}")
    values = dict(line.partition("=")[::2] for line in output.splitlines())
    return ServiceFacts(*(values.get(name, "") or "unknown" for name in wanted))


def daemon_facts(args: Namespace, config: Config | None) -> Daemon:
    """The replies of the daemon's page. Parts that this daemon does not have are absent."""
    try:
        page = _page(args, config)
    except ConfigError as error:
        return NotChecked(str(error))
    try:
        return _daemon_replies(page)
    except SourceError as error:
        return NoReply(str(error))
    except ValidationError as error:
        why = validation_text(error)
        return NoReply(f"{page.url}: the server there is not a timesyncd daemon of this version ({why})")


@dataclass(frozen=True, slots=True)
class _Page:
    url: str
    token: str | None
    trusted: SSLContext | None

    def part(self, what: str) -> Any:
        """Raises SourceError."""
        status, reply = get_json(f"{self.url.rstrip('/')}/api/v1/{what}", self.token, REPLY_TIMEOUT_S, self.trusted)
        if status != 200:
            why = reply.get("error") if isinstance(reply, dict) else None
            raise Refused(f"{self.url}: {why or f'status {status}'}")
        return reply

    def items(self, what: str) -> list[Any]:
        """The items of a list's first page. Raises SourceError."""
        reply = self.part(what)
        items = reply.get("items") if isinstance(reply, dict) else None
        if not isinstance(items, list):
            raise Malformed(f"{self.url}: the server there is not a timesyncd daemon of this version")
        return items

    def health(self) -> str | None:
        """What the daemon reports of its own health; None: it is healthy. Raises SourceError."""
        status, body = get(f"{self.url.rstrip('/')}/healthz", self.token, REPLY_TIMEOUT_S, self.trusted)
        lines = body.decode(errors="replace").splitlines() or ["the daemon reports itself unhealthy"]
        return None if status == 200 else lines[0]


def _page(args: Namespace, config: Config | None) -> _Page:
    """The configured token is sent to the configured daemon only: --url may name any server. Raises ConfigError."""
    token = os.environ.get("TIMESYNCD_TOKEN")
    if args.url is not None or config is None:
        return _Page(args.url or page_url(args), token, None)
    return _Page(page_url(args), token or _token(config), page_trust(config))


def _daemon_replies(page: _Page) -> DaemonFacts:
    """Raises SourceError and ValidationError."""
    node = NodeState.model_validate(page.part("node"))
    findings = [FindingMessage.model_validate(each) for each in page.items("findings?active=true&limit=1000")]
    active = tuple(finding for finding in findings if finding.until_realtime_ns is None)
    return DaemonFacts(page.url, node, active, _hubs(page), page.health())


def _token(config: Config) -> str | None:
    """
    A configured token with read access, if the user of this command may read the token's file. Raises ConfigError.
    """
    tokens = [token for token in config.web.token if token.role != "job"] if config.web else []
    return tokens[0].secret.reveal().get_secret_value() if tokens else None


def _hubs(page: _Page) -> tuple[HubState, ...] | None:
    try:
        return tuple(HubState.model_validate(each) for each in page.items("hubs"))
    except (SourceError, ValidationError):
        return None


async def _polled_facts(
    config: Config | None, folder: Path, runs: bool, lost: Collection[str]
) -> tuple[Sources, KernelSample | NotChecked, BrokerFacts | NotChecked]:
    name = "" if config is None else config.node.name
    return await asyncio.gather(_source_facts(config, folder, runs, lost), _kernel(folder), broker_facts(config, name))


async def _source_facts(config: Config | None, folder: Path, runs: bool, lost: Collection[str] = ()) -> Sources:
    """
    Polls the sources if no daemon does: two pollers under one name receive each other's replies. Those that a daemon has
    `lost` are polled again all the same, in a folder of their own.
    """
    if config is None:
        return NotChecked("the configuration is invalid")
    entries: list[ClockSource | Grandmaster] = [*config.source, *config.grandmaster]
    if runs:
        entries = [entry for entry in entries if entry.name in lost]
        if not entries:
            return NotChecked("the daemon polls them and reports its findings")
    with _own_folder() if runs else _writable(folder) as place:
        return tuple(await asyncio.gather(*(_polled(entry, place) for entry in entries)))


@contextmanager
def _writable(folder: Path) -> Iterator[Path]:
    """
    A folder for the socket that receives ptp4l's replies: the runtime folder, or a temporary one if it is not writable.
    """
    if os.access(folder, os.W_OK):
        yield folder
        return
    with _own_folder() as other:
        yield other


@contextmanager
def _own_folder() -> Iterator[Path]:
    """One that ptp4l can reach, and that is removed again."""
    with TemporaryDirectory(prefix="timesyncd-doctor-", dir="/run" if os.access("/run", os.W_OK) else None) as other:
        Path(other).chmod(0o755)
        yield Path(other)


async def _polled(entry: ClockSource | Grandmaster, folder: Path) -> SourceFacts:
    error = None
    try:
        driver = build_driver(entry.name, entry.driver, entry.options, folder)
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


async def _kernel(folder: Path) -> KernelSample | NotChecked:
    """One poll of the kernel driver, which changes nothing."""
    try:
        driver = build_driver("kernel", "kernel", options_of("kernel")(), folder)
        await driver.open()
        [sample] = await driver.poll()
    except (ConfigError, SourceError) as error:
        return NotChecked(str(error))
    assert isinstance(sample, KernelSample)
    return sample
