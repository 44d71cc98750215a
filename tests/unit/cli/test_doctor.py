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
from timesyncd.cli.doctor.checks import CheckResult, checks, exit_status
from timesyncd.cli.doctor.facts import (
    BrokerFacts,
    CertificateFacts,
    ConfigFacts,
    FileFacts,
    NoReply,
    NotChecked,
    ServiceFacts,
    SourceFacts,
    StoreFacts,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.config import DEFAULT_PATH
from timesyncd.findings.catalogue import CATALOGUE
from timesyncd.messages.node import SourceState


def to_do(**changes: Any) -> list[CheckResult]:
    return [result for result in checks(replace(WELL, **changes)) if result.state == "to_do"]


def one(**changes: Any) -> CheckResult:
    [result] = to_do(**changes)
    return result


def test_a_healthy_node_needs_nothing() -> None:
    """Nothing is to be done, and each check that was not made gives its reason."""
    results = checks(WELL)

    assert [result for result in results if result.state == "to_do"] == []
    assert [result.what for result in results if result.state == "not_checked"] == ["the daemon polls them"]
    assert exit_status(results) == 0


#: (changes of a healthy node, the check that fails, a part of its text, the begin of its command)
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"config": replace(config(), unusable_files=("mqtt.key = '/k': no",))}, "files", "mqtt.key", "timesyncd check-config"),
    ({"config": replace(config(), driver_warnings=(("gm", "factory-password", "admin"),))}, "factory password", "admin", "timesyncd status gm"),
    ({"max_dgram_qlen": 10}, "job datagrams", "is 10", "sysctl -w net.unix.max_dgram_qlen=512"),
    ({"service": ServiceFacts("loaded", "active", "success", "disabled")}, "service", "disabled", "systemctl enable timesyncd"),
    ({"service": ServiceFacts("loaded", "failed", "exit-code", "enabled")}, "service", "failed", "journalctl -u timesyncd -n 50"),
    ({"kernel": replace(KERNEL, synchronized=False, disciplines=())}, "steered", "unsynchronized", "systemctl status 'ptp4l*'"),
    ({"kernel": replace(KERNEL, disciplines=("chronyd", "phc2sys"))}, "two disciplines", "chronyd, phc2sys", "systemctl disable"),
    ({"kernel": replace(KERNEL, leap="insert")}, "kernel leap", "insert", "timesyncd status"),
    ({"folder": FileFacts(RUN, 0o750)}, "runtime folder", "mode 0750", "chmod o+rx /run/timesyncd"),
    ({"segment": FileFacts(RUN / "clock", 0o640)}, "clock segment", "mode 0640", "chmod o+r /run/timesyncd/clock"),
    ({"segment": FileFacts(RUN / "clock", None)}, "clock segment", "does not exist", "systemctl restart timesyncd"),
    ({"job_socket": FileFacts(RUN / "job.sock", 0o644, True)}, "job socket", "mode 0644", "chmod o+rw /run/timesyncd/job.sock"),
    ({"job_socket": FileFacts(RUN / "job.sock", 0o666, False)}, "job link", "no daemon listens", "timesyncd check-config"),
    ({"segment_node": node(status="HOLDOVER", reason="stale")}, "clock", "HOLDOVER: stale", "timesyncd explain"),
    ({"daemon": replace(DAEMON, health="the store fails")}, "health", "the store fails", "timesyncd status"),
    ({"daemon": replace(DAEMON, findings=(finding("broker-lost"),))}, "broker-lost", "cannot reach the MQTT broker", "journalctl"),
    ({"daemon": replace(DAEMON, findings=(finding("phase-jump", "ptp"),))}, "phase-jump", "ptp", "timesyncd explain"),
    ({"daemon": replace(DAEMON, findings=(finding("grandmaster-fan", "gm 1"),))}, "grandmaster-fan", "fan", "timesyncd status 'gm 1'"),
    ({"daemon": replace(DAEMON, hubs=(hub(age_s=16),)), "config": config(mqtt={"host": "b"})}, "hubs", "no hub is alive", "systemctl"),
    ({"daemon": replace(DAEMON, hubs=(hub("h2"),))}, "h1", "the hub publishes nothing", "systemctl"),
    ({"store": StoreFacts("/s", "/s: malformed", {}, 10**11)}, "store failing", "malformed", "df -h; journalctl -u timesyncd -n 50"),
    ({"store": StoreFacts("/s", None, {"ptp": NOW_NS - 301 * NS_PER_S}, 10**11)}, "newest row", "5 min old", "journalctl"),
    ({"store": StoreFacts("/s", None, {}, 10**8)}, "disk", "100 MB are free", "df -h"),
    ({"broker": BrokerFacts("broker:1883", unreachable="Connection refused")}, "broker", "refused", "nc -vz broker 1883"),
    ({"broker": BrokerFacts("broker:1883", refused="Not authorized")}, "broker", "Not authorized", "timesyncd check-config"),
    ({"certificates": (CertificateFacts("mqtt.ca", Path("/c"), 0, NOW_NS + 29 * DAY_NS),)}, "mqtt.ca", "expires in 29 d", "openssl x509"),
    ({"certificates": (CertificateFacts("mqtt.ca", Path("/c"), 0, NOW_NS - DAY_NS),)}, "mqtt.ca", "expired", "openssl x509"),
    ({"certificates": (CertificateFacts("web.certificate", Path("/c"), NOW_NS + DAY_NS, NOW_NS + 90 * DAY_NS),)}, "web.certificate", "not yet valid; valid in 24 h", "openssl x509"),
    ({"daemon": NoReply("http://127.0.0.1:8319/: no answer within 5 s")}, "page", "no answer within 5 s", "journalctl"),
    ({"daemon": NoReply("Connection refused"), "job_socket": FileFacts(RUN / "job.sock", None)}, "runs", "no daemon runs on this node", "systemctl start timesyncd"),
    ({"config": replace(config(), web_warnings=("web: tokens go in clear",))}, "page", "in clear", "timesyncd check-config"),
    ({"config": replace(config(), readable_secrets=(("mqtt.key", Path("/my key")),))}, "mqtt.key", "/my key", "chmod o-rwx '/my key'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "check", "what", "command"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)]
)
def test_one_thing_wrong_is_one_thing_to_do(changes: dict[str, Any], check: str, what: str, command: str) -> None:
    """Each fault gives one result with what, why, and a command that a shell accepts."""
    result = one(**changes)

    assert result.check == check
    assert what in result.what
    assert result.why
    assert result.command.startswith(command)
    assert shlex.split(result.command)
    assert exit_status([result]) == 1


def test_a_stopped_daemon_is_one_thing_to_do() -> None:
    """Consequences of a stopped daemon are not reported besides the service itself."""
    stopped = to_do(**STOPPED, folder=FileFacts(RUN, None), segment=FileFacts(RUN / "clock", None))

    assert [(result.check, result.command) for result in stopped] == [("service", "systemctl start timesyncd")]


def test_without_a_service_the_daemon_is_started_by_hand() -> None:
    """The command names the configuration file that the doctor was given, quoted."""
    by_hand = replace(config(), path=Path("/my config.toml"))
    result = one(**STOPPED | {"service": NotChecked("systemd does not run here")}, config=by_hand)

    assert result.command == "timesyncd run --config '/my config.toml'"


def test_a_wrong_configuration_is_one_thing_to_do() -> None:
    """That no daemon runs is not reported besides an invalid configuration."""
    broken = ConfigFacts(DEFAULT_PATH, None, "t.toml: web.port = 0: too small")
    nothing = {name: NotChecked("no configuration") for name in ("sources", "store", "broker")}
    stopped = STOPPED | {"service": NotChecked("systemd does not run here")}
    result = one(**stopped, config=broken, certificates=(), **nothing)

    assert (result.what, result.severity, result.command) == (
        "t.toml: web.port = 0: too small",
        "critical",
        "timesyncd check-config",
    )


def test_sources_are_polled_where_no_daemon_runs() -> None:
    """Each source is reported as replying, or with its error."""
    sources = (SourceFacts("ptp", "ptp4l", "no such socket"), SourceFacts("ntp", "chrony", None))
    stopped = STOPPED | {"service": NotChecked("systemd does not run here")}
    results = [result for result in checks(replace(WELL, **stopped, sources=sources)) if result.group == "sources"]

    assert [(result.state, "no such socket" in result.what) for result in results] == [("to_do", True), ("ok", False)]


LOST = SourceState(name="ptp", driver="ptp4l", reachable=False, reason="no answer", since_poll_ns=42 * NS_PER_S)


@pytest.mark.parametrize(
    ("error", "state", "what"),
    [
        (None, "ok", "ptp4l replies now; the daemon's last poll, 42 s ago, failed"),
        ("no such socket", "to_do", "no such"),
    ],
)
def test_a_source_that_is_down_is_polled_again(error: str | None, state: str, what: str) -> None:
    """What the doctor finds now replaces the finding of the daemon's last poll, which may be a minute old."""
    lost = finding("source-lost", "ptp")
    daemon = replace(DAEMON, node=node(sources=[LOST]), findings=(lost,))
    results = checks(replace(WELL, daemon=daemon, sources=(SourceFacts("ptp", "ptp4l", error),)))

    found = [result for result in results if result.check in ("ptp", "source lost", "source-lost")]
    assert [(result.group, result.state, what in result.what) for result in found] == [("sources", state, True)]


def test_findings_that_the_doctor_derives_itself_are_not_denied() -> None:
    """The daemon reports one, which another check covers; "no finding" would contradict it."""
    daemon = replace(DAEMON, findings=(finding("clock-unknown"),))
    (result,) = [each for each in checks(replace(WELL, daemon=daemon)) if each.group == "findings"]

    assert result.what == "the daemon reports no finding beside those of the checks here"


def test_a_grandmaster_that_is_down_is_what_the_daemon_calls_it() -> None:
    """The same finding with the same severity, and the name of the one that does not reply."""
    gm = {"name": "gm", "driver": "timeprovider", "host": "192.0.2.9", "community": {"env": "C"}}
    facts = replace(
        WELL, **STOPPED, config=config(grandmaster=[gm]), sources=(SourceFacts("gm", "timeprovider", "no answer"),)
    )
    (result,) = [each for each in checks(facts) if each.group == "sources"]

    assert (result.check, result.severity) == ("grandmaster lost", "warning")
    assert "gm, timeprovider: no answer" in result.what


def test_the_clock_s_reason_is_the_daemon_s() -> None:
    """The clock segment knows no source, so its own reason would be another one than that of status."""
    nothing = {"status": "UNKNOWN", "reason": "no valid sample yet"}
    daemon = replace(DAEMON, node=node(**nothing | {"reason": "no such socket: is ptp4l running?"}))
    (result,) = [each for each in to_do(segment_node=node(**nothing), daemon=daemon) if each.check == "clock"]

    assert result.what == "UNKNOWN: no such socket: is ptp4l running?"


def test_an_informational_finding_needs_nothing() -> None:
    """An unset CLOCK_TAI harms no bound, so the exit status stays 0."""
    results = checks(replace(WELL, kernel=replace(KERNEL, tai_offset_s=0)))

    assert exit_status(results) == 0
    assert ["for information" in result.what for result in results if result.check == "tai offset"] == [True]


@pytest.mark.parametrize(
    ("steers", "steered"), [(True, "ptp4l"), (False, "none found"), (None, "none found, possibly ptp4l")]
)
def test_the_doctor_repeats_the_daemon_s_judgement_of_a_ptp4l(steers: bool | None, steered: str) -> None:
    """A free-running ptp4l measures the system clock and does not steer it, and only a series of samples shows that."""
    source = {"name": "ptp", "driver": "ptp4l", "reachable": True, "kind": "ptp", "clock": "realtime", "daemon_pid": 42}
    kernel = replace(KERNEL, disciplines=(), undecided_disciplines=("ptp4l",), undecided_ptp4l=(42,))
    daemon = replace(DAEMON, node=node(sources=[source | {"steers_system_clock": steers}]))
    (result,) = [each for each in checks(replace(WELL, kernel=kernel, daemon=daemon)) if each.check == "steered"]

    assert result.what.endswith(f"disciplined by: {steered}")


def test_steering_by_an_unknown_program_is_the_daemons_to_find() -> None:
    """One look shows no movement: the doctor prints what the daemon found, and does not contradict it."""
    daemon = replace(DAEMON, findings=(finding("unknown-discipline"),))
    results = checks(replace(WELL, kernel=replace(KERNEL, disciplines=()), daemon=daemon))
    (steered,) = [each for each in results if each.check == "steered"]

    assert "an unknown program" in steered.what
    assert [each.check for each in results if each.state == "to_do"] == ["unknown-discipline"]


@pytest.mark.parametrize("id", ["clock-unknown", "two-disciplines", "kernel-leap"])
def test_a_derived_finding_is_reported_once(id: str) -> None:
    """The daemon's finding of its own node is omitted if the doctor derives it; that of another node is not."""
    own, others = (to_do(daemon=replace(DAEMON, findings=(finding(id, subject),))) for subject in ("n1", "n2"))

    assert (own, [result.check for result in others]) == ([], [id])


@pytest.mark.parametrize(
    ("id", "changes"),
    [
        ("two-disciplines", {"kernel": NotChecked("no such file")}),
        ("kernel-leap", {"config": config(node={"name": "n2"})}),
        ("clock-unknown", {"config": config(node={"name": "n2"})}),
    ],
)
def test_a_finding_that_is_not_derived_is_the_daemon_s(id: str, changes: dict[str, Any]) -> None:
    """Where the kernel cannot be read, or another node's daemon replies, its findings are reported."""
    results = to_do(daemon=replace(DAEMON, findings=(finding(id),)), **changes)

    assert [result.check for result in results] == [id]


def test_a_service_that_runs_without_a_daemon_is_to_do() -> None:
    """A service that systemd reports as active, without a daemon that replies or listens, is one thing to do."""
    absent = {"daemon": NotChecked("no [web]"), "job_socket": FileFacts(RUN / "job.sock", None)}

    assert [result.check for result in to_do(**absent)] == ["runs"]


def test_a_daemon_without_a_page_needs_nothing() -> None:
    """Without [web] no page replies; a daemon that listens on the job socket runs."""
    assert to_do(daemon=NotChecked("no [web]")) == []


def test_a_node_synchronized_by_ntp_is_healthy() -> None:
    """A node that knows UTC alone needs no grandmaster."""
    alone = {"bound_ns": None, "growth_ppb": 0, "reason": Reason.NO_GRANDMASTER.text, "reason_code": "no_grandmaster"}
    known = node(status="UNKNOWN", utc_status="SYNCHRONIZED", gm=alone, sources=[])

    assert to_do(segment_node=known) == []


@pytest.mark.parametrize("id", CATALOGUE)
def test_every_finding_has_a_command(id: str) -> None:
    """Every finding of the catalogue has a command, and is something to do unless it is informational."""
    results = to_do(daemon=replace(DAEMON, findings=(finding(id, "some where"),)))

    assert all(shlex.split(result.command, comments=True) for result in results)
    assert len(results) == (CATALOGUE[id].severity != "info")


def test_the_most_urgent_is_last() -> None:
    """Groups and checks that need most are printed next to the prompt."""
    results = checks(replace(WELL, **STOPPED, max_dgram_qlen=10, sources=NotChecked("why")))
    console = Console(file=StringIO(), record=True, width=100)
    console.print(Group(*report(results)))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    groups = [line for line in lines if line and not line.startswith(" ")]

    assert groups[-2:] == ["machine", lines[-1]]
    assert lines[-3] == "                  do                systemctl start timesyncd"
    assert lines[-1].startswith("2 things to do; ")
    assert groups.index("sources") < groups.index("store") < groups.index("machine")


def test_what_is_typed_or_looked_up_is_never_cut() -> None:
    """A command is one whole line also on a narrow terminal, and a finding's name is whole."""
    gm = finding("grandmaster-few-satellites", "a-grandmaster-of-a-long-name")
    path = Path("/a-folder/of-a-configuration/that-is-not-the-default-one/timesyncd.toml")
    found = checks(replace(WELL, daemon=replace(DAEMON, findings=(gm,)), config=replace(config(), path=path)))
    console = Console(file=StringIO(), record=True, width=60, highlight=False)
    console.print(Group(*report(found)), crop=False)
    text = console.export_text()

    assert f"  timesyncd status {gm.subject} --config {path}\n" in text
    assert gm.id in text


def test_text_off_the_wire_is_text() -> None:
    """Control characters and markup in a finding are printed as text."""
    nasty = "\x1b[2J[red]x"
    hostile = finding("grandmaster-fan", nasty, evidence=nasty, cause=nasty, remedy=nasty)
    console = Console(file=StringIO(), record=True, width=200)
    console.print(Group(*report(checks(replace(WELL, daemon=replace(DAEMON, findings=(hostile,)))))))
    text = console.export_text()

    assert "\x1b" not in text
    assert "?[2J[red]x" in text


def test_a_daemon_that_systemd_does_not_know_is_started_by_hand() -> None:
    """Where no unit is installed and no daemon runs, the doctor gives the command and the page that explains the service."""
    absent = ServiceFacts("not-found", "inactive", "success", "")
    (service,) = [result for result in to_do(**STOPPED | {"service": absent}) if result.check == "service"]

    assert (service.what, service.command) == ("timesyncd.service is not installed", "timesyncd run")


def test_a_daemon_beside_systemd_is_not_checked() -> None:
    """A daemon in a container runs, so a missing unit is nothing to do."""
    results = checks(replace(WELL, service=ServiceFacts("not-found", "inactive", "success", "")))
    (service,) = [result for result in results if result.check == "service"]

    assert (service.state, service.what) == ("not_checked", "the daemon runs, but not as timesyncd.service")


def test_what_another_machine_or_kernel_hides_is_not_checked() -> None:
    """The free space of a database server, and a limit that the kernel does not have, are neither good nor bad."""
    results = checks(
        replace(WELL, store=StoreFacts("postgresql://db/t", None, {"ptp": NOW_NS}, None), max_dgram_qlen=None)
    )
    unknown = {result.check: result.what for result in results if result.state == "not_checked"}

    assert unknown["disk"] == "the database's disk is on another machine"
    assert unknown["job datagrams"] == "this kernel has no net.unix.max_dgram_qlen"


def test_a_healthy_node_is_one_sentence() -> None:
    """The last line states that nothing is to be done, and how many checks passed."""
    console = Console(file=StringIO(), width=120)
    console.print(Group(*report(checks(WELL))))
    (last,) = console.file.getvalue().strip().splitlines()[-1:]  # type: ignore[attr-defined]

    assert last.startswith("nothing to do: ") and last.endswith("1 not checked")
