"""docs/install-slurm.md, word for word, on Debian's real Slurm: the prologs, the epilog, and the check of a submission."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import operations_manual
import pytest
from fake_hub import FakeHub, serving
from published import publish
from slurm_cluster import PROJECT, SlurmCluster, wait_until

from timesyncd.bound import Bound, ClockStatus, Reason, unbounded
from timesyncd.simulation.bed.broker import free_port

PAGE = (PROJECT / "docs/install-slurm.md").read_text()

#: Blocks that the tests run or compare, by the beginning of their text.
BLOCKS = (
    "install -D -m 644 deploy/slurm/slurm.env /etc/timesyncd/slurm.env\ninstall -m 755 deploy/slurm/prolog_slurmctld.sh",
    "install -D -m 644 deploy/slurm/slurm.env /etc/timesyncd/slurm.env\ninstall -m 755 deploy/slurm/prolog.sh",
    "Prolog=",
    "systemctl restart slurmctld",
    "$ sinfo -R",
    "scontrol update NodeName=node-c State=RESUME",
    "sbatch --comment=max-alignment=500us",
    "$ sbatch --comment=max-alignment=1parsec",
)

#: Of each node's own clock: good, bad, unknown.
CLOCKS: dict[str, dict[str, object]] = {
    "node-a": {"gm_hard": Bound(200)},
    "node-b": {"gm_hard": Bound(3_200)},
    "node-c": {"gm_hard": unbounded(Reason.PARENT_CHANGED), "gm_status": ClockStatus.UNKNOWN},
}

CONFIG = """
[node]
name = "node-a"
runtime_dir = "/run/daemon"
[store]
path = "/run/daemon/history.sqlite"
[web]
port = {port}
[hub]
"""

#: A rank as docs/jobs.md has it; rank 1 is late.
RANK = """
import time
from timesyncd.client import Job
job = Job(runtime_dir="/run/daemon")
job.require_alignment(0, timeout_s=60)
for step in range(200):
    with job.meter.step(step):
        time.sleep(0.01 if job.rank == 1 else 0.002)
        with job.meter.sync(step):
            time.sleep(0.002)
"""


def block(begin: str) -> operations_manual.Block:
    [found] = [each for each in operations_manual.parse(PAGE) if each.text.startswith(begin)]
    return found


def test_every_block_of_the_page_is_tried() -> None:
    """No command of the page is one that no test runs."""
    assert [begin for begin in BLOCKS if block(begin).text] == list(BLOCKS)
    assert len(operations_manual.parse(PAGE)) == len(BLOCKS)


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with serving() as hub:
        yield hub


@contextmanager
def published_clocks(cluster: SlurmCluster) -> Iterator[None]:
    """Each node's segment is written twice a second, as a daemon does, so that its age does not count."""
    is_over = threading.Event()

    def write() -> None:
        while True:
            for node, changes in CLOCKS.items():
                publish(cluster.runtime_folder(node), **changes)
            if is_over.wait(0.5):
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(scope="module")
def cluster(hub: FakeHub) -> Iterator[SlurmCluster]:
    """As the page installs it; the hub is the fake one, where the clocks agree within 400 us."""
    hub.agree(400_000, names="node-a,node-b,node-c")
    with SlurmCluster() as cluster, published_clocks(cluster):
        for begin in BLOCKS[:2]:
            cluster.output(block(begin).commands)
        configure(cluster, f"TIMESYNCD_HUB={hub.url}", "TIMESYNCD_MAX_ALIGNMENT=1ms")
        (cluster.root / "etc/timesyncd/slurm.token").write_text("a-token-of-the-tests\n")
        with (cluster.root / "etc/slurm/slurm.conf").open("a") as file:
            file.write(block("Prolog=").text)
        cluster.output(block("systemctl restart slurmctld").commands)
        yield cluster


def configure(cluster: SlurmCluster, *lines: str) -> None:
    with (cluster.root / "etc/timesyncd/slurm.env").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def reasons(cluster: SlurmCluster) -> dict[str, str]:
    """Of the drained nodes, as the page asks for them."""
    lines = cluster.output(block("$ sinfo -R").commands).splitlines()
    return dict(line.split(": ", 1) for line in lines)


def printed(cluster: SlurmCluster, number: str) -> str:
    """What a job printed; slurmd adds to it that a prolog failed."""
    path = cluster.root / f"run/job.{number}"
    return path.read_text() if path.exists() else ""


def test_a_good_node_runs_the_job(cluster: SlurmCluster) -> None:
    """Its own clock is within the limit, and the hub was asked about the job's node."""
    number = cluster.submit("hostname", "--nodelist=node-a")
    cluster.wait_for_job(number, lambda job: job["JobState"] == "COMPLETED")

    assert printed(cluster, number) == "node-a\n"
    assert cluster.states()["node-a"] == "idle"


def test_a_bad_node_is_drained_with_the_bound(cluster: SlurmCluster) -> None:
    """The job does not run, and is not lost; the reason states the limit and the bound."""
    number = cluster.submit("hostname", "--nodelist=node-b")
    wait_until(lambda: "drain" in cluster.states()["node-b"], cluster.log)
    job = cluster.wait_for_job(number, lambda job: job["JobState"] == "PENDING")

    assert "timesyncd: clock not within 1us: grandmaster SYNCHRONIZED " in reasons(cluster)["node-b"]
    assert "+- 3." in reasons(cluster)["node-b"]
    assert "node-b" not in printed(cluster, number).splitlines(), job


def test_an_unknown_node_is_drained_with_the_reason_and_can_return(cluster: SlurmCluster) -> None:
    """The reason is the clock's own, and the page's command ends the drain."""
    cluster.submit("hostname", "--nodelist=node-c")
    wait_until(lambda: "drain" in cluster.states()["node-c"], cluster.log)
    wanted = f"timesyncd: clock not within 1us: grandmaster UNKNOWN {Reason.PARENT_CHANGED.text}"

    assert reasons(cluster)["node-c"] == wanted
    cluster.output("scancel --nodelist=node-c; scancel --state=PENDING --user=root")
    cluster.output(block("scontrol update NodeName=node-c").commands)
    wait_until(lambda: "drain" not in cluster.states()["node-c"], cluster.log)


def test_a_job_whose_clocks_do_not_agree_is_requeued(cluster: SlurmCluster, hub: FakeHub) -> None:
    """By what the job demands; no node is drained for it."""
    number = cluster.submit("hostname", "--nodelist=node-a", "--comment=max-alignment=300us")
    job = cluster.wait_for_job(number, lambda job: job["Restarts"] != "0" and job["JobState"] == "PENDING")

    assert job["Requeue"] == "1"
    assert cluster.states()["node-a"] == "idle"
    cluster.output(f"scancel {number}")


def test_the_pages_demand_is_met(cluster: SlurmCluster) -> None:
    """400 us of the hub are within the 500 us of the page's command."""
    (cluster.root / "run/page").mkdir(exist_ok=True)
    (cluster.root / "run/page/job.sh").write_text("#!/bin/sh\nhostname\n")
    printed = cluster.output(f"cd /run/page\n{block('sbatch --comment=max-alignment=500us').commands}")
    number = printed.split()[-1]
    cluster.wait_for_job(number, lambda job: job["JobState"] == "COMPLETED")

    assert (cluster.root / f"run/page/slurm-{number}.out").read_text() == "node-a\n"


@pytest.mark.parametrize(
    ("demand", "is_taken"),
    [
        ("max-alignment=1us", True),
        ("project 7, max-alignment=2.5ms", True),
        ("project 7", True),
        ("max-alignment", False),
        ("max-alignment=", False),
        ("max-alignment=1", False),
        ("max-alignment=1.us", False),
        ("max-alignment=-1us", False),
        ("max-alignment=1234567890ns", False),
        ("max-alignment=1us max-alignment=2us", False),
    ],
)
def test_a_demand_that_no_prolog_can_read_is_refused(cluster: SlurmCluster, demand: str, is_taken: bool) -> None:
    """At the submission, and one that can be read is taken."""
    done = cluster.run(f"sbatch --hold --parsable --output=/dev/null --comment='{demand}' --wrap=true")

    assert (done.returncode == 0) is is_taken, done.stderr
    if is_taken:
        cluster.output(f"scancel {done.stdout.strip()}")


def test_the_refusal_is_the_page_s(cluster: SlurmCluster) -> None:
    """One line that says what to write."""
    shown = block("$ sbatch --comment=max-alignment=1parsec")
    (cluster.root / "run/job.sh").write_text("#!/bin/sh\nhostname\n")
    done = cluster.run(f"cd /run\n{shown.commands}")

    assert done.returncode == 1
    assert done.stderr == "".join(f"{line}\n" for line in shown.text.splitlines()[1:])


def test_the_epilog_writes_the_report_of_a_job(cluster: SlurmCluster) -> None:
    """A real hub and a step of two ranks, of which one is late: the summary names it."""
    port = free_port()
    (cluster.root / "run/daemon").mkdir()
    (cluster.root / "run/daemon/timesyncd.toml").write_text(CONFIG.format(port=port))
    (cluster.root / "run/rank.py").write_text(RANK)
    configure(cluster, f"TIMESYNCD_HUB=http://127.0.0.1:{port}/")
    cluster.output(
        "setsid /opt/timesyncd/bin/timesyncd run --config /run/daemon/timesyncd.toml >/run/daemon.log 2>&1 &"
    )
    # This hub knows no clock, so no job would start.
    cluster.output("sed -i /^PrologSlurmctld/d /etc/slurm/slurm.conf; systemctl restart slurmctld")
    number = cluster.submit("srun /opt/timesyncd/bin/python /run/rank.py", "--nodelist=node-a", "--ntasks=2")
    summary = cluster.root / f"var/lib/timesyncd-jobs/{number}.0/summary.txt"
    wait_until(lambda: summary.exists() and summary.read_text() != "", lambda: f"{cluster.job(number)} {cluster.log()}")

    assert "ank 1 on node-a" in summary.read_text(), (cluster.root / "run/daemon.log").read_text()
    assert Path(summary.with_name("report.html")).read_text().startswith("<!")


def test_a_node_without_timesyncd_is_drained_with_that_reason(tmp_path: Path) -> None:
    """The reason names the missing program, and not a clock that was never read."""
    script = (PROJECT / "deploy/slurm/prolog.sh").read_text().replace("/opt/timesyncd/bin:/usr/local/bin:", "")
    (tmp_path / "prolog.sh").write_text(script)
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node-a"}
    done = subprocess.run(
        ["sh", tmp_path / "prolog.sh"], check=False, env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 1
    assert done.stdout.startswith("node-a: job 7: timesyncd: not installed on this node, or not in /usr/bin:/bin:")
