"""The TimeProvider driver: its options, SNMP and HTTPS, and the notifications that it decodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_clocks import FakeClocks
from pydantic import ValidationError
from snmp_fakes import SERVO, RecordedGrandmaster, answer_from, tp5000e

from timesyncd.driver import AlarmSource
from timesyncd.drivers.timeprovider import timeprovider
from timesyncd.drivers.timeprovider._web import WebReading
from timesyncd.drivers.timeprovider.timeprovider import TimeProvider, TimeProviderOptions
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import ClockState, GrandmasterSample, TimeError, TimeErrorSeries, Trap
from timesyncd.snmp import User, parse_oid

pytestmark = pytest.mark.disable_socket

UTC_OFFSET = "1.3.6.1.2.1.241.1.2.5.1.5"
USER = {"name": "watcher", "auth_pass": {"env": "GM_AUTH"}, "priv_pass": {"env": "GM_PRIV"}}
HTTPS = {"username": "watcher", "password": {"env": "GM_PASSWORD"}, "insecure": True}
TE = TimeError("gnss", "te", -7, 1_700_000_000_000_000_000)
SERIES = TimeErrorSeries("gm-a", "gnss", "te", ((1, 2),))


def options(**table: Any) -> TimeProviderOptions:
    return TimeProviderOptions.model_validate({"host": "192.0.2.1"} | table)


COMMUNITY = {"community": {"env": "GM_COMMUNITY"}}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, word in {
        "COMMUNITY": "quiet-word",
        "AUTH": "auth-phrase",
        "PRIV": "priv-phrase",
        "PASSWORD": "pass",
    }.items():
        monkeypatch.setenv(f"GM_{name}", word)


class FakeWeb:
    """Replaces `WebReader`."""

    def __init__(self) -> None:
        self.reading = WebReading((TE,), 37, (SERIES,), ())
        self.error: SourceError | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.polls = 0
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def poll(self, boottime_ns: int) -> WebReading:
        self.polls += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return self.reading

    async def close(self) -> None:
        self.is_open = False


@pytest.fixture
def grandmaster(monkeypatch: pytest.MonkeyPatch) -> RecordedGrandmaster:
    grandmaster = tp5000e()
    answer_from(grandmaster, monkeypatch)
    return grandmaster


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> FakeWeb:
    web = FakeWeb()
    monkeypatch.setattr(timeprovider, "WebReader", lambda name, host, options: web)
    return web


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
async def both(grandmaster: RecordedGrandmaster, web: FakeWeb, clocks: FakeClocks) -> AsyncIterator[TimeProvider]:
    driver = made(clocks, **COMMUNITY, https=HTTPS)
    await driver.open()
    yield driver
    await driver.close()


def made(clocks: FakeClocks, **table: Any) -> TimeProvider:
    driver = TimeProvider("gm-a", options(timeout_s=2, **table), Path("/nonexistent"))
    driver._clocks = clocks  # type: ignore[assignment]
    return driver


async def polled(driver: TimeProvider) -> GrandmasterSample:
    sample = (await driver.poll())[0]
    assert isinstance(sample, GrandmasterSample)
    return sample


def test_unknown_profiles_are_an_error_at_once() -> None:
    """A profile that does not exist is an error of the configuration, not of the first poll."""
    with pytest.raises(ValidationError, match="profile 'tp9999': unknown; allowed:"):
        options(**COMMUNITY, profiles=["tp9999"])


def test_a_grandmaster_s_profile_may_be_named() -> None:
    """The profiles that it composes come with it."""
    assert options(**COMMUNITY, profiles=["tp4100"]).profiles == ("tp4100",)


@pytest.mark.parametrize(
    ("table", "reported"),
    [
        ({}, r"give at least one of community \(SNMP v2c\), user \(SNMP v3\) and https"),
        ({**COMMUNITY, "user": USER}, "community and user: give only one of them"),
        ({"user": USER | {"auth": "md5"}}, "Input should be 'sha1', 'sha224', "),
    ],
)
def test_there_must_be_one_way_in(table: dict[str, Any], reported: str) -> None:
    """The code contains no credential, and of two credentials for the same agent one is wrong."""
    with pytest.raises(ValidationError, match=reported):
        options(**table)


@pytest.mark.parametrize("name", ["GM_COMMUNITY", "GM_AUTH", "GM_PRIV"])
def test_an_unreadable_secret_is_an_error_before_polling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A secret that is not there stops the start."""
    monkeypatch.delenv(name)
    table = COMMUNITY if name == "GM_COMMUNITY" else {"user": USER}
    with pytest.raises(ConfigError, match=name):
        TimeProvider("gm-a", options(**table), Path("/nonexistent"))


@pytest.mark.parametrize(("name", "key"), [("GM_AUTH", "auth_pass"), ("GM_PRIV", "priv_pass")])
def test_a_short_pass_phrase_is_an_error_before_polling(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    """A pass phrase of less than eight characters makes no key, and is not printed."""
    monkeypatch.setenv(name, "seven77")
    with pytest.raises(ConfigError) as error:
        TimeProvider("gm-a", options(user=USER), Path("/nonexistent"))

    assert str(error.value) == f"user.{key}: the pass phrase is too short; SNMPv3 needs at least 8 characters"


def test_a_user_of_snmp_v3() -> None:
    """The safest common algorithms unless reported otherwise, and the context where the agent has several."""
    reader = TimeProvider("gm-a", options(user=USER | {"context": "gm"}), Path("/nonexistent"))._snmp
    assert reader is not None

    assert reader._credentials == User("watcher", "sha256", "auth-phrase", "aes128", "priv-phrase", "gm")


@pytest.mark.parametrize("table", [COMMUNITY, {"user": USER}, {**COMMUNITY, "https": HTTPS}])
def test_no_secret_is_printed(table: dict[str, Any]) -> None:
    """Whatever prints a driver, prints no word of its credentials."""
    driver = TimeProvider("gm-a", options(**table), Path("/nonexistent"))
    shown = repr(vars(driver)) + repr(vars(driver._snmp)) + repr(options(**table))

    assert [word for word in ("quiet-word", "auth-phrase", "priv-phrase") if word in shown] == []


@pytest.mark.parametrize(
    ("table", "found"),
    [(COMMUNITY, []), ({"https": HTTPS}, ["certificate-unchecked"]),
     ({"https": HTTPS | {"insecure": False, "fingerprint": "ab" * 32}}, [])],
)  # fmt: skip
def test_a_configuration_that_is_unsafe_is_a_finding(table: dict[str, Any], found: list[str]) -> None:
    """An unverified certificate is a finding from the start; a password is compared and never tried."""
    driver = TimeProvider("gm-a", options(**table), Path("/nonexistent"))

    assert [finding for finding, _ in driver.config_findings] == found


def test_a_factory_password_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is named, the password is not."""
    monkeypatch.setattr(timeprovider, "uses_factory_password", lambda password: True)
    driver = TimeProvider("gm-a", options(https=HTTPS | {"username": "root"}), Path("/nonexistent"))

    assert driver.config_findings[-1] == ("factory-password", "the web account root has the factory password")


def test_grandmasters_that_start_together_part() -> None:
    """The first pause is each grandmaster's own, and every later one the interval."""
    drivers = [TimeProvider(f"gm-{n}", options(**COMMUNITY), Path("/nonexistent")) for n in range(50)]
    pauses_s = {driver.poll_interval_s for driver in drivers}

    assert len(pauses_s) >= 40
    assert all(1 <= pause_s < 10 for pause_s in pauses_s)


async def test_the_pace_is_the_state_s(grandmaster: RecordedGrandmaster, clocks: FakeClocks) -> None:
    """From the second poll on."""
    driver = made(clocks, **COMMUNITY, state_interval_s=20)
    await driver.open()
    first_s = [await polled(driver), driver.poll_interval_s][1]
    await polled(driver)
    await driver.close()

    assert (first_s != 20, driver.poll_interval_s) == (True, 20)


async def test_snmp_alone(grandmaster: RecordedGrandmaster, clocks: FakeClocks) -> None:
    """Without an https table there is no time error and no note about it."""
    driver = made(clocks, **COMMUNITY)
    await driver.open()
    readings = await driver.poll()
    await driver.close()

    assert [(reading.clock_state, reading.time_errors, reading.unknown) for reading in readings] == [  # type: ignore[union-attr]
        (ClockState.LOCKED, None, ())
    ]
    assert (driver.addresses, grandmaster.opened) == (frozenset({"192.0.2.1"}), 0)


async def test_https_alone(web: FakeWeb, clocks: FakeClocks) -> None:
    """A grandmaster without SNMP is known by its web interface."""
    driver = made(clocks, https=HTTPS)
    await driver.open()
    readings = await driver.poll()
    await driver.close()

    assert readings == [
        GrandmasterSample("gm-a", clocks.boot_ns, time_errors=(TE,), utc_offset_s=37), SERIES
    ]  # fmt: skip
    assert web.is_open is False


async def test_both_are_one_sample(both: TimeProvider, web: FakeWeb) -> None:
    """State by SNMP, time error and UTC offset by HTTPS."""
    sample = await polled(both)

    assert (sample.clock_state, sample.time_errors, sample.utc_offset_s) == (ClockState.LOCKED, (TE,), 37)


async def test_past_time_errors_are_returned_once(both: TimeProvider, web: FakeWeb) -> None:
    """What fills a hole in the history comes with the poll that read it."""
    assert [(await both.poll())[1:] for _ in range(2)] == [[SERIES], []]


async def test_https_has_its_own_pace(both: TimeProvider, web: FakeWeb, clocks: FakeClocks) -> None:
    """It is read once a minute, however often the state is and however many traps come."""
    counts = []
    for _ in range(8):
        await polled(both)
        counts.append(web.polls)
        both.request_poll()
        clocks.advance(10_000_000_000)

    assert counts == [1, 1, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "error", [Unreachable("gm:443: refused"), Malformed("gm:443: HTML"), Refused("gm:443: log-in")]
)
async def test_a_failing_web_interface_costs_no_snmp(both: TimeProvider, web: FakeWeb, error: SourceError) -> None:
    """It is reported beside the sample."""
    web.error = error
    sample = await polled(both)

    assert (sample.clock_state, sample.time_errors, sample.unknown) == (ClockState.LOCKED, None, (f"https={error}",))
    assert web.is_open is False


async def test_a_failing_web_interface_is_tried_at_its_own_pace(
    both: TimeProvider, web: FakeWeb, clocks: FakeClocks
) -> None:
    """What it stated before counts for two intervals; a log-in that is refused is not tried each ten seconds."""
    await polled(both)
    web.error = Refused("gm:443: log-in")
    errors = []
    for _ in range(3):
        clocks.advance(60_000_000_000)
        errors.append((await polled(both)).time_errors)
        await polled(both)

    assert (errors, web.polls) == ([(TE,), (TE,), None], 4)


async def test_failing_snmp_costs_no_https(both: TimeProvider, web: FakeWeb, grandmaster: RecordedGrandmaster) -> None:
    """The sample has what the web interface states, and why the rest is missing; SNMP is back with the next poll."""
    await polled(both)
    grandmaster.is_down = True
    during, sessions = await polled(both), grandmaster.opened
    grandmaster.is_down = False
    after = await polled(both)

    assert (during.clock_state, during.time_errors) == (None, (TE,))
    assert (during.snmp_error, during.unknown, sessions) == ("gm:161: no SNMP response", (), 0)
    assert (after.clock_state, after.unknown, after.snmp_error) == (ClockState.LOCKED, (), None)


async def test_when_both_fail_the_poll_fails(
    both: TimeProvider, web: FakeWeb, grandmaster: RecordedGrandmaster
) -> None:
    """One error states what is wrong with each."""
    grandmaster.is_down, web.error = True, Refused("gm:443: log-in")

    with pytest.raises(Unreachable, match="^gm:161: no SNMP response; and https: gm:443: log-in$"):
        await both.poll()


async def test_an_old_https_reading_is_no_answer_of_an_unreachable_grandmaster(
    both: TimeProvider, web: FakeWeb, grandmaster: RecordedGrandmaster, clocks: FakeClocks
) -> None:
    """It counts for two intervals beside SNMP, and not where neither answers any more."""
    await polled(both)
    grandmaster.is_down, web.error = True, Unreachable("gm:443: refused")
    clocks.advance(60_000_000_000)

    with pytest.raises(Unreachable, match="no SNMP response; and https: gm:443: refused"):
        await both.poll()


async def test_a_slow_web_interface_does_not_hold_up_the_state(both: TimeProvider, web: FakeWeb) -> None:
    """The sample comes within the time of a poll, and the reading that took longer counts later."""
    both.timeout_s = 0.1
    web.answers.clear()
    first = await polled(both)
    web.answers.set()
    second = await polled(both)

    assert (first.clock_state, first.time_errors) == (ClockState.LOCKED, None)
    assert (second.time_errors, web.polls) == ((TE,), 1)


async def test_a_contradiction_between_snmp_and_https_is_a_note(
    both: TimeProvider, web: FakeWeb, grandmaster: RecordedGrandmaster
) -> None:
    """SNMP's UTC offset counts; that the web interface has another is not hidden."""
    grandmaster.serve(UTC_OFFSET, 36, (24, 1, 0))
    sample = await polled(both)

    assert (sample.utc_offset_s, sample.unknown) == (36, ("utc_offset_s=36 by SNMP, 37 by HTTPS",))


async def test_a_closed_driver_leaves_nothing(
    both: TimeProvider, web: FakeWeb, grandmaster: RecordedGrandmaster
) -> None:
    """Closed amid a reading, it stops that too, and it can be opened again."""
    both.timeout_s = 0.1
    web.answers.clear()
    await polled(both)
    await both.close()
    closed = (
        web.is_open,
        grandmaster.opened,
        [task.get_name() for task in asyncio.all_tasks() if "web" in task.get_name()],
    )
    web.answers.set()
    await both.open()

    assert closed == (False, 0, [])
    assert (await polled(both)).time_errors == (TE,)


async def test_what_a_grandmaster_reports_becomes_an_event(
    grandmaster: RecordedGrandmaster, clocks: FakeClocks
) -> None:
    """A trap and a line of syslog, by the profiles of this grandmaster."""
    driver = made(clocks, **COMMUNITY)
    await driver.open()
    await polled(driver)
    cold_start = driver.alarm_event(Trap("192.0.2.1", 5, parse_oid("1.3.6.1.6.3.1.1.5.1"), 10, ()))
    line = driver.alarm_event_of_line("<164>Mar  4 05:06:07 gm alarmd: 027,000,Minor, ", 6)
    await driver.close()

    assert isinstance(driver, AlarmSource)
    assert (cold_start and cold_start.text, line and (line.action, line.text)) == (
        "cold start",
        ("event", "normal track"),
    )


async def test_request_poll_reads_the_tables(grandmaster: RecordedGrandmaster, clocks: FakeClocks) -> None:
    """The next poll reads all that may have changed."""
    driver = made(clocks, **COMMUNITY)
    await driver.open()
    await polled(driver)
    grandmaster.asked.clear()
    driver.request_poll()
    await polled(driver)
    await driver.close()

    assert (grandmaster.was_asked(SERVO), grandmaster.was_asked("1.3.6.1.2.1.2.2.1.8")) == (True, True)
