"""The simulated ptp4l, read by the driver's codec: the two share no code, so each checks the other."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from timesyncd.drivers.ptp4l._management import (
    CurrentDataSet,
    DefaultDataSet,
    ManagementId,
    ManagementRequester,
    ParentDataSet,
    PortDataSet,
    PortProperties,
    PortStats,
    TimeProperties,
    TimeStatus,
    parse,
)
from timesyncd.errors import Refused
from timesyncd.sample import PortState
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.simulated_ptp4l import GRANDMASTER_IDENTITY, SYNC_INTERVAL_NS, SimulatedPtp4l, SlavePort

IDENTITY = bytes(range(8))
START_NS = 1_700_000_000_000_000_000
ASKER = ManagementRequester(DOMAIN, 0, 1)

EXACT = SlavePort(IDENTITY, true_offset_ns=-300_000, start_ns=START_NS, path_delay_ns=20_000, noise_ns=0)
NOISY = SlavePort(IDENTITY, true_offset_ns=-300_000, start_ns=START_NS)


def ask(port: SlavePort, management_id: ManagementId, after_ns: int = SYNC_INTERVAL_NS) -> object:
    """What the driver understands of the answer so long after the start."""
    answer = port.answer(ASKER.get(management_id, sequence=7), START_NS + after_ns)
    assert answer is not None
    parsed = parse(answer)
    assert (parsed.identity, parsed.sequence) == (IDENTITY, 7)
    return parsed.content()


@pytest.mark.parametrize(
    ("management_id", "expected"),
    [
        (ManagementId.DEFAULT_DATA_SET, DefaultDataSet(1, IDENTITY, DOMAIN)),
        (ManagementId.CURRENT_DATA_SET, CurrentDataSet(1, 20_000 << 16)),
        (ManagementId.PARENT_DATA_SET, ParentDataSet(GRANDMASTER_IDENTITY, 1, 6, 0x21, GRANDMASTER_IDENTITY)),
        (ManagementId.TIME_PROPERTIES_DATA_SET, TimeProperties(37, False, False, False, 0xA0)),
        (ManagementId.PORT_DATA_SET, PortDataSet(1, PortState.SLAVE, -3, 0, -3, 1, 0)),
        (ManagementId.PORT_PROPERTIES_NP, PortProperties(hardware_stamps=False, interface="sim0")),
        (ManagementId.TIME_STATUS_NP, TimeStatus(-300_000, START_NS + SYNC_INTERVAL_NS, GRANDMASTER_IDENTITY)),
        (
            ManagementId.PORT_STATS_NP,
            PortStats((1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0), (0, 1, *[0] * 14)),
        ),
    ],
)
def test_every_data_set_is_understood(management_id: ManagementId, expected: object) -> None:
    """All that the driver asks for is served as it expects it."""
    assert ask(EXACT, management_id) == expected


def test_before_the_first_sync_there_is_no_ingress_time() -> None:
    """As with ptp4l, 0 means that no Sync arrived yet."""
    status = ask(EXACT, ManagementId.TIME_STATUS_NP, after_ns=SYNC_INTERVAL_NS - 1)

    assert isinstance(status, TimeStatus)
    assert status.ingress_time_ns == 0


def test_the_noise_of_an_offset_stays_below_the_path_delay() -> None:
    """Else the truth could lie outside a right bound."""
    for sync in range(1, 200):
        status = ask(NOISY, ManagementId.TIME_STATUS_NP, sync * SYNC_INTERVAL_NS)
        current = ask(NOISY, ManagementId.CURRENT_DATA_SET, sync * SYNC_INTERVAL_NS)
        assert isinstance(status, TimeStatus) and isinstance(current, CurrentDataSet)

        assert abs(status.offset_ns + 300_000) < current.mean_path_delay >> 16


def test_offsets_are_noisy_and_stand_still_between_two_syncs() -> None:
    """One Sync has one offset however often it is asked for; another has another."""
    first, same, next_one = (
        ask(NOISY, ManagementId.TIME_STATUS_NP, after_ns)
        for after_ns in (SYNC_INTERVAL_NS, 2 * SYNC_INTERVAL_NS - 1, 2 * SYNC_INTERVAL_NS)
    )

    assert first == same
    assert isinstance(first, TimeStatus) and isinstance(next_one, TimeStatus)
    assert first.offset_ns != next_one.offset_ns


def test_a_subscription_is_granted_as_it_was_asked() -> None:
    """The grant echoes the question, which proves nothing: no push follows."""
    request = ASKER.subscribe(10, sequence=1)
    answer = EXACT.answer(request, START_NS)

    assert answer is not None
    assert parse(answer).body == request[54:]


@pytest.mark.parametrize(
    ("change", "error"),
    [({52: 0xC0, 53: 0x0D}, "NO_SUCH_ID"), ({46: 1}, "NOT_SUPPORTED")],
)
def test_what_is_not_served_is_refused(change: dict[int, int], error: str) -> None:
    """An unknown id and a SET get an error, as from ptp4l."""
    request = bytearray(ASKER.get(ManagementId.TIME_STATUS_NP, 1))
    for at, octet in change.items():
        request[at] = octet
    answer = EXACT.answer(bytes(request), START_NS)

    assert answer is not None
    with pytest.raises(Refused, match=error):
        parse(answer).content()


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\x0d\x12" + bytes(30), ManagementRequester(0, 0, 1).get(ManagementId.TIME_STATUS_NP, 1)]
)
def test_strangers_get_no_answer(request_bytes: bytes) -> None:
    """What is no question, or is for another domain, is dropped."""
    assert EXACT.answer(request_bytes, START_NS) is None


def test_a_true_offset_moves_without_a_step(tmp_path: Path) -> None:
    """At the chosen rate from the chosen moment on, and it stays where it is when the rate is 0 again."""
    port = SimulatedPtp4l(tmp_path / "ptp4l", -1_000)
    assert port.true_offset_ns(START_NS) == -1_000
    port.move(-10_000)
    began_ns = time.time_ns()
    later = port.true_offset_ns(began_ns + 30_000_000_000)
    assert -301_000 - 10_000 <= later <= -301_000
    port.move(0)
    stays = port.true_offset_ns(time.time_ns())
    assert stays <= -1_000 and port.true_offset_ns(began_ns + 3_600_000_000_000) == stays
