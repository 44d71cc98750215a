"""`timesyncd record`: what it writes is the grandmaster, as the simulator plays it and the driver reads it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from survey_grandmasters import Secrets, polled, run, secrets_of, simulated_grandmaster, v2c, v3, web

from timesyncd.drivers.timeprovider.timeprovider import TimeProviderOptions
from timesyncd.sample import GrandmasterSample
from timesyncd.simulation.grandmaster.lies import NotAdvancing, ProtocolLie
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster
from timesyncd.simulation.grandmaster.snmprec import parse_snmprec
from timesyncd.simulation.grandmaster.wire import WirePdu

pytestmark = pytest.mark.integration


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    return Secrets(monkeypatch)


Captured = pytest.CaptureFixture[str]


def options(gm: SimulatedGrandmaster) -> TimeProviderOptions:
    given: dict[str, Any] = {"host": gm.agent.host, "port": gm.agent.port, "community": {"env": "GM_C"}}
    if gm.web is not None:
        proof = {"fingerprint": gm.web.certificate.fingerprint, "fill_history": False}
        account = {"port": gm.web.port, "username": gm.username, "password": {"env": "GM_W"}}
        given["https"] = {**account, **proof}
    return TimeProviderOptions.model_validate(given)


def compared(sample: GrandmasterSample) -> GrandmasterSample:
    """Without the values that change while a recording stays as it is."""
    errors = tuple(replace(each, value_ns=0, at_realtime_ns=0) for each in sample.time_errors or ())
    return replace(sample, boottime_ns=0, uptime_s=0, time_errors=errors)


@pytest.mark.parametrize("model", ["tp4100", "tp5000e", "s650"])
async def test_a_recording_is_the_grandmaster(secrets: Secrets, capsys: Captured, tmp_path: Path, model: str) -> None:
    """The simulator plays it, and the driver reads the same grandmaster."""
    folder = tmp_path / "recording"
    async with simulated_grandmaster(secrets, model) as gm:
        account = web(gm) if gm.web is not None else []
        status = await run("record", *v2c(gm), *account, str(folder))
        real = await polled(options(gm))
    async with simulated_grandmaster(secrets, "tp4100", str(folder)) as played:
        recorded = await polled(options(played))

    assert status == 0
    assert compared(recorded) == compared(real)
    assert (recorded.clock_state, recorded.unknown) == ("locked", ())


async def test_a_masked_recording_is_the_grandmaster_but_for_its_owner(
    secrets: Secrets, capsys: Captured, tmp_path: Path
) -> None:
    """What identifies the owner is invented; the rest reads as before, and no file holds a former value."""
    folder = tmp_path / "recording"
    async with simulated_grandmaster(secrets) as gm:
        await run("record", *v3(gm), *web(gm), str(folder), "--mask", "all")
        real = await polled(options(gm))
    async with simulated_grandmaster(secrets, "tp4100", str(folder)) as played:
        recorded = await polled(options(played))
    masked: dict[str, Any] = {"serial": None, "sys_name": None, "clock_identity": None, "position": None, "ports": None}
    written = "".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())
    secrets_and_names = [gm.device.serial, gm.device.clock_identity.hex(), gm.device.name, *secrets_of(gm)]

    assert replace(compared(recorded), **masked) == replace(compared(real), **masked)
    assert recorded.serial == "serial-1"
    assert recorded.position is not None
    assert (recorded.position.latitude_deg, recorded.position.longitude_deg) == (0.0, 0.0)
    assert [word for word in secrets_and_names if word in written] == []


async def test_what_a_recording_states_of_itself(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """When, of what, by what, and what was masked: neither the grandmaster's address nor any secret."""
    async with simulated_grandmaster(secrets) as gm:
        await run("record", *v2c(gm), *web(gm), str(tmp_path / "recording"), "--mask", "serials,names")
        printed = capsys.readouterr()
    text = (tmp_path / "recording" / "recording.toml").read_text()
    about = tomllib.loads(text)
    rows = parse_snmprec((tmp_path / "recording" / "walk.snmprec").read_text())

    assert (about["model"], about["firmware"]) == (gm.device.model, gm.device.firmware)
    assert (about["masked"], about["objects"], about["incomplete"]) == (["serials", "names"], len(rows), [])
    assert about["https_answers"] == len(list((tmp_path / "recording" / "https").iterdir()))
    assert not any(secret in text + printed.out + printed.err for secret in secrets_of(gm))
    assert gm.agent.host not in text
    assert "timesyncd simulate --scenario" in printed.out


async def test_a_recording_that_is_cut(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """So many objects and no more, and the file states that there are more."""
    async with simulated_grandmaster(secrets) as gm:
        await run("record", *v2c(gm), str(tmp_path / "recording"), "--rows", "100")
    about = tomllib.loads((tmp_path / "recording" / "recording.toml").read_text())

    assert (about["objects"], about["incomplete"]) == (100, ["cut off after 100 objects"])


class StumblesInPrivate(ProtocolLie):
    """Its answers below 1.3.6.1.4 go backwards."""

    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        if request.varbinds[0][0][:5] == (1, 3, 6, 1, 4):
            return replace(answer, varbinds=answer.varbinds[::-1])
        return answer


async def test_an_agent_that_breaks_off(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """Its other tables are recorded, and the file states where the walk broke off."""
    async with simulated_grandmaster(secrets) as gm:
        gm.agent.lie = StumblesInPrivate()
        status = await run("record", *v2c(gm), str(tmp_path / "recording"))
    about = tomllib.loads((tmp_path / "recording" / "recording.toml").read_text())
    oids = [oid for oid, _ in parse_snmprec((tmp_path / "recording" / "walk.snmprec").read_text())]

    assert status == 0
    assert [each.split(": ")[:2] for each in about["incomplete"]] == [["1.3.6.1.4", "the walk does not advance"]]
    assert {oid[:5] for oid in oids} >= {(1, 3, 6, 1, 2), (1, 3, 6, 1, 6)}


async def test_an_agent_that_never_advances(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """There is nothing to record, and nothing is written."""
    async with simulated_grandmaster(secrets) as gm:
        gm.agent.lie = NotAdvancing()
        status = await run("record", *v2c(gm), str(tmp_path / "recording"))

    assert status == 1
    assert "does not advance" in capsys.readouterr().err
    assert not (tmp_path / "recording").exists()


async def test_a_read_that_the_web_interface_does_not_have(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """The other answers are kept, and the file states why one is missing."""
    first, second = tmp_path / "first", tmp_path / "second"
    async with simulated_grandmaster(secrets) as gm:
        await run("record", *v2c(gm), *web(gm), str(first))
    (first / "https" / "perfmon_tod_stat.1.te").unlink()
    async with simulated_grandmaster(secrets, "tp4100", str(first)) as played:
        await run("record", *v2c(played), *web(played), str(second))
    about = tomllib.loads((second / "recording.toml").read_text())

    assert about["https_missing"] == {"perfmon_tod_stat.1.te": "HTTP status 404"}
    assert len(list((second / "https").iterdir())) == len(list((first / "https").iterdir()))


async def test_a_list_of_two_thousand_clients(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """It is recorded whole, and each client's address is another one."""
    async with simulated_grandmaster(secrets, "tp4100", "2000-clients") as gm:
        await run("record", *v2c(gm), str(tmp_path / "recording"), "--mask", "addresses")
        real = {client.address for client in gm.device.clients}
    text = (tmp_path / "recording" / "walk.snmprec").read_text()

    assert len(real) >= 2000
    assert not any(f" {address} " in text for address in real)
    assert text.count(" 198.18.") + text.count(" 198.19.") >= 2000
