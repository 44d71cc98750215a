"""The codec of chronyd's command protocol, on what a chronyd 4.3 sent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.drivers.chrony._protocol import (
    FLOAT_RESOLUTION,
    ChronyRequest,
    Command,
    Content,
    NoSuchSource,
    SourceCount,
    SourceData,
    SourceStats,
    Tracking,
    float_value,
    parse,
    reference_text,
)
from timesyncd.errors import Malformed, Refused

pytestmark = pytest.mark.disable_socket

RECORDING = Path(__file__).parents[3] / "recordings" / "chrony" / "chronyd_4.3.json"
RECORDED = {name: bytes.fromhex(text) for name, text in json.loads(RECORDING.read_text()).items()}

HEADER = 28


def content(name: str) -> Content:
    return parse(RECORDED[name]).content()


def changed(name: str, at: int, octets: bytes) -> Content:
    """The recorded answer with other octets from `at` on, as it then reads."""
    datagram = RECORDED[name]
    return parse(datagram[:at] + octets + datagram[at + len(octets) :]).content()


def float_number(value: float) -> int:
    """chrony's Float, written as its description states: the inverse of what the driver has."""
    mantissa, exponent = math.frexp(value)  # 0.5 <= |mantissa| < 1
    exponent, coefficient = exponent + 1, round(mantissa * 2**24)
    if exponent < -64:
        exponent, coefficient = -64, round(value * 2.0 ** (25 + 64))
    return (exponent & 0x7F) << 25 | (coefficient & 0x1FFFFFF)


def test_tracking_as_chronyc_shows_it() -> None:
    """`chronyc -c tracking`, asked at the same time, printed the same figures, to its own number of digits."""
    answer = content("tracking")

    assert isinstance(answer, Tracking)
    assert (answer.reference, answer.stratum, answer.leap) == ("127.0.0.1", 9, "none")
    assert answer.reference_time == (0, 1795288261, 428478193)
    assert answer.current_correction_s == pytest.approx(0.001698, abs=1e-6)
    assert answer.last_offset_s == pytest.approx(-0.000000008, abs=5e-10)
    assert answer.rms_offset_s == pytest.approx(0.000000099, abs=5e-10)
    assert (round(answer.frequency_ppm, 3), round(answer.residual_frequency_ppm, 3)) == (50.014, -0.001)
    assert (round(answer.skew_ppm, 3), round(answer.update_interval_s, 1)) == (0.135, 0.1)
    assert answer.root_delay_s == pytest.approx(0.000005923, abs=5e-10)
    assert answer.root_dispersion_s == pytest.approx(0.000000607, abs=5e-10)


def test_a_chronyd_that_knows_nothing() -> None:
    """Before its first update it states leap 3, stratum 0, and a second of delay and dispersion."""
    answer = content("unsynchronised")

    assert isinstance(answer, Tracking)
    assert (answer.leap, answer.stratum, answer.reference_id) == ("unsynchronised", 0, 0)
    assert (answer.root_delay_s, answer.root_dispersion_s) == (1.0, 1.0)


def test_sources_as_chronyc_shows_them() -> None:
    """One that is followed, and one that never answered: its age is absent, not four billion seconds."""
    followed, silent = content("source_0"), content("source_1")

    assert isinstance(followed, SourceData) and isinstance(silent, SourceData)
    assert (followed.name, followed.state, followed.stratum, followed.poll) == ("127.0.0.1", "selected", 8, -3)
    assert (followed.reachability, followed.since_sample_s) == (0o377, 0)
    assert followed.measured_s == pytest.approx(-0.000000031, abs=5e-10)
    assert followed.adjusted_s == pytest.approx(-0.000000023, abs=5e-10)
    assert followed.error_s == pytest.approx(0.000002996, abs=5e-10)
    assert (silent.name, silent.state, silent.since_sample_s) == ("127.0.0.2", "nonselectable", None)


def test_statistics_as_chronyc_shows_them() -> None:
    """Without samples the figures are placeholders, as they came."""
    followed, silent = content("stats_0"), content("stats_1")

    assert isinstance(followed, SourceStats)
    assert (followed.name, followed.samples, followed.runs, followed.span_s) == ("127.0.0.1", 25, 10, 3)
    assert (round(followed.residual_frequency_ppm, 3), round(followed.skew_ppm, 3)) == (-0.001, 0.130)
    assert followed.deviation_s == pytest.approx(0.000000148, abs=6e-10)
    assert silent == SourceStats("127.0.0.2", 0, 0, 0, 4.0, 0.0, 2000.0, 0.0, 0.0)


def test_the_number_of_sources() -> None:
    """N_SOURCES counts also those that are not reachable."""
    assert content("count") == SourceCount(2)


def test_a_source_that_went_away_has_its_own_error() -> None:
    """The driver can go on without it."""
    with pytest.raises(NoSuchSource, match="^SOURCE_DATA: no such source$"):
        content("no_such_source")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bad_length", "TRACKING: another request length expected"),
        ("bad_version", "protocol version other than"),
    ],
)
def test_an_error_status_names_the_remedy(name: str, text: str) -> None:
    """What chronyd answered to a question too short, and to one of version 5."""
    with pytest.raises(Refused, match=text):
        content(name)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (1, "failed"),
        (2, "opencommands"),
        (3, "unknown command"),
        (6, "not enabled"),
        (21, "status 21"),
        (999, "status 999"),
    ],
)
def test_every_status_but_zero_is_a_refusal(status: int, text: str) -> None:
    """Also one that no description has."""
    with pytest.raises(Refused, match=text):
        changed("bad_length", 8, status.to_bytes(2, "big"))


def test_a_refusal_of_another_version_is_understood() -> None:
    """A chronyd of another version reports it under its own number."""
    with pytest.raises(Refused, match="protocol version other than"):
        changed("bad_version", 0, b"\x07")


def test_a_source_s_state_that_is_new_is_shown_as_a_number() -> None:
    """A later chronyd may have more states; unknown ones appear as a number, the others by name."""
    names = [changed("source_0", 52, bytes([0, state])) for state in range(7)]

    assert [answer.state for answer in names if isinstance(answer, SourceData)] == [
        "selected", "nonselectable", "falseticker", "jittery", "unselected", "selectable", "unknown(6)",
    ]  # fmt: skip


def test_a_reference_clock_goes_by_its_name() -> None:
    """Its address in SOURCE_DATA is its name; in TRACKING and SOURCESTATS it has none, and the reference ID counts."""
    source = changed("source_0", HEADER, b"PHC0" + bytes(12) + b"\0\1\0\0" + RECORDED["source_0"][48:54] + b"\0\2")
    tracking = changed("tracking", HEADER, b"GPS\0" + bytes(20))
    stats = changed("stats_0", HEADER, b"PHC0" + bytes(20))

    assert isinstance(source, SourceData) and isinstance(tracking, Tracking) and isinstance(stats, SourceStats)
    assert (source.name, tracking.reference, stats.name) == ("PHC0", "GPS", "PHC0")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (bytes.fromhex("20010db8000000000000000000000001") + b"\0\2\0\0", "2001:db8::1"),
        (bytes([0, 0, 0, 3]) + bytes(12) + b"\0\3\0\0", "ID#0000000003"),
    ],
)
def test_the_other_kinds_of_address(address: bytes, name: str) -> None:
    """IPv6, and a server whose name is not resolved yet."""
    answer = changed("source_1", HEADER, address)

    assert isinstance(answer, SourceData) and answer.name == name


@pytest.mark.parametrize(
    ("number", "text"), [(0x47505300, "GPS"), (0x50484330, "PHC0"), (0x7F7F0101, "7F7F0101"), (0, "00000000")]
)
def test_a_reference_id_is_a_name_or_a_number(number: int, text: str) -> None:
    """Only what can be printed is a name."""
    assert reference_text(number) == text


@pytest.mark.parametrize("leap", [(0, "none"), (1, "insert"), (2, "delete"), (3, "unsynchronised")])
def test_the_leap_status(leap: tuple[int, str]) -> None:
    """As chronyd numbers it."""
    answer = changed("tracking", 54, leap[0].to_bytes(2, "big"))

    assert isinstance(answer, Tracking) and answer.leap == leap[1]


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0x00000000, 0.0),
        (0x04800000, 1.0),
        (0x08800000, 4.0),
        (0x18FA0000, 2000.0),
        (0x05800000, -1.0),
        (0xFE800000, 0.125),
        (0x7EFFFFFF, (2**24 - 1) * 2.0**38),
        (0x7F000000, -(2.0**62)),
        (0x80000001, 2.0**-89),
        (0xFFFFFFFF, -(2.0**-26)),
    ],
)
def test_floats_of_known_value(number: int, value: float) -> None:
    """7 bits of exponent, 25 of coefficient, both signed; 1.0, 4.0 and 2000.0 are in the recording."""
    assert float_value(number) == value


@given(st.floats(min_value=1e-15, max_value=4e18), st.sampled_from([1, -1]))
def test_a_float_loses_no_more_than_its_resolution(value: float, sign: int) -> None:
    """Any time and frequency comes back within the share that the error has for it."""
    assert float_value(float_number(sign * value)) == pytest.approx(sign * value, rel=FLOAT_RESOLUTION)


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_every_float_is_a_finite_number(number: int) -> None:
    """There is no infinity and no NaN in it, and none comes out."""
    value = float_value(number)

    assert math.isfinite(value)
    assert float_value(float_number(value)) == value


@pytest.mark.parametrize(
    ("at", "octets", "text"),
    [
        (68, float_number(3e9), "3e\\+09 s"),  # the correction, beyond any clock
        (92, float_number(-1e-6), "-1e-06 s"),  # a negative root delay would narrow the bound
        (96, float_number(-1e-6), "-1e-06 s"),
        (88, float_number(-1.0), "-1 ppm"),
        (80, float_number(-2e9), "-2e\\+09 ppm"),
    ],
)
def test_figures_that_cannot_be(at: int, octets: int, text: str) -> None:
    """They are no measurement, and what they would do to a bound is not asked."""
    with pytest.raises(Malformed, match=text):
        changed("tracking", at, octets.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("at", "octets", "text"),
    [(48, b"\0\7", "address family 7"), (55, b"\4", "leap status 4"), (7, b"\6", "reply 6"), (5, b"\x0f", "reply 5")],
)
def test_fields_that_do_not_fit(at: int, octets: bytes, text: str) -> None:
    """A family, a leap status, a reply code, or an answer to another command."""
    with pytest.raises(Malformed, match=text):
        changed("tracking", at, octets)


@pytest.mark.parametrize(
    "datagram", [b"", RECORDED["count"][:27], b"\6\1" + RECORDED["count"][2:], b"\5" + RECORDED["count"][1:]]
)
def test_what_is_no_answer(datagram: bytes) -> None:
    """Nothing, too short a header, a question, another version."""
    with pytest.raises(Malformed):
        parse(datagram)


@pytest.mark.parametrize("name", ["tracking", "source_0", "stats_0", "count"])
def test_an_answer_has_its_length(name: str) -> None:
    """An octet too few or too many, and it is not read."""
    for datagram in (RECORDED[name][:-1], RECORDED[name] + b"\0"):
        with pytest.raises(Malformed, match="octets instead of"):
            parse(datagram).content()


def read_any(datagram: bytes) -> None:
    try:
        parse(datagram).content()
    except (Malformed, Refused):
        pass


@given(st.binary(max_size=200))
def test_any_octets_give_a_value_or_malformed(datagram: bytes) -> None:
    """Nothing else comes out of what anybody may send."""
    read_any(datagram)


@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_any_change_of_an_answer_gives_a_value_or_malformed(name: str, data: st.DataObject) -> None:
    """The same behind a good header."""
    datagram = RECORDED[name]
    at = data.draw(st.integers(0, len(datagram) - 1))
    octets = data.draw(st.binary(min_size=1, max_size=len(datagram) - at))

    read_any(datagram[:at] + octets + datagram[at + len(octets) :])


@pytest.mark.parametrize(
    ("command", "index", "length"),
    [
        (Command.TRACKING, None, 104),
        (Command.N_SOURCES, None, 32),
        (Command.SOURCE_DATA, 3, 76),
        (Command.SOURCE_STATS, 3, 84),
    ],
)
def test_a_question_is_as_long_as_its_answer(command: Command, index: int | None, length: int) -> None:
    """chronyd answers no other; the header is version 6, request, command, sequence."""
    question = ChronyRequest(command, 0xA1B2C3D4, index).to_bytes()

    assert len(question) == length
    assert question[:20].hex() == f"06010000{command:04x}0000a1b2c3d40000000000000000"
    assert question[20:] == (b"" if index is None else b"\0\0\0\3").ljust(length - 20, b"\0")


def test_the_driver_can_ask_and_nothing_else() -> None:
    """Four questions; no command that changes anything in chronyd has a number here."""
    assert {command.name: command.value for command in Command} == {
        "N_SOURCES": 14,
        "SOURCE_DATA": 15,
        "TRACKING": 33,
        "SOURCE_STATS": 34,
    }
