"""A valid message with an extreme number ends nothing: what a daemon computes of it can be published and written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from extreme_messages import BASES, EPOCH, extremes, job_state, receive

from timesyncd.daemon.job_socket import signals_of
from timesyncd.ipc.job_segment import JobWriter, encode_segment
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import Message


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_no_number_in_a_message_ends_the_daemon(base: Message) -> None:
    """
    A node's, grandmaster's, job's and hub's state, and marks: received, then published, judged, shown and scraped.
    """
    count = 0
    for message in extremes(base):
        count += 1
        receive([message])
    assert count > 20


def test_a_job_s_state_is_written_to_the_segment_of_its_ranks(tmp_path: Path) -> None:
    """Whatever numbers the hub of another version publishes: each fits its word."""
    writer = JobWriter(tmp_path / "segment", EPOCH)
    for state in extremes(job_state()):
        assert isinstance(state, JobState)
        signals = signals_of(state, "node-0")
        writer.write(1, signals, state.plan)
        assert encode_segment(EPOCH, 1, signals, state.plan)
    writer.close()
    assert os.listdir(tmp_path) == ["segment"]
