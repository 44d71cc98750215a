"""What the doctor gathers of one node, before anything is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from timesyncd.config import Config
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import FindingMessage, NodeState
from timesyncd.sample import KernelSample


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
