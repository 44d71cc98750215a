"""Dumps of torch's flight recorder, as pickles and JSON: real ones' form, hostile ones, broken ones."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import TraceError
from timesyncd.traces.flight_recorder import load_dump, read_flight_recorder
from timesyncd.traces.operations import Communication, RankTrace, UnusableTrace

NOW_NS = 1_795_690_054_000_000_000


def entry(number: int, name: str = "nccl:all_reduce", ended: bool = True, **changes: Any) -> dict[str, Any]:
    """As version 2.10 writes an entry."""
    begin_ns = NOW_NS + number * 10_000_000
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": begin_ns,
        "time_discovered_started_ns": begin_ns if ended else None,
        "time_discovered_completed_ns": begin_ns + 2_000_000 if ended else None,
        "input_sizes": [[1000]],
        "state": "completed" if ended else "scheduled",
        "is_p2p": False,
    } | changes


def dump(entries: list[dict[str, Any]]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def test_a_pickle_and_json_say_the_same() -> None:
    """Both forms give the rank's communications, with the group's ranks and the numbers of the calls."""
    whole = dump([entry(1), entry(2, "nccl:send 0->1", is_p2p=True)])

    packed = read_flight_recorder(pickle.dumps(whole), "out/nccl_trace_rank_0")
    plain = read_flight_recorder(json.dumps(whole).encode(), "out/nccl_trace_rank_0")

    assert isinstance(packed, RankTrace) and isinstance(plain, RankTrace)
    assert packed.communications == plain.communications
    assert packed.communications[0] == Communication(
        "all_reduce", "0", (0, 1), 1, NOW_NS + 10_000_000, NOW_NS + 12_000_000
    )
    assert [(each.kind, each.ranks) for each in packed.communications] == [("all_reduce", (0, 1)), ("send", (0, 1))]
    assert (packed.rank, packed.world_size, packed.busy) == (0, 2, None)


def test_a_receive_names_its_own_rank_first() -> None:
    """`recv 1<-0` is rank 1's receive from rank 0."""
    found = read_flight_recorder(pickle.dumps(dump([entry(1, "nccl:recv 1<-0")])), "fr_1")

    assert isinstance(found, RankTrace)
    assert found.communications[0].ranks == (0, 1)


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_refers_to_code_is_rejected(protocol: int) -> None:
    """Nothing of it runs: the error names what it refers to."""
    data = pickle.dumps({"entries": [_Hostile()], "version": "2.10"}, protocol)

    with pytest.raises(TraceError, match=r"^fr_0: the flight recorder's dump cannot be read"):
        load_dump(data, "fr_0")


@pytest.mark.parametrize("data", [b'(tries": [', b"\x80\x02}p4000000000\n."])
def test_an_object_with_an_absurd_number_costs_no_memory(data: bytes) -> None:
    """Python's unpickler allocates a table up to that number: 5 or 32 GB for ten octets."""
    with pytest.raises(
        TraceError, match=r"^fr_0: the (flight recorder's dump cannot be read: is|file is) no (pickle|dump)"
    ):
        load_dump(data, "fr_0")


def doubled(times: int) -> list[Any]:
    """A list of two references to one of two references and so on: written out it has 2^times items."""
    value: list[Any] = []
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "changes", [{"time_created_ns": doubled(60)}, {"process_group": (doubled(60), "x")}, {"pg_id": doubled(60)}]
)
def test_a_value_that_holds_another_many_times_over_is_never_written_out(changes: dict[str, Any]) -> None:
    """A few hundred octets that would take the memory of the machine cost a line, or nothing."""
    try:
        read_flight_recorder(pickle.dumps(dump([entry(1, **changes)])), "fr_0")
    except TraceError as error:
        assert "time_created_ns is 'a list'" in str(error)


def test_ranks_that_hold_one_another_many_times_over_are_no_ranks() -> None:
    """The group is left out, and the reason names it."""
    hostile = dump([entry(1)]) | {"pg_config": {"0": {"ranks": [doubled(60)]}}}
    found = read_flight_recorder(pickle.dumps(hostile), "fr_0")

    assert isinstance(found, UnusableTrace) and "process group '0'" in found.reason


def test_a_tuple_as_a_key_is_rejected() -> None:
    """Its hash may take 2^60 steps, which nothing interrupts."""
    key: tuple[Any, ...] = ()
    for _ in range(60):
        key = (key, key)
    data = pickle.dumps({"entries": [key]}, 2)
    with pytest.raises(TraceError, match="entry 0 has no profiling_name"):
        read_flight_recorder(data, "fr_0")
    as_key = b"\x80\x02}" + pickle.dumps(key, 2)[2:-1] + b"Ns."
    with pytest.raises(TraceError, match="a key of a dict is neither a text nor a number"):
        load_dump(as_key, "fr_0")


def test_a_number_of_a_million_octets_is_rejected() -> None:
    """To print it takes minutes."""
    with pytest.raises(TraceError, match="a number has 8000001 bits"):
        load_dump(pickle.dumps(dump([entry(1, time_created_ns=1 << 8_000_000)])), "fr_0")


def test_a_class_of_the_standard_library_is_rejected_too() -> None:
    """Plain containers, texts and numbers are all that a dump needs."""
    with pytest.raises(TraceError, match="refers to collections.OrderedDict"):
        load_dump(pickle.dumps(__import__("collections").OrderedDict(entries=[])), "fr_0")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dump_or_one_typed_error(data: bytes) -> None:
    """No other exception leaves the reader, whatever the file contains."""
    for prefix in (b"", b"\x80\x02", b"\x80\x04\x95"):
        try:
            read_flight_recorder(prefix + data, "fr_0")
        except TraceError as error:
            assert str(error).startswith("fr_0: ")


def test_a_dump_without_ends_says_so_and_what_was_called_last() -> None:
    """gloo's recorder has no times of ends: it is unusable for replays, but shows each group's last collective."""
    found = read_flight_recorder(
        pickle.dumps(dump([entry(1, ended=False), entry(2, "gloo:barrier", ended=False)])), "fr_1"
    )

    assert isinstance(found, UnusableTrace)
    assert "no times at which collectives ended" in found.reason
    assert found.progress == (("0", 2, "barrier"),)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"entries": {}}, "it must be a dict with a list 'entries'"),
        ({"entries": [{}]}, "entry 0 has no profiling_name"),
        ({"entries": [entry(1, time_created_ns="now")]}, "entry 0: time_created_ns is 'now'"),
        ({"entries": [entry(1, time_created_ns=0)]}, "entry 0: time_created_ns is '0'"),
    ],
)
def test_a_broken_dump_names_the_entry(change: dict[str, Any], problem: str) -> None:
    """The error names the file, the entry and the value."""
    with pytest.raises(TraceError, match=f"^fr_0: .*{problem}"):
        read_flight_recorder(pickle.dumps(dump([]) | change), "fr_0")


def test_a_dump_whose_name_has_no_rank_is_refused() -> None:
    """A dump does not contain its rank, so its name must."""
    with pytest.raises(TraceError, match="does not contain its rank"):
        read_flight_recorder(pickle.dumps(dump([entry(1)])), "dump")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"profiling_name": "nccl:coalesced"}, "'nccl:coalesced' is not known"),
        ({"profiling_name": "nccl:send"}, "the peer of 'nccl:send' is not recorded"),
        ({"process_group": ("7", "tp")}, "the ranks of process group '7' are not recorded"),
    ],
)
def test_what_a_dump_does_not_show_makes_it_unusable(changes: dict[str, Any], reason: str) -> None:
    """A communication that cannot be matched is a reason, no guess."""
    found = read_flight_recorder(pickle.dumps(dump([entry(1, **changes)])), "fr_0")

    assert isinstance(found, UnusableTrace)
    assert reason in found.reason
