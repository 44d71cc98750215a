"""The CSV of a trace: what is read from each cell, what is refused and how, and how a bound is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import ClockStatus
from timesyncd.errors import TraceError
from timesyncd.model.replay import (
    COLUMNS,
    REPLAYED_HEADER,
    Replay,
    ReplayedRow,
    TraceRow,
    read_trace,
    replayed_line,
    seconds_text,
)
from timesyncd.sample import PortState

HEADER = ",".join(COLUMNS)
STATES = "INITIALIZING, FAULTY, DISABLED, LISTENING, PRE_MASTER, MASTER, PASSIVE, UNCALIBRATED, SLAVE, GRAND_MASTER"
ROW = "1000.125,-12,9876,3456,SLAVE,true,6,33"


def rows(*lines: str, header: str = HEADER) -> list[tuple[str, TraceRow]]:
    return list(read_trace([header, *lines], "t.csv"))


def cell(column: str, text: str) -> object:
    """What the field that comes of `column` is, when this is written there."""
    cells = dict(zip(COLUMNS, ROW.split(","), strict=True)) | {column: text}
    ((_, row),) = rows(",".join(cells.values()))
    return row[COLUMNS.index(column)]


def error_of(*lines: str, header: str = HEADER) -> str:
    with pytest.raises(TraceError) as raised:
        rows(*lines, header=header)
    return str(raised.value)


def test_a_row_is_what_was_read() -> None:
    """Each column goes to its field, time in nanoseconds; the text of t_s stays as it was."""
    assert rows(ROW) == [
        ("1000.125", TraceRow(1_000_125_000_000, -12, 9_876, 3_456, PortState.SLAVE, True, 6, 33)),
    ]


def test_an_empty_cell_is_absent() -> None:
    """Absent is None, never 0."""
    assert rows("7,,,,,,,") == [("7", TraceRow(7_000_000_000, None))]


def test_columns_are_found_by_name() -> None:
    """In any order, with others between that count for nothing."""
    names, cells = [*reversed(COLUMNS), "note"], [*reversed(ROW.split(",")), "fine"]
    expected = rows(ROW)

    assert rows(",".join(cells), header=",".join(names)) == expected


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_byte_order_mark_and_other_line_ends_are_no_matter(end: str) -> None:
    """As a spreadsheet writes them; quotes and empty lines too."""
    quoted = ",".join(f'"{part}"' for part in ROW.split(","))

    assert rows(quoted + end, "", ROW + end, header="\ufeff" + HEADER + end) == rows(ROW, ROW)


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("t_s", "0", 0),
        ("t_s", "-0.5", -500_000_000),
        ("t_s", "1.7e3", 1_700_000_000_000),
        ("t_s", "1763751600.123456789", 1_763_751_600_123_456_789),
        ("t_s", "1.0000000009", 1_000_000_000),
        ("offset_ns", "-12.0", -12),
        ("offset_ns", "1e3", 1_000),
        ("offset_ns", " 5 ", 5),
        ("path_delay_ns", "0.6", 1),
        ("freq_ppb", "+7", 7),
        ("freq_ppb", " ", None),
        ("port_state", "GRAND_MASTER", PortState.MASTER),
        ("port_state", "PRE_MASTER", PortState.PRE_MASTER),
        ("gm_present", "FALSE", False),
        ("gm_present", "1", True),
        ("gm_present", "0", False),
        ("clock_class", "6.0", 6),
        ("clock_accuracy", "0x21", 0x21),
        ("clock_accuracy", "0XFE", 0xFE),
    ],
)
def test_a_cell_may_be_written_in_several_ways(column: str, text: str, expected: object) -> None:
    """Programs write numbers and flags differently; a time keeps each of its nanoseconds."""
    assert cell(column, text) == expected


@pytest.mark.parametrize(
    ("column", "text", "what"),
    [
        ("t_s", "", "is not a number"),
        ("t_s", "-", "is not a number"),
        ("t_s", ".", "is not a number"),
        ("t_s", "12:00", "is not a number"),
        ("t_s", "1.-5", "is not a number"),
        ("t_s", "nan", "is not a number"),
        ("t_s", "1e999999999", "is out of range"),
        ("t_s", "9223372037", "is out of range"),
        ("offset_ns", "12 ns", "is not a number"),
        ("offset_ns", "0x10", "is not a number"),
        ("offset_ns", "inf", "is not a number"),
        ("offset_ns", "\0", "is not a number"),
        ("offset_ns", "9223372036854775808", "is out of range"),
        ("path_delay_ns", "1e400", "is out of range"),
        ("freq_ppb", "--1", "is not a number"),
        ("port_state", "SLAVISH", f"is not one of {STATES}"),
        ("gm_present", "yes", "is not true or false"),
        ("clock_class", "256", "is not an integer from 0 to 255"),
        ("clock_class", "-1", "is not an integer from 0 to 255"),
        ("clock_accuracy", "0xZZ", "is not an integer from 0 to 255"),
    ],
)  # fmt: skip
def test_what_is_no_such_thing_is_refused(column: str, text: str, what: str) -> None:
    """The error names file, line, column and the value there."""
    cells = dict(zip(COLUMNS, ROW.split(","), strict=True)) | {"t_s": "2000"} | {column: text}

    assert error_of(ROW, ",".join(cells.values())) == f"t.csv:3: {column} = {text!r} {what}"


def test_a_long_cell_is_cut_in_the_error() -> None:
    """A binary file does not fill the screen."""
    assert error_of("x" * 5_000 + ROW) == f"t.csv:2: t_s = {'x' * 40!r}... is not a number"


def test_time_may_repeat_but_not_go_back() -> None:
    """Two rows of one moment are accepted; a row earlier than the last one is an error of the recorder."""
    earlier = ROW.replace("1000.125", "1000.124")

    assert len(rows(ROW, ROW)) == 2
    assert error_of(ROW, ROW, earlier) == "t.csv:4: t_s = '1000.124' goes back"


@pytest.mark.parametrize(("line", "cells"), [("1001.0,-12,98", 3), (ROW + ",", 9), ("\0", 1)])
def test_a_line_of_another_width_is_refused(line: str, cells: int) -> None:
    """As the last one of a recorder that was killed."""
    assert error_of(ROW, line) == f"t.csv:3: {cells} cells, where the header has 8: is the line cut off?"


@pytest.mark.parametrize("rest", [ROW, f'{ROW}"x'])
def test_an_open_quote_is_reported_where_it_was_opened(rest: str) -> None:
    """And not where the file ends."""
    message = error_of(ROW, "", f'"{ROW}', rest)

    assert message.startswith("t.csv:4: ")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", f"t.csv:1: no header; a trace begins with {HEADER}"),
        ("  ", f"t.csv:1: no header; a trace begins with {HEADER}"),
        ("t_s,offset_ns,path_delay_ns,freq_ppb,port_state,gm_present",
         f"t.csv:1: the header has no clock_class, clock_accuracy; a trace begins with {HEADER}"),
        (f"{HEADER},t_s", "t.csv:1: the header has t_s more than once"),
        (f'"{HEADER}', "t.csv:1: unexpected end of data"),
    ],
)  # fmt: skip
def test_a_header_that_is_none_is_refused(header: str, message: str) -> None:
    """At once, with all that is missing."""
    with pytest.raises(TraceError) as raised:
        read_trace([header], "t.csv")

    assert str(raised.value) == message


def test_no_line_at_all_is_no_trace() -> None:
    """The error for an empty file states what a trace begins with."""
    with pytest.raises(TraceError) as raised:
        read_trace([], "t.csv")

    assert str(raised.value) == f"t.csv:1: no header; a trace begins with {HEADER}"


def test_a_row_is_given_before_the_next_line_is_asked_for() -> None:
    """Else a row that comes by itself would wait for the next one."""
    asked: list[str] = []

    def lines() -> Iterator[str]:
        for line in (HEADER, ROW, ROW):
            asked.append(line)
            yield line

    found = read_trace(lines(), "t.csv")
    next(found)

    assert asked == [HEADER, ROW]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((1, 2, 3, 4), "1000.125,HOLDOVER,1,2,3,4\n"),
        ((0, 0, None, None), "1000.125,HOLDOVER,0,0,,\n"),
        ((None, None, None, None), "1000.125,HOLDOVER,,,,\n"),
    ],
)
def test_an_unbounded_bound_is_an_empty_cell(bounds: tuple[int | None, ...], expected: str) -> None:
    """0 is a bound, and no bound is nothing."""
    row = ReplayedRow(1_000_125_000_000, ClockStatus.HOLDOVER, *bounds)

    assert replayed_line("1000.125", row) == expected


def test_the_header_names_what_a_line_holds() -> None:
    """The names are those of the row's fields."""
    assert REPLAYED_HEADER.strip().split(",") == ["t_s", *ReplayedRow._fields[1:]]


def test_unix_time_is_written_to_the_nanosecond() -> None:
    """No float on the way."""
    assert seconds_text(1_763_751_600_000_000_001) == "1763751600.000000001"


@given(st.lists(st.text(max_size=60), max_size=6), st.booleans())
def test_whatever_the_lines_are_rows_or_a_trace_error_come(lines: list[str], headed: bool) -> None:
    """Nothing else escapes, and what is read can be replayed."""
    replay = Replay()
    try:
        for _, row in read_trace([HEADER, *lines] if headed else lines, "t.csv"):
            replay.accept(row)
    except TraceError as error:
        assert str(error).startswith("t.csv:")


numbers = st.one_of(st.just(""), st.integers(-(2**63), 2**63).map(str), st.floats(allow_nan=False).map(str))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**11),
            *[numbers] * 3,
            st.sampled_from(["", *(state.name for state in PortState)]),
            st.sampled_from(["", "true", "false"]),
            st.integers(-1, 256),
            st.integers(-1, 256),
        ),
        max_size=30,
    )
)
def test_the_model_accepts_any_numbers(table: list[tuple[object, ...]]) -> None:
    """A trace of nonsense that can be read gives a row for each row."""
    lines, t_ns = [], 0
    for gap_ns, *cells in table:
        t_ns += int(str(gap_ns))
        lines.append(",".join(map(str, (seconds_text(t_ns), *cells))))
    replay, taken = Replay(), 0
    try:
        for _, row in read_trace([HEADER, *lines], "t.csv"):
            assert replay.accept(row).t_ns == row.t_ns
            taken += 1
    except TraceError as error:
        taken = int(str(error).split(":")[1]) - 2

    assert taken <= len(lines)
