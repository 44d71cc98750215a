"""The calls that no mark shows: how they are read, summed over the ranks, and written for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from timesyncd.jobs.issued_calls import CallKind, IssuedCallCounts, parse_calls, read_calls, sum_calls, unmetered_text


def test_the_ranks_files_are_summed(tmp_path: Path) -> None:
    """A file that a killed rank did not finish, and what is none, is left out; and a folder without any gives nothing."""
    assert read_calls(tmp_path) is None
    for rank in range(2):
        content = {"metered": 30, "unmetered": [["send", 4, None, 8], ["all_reduce", 2, "tp", rank]]}
        content |= {"beside": 5} if rank else {}  # older clients write none
        (tmp_path / f"rank-{rank}-1.calls").write_text(json.dumps(content))
    (tmp_path / "rank-2-1.calls").write_text('{"metered": 3')
    os.mkfifo(tmp_path / "rank-3-1.calls")

    assert read_calls(tmp_path) == IssuedCallCounts(
        60, {CallKind("send", 4, None): 16, CallKind("all_reduce", 2, "tp"): 1}, 5
    )


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        '{"unmetered": []}',
        '{"metered": 1, "unmetered": [["send", 4, 1]]}',
        '{"metered": true, "unmetered": []}',
        '{"metered": -1, "unmetered": []}',
        '{"metered": 1, "unmetered": [["<b>", 4, null, 1]]}',
        '{"metered": 1, "unmetered": [["send", 4, null, 1e300]]}',
        '{"metered": 1, "unmetered": [["send", 4, "<b>", 1]]}',
        '{"metered": 1, "unmetered": 7}',
        '{"metered": 1, "unmetered": [], "beside": -1}',
        "\xff",
        "[" * 100_000,
    ],
)
def test_what_no_rank_writes_is_refused(content: str) -> None:
    """Any user can write into such a folder."""
    with pytest.raises(ValueError, match=".+"):
        parse_calls(content.encode("latin-1"))


@pytest.mark.parametrize(("unmetered", "is_account"), [(0, True), (1, True), (2, False)])
def test_one_call_in_a_hundred_may_be_without_a_mark(unmetered: int, is_account: bool) -> None:
    """Beyond that the marks are no account of the job."""
    assert IssuedCallCounts(100, {CallKind("send", 2, None): unmetered}).is_account is is_account
    assert IssuedCallCounts().is_account


def test_the_sentence_begins_with_the_most_frequent() -> None:
    """A message is between two ranks, whatever the size of the group; a group of a mesh has the name of its dimension."""
    counts = sum_calls([IssuedCallCounts(0, {CallKind("all_reduce", 2, "tp"): 96, CallKind("send", 8, None): 1412})])

    assert unmetered_text(counts) == "send: 1,412 calls, all_reduce in tp groups of 2 ranks: 96 calls"
    many = IssuedCallCounts(0, {CallKind("broadcast", size, None): 1 for size in range(2, 10)})
    assert unmetered_text(many).endswith("in groups of 7 ranks: 1 calls, and others")
