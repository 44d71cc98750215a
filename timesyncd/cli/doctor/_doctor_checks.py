"""The doctor's checks of this machine, from what was gathered of it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from timesyncd.cli.doctor._doctor_facts import RUNS, Facts, PlaceFacts, Unseen
from timesyncd.cli.doctor._doctor_results import Result, of_finding, ok, own, to_do, unseen
from timesyncd.cli.doctor.checks import (
    broker,
    certificates,
    daemon,
    findings,
    hubs,
    sources,
    store,
)
from timesyncd.findings.catalogue import Severity
from timesyncd.findings.node import kernel_conditions
from timesyncd.sample import KernelSample

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
