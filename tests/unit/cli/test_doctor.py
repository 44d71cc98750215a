"""The doctor's checks: from what was gathered to what is to be done, why, and the command to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from doctor_lab import DAEMON, DAY_NS, KERNEL, NOW_NS, RUN, STOPPED, WELL, config, finding, hub, node
from rich.console import Console, Group

from timesyncd.bound import Reason
from timesyncd.cli.doctor import report
from timesyncd.cli.doctor.checks import Result, checks, exit_status
from timesyncd.cli.doctor.facts import (
    BrokerFacts,
    CertificateFacts,
    ConfigFacts,
    PlaceFacts,
    ServiceFacts,
    SourceFacts,
    StoreFacts,
    Unanswered,
    Unseen,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.config import DEFAULT_PATH
from timesyncd.findings.catalogue import CATALOGUE


def to_do(**changes: Any) -> list[Result]:
    return [result for result in checks(replace(WELL, **changes)) if result.state == "to do"]


def one(**changes: Any) -> Result:
    [result] = to_do(**changes)
    return result


def test_a_node_that_is_well() -> None:
    """Nothing to do; what was not looked at says why."""
    results = checks(WELL)

    assert [result for result in results if result.state == "to do"] == []
    assert [result.what for result in results if result.state == "not looked at"] == ["the daemon asks them"]
    assert exit_status(results) == 0


#: One thing wrong -> what it is called, a part of what is said, the command.
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"config": replace(config(), broken=("mqtt.key = '/k': no",))}, "files", "mqtt.key", "timesyncd check-config"),
    ({"config": replace(config(), notes=(("gm", "factory-password", "admin"),))}, "factory password", "admin", "timesyncd status gm"),
    ({"max_dgram_qlen": 10}, "job datagrams", "is 10", "sysctl -w net.unix.max_dgram_qlen=512"),
    ({"service": ServiceFacts("loaded", "active", "success", "disabled")}, "service", "disabled", "systemctl enable timesyncd"),
    ({"service": ServiceFacts("loaded", "failed", "exit-code", "enabled")}, "service", "failed", "journalctl -u timesyncd -n 50"),
    ({"kernel": replace(KERNEL, synchronized=False, disciplines=())}, "steered", "unsynchronized", "systemctl status 'ptp4l*'"),
    ({"kernel": replace(KERNEL, disciplines=("chronyd", "phc2sys"))}, "two disciplines", "chronyd, phc2sys", "systemctl disable"),
    ({"kernel": replace(KERNEL, leap="insert")}, "kernel leap", "insert", "timesyncd status"),
    ({"folder": PlaceFacts(RUN, 0o750)}, "runtime folder", "mode 0750", "chmod o+rx /run/timesyncd"),
    ({"segment": PlaceFacts(RUN / "clock", 0o640)}, "clock segment", "mode 0640", "chmod o+r /run/timesyncd/clock"),
    ({"segment": PlaceFacts(RUN / "clock", None)}, "clock segment", "there is none", "systemctl restart timesyncd"),
    ({"job_socket": PlaceFacts(RUN / "job.sock", 0o644, True)}, "job socket", "mode 0644", "chmod o+rw /run/timesyncd/job.sock"),
    ({"job_socket": PlaceFacts(RUN / "job.sock", 0o666, False)}, "job link", "nobody listens", "timesyncd check-config"),
    ({"segment_node": node(status="HOLDOVER", reason="stale")}, "clock", "HOLDOVER: stale", "timesyncd explain"),
    ({"daemon": replace(DAEMON, health="the store fails")}, "health", "the store fails", "timesyncd status"),
    ({"daemon": replace(DAEMON, findings=(finding("broker-lost"),))}, "broker-lost", "cannot be reached", "journalctl"),
    ({"daemon": replace(DAEMON, findings=(finding("phase-jump", "ptp"),))}, "phase-jump", "ptp", "timesyncd explain"),
    ({"daemon": replace(DAEMON, findings=(finding("grandmaster-fan", "gm 1"),))}, "grandmaster-fan", "fan", "timesyncd status 'gm 1'"),
    ({"daemon": replace(DAEMON, hubs=(hub(age_s=16),)), "config": config(mqtt={"host": "b"})}, "hubs", "no hub is alive", "systemctl"),
    ({"daemon": replace(DAEMON, hubs=(hub("h2"),))}, "h1", "the hub is silent", "systemctl"),
    ({"store": StoreFacts("/s", "/s: malformed", {}, 10**11)}, "store failing", "malformed", "df -h; journalctl -u timesyncd -n 50"),
    ({"store": StoreFacts("/s", None, {"ptp": NOW_NS - 301 * NS_PER_S}, 10**11)}, "newest row", "5 min old", "journalctl"),
    ({"store": StoreFacts("/s", None, {}, 10**8)}, "disk", "100 MB are free", "df -h"),
    ({"broker": BrokerFacts("broker:1883", unreachable="Connection refused")}, "broker", "refused", "nc -vz broker 1883"),
    ({"broker": BrokerFacts("broker:1883", refused="Not authorized")}, "broker", "Not authorized", "timesyncd check-config"),
    ({"certificates": (CertificateFacts("mqtt.ca", Path("/c"), 0, NOW_NS + 29 * DAY_NS),)}, "mqtt.ca", "runs out in 29 d", "openssl x509"),
    ({"certificates": (CertificateFacts("mqtt.ca", Path("/c"), 0, NOW_NS - DAY_NS),)}, "mqtt.ca", "ran out", "openssl x509"),
    ({"certificates": (CertificateFacts("web.certificate", Path("/c"), NOW_NS + DAY_NS, NOW_NS + 90 * DAY_NS),)}, "web.certificate", "not valid yet, in 24 h", "openssl x509"),
    ({"daemon": Unanswered("http://127.0.0.1:8319/: no answer within 5 s")}, "page", "no answer within 5 s", "journalctl"),
    ({"daemon": Unanswered("Connection refused"), "job_socket": PlaceFacts(RUN / "job.sock", None)}, "runs", "no daemon runs here", "systemctl start timesyncd"),
    ({"config": replace(config(), careless=("web: tokens go in clear",))}, "page", "in clear", "timesyncd check-config"),
    ({"config": replace(config(), exposed=(("mqtt.key", Path("/my key")),))}, "mqtt.key", "/my key", "chmod o-rwx '/my key'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "check", "what", "command"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)]
)
def test_one_thing_wrong_is_one_thing_to_do(changes: dict[str, Any], check: str, what: str, command: str) -> None:
    """What, why, and a command that a shell takes."""
    result = one(**changes)

    assert result.check == check
    assert what in result.what
    assert result.why
    assert result.command.startswith(command)
    assert shlex.split(result.command)
    assert exit_status([result]) == 1


def test_a_stopped_daemon_is_one_thing_to_do() -> None:
    """What follows from it is not told again: the service says it, and how to start it."""
    stopped = to_do(**STOPPED, folder=PlaceFacts(RUN, None), segment=PlaceFacts(RUN / "clock", None))

    assert [(result.check, result.command) for result in stopped] == [("service", "systemctl start timesyncd")]


def test_without_a_service_the_daemon_is_started_by_hand() -> None:
    """With the configuration that the doctor was given, quoted."""
    by_hand = replace(config(), path=Path("/my config.toml"))
    result = one(**STOPPED | {"service": Unseen("systemd does not run here")}, config=by_hand)

    assert result.command == "timesyncd run --config '/my config.toml'"


def test_a_wrong_configuration_is_one_thing_to_do() -> None:
    """Nothing can run with it, so that nothing runs is not told besides."""
    broken = ConfigFacts(DEFAULT_PATH, None, "t.toml: web.port = 0: too small")
    nothing = {name: Unseen("no configuration") for name in ("sources", "store", "broker")}
    stopped = STOPPED | {"service": Unseen("systemd does not run here")}
    result = one(**stopped, config=broken, certificates=(), **nothing)

    assert (result.what, result.severity, result.command) == (
        "t.toml: web.port = 0: too small",
        "critical",
        "timesyncd check-config",
    )


def test_sources_are_told_where_no_daemon_runs() -> None:
    """Which answers, and which not and why."""
    sources = (SourceFacts("ptp", "ptp4l", "no such socket"), SourceFacts("ntp", "chrony", None))
    stopped = STOPPED | {"service": Unseen("systemd does not run here")}
    results = [result for result in checks(replace(WELL, **stopped, sources=sources)) if result.group == "sources"]

    assert [(result.state, "no such socket" in result.what) for result in results] == [("to do", True), ("ok", False)]


def test_what_is_for_information_is_nothing_to_do() -> None:
    """A CLOCK_TAI that nobody set harms no bound of ours."""
    results = checks(replace(WELL, kernel=replace(KERNEL, tai_offset_s=0)))

    assert exit_status(results) == 0
    assert ["for information" in result.what for result in results if result.check == "tai offset"] == [True]


@pytest.mark.parametrize("id", ["clock-unknown", "two-disciplines", "kernel-leap"])
def test_what_the_doctor_sees_itself_is_told_once(id: str) -> None:
    """The same finding of the daemon's own node is left out; another node's is not."""
    own, others = (to_do(daemon=replace(DAEMON, findings=(finding(id, subject),))) for subject in ("n1", "n2"))

    assert (own, [result.check for result in others]) == ([], [id])


@pytest.mark.parametrize(
    ("id", "changes"),
    [
        ("two-disciplines", {"kernel": Unseen("no such file")}),
        ("kernel-leap", {"config": config(node={"name": "n2"})}),
        ("clock-unknown", {"config": config(node={"name": "n2"})}),
    ],
)
def test_what_the_doctor_does_not_see_is_left_to_the_daemon(id: str, changes: dict[str, Any]) -> None:
    """The kernel could not be read, or the daemon that answers is another node's."""
    told = to_do(daemon=replace(DAEMON, findings=(finding(id),)), **changes)

    assert [result.check for result in told] == [id]


def test_a_service_that_runs_without_a_daemon_is_to_do() -> None:
    """Nobody answers and nobody listens, whatever systemd says; and one that hangs is no service that stopped."""
    absent = {"daemon": Unseen("no [web]"), "job_socket": PlaceFacts(RUN / "job.sock", None)}

    assert [result.check for result in to_do(**absent)] == ["runs"]


def test_what_was_not_asked_is_nothing_to_do() -> None:
    """Without [web] there is no page; what listens for jobs runs."""
    assert to_do(daemon=Unseen("no [web]")) == []


def test_a_node_that_ntp_keeps_is_well() -> None:
    """It needs no grandmaster."""
    alone = {"bound_ns": None, "growth_ppb": 0, "reason": Reason.NO_GRANDMASTER.text, "reason_code": "no_grandmaster"}
    known = node(status="UNKNOWN", utc_status="SYNCHRONIZED", gm=alone, sources=[])

    assert to_do(segment_node=known) == []


@pytest.mark.parametrize("id", CATALOGUE)
def test_every_finding_has_a_command(id: str) -> None:
    """Whatever is added to the catalogue."""
    told = to_do(daemon=replace(DAEMON, findings=(finding(id, "some where"),)))

    assert all(shlex.split(result.command, comments=True) for result in told)
    assert len(told) == (CATALOGUE[id].severity != "info")


def test_the_worst_stands_last() -> None:
    """Groups and checks: what was not looked at is scrolled away first, what is critical is next to the prompt."""
    results = checks(replace(WELL, **STOPPED, max_dgram_qlen=10, sources=Unseen("why")))
    console = Console(file=StringIO(), record=True, width=100)
    console.print(Group(*report(results)))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    groups = [line for line in lines if line and not line.startswith(" ")]

    assert groups[-2:] == ["machine", lines[-1]]
    assert lines[-3] == "                  do                systemctl start timesyncd"
    assert lines[-1].startswith("2 things to do; ")
    assert groups.index("sources") < groups.index("store") < groups.index("machine")


def test_text_off_the_wire_is_text() -> None:
    """A finding's subject may be anything."""
    nasty = "\x1b[2J[red]x"
    told = finding("grandmaster-fan", nasty, evidence=nasty, cause=nasty, remedy=nasty)
    console = Console(file=StringIO(), record=True, width=200)
    console.print(Group(*report(checks(replace(WELL, daemon=replace(DAEMON, findings=(told,)))))))
    text = console.export_text()

    assert "\x1b" not in text
    assert "?[2J[red]x" in text
