"""What a grandmaster served of each object, and which objects no profile knows."""

from __future__ import annotations

from timesyncd.drivers.timeprovider._decoders import Unknown
from timesyncd.drivers.timeprovider._evidence import Rows
from timesyncd.drivers.timeprovider._profiles import Profile
from timesyncd.probe.probe import Branch, ProbedValue, object_reports, readable, rows_of, served, uncovered
from timesyncd.snmp import Oid, Raw, parse_oid

STATE, NAME = parse_oid("1.3.6.1.4.1.99999.1"), parse_oid("1.3.6.1.4.1.99999.2.1.1")


def profile(name: str = "acme", decoder: str = "text") -> Profile:
    proven = {"confidence": "proven", "source": "test"}
    state = {"oid": "1.3.6.1.4.1.99999.1", "decoder": "enum", "values": {1: "locked"}, "field": "clock_state", **proven}
    names = {
        "oid": "1.3.6.1.4.1.99999.2.1.1", "index": ["i"], "decoder": decoder,
        "field": "interfaces.name" if decoder == "text" else "interfaces.speed_mbps", **proven,
    }  # fmt: skip
    return Profile.model_validate(
        {"name": name, "title": "t", "proved_by": ["1.3.6.1.4.1.99999"], "object": [state, names]}
    )


def test_an_object_that_is_not_provided() -> None:
    """It is there without a value: neither zero nor a fault."""
    state, names = object_reports(profile(), {})

    assert (state.cells, names.cells) == ((), ())


def test_a_wrong_type_hides_no_other_value() -> None:
    """Only the wrong cell has a problem, and keeps its raw value."""
    rows: Rows = {STATE: {(0,): 1}, NAME: {(1,): b"eth1", (2,): 5}}
    state, names = object_reports(profile(), rows)

    assert state.cells == (ProbedValue((0,), 1, "locked"),)
    assert [cell.understood for cell in names.cells] == [True, False]
    assert names.cells[1].raw == 5
    assert "instead of an octet string" in (names.cells[1].problem or "")


def test_an_unknown_word_keeps_what_came() -> None:
    """The raw number is what a contributor needs."""
    state, _ = object_reports(profile(), {STATE: {(0,): 7}})

    assert state.cells == (ProbedValue((0,), 7, Unknown("unknown(7)")),)
    assert not state.cells[0].understood


def test_a_column_that_was_cut() -> None:
    """The report marks only the column that has more rows."""
    assert [each.cut for each in object_reports(profile(), {NAME: {(1,): b"a"}}, [NAME])] == [False, True]


def test_a_cell_that_one_of_two_profiles_cannot_read() -> None:
    """It goes into no sample, since a sample takes both profiles' word."""
    rows: Rows = {STATE: {(0,): 1}, NAME: {(1,): b"eth1"}}
    reports = [*object_reports(profile(), rows), *object_reports(profile("other", "integer"), rows)]

    assert readable(reports) == {STATE: {(0,): 1}}


def test_a_walk_as_rows() -> None:
    """Objects by their index, others passed over."""
    walk: list[tuple[Oid, Raw]] = [((*STATE, 0), 1), ((*NAME, 3), b"eth3"), ((*NAME[:-1], 2, 3), b"x"), (STATE, 9)]

    assert rows_of([profile()], walk) == {STATE: {(0,): 1}, NAME: {(3,): b"eth3"}}


def test_a_profile_is_served_where_its_proof_answers() -> None:
    """Nothing below it, or not asked: not served."""
    proof = parse_oid("1.3.6.1.4.1.99999")

    assert served([profile()], {proof: (*STATE, 0)}) == [profile()]
    assert served([profile()], {proof: None}) == []


def test_what_no_profile_knows_is_counted_by_branch() -> None:
    """A branch is twelve arcs; objects of a profile are not counted, whatever their index."""
    new = parse_oid("1.3.6.1.4.1.9070.1.2.5.7.9")
    oids = [(*STATE, 0), (*NAME, 3), (*new, 1, 1, 0), (*new, 1, 2, 0), (*new[:-1], 8, 1)]

    assert uncovered(oids, [profile()]) == [Branch((*new[:-1], 8), 1), Branch(new, 2)]
