"""`timesyncd roadmap`: what each step measures and proposes, that nothing is done unconfirmed, and that it resumes."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy

from timesyncd.__main__ import main
from timesyncd.cli import roadmap
from timesyncd.cli.roadmap import Roadmap, RoadmapStage, propose, with_loss
from timesyncd.jobs.recording import Recording


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that were run, of a job whose transfers are most of a step."""
    monkeypatch.chdir(tmp_path)
    commands: list[list[str]] = []
    monkeypatch.setattr(roadmap, "_recording", lambda _: recording())
    monkeypatch.setattr(roadmap, "_loss_findings", lambda *_: [])
    return commands


def recording(steps: int = 300, first: int = 0) -> Recording:
    found = job(steps, 2, noisy(), transfers_ns=(20 * MS, 10 * MS))
    return found if not first else shifted(found, first)


def shifted(found: Recording, by: int) -> Recording:
    """The same steps, later."""
    return replace(
        found,
        syncs=[replace(sync, step=sync.step + by) for sync in found.syncs],
        steps={rank: [replace(mark, step=mark.step + by) for mark in marks] for rank, marks in found.steps.items()},
    )


def run_fakes(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]], status: int = 0) -> None:
    def run(command: Sequence[str]) -> int:
        commands.append(list(command))
        return status

    monkeypatch.setattr(roadmap, "_run", run)


def test_what_the_hub_reports_of_the_loss_is_measured_too(tmp_path: Path) -> None:
    """A finding in its own words; without one it is unknown, since two windows of one run have no step in common."""
    proposal = propose(Roadmap("train", RoadmapStage.AUDIT_AGAIN), recording(), tmp_path)
    evidence = (
        "by step 400 of job 'train' the loss is higher than that of its reference at equal steps, by 2.0% or more"
    )

    assert with_loss(proposal, [evidence]).measured == f"{proposal.measured}; {evidence}"
    assert "unknown" in with_loss(proposal, []).measured


def test_only_active_findings_of_the_job_s_loss_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of another job, or of another cause; the daemon leaves out what is over."""
    asked: list[str] = []

    def finding(name: str, subject: str = "train") -> dict[str, str]:
        return {"id": name, "subject": subject, "evidence": f"{name} of {subject}"}

    def fetched(url: str, path: str) -> dict[str, list[dict[str, str]]]:
        asked.append(path)
        names = [finding("learns-worse"), finding("learns-worse", "other"), finding("rank-missing")]
        return {"items": [*names, finding("replicas-apart")]}

    monkeypatch.setattr("timesyncd.client.api.fetch_part", fetched)

    found = roadmap._loss_findings(Namespace(url="http://127.0.0.1:1/", config=Path("none")), "train")

    assert found == ["learns-worse of train", "replicas-apart of train"]
    assert asked == ["findings?active=true&limit=1000"]


def test_each_step_has_a_measurement_and_a_command(tmp_path: Path) -> None:
    """The change is the one with the largest price that a command can make, else what a person does."""
    of = {stage: propose(Roadmap("train", stage), recording(), tmp_path) for stage in RoadmapStage}

    assert of[RoadmapStage.AUDIT].measured == "the hub has 300 steps of 2 ranks"
    assert of[RoadmapStage.AUDIT].command == ("audit", "--job", "train", "--out", f"{tmp_path}/before")
    assert of[RoadmapStage.DEPLOY].command == ("preflight", "--job", "train", "--max-alignment", "354us")
    assert of[RoadmapStage.MONITOR].measured.startswith("Synchronization costs ")
    assert of[RoadmapStage.MONITOR].command == ("advise", "train")
    assert of[RoadmapStage.OPTIMIZE].command == ("policy", "train", "local_sgd(h=4)")
    assert "saves " in of[RoadmapStage.OPTIMIZE].measured and "assumption: " in of[RoadmapStage.OPTIMIZE].measured
    assert "--before" in (of[RoadmapStage.AUDIT_AGAIN].command or ())

    slow = propose(Roadmap("train", RoadmapStage.OPTIMIZE), job(300, 4, late(3, 10 * MS, noisy())), tmp_path)
    assert slow.command is None and slow.proposes.startswith("do it yourself, and confirm then: ")
    none = propose(Roadmap("train", RoadmapStage.OPTIMIZE), job(30), tmp_path)
    assert (none.measured, none.proposes, none.command) == ("no change has a price", "change nothing", None)


def test_the_last_audit_waits_for_steps_of_after_the_change(tmp_path: Path) -> None:
    """Steps of before the change would count as those of after it."""
    walked = Roadmap("train", RoadmapStage.AUDIT_AGAIN, changed_after=363)

    assert propose(walked, recording(), tmp_path).blocked.startswith("300 steps are from before the change")
    assert propose(walked, recording(first=200), tmp_path).blocked.startswith("164 steps are from before the change")
    assert propose(walked, recording(first=364), tmp_path).blocked == ""


def test_nothing_is_done_without_a_confirmation(
    done: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that cannot be asked confirms by --yes; a no ends it with status 1."""
    run_fakes(monkeypatch, done)
    assert main(["roadmap", "train"]) == 1
    assert done == []
    printed = capsys.readouterr()
    assert "command:  timesyncd audit --job train --out timesyncd-roadmap/before" in printed.out
    assert "--yes confirms each step" in printed.err
    assert not Path("timesyncd-roadmap/roadmap.json").exists()


def test_a_name_in_a_proposal_is_text(
    done: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank chooses its host's name: the terminal on which the operator confirms gets no control character of it."""
    slow = job(60, 2, late(1, computing=noisy()))
    forged = replace(slow, ranks={rank: replace(each, node="\x1b[1A\x1b[2Kn") for rank, each in slow.ranks.items()})
    monkeypatch.setattr(roadmap, "_recording", lambda _: forged)
    roadmap._save(Path("timesyncd-roadmap") / roadmap._STATE, Roadmap("train", RoadmapStage.MONITOR))
    run_fakes(monkeypatch, done)

    assert main(["roadmap", "train"]) == 1
    printed = capsys.readouterr().out
    assert "Rank 1 on \\x1b[1A\\x1b[2Kn is persistently late" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_it_resumes_where_it_was(
    done: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops before the last audit until the window is new, goes on there, and begins again after it."""
    run_fakes(monkeypatch, done)
    assert main(["roadmap", "train", "--yes", "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [command[0] for command in done] == ["audit", "preflight", "advise", "policy"]
    assert [(line["stage"], line["confirmed"], line["status"]) for line in lines] == [
        ("audit", True, 0),
        ("deploy", True, 0),
        ("monitor", True, 0),
        ("optimize", True, 0),
        ("audit-again", False, None),
    ]
    monkeypatch.setattr(roadmap, "_recording", lambda _: recording(first=400))
    assert main(["roadmap", "train", "--yes"]) == 0
    assert [command[0] for command in done[4:]] == ["audit"]
    assert json.loads(Path("timesyncd-roadmap/roadmap.json").read_text()) == {
        "job": "train",
        "stage": "audit",
        "changed_after": None,
        "rounds": 1,
    }


def test_a_step_that_fails_is_done_again(done: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a hub, for example: the roadmap stays where it is."""
    run_fakes(monkeypatch, done, status=1)
    assert main(["roadmap", "train", "--yes"]) == 1
    assert [command[0] for command in done] == ["audit"]


def test_a_folder_of_another_job_is_rejected(
    done: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first audit is of that job."""
    run_fakes(monkeypatch, done)
    main(["roadmap", "train", "--yes"])
    assert main(["roadmap", "other", "--yes"]) == 2
    assert "is of job 'train': give another --out for 'other'" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["{", "[" * 100_000], ids=["partial", "nested"])
def test_a_state_that_is_none_is_one_error(
    state: str, done: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the file and what to do."""
    Path("timesyncd-roadmap").mkdir()
    Path("timesyncd-roadmap/roadmap.json").write_text(state)
    assert main(["roadmap", "train", "--yes"]) == 2
    assert "not a roadmap's state" in capsys.readouterr().err


def test_a_command_that_fails_is_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error is printed as the command itself prints it."""
    assert roadmap._run(("policy", "train", "no_such_policy")) == 1
    assert capsys.readouterr().err.startswith("timesyncd: ")
