"""A trace's JSON, read in pieces: the same as read at once, and an error names the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from trace_files import trace_text

from timesyncd.errors import TraceError
from timesyncd.traces.reader import EVENTS, event_span, read_trace

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TRACES = st.fixed_dictionaries(
    {EVENTS: st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=5)}, optional={"a": VALUES, "b": VALUES}
)


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def joined(found: list[tuple[str, Any]]) -> dict[str, Any]:
    others = {key: value for key, value in found if key != EVENTS}
    return others | {EVENTS: [value for key, value in found if key == EVENTS]}


@given(TRACES, st.integers(1, 60), st.sampled_from([None, 2]))
def test_the_pieces_do_not_matter(trace: dict[str, Any], size: int, indent: int | None) -> None:
    """However the text is divided, the reader returns what the standard reader returns."""
    text = json.dumps(trace, indent=indent)

    assert joined(list(read_trace(iter(pieces(text, size)), "t"))) == trace


@pytest.mark.parametrize("number", ["1.5e-3", "-0.25", "1E+20", "12"])
def test_a_number_is_complete_wherever_it_is_divided(number: str) -> None:
    """The standard reader takes "1.5" of "1.5e" for a number."""
    text = f'{{"a": {number}, "traceEvents": [{{"b": {number}}}]}}'

    for size in range(1, len(text)):
        assert joined(list(read_trace(iter(pieces(text, size)), "t"))) == json.loads(text)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_truncated_file_is_rejected(size: int) -> None:
    """The standard reader accepts "1.5" of "1.5e" as a number."""
    text = trace_text(0)[:2_000]
    for end in range(0, len(text), 13):
        with pytest.raises(TraceError, match=r"^cut\.json: character \d+: "):
            list(read_trace(iter(pieces(text[:end], size)), "cut.json"))


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "[]", "null", "{}", '{"traceEvents": {}}', '{"traceEvents": [1]}', '{"traceEvents": [{}}', '{"traceEvents": []} x',
        '{"a": 1 "traceEvents": []}', '{traceEvents: []}', '{"a": [1, }, "traceEvents": []}', "\x1f\x8b", '{"traceEvents": [{}, ]}',
        '{"traceEvents": [{"a": ' + "[" * 100_000 + "]}", '{"traceEvents": [{"a": ' + "9" * 5_000 + "}]}",
    ],
)  # fmt: skip
def test_what_is_not_a_trace_is_rejected(text: str) -> None:
    """No other exception than the one that names the file."""
    with pytest.raises(TraceError, match=r"^bad\.json: character \d+: "):
        list(read_trace(iter([text]), "bad.json"))


def test_nan_becomes_null() -> None:
    """NaN, which some profilers write, would make the merged file unreadable; it becomes null."""
    found = list(read_trace(iter(['{"traceEvents": [{"args": {"x": NaN, "y": -Infinity}}]}']), "t"))

    assert found == [(EVENTS, {"args": {"x": None, "y": None}})]


@given(st.integers(0, 2**43 - 1), st.integers(0, 999), st.integers(0, 2**30), st.integers(0, 999))
@example(4_486_670_879_772, 11, 0, 1)
def test_times_are_read_to_the_nanosecond(us: int, ns: int, dur_us: int, dur_ns: int) -> None:
    """As PyTorch writes them, microseconds with three decimals: a time off by 1 ns would overlap the event around it."""
    event = json.loads(f'{{"ts": {us}.{ns:03d}, "dur": {dur_us}.{dur_ns:03d}}}')

    begin_ns = 7 + us * 1_000 + ns
    assert event_span(event, 7, "t") == (begin_ns, begin_ns + dur_us * 1_000 + dur_ns)
