"""The doctor's checks: from the facts of one node to what has to be done, why, and the command to type. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from timesyncd.cli.doctor.facts import (
    LOST_FINDINGS,
    RUNNING_STATES,
    Facts,
    FileFacts,
    NoReply,
    NotChecked,
    ServiceFacts,
    lost_sources,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.config import DEFAULT_PATH
from timesyncd.findings.catalogue import CATALOGUE
from timesyncd.findings.node import kernel_conditions
from timesyncd.findings.steering import steering_text, with_known_ptp4l
from timesyncd.messages.node import Severity
from timesyncd.sample import KernelSample, Movement
from timesyncd.units import span_text

State = Literal["ok", "to_do", "not_checked"]

#: By a finding's id: the command that investigates or repairs it.
_COMMANDS = {
    "source-lost": "systemctl status 'ptp4l*' 'phc2sys*' 'chrony*' 'clockbound*'",
    "two-disciplines": "systemctl disable --now systemd-timesyncd  # or the superfluous one",
    "store-failing": "df -h; journalctl -u timesyncd -n 50",
    "broker-lost": "journalctl -u timesyncd -n 50",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `why` and the `command` to type are set only where `state` is "to_do"."""

    group: str
    check: str
    state: State
    what: str
    why: str = ""
    command: str = ""
    severity: Severity = "info"

    @property
    def rank(self) -> str:
        """A key of RANKS."""
        return self.severity if self.state == "to_do" else self.state


#: The order of the results in a report; the most urgent are last, next to the prompt.
RANKS = {rank: place for place, rank in enumerate(("not_checked", "ok", "info", "warning", "critical"))}


def exit_status(results: list[CheckResult]) -> int:
    return 1 if any(result.state == "to_do" for result in results) else 0


def ok(group: str, check: str, what: str) -> CheckResult:
    return CheckResult(group, check, "ok", what)


def not_checked(group: str, check: str, why: str) -> CheckResult:
    return CheckResult(group, check, "not_checked", why)


def to_do(group: str, check: str, what: str, why: str, command: str, severity: Severity = "warning") -> CheckResult:
    return CheckResult(group, check, "to_do", what, why, command, severity)


def own_command(facts: Facts, command: str) -> str:
    """The command line of a timesyncd command, with the configuration file that the doctor was given."""
    path = facts.config.path
    return f"timesyncd {command}" + ("" if path == DEFAULT_PATH else f" --config {shlex.quote(str(path))}")


def start_command(facts: Facts) -> str:
    service = facts.service
    is_service = not isinstance(service, NotChecked) and service.load == "loaded"
    return "systemctl start timesyncd" if is_service else own_command(facts, "run")


def finding_result(facts: Facts, group: str, id: str, subject: str, evidence: str) -> CheckResult:
    """The result for a condition that the daemon reports as a finding, too."""
    kind, check = CATALOGUE[id], id.replace("-", " ")
    if kind.severity == "info":
        return ok(group, check, f"for information: {evidence}")
    return to_do(
        group, check, f"{kind.cause}: {evidence}", kind.remedy, finding_command(facts, id, subject), kind.severity
    )


def finding_command(facts: Facts, id: str, subject: str) -> str:
    """The command to type about a finding; racks and hubs have no screen of their own, so `status` shows them."""
    if id in _COMMANDS:
        return _COMMANDS[id]
    if id.startswith(("rack-", "hub-")):
        return own_command(facts, "status")
    daemon = facts.daemon
    ours = [] if isinstance(daemon, NotChecked) else [daemon.node.node, *(each.name for each in daemon.node.sources)]
    return own_command(facts, "explain" if subject in ours else f"status {shlex.quote(subject)}")


CERTIFICATE_WARNING_NS = 30 * 86_400 * NS_PER_S
OLD_SAMPLE_NS = 300 * NS_PER_S
HUB_SILENT_NS = 15 * NS_PER_S
LITTLE_SPACE_BYTES = 1_000_000_000

#: Findings that the doctor derives itself, from the clock segment and from the kernel.
CLOCK_FINDINGS = frozenset({"clock-unknown", "clock-holdover", "clock-disrupted"})
KERNEL_FINDINGS = frozenset({"two-disciplines", "tai-offset", "kernel-leap"})


def daemon(facts: Facts) -> Iterator[CheckResult]:
    group, daemon = "daemon", facts.daemon
    if isinstance(daemon, NotChecked):
        yield from _daemon_absent(facts, daemon)
        return
    yield ok(group, "runs", f"the daemon of {daemon.node.node} replies at {daemon.url}")
    if daemon.health is not None and not daemon.findings:
        yield to_do(group, "health", daemon.health, "the daemon reports itself unhealthy", own_command(facts, "status"))


def _daemon_absent(facts: Facts, daemon: NotChecked) -> Iterator[CheckResult]:
    """No daemon replied, or none was asked. A stopped service is reported by the check of the service."""
    group, service = "daemon", facts.service
    if facts.job_socket.listens:
        yield ok(group, "runs", "the daemon listens on the job socket")
    elif isinstance(service, ServiceFacts) and service.load == "loaded" and service.active not in RUNNING_STATES:
        yield not_checked(group, "runs", "the service is not running")
    elif facts.config.config is None:
        yield not_checked(group, "runs", "no daemon can run without a valid configuration")
    else:
        why = f"this node's clock is not monitored ({daemon.why})"
        yield to_do(group, "runs", "no daemon runs on this node", why, start_command(facts), "critical")
        return
    if isinstance(daemon, NoReply) and facts.job_socket.listens:
        why = "the daemon hangs, or rejects the doctor: set TIMESYNCD_TOKEN to a token of the role reader"
        yield to_do(group, "page", daemon.why, why, "journalctl -u timesyncd -n 50", "critical")
    else:
        yield not_checked(group, "page", daemon.why)


def findings(facts: Facts) -> Iterator[CheckResult]:
    """The daemon's findings, without those that the doctor derives itself."""
    daemon = facts.daemon
    if isinstance(daemon, NotChecked):
        yield not_checked("findings", "daemon", "no daemon replied")
        return
    own = {daemon.node.node, *(source.name for source in daemon.node.sources)} if facts.is_own else set()
    derived = CLOCK_FINDINGS if isinstance(facts.kernel, NotChecked) else CLOCK_FINDINGS | KERNEL_FINDINGS
    polled = set() if isinstance(facts.sources, NotChecked) else {source.name for source in facts.sources}
    others = [
        finding
        for finding in daemon.findings
        if not (finding.id in derived and finding.subject in own)
        and not (finding.id in LOST_FINDINGS and finding.subject in polled)
    ]
    for finding in others:
        evidence = " -> ".join(step.text for step in finding.chain) or finding.evidence
        command = finding_command(facts, finding.id, finding.subject)
        what, why = f"{finding.subject}: {finding.cause}", f"{evidence}; {finding.remedy}"
        if finding.severity == "info":
            yield ok("findings", finding.id, f"for information: {what}")
        else:
            yield to_do("findings", finding.id, what, why, command, finding.severity)
    if not others:
        beside = " beside those of the checks here" if daemon.findings else ""
        yield ok("findings", "daemon", f"the daemon reports no finding{beside}")


def hubs(facts: Facts) -> Iterator[CheckResult]:
    group, daemon, config = "hubs", facts.daemon, facts.config.config
    if config is None or config.mqtt is None:
        yield not_checked(group, "hubs", "no [mqtt] section: this node works without a hub")
        return
    if isinstance(daemon, NotChecked) or daemon.hubs is None:
        yield not_checked(group, "hubs", "no daemon replied with its list of hubs")
        return
    alive = {hub.node: hub for hub in daemon.hubs if facts.realtime_ns - hub.published_realtime_ns < HUB_SILENT_NS}
    command = "systemctl status timesyncd  # on the hub"
    for name in [name for name in config.mqtt.hubs if name not in alive]:
        why = "the hub stores no history meanwhile; unsent history waits in this node's outbox"
        yield to_do(group, name, "the hub publishes nothing", why, command)
    if not alive:
        yield to_do(
            group, "hubs", "no hub is alive", "no hub compares the nodes' clocks or aggregates step timings", command
        )
    for hub in alive.values():
        what = f"{hub.nodes_live} of {hub.nodes_expected or hub.nodes_known} nodes live"
        yield ok(group, hub.node, f"{'primary' if hub.primary else 'standby'}, {what}")


def sources(facts: Facts) -> Iterator[CheckResult]:
    group, sources = "sources", facts.sources
    if isinstance(sources, NotChecked):
        yield not_checked(group, "sources", sources.why)
        return
    lost = lost_sources(facts.daemon) if facts.is_own else frozenset[str]()
    config = facts.config.config
    grandmasters = set() if config is None else {each.name for each in config.grandmaster}
    for source in sources:
        if source.error is None and source.name in lost:
            yield ok(
                group,
                source.name,
                f"{source.driver} replies now; the daemon's last poll{_ago(facts, source.name)} failed",
            )
        elif source.error is None:
            yield ok(group, source.name, f"{source.driver} replies")
        else:
            id = "grandmaster-lost" if source.name in grandmasters else "source-lost"
            yield finding_result(facts, group, id, source.name, f"{source.name}, {source.driver}: {source.error}")


def _ago(facts: Facts, source: str) -> str:
    """How long ago the daemon polled a clock source last; empty: it is not known."""
    states = [] if isinstance(facts.daemon, NotChecked) else facts.daemon.node.sources
    since_ns = next((each.since_poll_ns for each in states if each.name == source), None)
    return "" if since_ns is None else f", {span_text(since_ns)} ago,"


def store(facts: Facts) -> Iterator[CheckResult]:
    group, store = "store", facts.store
    if isinstance(store, NotChecked):
        yield not_checked(group, "store", store.why)
        return
    if store.error is not None:
        yield finding_result(facts, group, "store-failing", store.place, store.error)
    else:
        yield from _newest(facts, store.newest)
    if store.free_bytes is None:
        yield not_checked(group, "disk", "the database's disk is on another machine")
    elif store.free_bytes < LITTLE_SPACE_BYTES:
        what = f"{store.free_bytes // 1_000_000} MB are free for {store.place}"
        yield to_do(
            group,
            "disk",
            what,
            "when the disk is full, no history is stored; the bound is not affected",
            "df -h",
            "warning",
        )
    else:
        yield ok(group, "disk", f"{store.free_bytes / 1e9:.1f} GB are free")


def _newest(facts: Facts, newest: dict[str, int]) -> Iterator[CheckResult]:
    """Whether the daemon still writes to the store. A single source that gives nothing has a finding of its own."""
    if not newest:
        yield ok("store", "newest row", "the store opens; it holds no sample yet")
        return
    age_ns = max(0, facts.realtime_ns - max(newest.values()))
    what = f"the newest sample is {span_text(age_ns)} old"
    if facts.is_running and age_ns > OLD_SAMPLE_NS:
        why = "the daemon runs and stores nothing: check that its sources reply, and read its log"
        yield to_do("store", "newest row", what, why, "journalctl -u timesyncd -n 50")
    else:
        yield ok("store", "newest row", what)


def broker(facts: Facts) -> Iterator[CheckResult]:
    group, broker = "broker", facts.broker
    if isinstance(broker, NotChecked):
        yield not_checked(group, "broker", broker.why)
        return
    host, _, port = broker.where.rpartition(":")
    if broker.unreachable is not None:
        what, command = f"{broker.where}: {broker.unreachable}", f"nc -vz {shlex.quote(host)} {port}"
        yield to_do(group, "broker", what, "no state is published; history waits in the outbox", command)
    elif broker.refused is not None:
        what = f"{broker.where} rejects the connection: {broker.refused}"
        why = "check [mqtt] username, password, ca and certificate, and the broker's log"
        yield to_do(group, "broker", what, why, own_command(facts, "check-config"))
    else:
        yield ok(group, "broker", f"{broker.where} accepts this node")


def certificates(facts: Facts) -> Iterator[CheckResult]:
    group = "certificates"
    if not facts.certificates:
        yield not_checked(group, "certificates", "the configuration names no readable certificate")
    for each in facts.certificates:
        left_ns, early_ns = each.until_realtime_ns - facts.realtime_ns, each.from_realtime_ns - facts.realtime_ns
        command = f"openssl x509 -noout -subject -dates -in {shlex.quote(str(each.path))}"
        if early_ns > 0:
            what = f"{each.path}: not yet valid; valid in {span_text(early_ns)}"
            why = "until then, peers reject connections with it; check this machine's clock too"
            yield to_do(group, each.key, what, why, command, "critical")
        elif left_ns <= 0:
            what = f"{each.path}: expired {span_text(-left_ns)} ago"
            yield to_do(group, each.key, what, "peers reject connections with it", command, "critical")
        elif left_ns < CERTIFICATE_WARNING_NS:
            is_reloaded = each.key == "web.certificate"
            why = (
                f"replace it{'; the daemon reloads it without a restart' if is_reloaded else ' and restart timesyncd'}"
            )
            yield to_do(group, each.key, f"{each.path}: expires in {span_text(left_ns)}", why, command)
        else:
            yield ok(group, each.key, f"{each.path}: valid for another {span_text(left_ns)}")


#: The queue length of a Unix socket that the job link needs; systemd/timesyncd.sysctl sets it.
MIN_DGRAM_QLEN = 512


def checks(facts: Facts) -> list[CheckResult]:
    """Every check, in the order of their groups."""
    parts = (_config, _machine, _kernel, _runtime_files, daemon, findings, hubs, sources, store, broker, certificates)
    return [result for part in parts for result in part(facts)]


def _config(facts: Facts) -> Iterator[CheckResult]:
    known, group = facts.config, "configuration"
    check = own_command(facts, "check-config")
    if known.config is None:
        yield to_do(group, "file", known.error, "the daemon does not start with this configuration", check, "critical")
        return
    yield ok(group, "file", f"{known.path}: valid")
    for line in known.unusable_files:
        yield to_do(
            group, "files", line, "the part of the daemon that needs it does not start or connect", check, "critical"
        )
    for line in known.web_warnings:
        yield to_do(group, "page", line, "the page is open to more clients than intended, or to fewer", check)
    for key, path in known.readable_secrets:
        command = f"chmod o-rwx {shlex.quote(str(path))}"
        yield to_do(group, key, f"every user of this machine can read {path}", "the file holds a secret", command)
    for name, id, evidence in known.driver_warnings:
        yield finding_result(facts, group, id, name, evidence)


def _machine(facts: Facts) -> Iterator[CheckResult]:
    group, length = "machine", facts.max_dgram_qlen
    if length is None:
        yield not_checked(group, "job datagrams", "this kernel has no net.unix.max_dgram_qlen")
    elif length < MIN_DGRAM_QLEN:
        yield to_do(
            group,
            "job datagrams",
            f"net.unix.max_dgram_qlen is {length}",
            "step timings of jobs with many ranks on a node are lost (and counted); the daemon applies a new value at its next start",
            f"sysctl -w net.unix.max_dgram_qlen={MIN_DGRAM_QLEN}  # permanently: systemd/timesyncd.sysctl",
        )
    else:
        yield ok(group, "job datagrams", f"net.unix.max_dgram_qlen is {length}")
    yield _service(facts)


def _service(facts: Facts) -> CheckResult:
    group, check, service = "machine", "service", facts.service
    if isinstance(service, NotChecked):
        return not_checked(group, check, service.why)
    if service.load != "loaded":
        if facts.is_running:
            return not_checked(group, check, "the daemon runs, but not as timesyncd.service")
        what, why = (
            "timesyncd.service is not installed",
            "nothing starts the daemon; docs/operations.md explains the installation",
        )
        return to_do(group, check, what, why, own_command(facts, "run"))
    if service.active not in RUNNING_STATES:
        what = f"timesyncd.service is {service.active} (result: {service.result})"
        command = "journalctl -u timesyncd -n 50" if service.result != "success" else "systemctl start timesyncd"
        return to_do(group, check, what, "no daemon monitors the clock", command, "critical")
    if service.enabled not in ("enabled", "static"):
        what = f"timesyncd.service is {service.enabled}"
        return to_do(
            group, check, what, "systemd does not start the daemon after a reboot", "systemctl enable timesyncd"
        )
    return ok(group, check, f"timesyncd.service is {service.active} and {service.enabled}")


def _kernel(facts: Facts) -> Iterator[CheckResult]:
    group, sample = "kernel", facts.kernel
    if isinstance(sample, NotChecked):
        yield not_checked(group, "adjtimex", sample.why)
        return
    sample = _as_the_daemon_knows(facts, sample)
    yield _steered(sample)
    config = facts.config.config
    offsets = [source.bounds.utc_offset_s for source in config.source] if config is not None else []
    utc_offset_s = offsets[0] if offsets else None
    for id, evidence in kernel_conditions(sample, utc_offset_s, facts.realtime_ns).items():
        check = id.replace("-", " ")
        if id in KERNEL_FINDINGS:
            yield (
                ok(group, check, _HEALTHY[id])
                if evidence is None
                else finding_result(facts, group, id, check, evidence)
            )


_HEALTHY = {
    "two-disciplines": "at most one program steers the clock",
    "tai-offset": "CLOCK_TAI is as configured, or no offset is configured",
    "kernel-leap": "no leap second is pending",
}


def _as_the_daemon_knows(facts: Facts, sample: KernelSample) -> KernelSample:
    """
    The doctor's own sample with what only the daemon can know: whether the ptp4l that it polls steer, and that the clock moved
    between two polls without a known program.
    """
    if isinstance(facts.daemon, NotChecked) or not facts.is_own:
        return sample
    sources = facts.daemon.node.sources
    sample = with_known_ptp4l(
        sample, {source.daemon_pid: source.steers_system_clock for source in sources if source.daemon_pid is not None}
    )
    is_unknown = any(finding.id == "unknown-discipline" for finding in facts.daemon.findings)
    return replace(sample, unexplained_movement=Movement.FREQUENCY) if is_unknown else sample


def _steered(sample: KernelSample) -> CheckResult:
    steered = f"disciplined by: {steering_text(sample)}"
    if sample.synchronized:
        return ok("kernel", "steered", f"the kernel reports the clock as synchronized; {steered}")
    return to_do(
        "kernel",
        "steered",
        f"the kernel reports the clock as unsynchronized; {steered}",
        "no program has set the clock, or the one that did has stopped",
        "systemctl status 'ptp4l*' 'phc2sys*' 'chrony*' 'clockbound*'",
    )


def _runtime_files(facts: Facts) -> Iterator[CheckResult]:
    """What follows from a daemon that does not run is reported by the checks of service and daemon alone."""
    group, folder, socket = "jobs' files", facts.folder, facts.job_socket
    if not facts.is_running and folder.mode is None:
        yield not_checked(group, "runtime folder", f"{folder.path}: the daemon creates it, and no daemon runs")
        return
    yield _mode(group, "runtime folder", folder, 0o005, "o+rx", "enter it")
    if not facts.is_running:
        yield not_checked(group, "clock", "no daemon runs")
        return
    yield _mode(group, "clock segment", facts.segment, 0o004, "o+r", "read it")
    yield _clock(facts)
    yield _mode(group, "job socket", socket, 0o006, "o+rw", "send to it")
    if socket.mode is not None and not socket.listens:
        what, why = (
            f"{socket.path}: no daemon listens",
            "step timings are lost: check that this is the daemon's runtime folder",
        )
        yield to_do(group, "job link", what, why, own_command(facts, "check-config"), "critical")


def _mode(group: str, check: str, file: FileFacts, wanted: int, change: str, verb: str) -> CheckResult:
    path = shlex.quote(str(file.path))
    if file.mode is None:
        why = "the daemon creates it when it starts"
        return to_do(group, check, f"{file.path}: does not exist", why, "systemctl restart timesyncd", "critical")
    if file.mode & wanted != wanted:
        what = f"{file.path}: mode {file.mode:04o}"
        return to_do(group, check, what, f"jobs of other users cannot {verb}", f"chmod {change} {path}", "critical")
    return ok(group, check, f"{file.path}, mode {file.mode:04o}")


def _clock(facts: Facts) -> CheckResult:
    """The node's clock as jobs read it."""
    group, check, node = "jobs' files", "clock", facts.segment_node
    if node.main_status == "SYNCHRONIZED":
        return ok(group, check, f"SYNCHRONIZED{' with UTC' if node.knows_utc_alone else ''}")
    config = facts.config.config
    if config is not None and not config.source:
        return not_checked(group, check, "no [[source]] section: this node's clock is not monitored")
    daemon = facts.daemon.node if facts.is_own and not isinstance(facts.daemon, NotChecked) else node
    reason = daemon.reason if daemon.main_status == node.main_status else node.reason
    what = f"{node.main_status}: {reason or 'no bound'}"
    why = "jobs get no bound" if node.main_status != "HOLDOVER" else "the bound grows until a new sample arrives"
    severity: Severity = "warning" if node.main_status == "HOLDOVER" else "critical"
    return to_do(group, check, what, why, own_command(facts, "explain"), severity)
