"""The service under systemd 257, installed by docs/operations.md: its start, its sandbox, and how it survives what ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from vm_cache import Cache
from vm_lab import Lab
from vm_machine import Machine
from vm_service import INSTALL_LIMIT_S, SOURCE, START_LIMIT_S, WATCHED, Service, make_service_cache

pytest_plugins = ["vm_fixtures"]

#: What a user's job does who has no rights: read the clock, mark a step, and try what only the daemon may.
JOB = """
import json, os, time
from pathlib import Path
from timesyncd.client import Clock, Job, Kind
now = Clock().now()
job = Job("job", rank=0, world_size=1)
end = time.monotonic() + 30
while job.signals() is None and time.monotonic() < end:
    with job.meter.step(job_step := int(time.monotonic() * 10)):
        with job.meter.sync(job_step, Kind.BARRIER):
            time.sleep(0.01)
    time.sleep(0.2)
refused = []
for path in ("clock", "job.sock.new", "jobs/new"):
    try:
        os.open(Path("/run/timesyncd") / path, os.O_RDWR | os.O_CREAT)
    except PermissionError:
        refused.append(path)
print(json.dumps({"status": now.status.name, "signals": job.signals() is not None, "refused": refused}))
job.close()
"""

#: A job that reads on and on, over restarts of the daemon.
READER = """
import time
from timesyncd.client import Clock
clock = Clock()
while True:
    print(clock.now().status.name, flush=True)
    time.sleep(1)
"""

CLIENT = "/opt/timesyncd/bin/python3"

#: The version that the upgrade installs.
NEWER = "99.1"


@pytest.fixture(scope="module")
def cache(vm_cache: Cache) -> Cache:
    """The disk on which the manual's first two blocks ran."""
    return make_service_cache(vm_cache)


@pytest.fixture(scope="module")
def service(cache: Cache) -> Iterator[Service]:
    """The service that runs, by the manual's other blocks; and a user without rights. Each test gets it running."""
    with Lab(cache) as lab:
        service = Service(lab)
        service.prepare()
        service.install()
        service.machine.run("useradd --create-home ml; useradd ml2; usermod --append --groups timesyncd ml2")
        service.machine.run("cp /etc/timesyncd/timesyncd.toml /root/kept.toml")
        service.machine.write("/home/ml/job.py", JOB)
        service.machine.write("/home/ml/reader.py", READER)
        yield service


@pytest.fixture
def machine(service: Service) -> Machine:
    return service.machine


def test_the_manual_starts_the_service_with_a_bound(service: Service) -> None:
    """Each command of the manual succeeds, phc2sys steers, and status and explain give the bound on UTC."""
    machine = service.machine
    status = machine.run("timesyncd status", 60)
    explained = service.block("explain")

    assert service.show("ActiveState") == "active"
    assert service.show("ActiveState", "phc2sys@eth0") == "active"
    assert "SYNCHRONIZED" in status
    assert "disciplined by: phc2sys" in status
    assert re.search(r"UTC +\+-", status)
    assert "path delay" in explained
    assert machine.run("systemctl is-enabled timesyncd ptp4l@eth0 phc2sys@eth0").split() == ["enabled"] * 3


def test_the_check_of_ptp4ls_socket_succeeds(service: Service) -> None:
    """As the daemon's user pmc gets an answer of ptp4l, in the domain that the manual names."""
    printed = service.block("socket of ptp4l")

    assert re.search(r"^srw-rw---- \d+ root timesyncd ", printed, re.MULTILINE)
    assert re.search(r"gmPresent +true", printed)


def test_the_daemon_has_a_user_and_no_privilege(service: Service) -> None:
    """Its own user, no capability, no new privileges, a filter of system calls."""
    status = service.machine.run(f"cat /proc/{service.show('MainPID')}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid = service.machine.run("id -u timesyncd").strip()

    assert fields["Uid"].split() == [uid] * 4
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


def test_the_exposure_is_that_of_the_manual(service: Service) -> None:
    """systemd of the machine rates the running unit as the manual states, and verifies it."""
    rated = service.machine.run("systemd-analyze security --no-pager --threshold=20 timesyncd")
    found = re.search(r"exposure level for timesyncd.service: ([0-9.]+)", rated)
    verified = service.machine.ask("systemd-analyze verify --man=no timesyncd.service phc2sys@eth0.service")

    assert found is not None, rated
    assert f"gives {found[1]} of 10" in Path(__file__).parents[2].joinpath("docs/operations.md").read_text()
    assert verified.output == ""


def test_a_users_job_reads_the_clock_and_has_signals(machine: Machine) -> None:
    """A user without rights reads the bound, marks steps, gets signals, and writes nothing; the history is the group's."""
    printed = machine.run(f"runuser -u ml -- {CLIENT} /home/ml/job.py", 120)
    history = "/opt/timesyncd/bin/timesyncd history ptp"
    of_others, of_the_group = machine.ask(f"runuser -u ml -- {history}"), machine.ask(f"runuser -u ml2 -- {history}")

    assert json.loads(printed.splitlines()[-1]) == {
        "status": "SYNCHRONIZED",
        "signals": True,
        "refused": ["clock", "job.sock.new", "jobs/new"],
    }
    assert (of_others.status, of_the_group.status) == (1, 0), of_others.output + of_the_group.output
    assert "permission denied" in of_others.output
    assert of_others.output.count("\n") == 1


def test_the_journal_has_priorities(service: Service) -> None:
    """Information is not among the warnings, and what systemd says is not under the daemon's name."""
    assert "status page" in service.journal("-t timesyncd -p info")
    assert "status page" not in service.journal("-t timesyncd -p warning")
    assert "systemd[1]" not in service.journal("-t timesyncd")


def test_a_wrong_configuration_is_one_line_and_no_restart(service: Service) -> None:
    """The service ends with 2, systemd leaves it so, and the manual's command prints the reason."""
    machine = service.machine
    machine.run("echo nonsense >> /etc/timesyncd/timesyncd.toml")
    started = machine.ask("systemctl restart timesyncd", 120)
    reason = service.block("reason")
    ended = service.show("ExecMainStatus"), service.show("ActiveState")
    machine.run("cp /root/kept.toml /etc/timesyncd/timesyncd.toml; systemctl start timesyncd", 240)
    service.wait_until_synchronized()

    assert started.status != 0
    assert ended == ("2", "failed")
    assert reason.count("\n") == 1
    assert "timesyncd.toml: not valid TOML" in reason
    assert "not valid TOML" in service.journal("-p err -t timesyncd")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("kill -KILL {pid}", "status=9/KILL"),
        ("echo 1000 > /proc/{pid}/oom_score_adj; echo f > /proc/sysrq-trigger", "oom-kill"),
        ("kill -STOP {pid}", "Watchdog timeout"),
    ],
    ids=["killed", "out of memory", "hung"],
)
def test_the_daemon_is_back_after_what_ends_it(service: Service, command: str, reason: str) -> None:
    """A job that reads on has no error, sees the clock age or not, and the new daemon in the same segment."""
    machine = service.machine
    machine.run("systemctl reset-failed reader 2>/dev/null; rm -f /home/ml/seen; true")
    machine.run(
        f"systemd-run --quiet --unit=reader --uid=ml -p StandardOutput=file:/home/ml/seen {CLIENT} /home/ml/reader.py"
    )
    machine.wait_for("grep -q SYNCHRONIZED /home/ml/seen", 60)
    pid, inode = service.show("MainPID"), machine.run("stat -c %i /run/timesyncd/clock")
    machine.run(command.format(pid=pid))
    service.wait_for_another(pid)
    machine.run(": > /home/ml/seen")
    machine.wait_for("grep -q SYNCHRONIZED /home/ml/seen", 120)
    reader = service.show("ActiveState", "reader")
    machine.run("systemctl stop reader")

    assert reader == "active"
    assert reason in service.journal("-t systemd")
    assert machine.run("stat -c %i /run/timesyncd/clock") == inode


#: As the daemon's processes are limited: what the kernel says of a datagram to an address in the list, and to another one.
SEND_AS_THE_SERVICE = """echo $$ > /sys/fs/cgroup/system.slice/timesyncd.service/cgroup.procs && exec python3 -c '
import socket
for address in ("10.20.0.9", "10.30.0.9"):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (address, 161))
        print(address, "sent")
    except OSError as error:
        print(address, error.strerror)
'"""


def test_the_service_sends_to_the_addresses_of_the_list_alone(service: Service) -> None:
    """With the manual's drop-in the kernel refuses every other address, and the page on loopback answers."""
    machine = service.machine
    drop_in = "/etc/systemd/system/timesyncd.service.d"
    machine.write(f"{drop_in}/override.conf", service.text("addresses"))
    machine.run("ip address add 10.20.0.1/16 dev eth0; ip address add 10.30.0.1/16 dev eth0")
    machine.run("systemctl daemon-reload; systemctl restart timesyncd", START_LIMIT_S)
    service.wait_until_synchronized()
    sent = machine.run(SEND_AS_THE_SERVICE)
    status = machine.ask("timesyncd status", 60)
    machine.run(f"rm -r {drop_in}; ip address flush dev eth0; systemctl daemon-reload")

    assert sent.splitlines() == ["10.20.0.9 sent", "10.30.0.9 Operation not permitted"]
    assert "SYNCHRONIZED" in status.output


GRANDMASTER_TABLES = """
[traps]
communities = [{ file = "/etc/timesyncd/community" }]
[[grandmaster]]
name = "gm-1"
driver = "timeprovider"
host = "127.0.0.2"
community = { file = "/etc/timesyncd/community" }
"""

SEND = """python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"no trap", ("127.0.0.1", {port}))
'"""


def test_systemd_binds_the_ports_of_traps_and_syslog(service: Service) -> None:
    """The manual's block opens both; the daemon reads both; a datagram starts a service that was stopped."""
    machine = service.machine
    machine.run("install -m 640 -g timesyncd /dev/stdin /etc/timesyncd/community <<< public-of-a-test")
    machine.write("/root/grandmaster.toml", GRANDMASTER_TABLES)
    machine.run("cat /root/grandmaster.toml >> /etc/timesyncd/timesyncd.toml")
    listening = service.block("receive traps")
    machine.run("echo '[syslog]' >> /etc/timesyncd/timesyncd.toml; systemctl stop timesyncd")
    listening += machine.run(
        "systemctl enable --now timesyncd-syslog.socket; systemctl start timesyncd; ss -lun", START_LIMIT_S
    )
    for port in (162, 514):
        machine.run(SEND.format(port=port))
    machine.wait_for("journalctl -t timesyncd | grep -q 'traps and syslog: rejected'", 60)
    machine.wait_for("! ss -lunH 'sport = :162 or sport = :514' | awk '{print $2}' | grep -q '[1-9]'", 60)
    machine.run("systemctl stop timesyncd")
    stopped = service.show("ActiveState")
    machine.run(SEND.format(port=162))
    machine.wait_for("systemctl -q is-active timesyncd", 240)
    machine.run("cp /root/kept.toml /etc/timesyncd/timesyncd.toml")

    assert ":162" in listening
    assert ":514" in listening
    assert stopped == "inactive"


def test_everything_is_back_after_a_restart_of_the_machine(service: Service) -> None:
    """ptp4l, phc2sys, the daemon and the sockets start by themselves, in whatever order, and the bound is there."""
    machine = service.machine
    machine.reboot()
    machine.wait_for("systemctl -q is-active timesyncd ptp4l@eth0 phc2sys@eth0", 240)
    service.wait_until_synchronized()

    assert machine.run("systemctl --failed --plain --no-legend").strip() == ""
    assert machine.run("stat -c '%a %U %G' /run/timesyncd /run/ptp /dev/ptp0").splitlines() == [
        "755 timesyncd timesyncd",
        "2750 root timesyncd",
        "640 root timesyncd",
    ]


def test_an_upgrade_does_not_disturb_a_job(service: Service) -> None:
    """A newer package replaces the one that a job has loaded, the daemon restarts, and the job reads on without an error."""
    machine = service.machine
    machine.run("rm -f /home/ml/seen")
    machine.run(
        f"systemd-run --quiet --unit=job --uid=ml -p StandardOutput=file:/home/ml/seen {CLIENT} /home/ml/reader.py"
    )
    machine.wait_for("grep -q SYNCHRONIZED /home/ml/seen", 60)
    machine.run(f"sed -i 's/^version = .*/version = \"{NEWER}\"/' {SOURCE}/pyproject.toml")
    pid = service.show("MainPID")
    for name in ("install", "install for Debian"):
        service.block(name, INSTALL_LIMIT_S)
    during = service.show("MainPID")
    service.block("upgrade")
    machine.run(": > /home/ml/seen")
    machine.wait_for("grep -q SYNCHRONIZED /home/ml/seen", 240)
    job = service.show("ActiveState", "job")
    machine.run("systemctl stop job")

    assert during == pid
    assert service.show("MainPID") != pid
    assert machine.run("timesyncd --version", 60).startswith(f"timesyncd {NEWER} ")
    assert job == "active"


OURS = re.compile("timesyncd|^/run/ptp(/|$)")

#: What runs the commands in the machine: its unit, and the port to it, which is called timesyncd.0.
THE_LABS_OWN = re.compile(r"timesyncd-vm-agent|timesyncd\.0\b")


def test_what_is_removed_leaves_nothing_behind(service: Service) -> None:
    """After the manual's blocks the disk has the paths from before, the user is gone, and ptp4l goes on as the distribution has it."""
    machine = service.machine
    machine.run("systemctl stop reader job 2>/dev/null; userdel ml2; true")
    machine.run(f"cp {SOURCE}/systemd/*.socket /etc/systemd/system/; systemctl daemon-reload")
    service.block("remove")
    kept = machine.run("ls /etc/timesyncd/timesyncd.toml /var/lib/timesyncd/history.sqlite; id -un timesyncd")
    service.block("remove data")
    machine.wait_for("[ -S /run/ptp4l ]", 60)
    paths = machine.run(f"find {WATCHED} | sort")
    left = set(paths.splitlines()) - set(machine.read("/root/before").splitlines())

    assert "timesyncd" in kept
    assert [path for path in sorted(left) if OURS.search(path) and not THE_LABS_OWN.search(path)] == []
    assert machine.ask("id timesyncd").status != 0
    assert service.show("ActiveState", "ptp4l@eth0") == "active"
    assert service.show("ActiveState", "phc2sys@eth0") == "active"
    machine.wait_for("journalctl -u phc2sys@eth0 --since -15s | grep -q 'CLOCK_REALTIME phc offset'", 60)
    assert "timesyncd" not in service.show("ExecStart", "ptp4l@eth0")
    assert machine.run("stat -c '%a %u %g' /dev/ptp0 /dev/ptp1").splitlines() == ["600 0 0"] * 2
