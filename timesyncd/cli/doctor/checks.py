"""The doctor's checks of daemon, hubs, sources, store, broker and certificates, from what was gathered. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from timesyncd.cli.doctor._doctor_facts import RUNS, Facts, ServiceFacts, Unanswered, Unseen
from timesyncd.cli.doctor._doctor_results import Result, command_for, of_finding, ok, own, start, to_do, unseen
from timesyncd.clocks import NS_PER_S
from timesyncd.units import span_text

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
        evidence = " -> ".join(finding.chain) or finding.evidence
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
