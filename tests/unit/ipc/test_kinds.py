"""The table of the kinds of marks: a kind that is added there is known to every reader."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from timesyncd.ipc.job_datagram import Kind, Trait, kind_text, kinds_with

#: Adds one row to the table before any reader imports it.
WITH_ONE_MORE = """
import importlib.util, re, sys
from pathlib import Path
spec = importlib.util.find_spec("timesyncd.ipc.job_datagram")
source = Path(spec.origin).read_text()
rows = [line for line in source.splitlines(keepends=True) if re.match(r'    [A-Z_]+ = \\d+, "', line)]
last, number = rows[-1], len(rows)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(source.replace(last, last + f"    NEW = {number}, 'new', %s\\n"), spec.origin, "exec"), module.__dict__)
new = int(module.Kind.NEW)
sys.path[:0] = ["tests/support"]
"""


def run(traits: str, check: str) -> None:
    program = WITH_ONE_MORE % traits + textwrap.dedent(check)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_new_collective_is_known_to_every_reader() -> None:
    """The hub joins it over all ranks, the rank counts its wait, and the analysis compares, names, checks and aligns by it."""
    run(
        "Trait.COMPLETE_COLLECTIVE | Trait.CLOCK_EVIDENCE | Trait.EQUAL_SIZES | Trait.BUCKET",
        """
        from dataclasses import replace

        import batches
        from timesyncd.audit import buckets
        from timesyncd.client.local import LocalSums
        from timesyncd.jobs import causality, collective_ends, recording_files
        from timesyncd.jobs.joining import Jobs
        from timesyncd.jobs.stragglers import position_text
        from timesyncd.client.torch.collectives import _EQUAL_SIZES

        jobs = Jobs(100)
        for rank in (0, 1):
            jobs.accept(batches.batch(rank, replace(batches.mark(5), kind=new)), 0)
        jobs.advance(0)
        (job,) = jobs
        (sync,) = job.window
        assert (sync.kind, sorted(sync.arrivals), sync.comparison is not None) == (new, [0, 1], True)
        assert position_text((new, 1)) == "new 1"
        own = LocalSums()
        own.add_all([(1, 0, new, 100, 110, 200, 8), (2, 0, new, 300, 310, 400, 8)])
        assert own.signals().wait_step_ns == 90
        assert new in causality.CLOCK_EVIDENCE and new in causality.NEEDS_ALL_RANKS
        assert new in collective_ends.NEEDS_ALL_RANKS
        assert new in recording_files.COLLECTIVES
        assert new in buckets._BUCKETS
        assert new in _EQUAL_SIZES
        """,
    )


def test_a_new_kind_of_request_and_of_message_is_known_to_every_reader() -> None:
    """A request counts as a wait and a response; a message is joined by its number."""
    run(
        "Trait.REQUEST | Trait.WAITED_FOR | Trait.IN_STEP",
        """
        from dataclasses import replace

        import batches
        from timesyncd.client.local import LocalSums
        from timesyncd.jobs import recording_files
        from timesyncd.jobs.joining import Jobs

        jobs = Jobs(100)
        jobs.accept(batches.batch(0, replace(batches.mark(5), kind=new, begin_ns=100, end_ns=190)), 0)
        (job,) = jobs
        assert list(job.flows.responses) == [90]
        assert new in recording_files.REQUESTS
        own = LocalSums()
        own.add_all([(1, 0, new, 100, 100, 190, 8)])
        assert own.signals().response_p50_ns == 90
        """,
    )


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_has_a_label_and_consistent_traits(kind: Kind) -> None:
    """What needs all ranks is a collective, evidence against a clock needs all ranks, and what is waited for is kept by step."""
    assert kind.label
    assert kind_text(int(kind)) == kind.label
    assert Trait.NEEDS_ALL_RANKS not in kind.traits or Trait.COLLECTIVE in kind.traits
    assert Trait.CLOCK_EVIDENCE not in kind.traits or Trait.NEEDS_ALL_RANKS in kind.traits
    assert Trait.WAITED_FOR not in kind.traits or Trait.IN_STEP in kind.traits


def test_an_unknown_number_is_named_by_it() -> None:
    """A newer rank may send a kind that this version has no name for."""
    assert kind_text(99) == "kind 99"


def test_a_collective_is_waited_for_and_kept_by_step() -> None:
    """Every collective counts as synchronization overhead."""
    assert kinds_with(Trait.COLLECTIVE) <= kinds_with(Trait.WAITED_FOR) & kinds_with(Trait.IN_STEP)
