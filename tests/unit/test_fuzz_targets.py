"""The fuzzers' targets: each takes its seeds, reports bad input as its parser does, and lets a fault through."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))

from run import Run, measured, table
from targets import TARGETS, Target

from timesyncd.errors import Malformed


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_begins_from_an_input_that_it_takes(target: Target) -> None:
    """A parser that refuses all seeds would be fuzzed no deeper than its first check."""
    seeds = list(target.seeds())

    assert seeds
    assert any(target(seed) for seed in seeds)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_broken_seeds_are_taken_or_reported(target: Target) -> None:
    """Cut at each octet, and with each of the first octets changed: nothing but the parser's own errors."""
    for seed in list(target.seeds())[:3]:
        for at in range(min(len(seed), 80)):
            target(seed[:at])
            target(seed[:at] + bytes([seed[at] ^ 0xFF]) + seed[at + 1 :])


def test_an_error_that_no_parser_may_raise_is_a_fault() -> None:
    """It is not caught, so that the fuzzer stops and keeps the input."""

    def run(data: bytes) -> object:
        if data == b"bad":
            raise Malformed("as expected")
        raise KeyError(data)

    target = Target("broken", run, lambda: [b""])

    assert target(b"bad") is False
    with pytest.raises(KeyError):
        target(b"worse")


OUTPUT = """INFO: Running with entropic power schedule
#2	INITED cov: 40 ft: 41 corp: 1/1b exec/s: 0 rss: 60Mb
#700	NEW    cov: 55 ft: 60 corp: 2/3b lim: 4 exec/s: 0 rss: 60Mb
#1024	pulse  cov: 55 ft: 60 corp: 2/3b lim: 4 exec/s: 512 rss: 60Mb
#1900	REDUCE cov: 58 ft: 66 corp: 3/9b lim: 8 exec/s: 600 rss: 61Mb
#2000	DONE   cov: 58 ft: 66 corp: 3/9b lim: 8 exec/s: 600 rss: 61Mb
"""


def test_a_run_counts_executions_and_the_edges_of_its_last_quarter() -> None:
    """Edges that still come late show that more time would find more."""
    assert measured("parser", OUTPUT, 10.0, 0) == Run("parser", 2_000, 10.0, 58, 3, 0)


def test_a_run_that_never_began_has_no_executions() -> None:
    """So it is reported as failed, and not as clean."""
    assert measured("parser", "ImportError: no such module", 1.0, 1) == Run("parser", 0, 1.0, 0, 0, 1)


def test_the_table_adds_up_the_runs_of_a_target() -> None:
    """Executions and faults of all runs, rate and edges of the newest."""
    runs = [Run("parser", 1_000, 1.0, 50, 9, 1), Run("parser", 3_000, 2.0, 58, 3, 0)]
    head, line = table([Run.parse(str(run)) for run in runs])

    assert head.split()[0] == "target"
    assert line.split() == ["parser", "4,000", "1,500", "58", "3", "1"]
