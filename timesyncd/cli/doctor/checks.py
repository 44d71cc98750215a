"""
The doctor's checks of daemon, hubs, sources, store, broker and certificates, from what was gathered. Pure.

What the doctor says of one thing that it looked at, and the commands that it gives to type. Pure.

The doctor's checks of this machine, from what was gathered of it. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from timesyncd.cli.doctor.facts import RUNS, Facts, PlaceFacts, ServiceFacts, Unanswered, Unseen
from timesyncd.clocks import NS_PER_S
from timesyncd.config import DEFAULT_PATH
from timesyncd.findings.catalogue import CATALOGUE, Severity
from timesyncd.findings.node import kernel_conditions
from timesyncd.sample import KernelSample
from timesyncd.units import span_text

State = Literal["ok", "to do", "not looked at"]

#: What looks further into a finding, or mends it.
_COMMANDS = {
    "source-lost": "systemctl status 'ptp4l*' 'phc2sys*' 'chrony*'",
    "two-disciplines": "systemctl disable --now systemd-timesyncd  # or the one that is too many",
    "store-failing": "df -h; journalctl -u timesyncd -n 50",
    "broker-lost": "journalctl -u timesyncd -n 50",
}


@dataclass(frozen=True, slots=True)
class Result:
    """One check. What is to be done has `why` and the `command` to type; what is well or was not looked at, neither."""

    group: str
    check: str
    state: State
    what: str
    why: str = ""
    command: str = ""
    severity: Severity = "info"

    @property
    def rank(self) -> str:
        return self.severity if self.state == "to do" else self.state


#: From what may be passed over to what is to be done first.
RANKS = {rank: place for place, rank in enumerate(("not looked at", "ok", "info", "warning", "critical"))}


def exit_status(results: list[Result]) -> int:
    return 1 if any(result.state == "to do" for result in results) else 0


def ok(group: str, check: str, what: str) -> Result:
    return Result(group, check, "ok", what)


def unseen(group: str, check: str, why: str) -> Result:
    return Result(group, check, "not looked at", why)


def to_do(group: str, check: str, what: str, why: str, command: str, severity: Severity = "warning") -> Result:
    return Result(group, check, "to do", what, why, command, severity)


def own(facts: Facts, command: str) -> str:
    """One of our commands, with the configuration that the doctor was given."""
    path = facts.config.path
    return f"timesyncd {command}" + ("" if path == DEFAULT_PATH else f" --config {shlex.quote(str(path))}")


def start(facts: Facts) -> str:
    service = facts.service
    is_service = not isinstance(service, Unseen) and service.load == "loaded"
    return "systemctl start timesyncd" if is_service else own(facts, "run")


def of_finding(facts: Facts, group: str, id: str, subject: str, evidence: str) -> Result:
    """What the daemon would find, too."""
    kind, check = CATALOGUE[id], id.replace("-", " ")
    if kind.severity == "info":
        return ok(group, check, f"for information: {evidence}")
    return to_do(group, check, f"{kind.cause}: {evidence}", kind.remedy, command_for(facts, id, subject), kind.severity)


def command_for(facts: Facts, id: str, subject: str) -> str:
    """What to type about a finding; of a place or of hubs there is no page of its own."""
    if id in _COMMANDS:
        return _COMMANDS[id]
    if id.startswith(("rack-", "hub-")):
        return own(facts, "status")
    daemon = facts.daemon
    ours = [] if isinstance(daemon, Unseen) else [daemon.node.node, *(each.name for each in daemon.node.sources)]
    return own(facts, "explain" if subject in ours else f"status {shlex.quote(subject)}")


CERTIFICATE_WARNING_NS = 30 * 86_400 * NS_PER_S
OLD_SAMPLE_NS = 300 * NS_PER_S
HUB_SILENT_NS = 15 * NS_PER_S
LITTLE_SPACE_BYTES = 1_000_000_000

#: What the doctor sees by itself, in the clock segment and in the kernel.
CLOCK_FINDINGS = frozenset({"clock-unknown", "clock-holdover", "clock-disrupted"})
KERNEL_FINDINGS = frozenset({"two-disciplines", "tai-offset", "kernel-leap"})


def daemon(facts: Facts) -> Iterator[Result]:
    group, daemon = "daemon", facts.daemon
    if isinstance(daemon, Unseen):
        yield from _absent(facts, daemon)
        return
    yield ok(group, "runs", f"{daemon.node.node} answers at {daemon.url}")
    if daemon.health is not None and not daemon.findings:
        yield to_do(group, "health", daemon.health, "it says so of itself", own(facts, "status"))


def _absent(facts: Facts, daemon: Unseen) -> Iterator[Result]:
    """Nobody answered, or was asked; a service that does not run is told with the service."""
    group, service = "daemon", facts.service
    if facts.job_socket.answers:
        yield ok(group, "runs", "it listens for jobs")
    elif isinstance(service, ServiceFacts) and service.load == "loaded" and service.active not in RUNS:
        yield unseen(group, "runs", "none does, as the service tells")
    elif facts.config.config is None:
        yield unseen(group, "runs", "none can run without a configuration")
    else:
        why = f"the clock is not watched ({daemon.why})"
        yield to_do(group, "runs", "no daemon runs here", why, start(facts), "critical")
        return
    if isinstance(daemon, Unanswered) and facts.job_socket.answers:
        why = "it hangs, or does not let the doctor in (a token that may read: TIMESYNCD_TOKEN)"
        yield to_do(group, "page", daemon.why, why, "journalctl -u timesyncd -n 50", "critical")
    else:
        yield unseen(group, "page", daemon.why)


def findings(facts: Facts) -> Iterator[Result]:
    """What the daemon found; what the doctor sees by itself is told once."""
    daemon = facts.daemon
    if isinstance(daemon, Unseen):
        yield unseen("findings", "daemon's", "no page of a daemon could be asked")
        return
    own = {daemon.node.node, *(source.name for source in daemon.node.sources)} if facts.is_own else set()
    told = CLOCK_FINDINGS if isinstance(facts.kernel, Unseen) else CLOCK_FINDINGS | KERNEL_FINDINGS
    new = [finding for finding in daemon.findings if not (finding.id in told and finding.subject in own)]
    for finding in new:
        evidence = " -> ".join(step.text for step in finding.chain) or finding.evidence
        command = command_for(facts, finding.id, finding.subject)
        what, why = f"{finding.subject}: {finding.cause}", f"{evidence}; {finding.remedy}"
        if finding.severity == "info":
            yield ok("findings", finding.id, f"for information: {what}")
        else:
            yield to_do("findings", finding.id, what, why, command, finding.severity)
    if not new:
        yield ok("findings", "daemon's", "none stands")


def hubs(facts: Facts) -> Iterator[Result]:
    group, daemon, config = "hubs", facts.daemon, facts.config.config
    if config is None or config.mqtt is None:
        yield unseen(group, "hubs", "no [mqtt]: this node works alone")
        return
    if isinstance(daemon, Unseen) or daemon.hubs is None:
        yield unseen(group, "hubs", "no daemon that knows of hubs could be asked")
        return
    alive = {hub.node: hub for hub in daemon.hubs if facts.realtime_ns - hub.published_realtime_ns < HUB_SILENT_NS}
    command = "systemctl status timesyncd  # on the hub"
    for name in [name for name in config.mqtt.hubs if name not in alive]:
        why = "it stores no history: what it has not got waits here"
        yield to_do(group, name, "the hub is silent", why, command)
    if not alive:
        yield to_do(group, "hubs", "no hub is alive", "nobody compares the nodes' clocks or joins jobs", command)
    for hub in alive.values():
        what = f"{hub.nodes_live} of {hub.nodes_expected or hub.nodes_known} nodes live"
        yield ok(group, hub.node, f"{'primary' if hub.primary else 'second'}, {what}")


def sources(facts: Facts) -> Iterator[Result]:
    group, sources = "sources", facts.sources
    if isinstance(sources, Unseen):
        yield unseen(group, "sources", sources.why)
        return
    for source in sources:
        if source.error is None:
            yield ok(group, source.name, f"{source.driver} answers")
        else:
            yield of_finding(facts, group, "source-lost", source.name, f"{source.driver}: {source.error}")


def store(facts: Facts) -> Iterator[Result]:
    group, store = "store", facts.store
    if isinstance(store, Unseen):
        yield unseen(group, "store", store.why)
        return
    if store.error is not None:
        yield of_finding(facts, group, "store-failing", store.place, store.error)
    else:
        yield from _newest(facts, store.newest)
    if store.free_bytes is None:
        yield unseen(group, "disk", "it is the database's machine's")
    elif store.free_bytes < LITTLE_SPACE_BYTES:
        what = f"{store.free_bytes // 1_000_000} MB are free for {store.place}"
        yield to_do(group, "disk", what, "a full disk ends the history; the clock goes on", "df -h", "warning")
    else:
        yield ok(group, "disk", f"{store.free_bytes / 1e9:.1f} GB are free")


def _newest(facts: Facts, newest: dict[str, int]) -> Iterator[Result]:
    """A source that gives nothing is told by its finding; a store to which none writes is told here."""
    if not newest:
        yield ok("store", "newest row", "it opens; no sample yet")
        return
    age_ns = max(0, facts.realtime_ns - max(newest.values()))
    told = f"{span_text(age_ns)} old"
    if facts.is_running and age_ns > OLD_SAMPLE_NS:
        why = "the daemon runs and stores nothing: see whether its sources answer, and what it says"
        yield to_do("store", "newest row", told, why, "journalctl -u timesyncd -n 50")
    else:
        yield ok("store", "newest row", told)


def broker(facts: Facts) -> Iterator[Result]:
    group, broker = "broker", facts.broker
    if isinstance(broker, Unseen):
        yield unseen(group, "broker", broker.why)
        return
    host, _, port = broker.where.rpartition(":")
    if broker.unreachable is not None:
        what, command = f"{broker.where}: {broker.unreachable}", f"nc -vz {shlex.quote(host)} {port}"
        yield to_do(group, "broker", what, "states wait, and history waits in the outbox", command)
    elif broker.refused is not None:
        what = f"{broker.where} is there, and refuses: {broker.refused}"
        why = "see [mqtt] username, password, ca, certificate, and what the broker's log says"
        yield to_do(group, "broker", what, why, own(facts, "check-config"))
    else:
        yield ok(group, "broker", f"{broker.where} lets this node in")


def certificates(facts: Facts) -> Iterator[Result]:
    group = "certificates"
    if not facts.certificates:
        yield unseen(group, "certificates", "the configuration names none that can be read")
    for each in facts.certificates:
        left_ns, early_ns = each.until_realtime_ns - facts.realtime_ns, each.from_realtime_ns - facts.realtime_ns
        command = f"openssl x509 -noout -subject -dates -in {shlex.quote(str(each.path))}"
        if early_ns > 0:
            what = f"{each.path}: not valid yet, in {span_text(early_ns)} it is"
            why = "until then connections with it are refused; or is this machine's clock wrong?"
            yield to_do(group, each.key, what, why, command, "critical")
        elif left_ns <= 0:
            what = f"{each.path}: ran out {span_text(-left_ns)} ago"
            yield to_do(group, each.key, what, "connections with it are refused", command, "critical")
        elif left_ns < CERTIFICATE_WARNING_NS:
            is_followed = each.key == "web.certificate"
            why = f"put a new one there{': it is taken without a restart' if is_followed else ' and restart timesyncd'}"
            yield to_do(group, each.key, f"{each.path}: runs out in {span_text(left_ns)}", why, command)
        else:
            yield ok(group, each.key, f"{each.path}: good for {span_text(left_ns)}")


#: A datagram of marks is lost where fewer wait; systemd/timesyncd.sysctl sets it.
DATAGRAMS = 512


def checks(facts: Facts) -> list[Result]:
    """Every check, in the order of their groups."""
    parts = (_config, _machine, _kernel, _places, daemon, findings, hubs, sources, store, broker, certificates)
    return [result for part in parts for result in part(facts)]


def _config(facts: Facts) -> Iterator[Result]:
    known, group = facts.config, "configuration"
    check = own(facts, "check-config")
    if known.config is None:
        yield to_do(group, "file", known.error, "the daemon does not start with it", check, "critical")
        return
    yield ok(group, "file", f"{known.path}: good")
    for line in known.broken:
        yield to_do(group, "files", line, "what needs it does not start, or not connect", check, "critical")
    for line in known.careless:
        yield to_do(group, "page", line, "who should not ask can, or who should cannot", check)
    for key, path in known.exposed:
        command = f"chmod o-rwx {shlex.quote(str(path))}"
        yield to_do(group, key, f"everybody on this machine can read {path}", "it holds a secret", command)
    for name, id, evidence in known.notes:
        yield of_finding(facts, group, id, name, evidence)


def _machine(facts: Facts) -> Iterator[Result]:
    group, length = "machine", facts.max_dgram_qlen
    if length is None:
        yield unseen(group, "job datagrams", "this kernel has no net.unix.max_dgram_qlen")
    elif length < DATAGRAMS:
        yield to_do(
            group,
            "job datagrams",
            f"net.unix.max_dgram_qlen is {length}",
            "marks of jobs with many ranks on a node are lost (and counted); it counts from the daemon's next start",
            f"sysctl -w net.unix.max_dgram_qlen={DATAGRAMS}  # for good: systemd/timesyncd.sysctl",
        )
    else:
        yield ok(group, "job datagrams", f"net.unix.max_dgram_qlen is {length}")
    yield _service(facts)


def _service(facts: Facts) -> Result:
    group, check, service = "machine", "service", facts.service
    if isinstance(service, Unseen):
        return unseen(group, check, service.why)
    if service.load != "loaded":
        if facts.is_running:
            return unseen(group, check, "the daemon runs, and not as timesyncd.service")
        what, why = "timesyncd.service is not installed", "nothing starts the daemon; docs/operations.md installs it"
        return to_do(group, check, what, why, own(facts, "run"))
    if service.active not in RUNS:
        what = f"timesyncd.service is {service.active} (result: {service.result})"
        command = "journalctl -u timesyncd -n 50" if service.result != "success" else "systemctl start timesyncd"
        return to_do(group, check, what, "no daemon watches the clock", command, "critical")
    if service.enabled not in ("enabled", "static"):
        what = f"timesyncd.service is {service.enabled}"
        return to_do(group, check, what, "it does not come back after a boot", "systemctl enable timesyncd")
    return ok(group, check, f"timesyncd.service is {service.active} and {service.enabled}")


def _kernel(facts: Facts) -> Iterator[Result]:
    group, sample = "kernel", facts.kernel
    if isinstance(sample, Unseen):
        yield unseen(group, "adjtimex", sample.why)
        return
    yield _steered(sample)
    config = facts.config.config
    offsets = [source.bounds.utc_offset_s for source in config.source] if config is not None else []
    for id, evidence in kernel_conditions(sample, offsets[0] if offsets else None).items():
        check = id.replace("-", " ")
        yield ok(group, check, _WELL[id]) if evidence is None else of_finding(facts, group, id, check, evidence)


_WELL = {
    "two-disciplines": "not more than one daemon steers the clock",
    "tai-offset": "CLOCK_TAI is as configured, or nothing is",
    "kernel-leap": "no leap second is armed",
}


def _steered(sample: KernelSample) -> Result:
    who = ", ".join(sample.disciplines) or "nobody that is seen here"
    if sample.synchronized:
        return ok("kernel", "steered", f"the kernel holds the clock for synchronized; it is steered by {who}")
    return to_do(
        "kernel",
        "steered",
        f"the kernel holds the clock for unsynchronized; it is steered by {who}",
        "nothing has set it, or what did fell silent",
        "systemctl status 'ptp4l*' 'phc2sys*' 'chrony*'",
    )


def _places(facts: Facts) -> Iterator[Result]:
    """What a daemon that does not run leaves undone is told where that is told."""
    group, folder, socket = "jobs' files", facts.folder, facts.job_socket
    if not facts.is_running and folder.mode is None:
        yield unseen(group, "runtime folder", f"{folder.path}: the daemon makes it, and none runs")
        return
    yield _mode(group, "runtime folder", folder, 0o005, "o+rx", "enter it")
    if not facts.is_running:
        yield unseen(group, "clock", "no daemon runs")
        return
    yield _mode(group, "clock segment", facts.segment, 0o004, "o+r", "read it")
    yield _clock(facts)
    yield _mode(group, "job socket", socket, 0o006, "o+rw", "send to it")
    if socket.mode is not None and not socket.answers:
        what, why = f"{socket.path}: nobody listens", "marks of jobs are lost: is this the daemon's runtime folder?"
        yield to_do(group, "job link", what, why, own(facts, "check-config"), "critical")


def _mode(group: str, check: str, place: PlaceFacts, wanted: int, change: str, verb: str) -> Result:
    path = shlex.quote(str(place.path))
    if place.mode is None:
        why = "the daemon makes it at its start"
        return to_do(group, check, f"{place.path}: there is none", why, "systemctl restart timesyncd", "critical")
    if place.mode & wanted != wanted:
        what = f"{place.path}: mode {place.mode:04o}"
        return to_do(group, check, what, f"jobs of other users cannot {verb}", f"chmod {change} {path}", "critical")
    return ok(group, check, f"{place.path}, mode {place.mode:04o}")


def _clock(facts: Facts) -> Result:
    """As jobs see it."""
    group, check, node = "jobs' files", "clock", facts.segment_node
    if node.main_status == "SYNCHRONIZED":
        return ok(group, check, f"SYNCHRONIZED{' with UTC' if node.knows_utc_alone else ''}")
    config = facts.config.config
    if config is not None and not config.source:
        return unseen(group, check, "there is no [[source]]: this node's clock is not watched")
    what = f"{node.main_status}: {node.reason or 'no bound'}"
    why = "jobs get no bound" if node.main_status != "HOLDOVER" else "the bound grows until a sample comes"
    severity: Severity = "warning" if node.main_status == "HOLDOVER" else "critical"
    return to_do(group, check, what, why, own(facts, "explain"), severity)
