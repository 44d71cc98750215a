"""Decoding messages fast: what pydantic accepts, refuses and makes of it, exactly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from wire import hub_state, marks, node_state

from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.messages.decoding import FastDecoder
from timesyncd.messages.fleet import HistoryBatch, HubState
from timesyncd.messages.jobs import JobState, MarkBatch, RankState
from timesyncd.messages.node import BoundMessage, Message, NodeState, SourceState

bound = BoundMessage(bound_ns=1_900, growth_ppb=1_250, reason="")
source = SourceState(name="ptp", driver="ptp4l", reachable=True, kind="ptp", gm=bound, offset_ns=-40, refuted={"x": 1})
full_state = node_state().model_copy(
    update={"gm": bound, "utc": bound, "sources": [source, source], "terms": {"offset": 40}, "age_ns": 5}
)
mark = Mark(1, 0, Kind.BARRIER, 1, 2, 3, 8)
full_marks = marks(1).model_copy(update={"marks": [mark, mark]})


def job_state() -> JobState:
    null = (
        "step",
        "sync_overhead",
        "arrival_skew_ns",
        "arrival_skew_p50_ns",
        "last_rank",
        "straggler_rank",
        "arrival_skew_error_ns",
    )
    zero = ("attempt", "uid", "world_size", "published_realtime_ns", "steps_complete", "steps_incomplete")
    rank = dict.fromkeys(("wait_p50_ns", "wait_total_ns", "last_share", "lateness_p50_ns"))
    ranks = [rank | {"rank": 0, "node": "n1", "marks_lost": 0, "clock_status": "UNKNOWN"}]
    return JobState.model_validate(
        dict.fromkeys((*null, "alignment_ns", "alignment_growth_ppb"))
        | dict.fromkeys(zero, 0)
        | {"node": "n1", "incarnation": 1, "sequence": 1, "job_id": "0123456789abcdef", "job": "j"}
        | {"verdict": "", "verdict_code": "straggler", "alignment_reason": "", "ranks": ranks, "plan": {}}
    )


MESSAGES: list[Message] = [node_state(), full_state, marks(1), full_marks, hub_state(), job_state()]
DECODERS: dict[type[Message], FastDecoder[Any]] = {
    each: FastDecoder(each) for each in (NodeState, MarkBatch, HubState, JobState)
}


def outcome(decode: Any, payload: bytes) -> object:
    """The message, or each error's place and sentence."""
    try:
        return decode(payload)
    except ValidationError as error:
        return [(each["loc"], each["msg"]) for each in error.errors(include_url=False)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(type(message).__name__))
def test_a_message_is_decoded_to_its_equal(message: Message) -> None:
    """Nested messages, defaults, enumerations and the JSON that it gives again."""
    for payload in (message.model_dump_json(), message.model_dump_json(exclude_defaults=True)):
        made = DECODERS[type(message)].decode(payload.encode())
        wanted = type(message).model_validate_json(payload)

        assert made == wanted
        assert made.model_dump_json() == message.model_dump_json()
        assert made.model_dump_json(exclude_unset=True) == wanted.model_dump_json(exclude_unset=True)
        assert (
            made.model_copy(update={"sequence": 7}).model_dump()
            == wanted.model_copy(update={"sequence": 7}).model_dump()
        )


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.sampled_from(["1", "ok", "SYNCHRONIZED", 2**63, 2**63 - 1, 2**62, -1, [], {}, [{}], {"a": 1}]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, child in inner for each in places(child, (*path, key)))]


@given(st.sampled_from(MESSAGES), st.data())
def test_a_changed_message_is_accepted_or_refused_alike(message: Message, data: st.DataObject) -> None:
    """Any value in any place, or none: the same message, or the same error at the same place."""
    document = json.loads(message.model_dump_json())
    *parents, last = data.draw(st.sampled_from(places(document)[1:]))
    target = document
    for key in parents:
        target = target[key]
    if data.draw(st.booleans()):
        target[last] = data.draw(values)
    else:
        del target[last]
    payload = json.dumps(document).encode()

    assert outcome(DECODERS[type(message)].decode, payload) == outcome(type(message).model_validate_json, payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_alike(payload: bytes) -> None:
    """What is no JSON, or no object."""
    assert outcome(DECODERS[NodeState].decode, payload) == outcome(NodeState.model_validate_json, payload)


def test_messages_with_validators_are_left_to_pydantic() -> None:
    """Their validators would not run."""
    with pytest.raises(TypeError, match="HistoryRow has validators of its own"):
        FastDecoder(HistoryBatch)
    assert RankState.model_fields  # the nested message of a job's state, which has none


@pytest.mark.parametrize(
    ("kind", "decode"), [("state", FastDecoder(NodeState).decode), ("marks", MarkBatch.model_validate_json)]
)
def test_a_decoder_keeps_no_text_of_a_message(kind: str, decode: Callable[[bytes], Message]) -> None:
    """A flood has thousands of names: what is kept of each pins a page of memory, long after the names are forgotten."""
    message = json.loads((full_state if kind == "state" else full_marks).model_dump_json())
    payloads = [json.dumps(message | {"node": f"{kind}-{number}"}).encode() for number in range(5_000)]
    decode(payloads[0])
    before = sys.getallocatedblocks()
    for payload in payloads:
        decode(payload)

    assert sys.getallocatedblocks() - before < 500
