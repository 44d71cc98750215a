"""The client socket of a driver, against a scripted server."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_clocks import FakeClocks
from pydantic import ValidationError

from timesyncd.drivers.chrony import chrony
from timesyncd.drivers.chrony._protocol import Command, SourceCount, Tracking
from timesyncd.drivers.chrony.chrony import MAX_SOURCES, Chrony, ChronyClient, ChronyOptions, parse_address
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import NoSample, UtcSample

pytestmark = pytest.mark.disable_socket

RECORDING = Path(__file__).parents[3] / "recordings" / "chrony" / "chronyd_4.3.json"
RECORDED = {name: bytes.fromhex(text) for name, text in json.loads(RECORDING.read_text()).items()}

N_SOURCES, SOURCE_DATA, TRACKING, SOURCE_STATS = 14, 15, 33, 34
OTHER_SEQUENCE = bytes(4)


def answer(name: str, question: bytes, sequence: bytes | None = None) -> bytes:
    """The recorded answer, to this question."""
    return RECORDED[name][:16] + (sequence or question[8:12]) + RECORDED[name][20:]


def refusal(question: bytes, status: int) -> bytes:
    return b"\6\2\0\0" + question[4:6] + b"\0\1" + status.to_bytes(2, "big") + bytes(6) + question[8:12] + bytes(8)


def honest(question: bytes) -> list[bytes]:
    """As a chronyd with two sources answers."""
    index = question[23]
    names = {N_SOURCES: "count", TRACKING: "tracking", SOURCE_DATA: f"source_{index}", SOURCE_STATS: f"stats_{index}"}
    return [answer(names[question[5]], question)]


@dataclass
class FakeChronyd:
    """Bound where the driver looks for chronyd; `replies` makes the datagrams to send back."""

    path: Path
    replies: Callable[[bytes], list[bytes]] = honest
    asked: list[bytes] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[FakeChronyd]:
        self.path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as self.end:
            self.end.bind(str(self.path))
            loop = asyncio.get_running_loop()
            loop.add_reader(self.end, self._readable)
            try:
                yield self
            finally:
                loop.remove_reader(self.end)

    def _readable(self) -> None:
        question, sender = self.end.recvfrom(2048)
        self.asked.append(question)
        for reply in self.replies(question):
            self.end.sendto(reply, sender)


def driver_of(path: Path, clocks: FakeClocks | None = None) -> Chrony:
    return Chrony("utc", ChronyOptions(address=str(path)), path.parent, clocks or FakeClocks())


async def poll_once(path: Path, clocks: FakeClocks | None = None) -> UtcSample | NoSample:
    driver = driver_of(path, clocks)
    await driver.open()
    try:
        (reading,) = await driver.poll()
    finally:
        await driver.close()
    assert isinstance(reading, UtcSample | NoSample)
    return reading


async def test_a_poll_asks_for_everything_once(tmp_path: Path) -> None:
    """TRACKING first, right behind the reading of the clocks; then every source, each question under its own number."""
    with FakeChronyd(tmp_path / "chronyd.sock").running() as fake:
        taken = await poll_once(fake.path)

    assert isinstance(taken, UtcSample)
    assert (taken.offset_ns, [source.state for source in taken.ntp_sources]) == (
        -1_698_395,
        ["selected", "nonselectable"],
    )
    assert [question[5] for question in fake.asked] == [
        TRACKING, N_SOURCES, SOURCE_DATA, SOURCE_STATS, SOURCE_DATA, SOURCE_STATS,
    ]  # fmt: skip
    assert len({question[8:12] for question in fake.asked}) == 6


async def test_an_answer_to_another_question_is_dropped(tmp_path: Path) -> None:
    """A late reply to the poll before is dropped."""

    def late_first(question: bytes) -> list[bytes]:
        return [answer("unsynchronised", question, OTHER_SEQUENCE), *honest(question)]

    with FakeChronyd(tmp_path / "chronyd.sock", late_first).running() as fake:
        taken = await poll_once(fake.path)

    assert isinstance(taken, UtcSample)


async def test_a_second_answer_is_dropped(tmp_path: Path) -> None:
    """Also one that comes before the first is taken; nothing breaks."""
    conversation = ChronyClient()
    with FakeChronyd(tmp_path / "chronyd.sock", lambda question: []).running() as fake:
        await conversation.open(fake.path, "utc")
        asking = asyncio.create_task(conversation.request(SourceCount, Command.N_SOURCES))
        while not fake.asked:
            await asyncio.sleep(0)
        for _ in range(2):
            conversation.datagram_received(answer("count", fake.asked[0]), None)
        taken = await asking
        conversation.close()

    assert taken == SourceCount(2)


async def test_the_sample_is_as_of_before_the_question(tmp_path: Path) -> None:
    """However long chronyd takes, the age is not understated."""
    clocks = FakeClocks()
    asked_ns = clocks.boottime_ns()

    def slow(question: bytes) -> list[bytes]:
        clocks.advance(1_000_000)
        return honest(question)

    with FakeChronyd(tmp_path / "chronyd.sock", slow).running() as fake:
        taken = await poll_once(fake.path, clocks)

    assert isinstance(taken, UtcSample) and taken.as_of_ns == asked_ns


async def test_another_process_cannot_reply(tmp_path: Path) -> None:
    """Our file is open to everybody, since chronyd must be able to answer; the kernel lets only chronyd's own socket through."""
    driver = driver_of(tmp_path / "chronyd.sock")
    with (
        FakeChronyd(tmp_path / "chronyd.sock").running(),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        await driver.open()
        (own,) = tmp_path.glob("timesyncd.utc.*.sock")
        with pytest.raises(PermissionError):
            other.sendto(b"forged", str(own))
        mode = own.stat().st_mode & 0o777
        await driver.close()

    assert mode == 0o666


@pytest.mark.parametrize("datagram", [b"short", RECORDED["tracking"][:60], bytes(104)])
async def test_a_datagram_that_is_no_answer_is_malformed(datagram: bytes, tmp_path: Path) -> None:
    """Too short, cut off under the right number, or something else altogether."""

    def broken(question: bytes) -> list[bytes]:
        return [datagram[:16] + question[8:12] + datagram[20:] if len(datagram) == 60 else datagram]

    with (
        FakeChronyd(tmp_path / "chronyd.sock", broken).running() as fake,
        pytest.raises(Malformed, match=f"^{fake.path}: "),
    ):
        await poll_once(fake.path)


async def test_an_answer_of_another_kind_is_malformed(tmp_path: Path) -> None:
    """Well formed and with our number, but to another command."""
    with (
        FakeChronyd(tmp_path / "chronyd.sock", lambda question: [answer("count", question)]).running() as fake,
        pytest.raises(Malformed, match="SourceCount instead of Tracking"),
    ):
        await poll_once(fake.path)


async def test_an_error_status_is_raised(tmp_path: Path) -> None:
    """With the address, the question and what to do."""
    with (
        FakeChronyd(tmp_path / "chronyd.sock", lambda question: [refusal(question, 2)]).running() as fake,
        pytest.raises(Refused, match=f"^{fake.path}: TRACKING: not authorised: add the command to `opencommands`"),
    ):
        await poll_once(fake.path)


async def test_a_source_that_went_away_takes_nothing_with_it(tmp_path: Path) -> None:
    """Sources come and go while they are asked for."""

    def one_left(question: bytes) -> list[bytes]:
        return [refusal(question, 4)] if question[5] == SOURCE_DATA and question[23] == 1 else honest(question)

    with FakeChronyd(tmp_path / "chronyd.sock", one_left).running() as fake:
        taken = await poll_once(fake.path)

    assert isinstance(taken, UtcSample)
    assert [source.name for source in taken.ntp_sources] == ["127.0.0.1"]


@pytest.mark.parametrize("count", [MAX_SOURCES, MAX_SOURCES + 1, 2**32 - 1])
async def test_no_more_sources_are_asked_for_than_a_poll_has_time_for(tmp_path: Path, count: int) -> None:
    """A source that was not read may contradict the others, or be a PTP hardware clock: then there is no sample."""

    def many(question: bytes) -> list[bytes]:
        if question[5] == N_SOURCES:
            return [answer("count", question)[:28] + count.to_bytes(4, "big")]
        return honest(question[:20] + bytes(4) + question[24:])

    with FakeChronyd(tmp_path / "chronyd.sock", many).running() as fake:
        taken = await poll_once(fake.path)

    assert len(fake.asked) == 2 + 2 * MAX_SOURCES
    if count <= MAX_SOURCES:
        assert isinstance(taken, UtcSample)
        assert len(taken.ntp_sources) == count
    else:
        assert isinstance(taken, NoSample)
        assert taken.reason == f"chronyd has {count} sources, more than the 128 that can be compared"


async def test_silence_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the time that the runner gives a poll."""
    assert chrony._TIMEOUT_S < Chrony.timeout_s
    monkeypatch.setattr(chrony, "_TIMEOUT_S", 0.05)
    with (
        FakeChronyd(tmp_path / "chronyd.sock", lambda question: []).running() as fake,
        pytest.raises(Unreachable, match=f"^{fake.path}: no answer within 0.05 s$"),
    ):
        await poll_once(fake.path)


async def test_a_chronyd_that_goes_away_is_lost_and_another_found(tmp_path: Path) -> None:
    """The open end is dead with it; a new one, as the runner opens it, works."""
    path = tmp_path / "chronyd.sock"
    driver = driver_of(path)
    with FakeChronyd(path).running():
        await driver.open()
        await driver.poll()
    with pytest.raises(Unreachable, match="connection refused: is chronyd running"):
        await driver.poll()
    await driver.close()
    with FakeChronyd(path).running():
        await driver.open()
        (reading,) = await driver.poll()
        await driver.close()

    assert isinstance(reading, UtcSample)
    assert [file.name for file in tmp_path.iterdir()] == ["chronyd.sock"]


async def test_no_chronyd_at_all(tmp_path: Path) -> None:
    """Neither socket nor folder; nothing is left behind."""
    with pytest.raises(Unreachable, match="chronyd.sock: no such socket: is chronyd running"):
        await driver_of(tmp_path / "chronyd.sock").open()
    with pytest.raises(Unreachable, match="no such socket"):
        await driver_of(tmp_path / "nothing" / "chronyd.sock").open()

    assert list(tmp_path.iterdir()) == []


async def test_a_poll_before_open_is_no_accident(tmp_path: Path) -> None:
    """And a close without an open is none either."""
    driver = driver_of(tmp_path / "chronyd.sock")
    await driver.close()

    with pytest.raises(Unreachable, match="not open"):
        await driver._client.request(Tracking, Command.TRACKING)


async def test_the_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Those of this source alone; those of living ones stay."""
    for name in (
        "timesyncd.utc.4194305.sock",
        "timesyncd.utc.1.sock",
        "timesyncd.other.4194305.sock",
        "chronyc.1.sock",
    ):
        (tmp_path / name).touch()
    with FakeChronyd(tmp_path / "chronyd.sock").running() as fake:
        await poll_once(fake.path)

    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "chronyc.1.sock", "chronyd.sock", "timesyncd.other.4194305.sock", "timesyncd.utc.1.sock",
    ]  # fmt: skip


def test_the_unix_socket_is_taken_only_where_it_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both socket and folder must be writable for us; else UDP, which anybody may ask."""
    path = tmp_path / "chronyd.sock"
    monkeypatch.setattr(chrony, "UNIX_ADDRESS", path)
    before = chrony.default_address()
    path.touch()

    assert (before, chrony.default_address()) == (("127.0.0.1", 323), path)


HOSTS = ["ho..st", "a" * 64, "name\0hidden"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_no_host_can_have_is_no_address(host: str) -> None:
    """An empty label, one of 64 characters, a NUL: check-config reports it, not the first poll."""
    with pytest.raises(ValidationError):
        ChronyOptions(address=f"{host}:323")


def test_a_path_with_a_nul_is_no_address() -> None:
    """No file has one."""
    with pytest.raises(ValidationError):
        ChronyOptions(address="/run/a\0b")


@pytest.mark.parametrize("host", ["chrony.example.org.", "zeit.m\u00fcnchen.example", "fe80::1%eth0"])
def test_other_names_are_addresses(host: str) -> None:
    """A final dot, letters beyond ASCII, and a scope are for the resolver."""
    assert parse_address(f"[{host}]:323") == (host, 323)


@pytest.mark.parametrize("host", HOSTS)
async def test_a_name_that_cannot_be_looked_up_is_unreachable(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the resolver refuses it: by an error that is no OSError."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: host.encode("idna"))
    with pytest.raises(Unreachable):
        await ChronyClient().open((host, 323), "utc")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(), "connection refused: is chronyd running, and does it listen on this address?"),
        (PermissionError(), "every user may use UDP 127.0.0.1:323"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (OSError("name too long"), "name too long"),
    ],
)
def test_an_error_of_the_system_states_what_to_do(error: OSError, text: str) -> None:
    """What chronyd's address means for each of them, and else the system's own words."""
    assert text in chrony.os_error_text(error)
