"""The examples that ask before a job begins, run as a launcher, Slurm and a kubelet run them, and docs/preflight.md, which shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_hub import FakeHub, serving

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PROGRAMS = Path(sys.executable).parent
TOKEN = "a-token-of-the-tests"

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving() as hub:
        yield hub


def run(*command: str | Path, **environ: str) -> Done:
    environment = {"PATH": os.environ["PATH"]} | environ
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "name",
    ["examples/preflight.py", "deploy/slurm/prolog_slurmctld.sh", "examples/kubernetes_preflight.yaml"],
)
def test_an_example_fits_a_screen(name: str) -> None:
    """So that it is read whole."""
    assert len((ROOT / name).read_text().splitlines()) <= 40


def test_the_python_example_begins(hub: FakeHub) -> None:
    """When the clocks agree."""
    hub.agree(400, names="node-a,node-b")
    done = run(sys.executable, EXAMPLES / "preflight.py", hub.url, "node-a", "node-b")

    assert (done.returncode, done.stdout) == (0, "the clocks of 2 nodes agree within 400 ns\n"), done.stderr


def test_the_python_example_prints_the_reason(hub: FakeHub) -> None:
    """And ends with 1."""
    hub.agree(4_000, names="node-a,node-b")
    done = run(sys.executable, EXAMPLES / "preflight.py", hub.url, "node-a", "node-b")

    assert (done.returncode, done.stderr) == (
        1,
        "not started: node-a and node-b may be 4.00 us apart; 1 us is allowed\n",
    )


class Slurm:
    """The controller as the prolog uses it: a `scontrol` and a `logger` that record their arguments."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.folder, self.hub = folder, hub
        (folder / "token").write_text(f"{TOKEN}\n")
        self.program("scontrol", '[ "$1 $2 $3" = "show hostnames node-[a-b]" ] && printf "node-a\\nnode-b\\n"')
        self.program("logger", f'echo "$*" >> {folder}/log')

    def program(self, name: str, does: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)

    def prolog(self, nodes: str = "node-[a-b]", **environ: str) -> Done:
        return run(
            ROOT / "deploy/slurm/prolog_slurmctld.sh",
            PATH=f"{self.folder}:{PROGRAMS}:{os.environ['PATH']}",
            SLURM_JOB_ID="7",
            SLURM_JOB_NODELIST=nodes,
            TIMESYNCD_HUB=self.hub.url,
            TIMESYNCD_TOKEN_FILE=str(self.folder / "token"),
            **environ,
        )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def slurm(hub: FakeHub, tmp_path: Path) -> Slurm:
    return Slurm(tmp_path, hub)


def test_slurm_starts_a_job_whose_clocks_agree(slurm: Slurm) -> None:
    """Exit 0; the hub was shown the token."""
    slurm.hub.agree(400, names="node-a,node-b")
    done = slurm.prolog()

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job 7: PASS: 2 nodes, clocks agree within 400 ns")
    assert slurm.hub.asked == [("/api/v1/alignment", f"Bearer {TOKEN}")]


def test_slurm_starts_a_job_of_thousands(slurm: Slurm) -> None:
    """Their names are longer than one word of a command line may be; here they are always the same two."""
    names = "node-a\nnode-b\n" * 10_000
    (slurm.folder / "names").write_text(names)
    slurm.program("scontrol", f"cat {slurm.folder}/names")
    slurm.hub.agree(400, names="node-a,node-b")
    done = slurm.prolog()

    assert len(names) > 128 * 1024
    assert done.stdout.startswith("job 7: PASS: 2 nodes"), done.stdout


def test_slurm_requeues_a_job_and_logs_why(slurm: Slurm) -> None:
    """Exit 1, one line, in the log too, since Slurm throws the output away."""
    slurm.hub.agree(4_000, names="node-a,node-b")
    done = slurm.prolog()
    message = "job 7: FAIL: node-a and node-b may be 4.00 us apart; 1 us is allowed\n"

    assert (done.returncode, done.stdout) == (1, message)
    assert slurm.log == f"-t timesyncd-preflight {message}"


def test_a_node_list_that_cannot_be_read_starts_nothing(slurm: Slurm) -> None:
    """No nodes is not all nodes."""
    done = slurm.prolog(nodes="odd")

    assert (done.returncode, done.stdout) == (1, "job 7: FAIL: no nodes in 'odd'\n")


def init_container() -> dict[str, Any]:
    job = yaml.safe_load((EXAMPLES / "kubernetes_preflight.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["initContainers"]
    assert isinstance(container, dict)
    return container


def as_kubelet(hub: FakeHub, folder: Path) -> Done:
    """Run the init container's command, with the mounts and the hub where they are here."""
    container = init_container()
    environ = {each["name"]: each["value"] for each in container["env"]}
    (folder / "token").write_text(TOKEN)
    words = [*container["command"], *container["args"]]
    for name, value in environ.items():
        words = [word.replace(f"$({name})", value) for word in words]
    words = [
        word.replace("/token/token", str(folder / "token")).replace("https://hub:8319/", hub.url) for word in words
    ]
    return run(*words, **environ, PATH=f"{PROGRAMS}:{os.environ['PATH']}")


def test_a_pod_begins_when_the_clocks_agree(hub: FakeHub, tmp_path: Path) -> None:
    """Of the nodes that the job is bound to, with the mounted token."""
    seen = []

    def asked(query: dict[str, list[str]]) -> tuple[int, object]:
        seen.append(query)
        return 200, hub_answer

    hub.agree(400, names="node-a,node-b")
    hub_answer = hub.answers["/api/v1/alignment"]({})[1]  # type: ignore[operator]
    hub.answers["/api/v1/alignment"] = asked
    done = as_kubelet(hub, tmp_path)

    assert done.returncode == 0, done.stdout
    assert seen == [{"nodes": ["node-a,node-b"]}]
    assert {shown for _, shown in hub.asked} == {f"Bearer {TOKEN}"}


def test_the_log_of_a_pod_has_the_reason_why_it_does_not_start(hub: FakeHub, tmp_path: Path) -> None:
    """The last line of `kubectl logs`; a refusal is not waited for."""
    hub.answers["/api/v1/alignment"] = (403, {"error": "no"})
    done = as_kubelet(hub, tmp_path)

    assert (done.returncode, done.stdout) == (1, f"FAIL: {hub.url}: no; use a token with read permission\n")


def test_the_pods_stand_where_the_clocks_are_compared() -> None:
    """NODES names the nodes of the affinity, and what is mounted is defined."""
    pod = yaml.safe_load((EXAMPLES / "kubernetes_preflight.yaml").read_text())["spec"]["template"]["spec"]
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    mounted = {
        mount["name"] for part in ("initContainers", "containers") for c in pod[part] for mount in c["volumeMounts"]
    }

    assert init_container()["env"][0] == {"name": "NODES", "value": ",".join(term["matchExpressions"][0]["values"])}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    "name",
    ["examples/preflight.py", "deploy/slurm/prolog_slurmctld.sh", "examples/kubernetes_preflight.yaml"],
)
def test_the_page_names_each_example(name: str) -> None:
    """docs/preflight.md describes it."""
    assert f"(../{name})" in (ROOT / "docs" / "preflight.md").read_text()
