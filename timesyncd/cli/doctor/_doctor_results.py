"""What the doctor says of one thing that it looked at, and the commands that it gives to type. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from timesyncd.cli.doctor._doctor_facts import Facts, Unseen
from timesyncd.config import DEFAULT_PATH
from timesyncd.findings.catalogue import CATALOGUE, Severity

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
