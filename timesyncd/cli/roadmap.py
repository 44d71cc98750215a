"""Walk a running job through audit, deploy, monitor, optimize and audit; nothing is done before you confirm it."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from io import StringIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from timesyncd.cli import advise, audit, policy, preflight
from timesyncd.cli._common import (
    DEFAULT_CONFIG,
    add_config_argument,
    add_url_argument,
    audit_extra_is_missing,
    job_url,
)
from timesyncd.cli._log_output import print_error, print_lines
from timesyncd.client.files import read_file
from timesyncd.errors import ConfigError, Refused, TimesyncdError, TraceError

if TYPE_CHECKING:
    from timesyncd.audit.report import AdviceReport
    from timesyncd.jobs.recording import Recording

EXAMPLES = ("timesyncd roadmap llama", "timesyncd roadmap llama --yes --json")

_STATE = "roadmap.json"

#: Clocks that agree within this part of a step separate the ranks' arrivals well.
_CLOCKS_PART = 0.01

#: After so many steps, 41 at most, a requested policy is in force.
_STEPS_UNTIL_CHANGED = 64


class RoadmapStage(StrEnum):
    """The steps of a roadmap, in their order."""

    AUDIT = "audit"
    DEPLOY = "deploy"
    MONITOR = "monitor"
    OPTIMIZE = "optimize"
    AUDIT_AGAIN = "audit-again"


_ORDER = tuple(RoadmapStage)


@dataclass(frozen=True, slots=True)
class Roadmap:
    """
    How far a job is. `changed_after`: the key of the last step that may have been made before the change; None: no
    command changed the job. `rounds`: how often the roadmap was walked to its end.
    """

    job: str
    stage: RoadmapStage = RoadmapStage.AUDIT
    changed_after: int | None = None
    rounds: int = 0

    def advanced(self) -> Roadmap:
        """At the next step; after the last one at the first again."""
        following = _ORDER.index(self.stage) + 1
        if following < len(_ORDER):
            return replace(self, stage=_ORDER[following])
        return Roadmap(self.job, rounds=self.rounds + 1)


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    What a step measured, and what it proposes: the arguments of a command of timesyncd, or, where no command can do it,
    what you do yourself. `blocked`: why the step cannot be done now; empty: it can.
    """

    stage: RoadmapStage
    measured: str
    proposes: str
    command: tuple[str, ...] | None = None
    blocked: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a running job, by its name or id")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("timesyncd-roadmap"),
        metavar="DIR",
        help="folder of the reports and of how far the roadmap is (default: %(default)s)",
    )
    parser.add_argument("--yes", action="store_true", help="confirm each step, for tests and programs")
    parser.add_argument("--json", action="store_true", help="print each step as a line of JSON")
    add_url_argument(parser)
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0: walked to the end; 1: a step was not confirmed, failed or has to wait; 2: an unknown job, or no audit extra."""
    if audit_extra_is_missing("roadmap"):
        return 2
    roadmap = _load(args.out / _STATE, args.job)
    while True:
        try:
            recording = _recording(args)
        except (TraceError, Refused) as error:
            print_error(f"timesyncd: {error}")
            return 2
        proposal = propose(roadmap, recording, args.out)
        if proposal.stage in _STAGES_WITH_LOSS:
            proposal = with_loss(proposal, _loss_findings(args, recording.job))
        if not _done(proposal, args):
            return 1
        if roadmap.stage is RoadmapStage.OPTIMIZE and proposal.command is not None:
            roadmap = replace(roadmap, changed_after=max(recording.step_keys, default=0) + _STEPS_UNTIL_CHANGED)
        is_last = roadmap.stage is RoadmapStage.AUDIT_AGAIN
        roadmap = roadmap.advanced()
        _save(args.out / _STATE, roadmap)
        if is_last:
            return 0


def propose(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    """What the roadmap's step measures in the job's newest steps, and what it proposes."""
    measuring = {
        RoadmapStage.AUDIT: _audit,
        RoadmapStage.DEPLOY: _deploy,
        RoadmapStage.MONITOR: _monitor,
        RoadmapStage.OPTIMIZE: _optimize,
        RoadmapStage.AUDIT_AGAIN: _audit_again,
    }
    return measuring[roadmap.stage](roadmap, recording, out)


#: The findings that show that a job learns worse, or not at all.
_OF_LOSS = frozenset({"learns-worse", "loss-not-finite", "replicas-apart"})

_STAGES_WITH_LOSS = (RoadmapStage.MONITOR, RoadmapStage.AUDIT_AGAIN)


def with_loss(proposal: Proposal, evidence: Sequence[str]) -> Proposal:
    """
    With what the hub reports about the loss. Two windows of one run have no step in common, so they do not show whether
    a change made it worse: a reference run does.
    """
    unknown = "how it learns is unknown to the hub unless it has a reference: synchronized(..., reference=FOLDER) compares each step with a former run"
    return replace(proposal, measured="; ".join([proposal.measured, *(evidence or [unknown])]))


def _loss_findings(args: Namespace, job: str) -> list[str]:
    """The evidence of the active findings about the job's loss and its parameters. Raises Unreachable."""
    from timesyncd.client.api import fetch_part

    found = fetch_part(job_url(args), "findings?active=true&limit=1000")["items"]
    return [each["evidence"] for each in found if each["id"] in _OF_LOSS and each["subject"] == job]


def _audit(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    measured = f"the hub has {len(recording.step_keys):,} steps of {recording.world_size} ranks"
    command = ("audit", "--job", roadmap.job, "--out", str(out / "before"))
    return Proposal(
        RoadmapStage.AUDIT, measured, "report what synchronization costs now, and keep it to compare with", command
    )


def _deploy(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    nodes = len(set(recording.nodes.values()))
    measured = f"the ranks are on {nodes} node{'' if nodes == 1 else 's'}"
    limit_us = max(1, round(_step_ns(recording) * _CLOCKS_PART / 1000))
    command = ("preflight", "--job", roadmap.job, "--max-alignment", f"{limit_us}us")
    return Proposal(
        RoadmapStage.DEPLOY,
        measured,
        "check that the clocks of these nodes agree within a hundredth of a step",
        command,
    )


def _step_ns(recording: Recording) -> float:
    """The median duration of a rank's step; 0: no step is recorded."""
    spans = [mark.end_ns - mark.arrival_ns for marks in recording.steps.values() for mark in marks]
    return median(spans) if spans else 0.0


def _monitor(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    from timesyncd.audit.build import report
    from timesyncd.audit.measured import measured

    command = ("advise", roadmap.job)
    return Proposal(RoadmapStage.MONITOR, report(measured(recording)).headline, "price what could be changed", command)


def _optimize(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    from timesyncd.audit.build import advice_for
    from timesyncd.audit.headline import percent
    from timesyncd.audit.measured import measured

    priced = [one for one in advice_for(measured(recording)).advice if one.gain is not None]
    if not priced:
        return Proposal(RoadmapStage.OPTIMIZE, "no change has a price", "change nothing")
    best = priced[0]
    assert best.gain is not None
    found = f"{best.title}: saves {percent(best.gain.value)} of the time; assumption: {best.assumption}"
    wanted = _policy_of(best)
    if wanted is None:
        return Proposal(RoadmapStage.OPTIMIZE, found, f"do it yourself, and confirm then: {best.action}")
    return Proposal(
        RoadmapStage.OPTIMIZE, found, "change the policy of the running job", ("policy", roadmap.job, wanted)
    )


def _policy_of(advice: AdviceReport) -> str | None:
    """The policy that carries out this advice in a running job; None: no command can."""
    from timesyncd.audit.report import AdviceKind

    return {AdviceKind.HALF_PRECISION: "bsp + fp16", AdviceKind.LOCAL_STEPS: "local_sgd(h=4)"}.get(advice.kind)


def _audit_again(roadmap: Roadmap, recording: Recording, out: Path) -> Proposal:
    after = -1 if roadmap.changed_after is None else roadmap.changed_after
    old = sum(key <= after for key in recording.step_keys)
    command = (
        "audit",
        "--job",
        roadmap.job,
        "--before",
        str(out / "before/recording.json"),
        "--out",
        str(out / "after"),
    )
    return Proposal(
        RoadmapStage.AUDIT_AGAIN,
        f"{len(recording.step_keys) - old:,} of the hub's {len(recording.step_keys):,} steps are from after the change",
        "compare the job with the first audit",
        command,
        f"{old:,} steps are from before the change: call this again when they have left the hub's window"
        if old
        else "",
    )


def _done(proposal: Proposal, args: Namespace) -> bool:
    """Whether the step was confirmed, and done."""
    command = None if proposal.command is None else (*proposal.command, *_page(args))
    shown = None if command is None else shlex.join(("timesyncd", *command))
    if not args.json:
        lines = [f"{proposal.stage}: {proposal.measured}", f"  proposes: {proposal.proposes}"]
        print_lines(lines if shown is None else [*lines, f"  command:  {shown}"])
    confirmed = not proposal.blocked and (args.yes or _confirmed())
    output = StringIO()
    status = 1
    if confirmed:
        with redirect_stdout(output if args.json else sys.stdout):
            status = 0 if command is None else _run(command)
    if args.json:
        line: dict[str, Any] = asdict(proposal) | {"command": shown, "confirmed": confirmed}
        print(json.dumps(line | {"status": status if confirmed else None, "output": output.getvalue()}))
    elif proposal.blocked:
        print(f"  not yet: {proposal.blocked}")
    # Advice without a price is an answer, not a failure.
    return confirmed and (
        status == 0 or (status == 1 and proposal.stage in (RoadmapStage.DEPLOY, RoadmapStage.MONITOR))
    )


def _page(args: Namespace) -> Sequence[str]:
    """The place of the daemon, as this command got it."""
    url = () if args.url is None else ("--url", str(args.url))
    return url if args.config == Path(DEFAULT_CONFIG) else (*url, "--config", str(args.config))


def _confirmed() -> bool:
    """Whether a person at the terminal says so. Without a terminal nothing is confirmed."""
    if not sys.stdin.isatty():
        print("timesyncd: not confirmed: standard input is no terminal; --yes confirms each step", file=sys.stderr)
        return False
    return input("  go on? [y/N] ").strip().lower() in ("y", "yes")


_COMMANDS = {"audit": audit, "preflight": preflight, "advise": advise, "policy": policy}


def _run(command: Sequence[str]) -> int:
    """The exit status of a command of timesyncd."""
    module = _COMMANDS[command[0]]
    parser = ArgumentParser(prog=f"timesyncd {command[0]}")
    module.add_arguments(parser)
    try:
        status: int = module.run(parser.parse_args(command[1:]))
        return status
    except TimesyncdError as error:
        print_error(f"timesyncd: {error}")
        return 1


def _recording(args: Namespace) -> Recording:
    from timesyncd.jobs.recording_files import recording_of

    return recording_of(job_url(args), args.job)


def _load(path: Path, job: str) -> Roadmap:
    """How far this job is; at the begin where nothing is known. Raises ConfigError for another job's folder."""
    try:
        state = json.loads(read_file(path))
        found = Roadmap(state["job"], RoadmapStage(state["stage"]), state["changed_after"], state["rounds"])
    except FileNotFoundError:
        return Roadmap(job)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a roadmap's state ({error}): remove it, or give another --out") from error
    if found.job != job:
        raise ConfigError(f"{path} is of job {found.job!r}: give another --out for {job!r}")
    return found


def _save(path: Path, roadmap: Roadmap) -> None:
    from timesyncd.audit.html import write_whole

    write_whole(path, json.dumps(asdict(roadmap)) + "\n")
