"""`timesyncd probe` against grandmasters that answer at the wire, and both commands against those that refuse or are down."""

from __future__ import annotations

import gc
import json
import tomllib
from pathlib import Path

import pytest
from survey_grandmasters import (
    WRONG,
    Secrets,
    closed_port,
    polled,
    run,
    secrets_of,
    simulated_grandmaster,
    v2c,
    v3,
    web,
    where,
)

from timesyncd.config import parse
from timesyncd.driver import options_of
from timesyncd.drivers.timeprovider.timeprovider import TimeProviderOptions

pytestmark = pytest.mark.integration


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    return Secrets(monkeypatch)


Captured = pytest.CaptureFixture[str]


async def test_a_probe_for_programs(secrets: Secrets, capsys: Captured) -> None:
    """Which profiles answered, the value of each object, what nothing explains, the channels, and the configuration."""
    async with simulated_grandmaster(secrets) as gm:
        status = await run("probe", *v3(gm), *web(gm), "--json")
        printed = capsys.readouterr()
    report = json.loads(printed.out)
    profiles = {each["name"]: each for each in report["snmp"]["profiles"]}
    state = next(each for each in profiles["ptpbase"]["objects"] if each["field"] == "clock_state")

    assert (status, report["errors"]) == (0, [])
    assert {name for name, each in profiles.items() if each["answered"]} == {
        "ptpbase",
        "ntpv4",
        "symm-common",
        "system",
    }
    assert [each["value"] for each in state["values"]] == ["locked"]
    assert {"oscillator", "alarms"} <= set(report["snmp"]["not_provided"])
    assert sum(each["objects"] for each in report["snmp"]["uncovered"]) > 0
    assert gm.web is not None
    assert report["https"]["fingerprint"] == gm.web.certificate.fingerprint
    assert {each["channel"] for each in report["https"]["time_errors"]} == {"GNSS-1", "PTP-1"}
    assert not any(secret in printed.out + printed.err for secret in secrets_of(gm))
    assert "reading ptpbase" in printed.err


async def test_a_probe_s_configuration_is_one(secrets: Secrets, capsys: Captured) -> None:
    """Pasted as it is, the driver reads the grandmaster with it."""
    async with simulated_grandmaster(secrets) as gm:
        await run("probe", *v3(gm), *web(gm), "--json")
        text = json.loads(capsys.readouterr().out)["config"]
        (pasted,) = parse(tomllib.loads(text), options_of, "paste").grandmaster
        assert isinstance(pasted.options, TimeProviderOptions)
        sample = await polled(pasted.options)

    assert pasted.identities == gm.facts()["identities"]
    assert (sample.clock_state, sample.serial) == ("locked", gm.device.serial)
    assert sample.time_errors


async def test_a_probe_for_people(secrets: Secrets, capsys: Captured) -> None:
    """80 columns, and the fingerprint to pin before anybody has logged in."""
    async with simulated_grandmaster(secrets) as gm:
        status = await run("probe", *v2c(gm))
        printed = capsys.readouterr()
    assert gm.web is not None
    lines = [line.rstrip() for line in printed.out.splitlines()]

    assert status == 0
    assert max(map(len, lines)) <= 80
    assert f"  {gm.web.certificate.fingerprint}" in lines
    assert any(line.split() == ["clock_state", "locked", "unproven"] for line in lines)
    assert any(line.split()[:2] == ["s650", "no"] for line in lines)
    assert 'community = { env = "GM_C" }' in lines
    assert not any(secret in printed.out + printed.err for secret in secrets_of(gm))


async def test_a_device_s_own_mib(secrets: Secrets, capsys: Captured) -> None:
    """The next arc names the device, and its profile answers."""
    async with simulated_grandmaster(secrets, "tp5000e") as gm:
        await run("probe", *v2c(gm))
        printed = capsys.readouterr().out

    assert "branch 1: TP5000E" in printed
    assert any(line.split()[:2] == ["tp5000e", "yes"] for line in printed.splitlines())


async def test_a_profile_of_one_s_own(secrets: Secrets, capsys: Captured, tmp_path: Path) -> None:
    """It is asked beside the shipped ones; an unknown word and a wrong type are reported with the raw value."""
    file = tmp_path / "site.toml"
    proven = 'confidence = "unproven"\nsource = "test"\n'
    file.write_text(
        'name = "site"\ntitle = "t"\nproved_by = ["1.3.6.1.2.1.1"]\n'
        '[[object]]\noid = "1.3.6.1.2.1.1.7"\ndecoder = "enum"\nvalues = { 1 = "x" }\nfield = "oscillator"\n' + proven
        + '[[object]]\noid = "1.3.6.1.2.1.1.5"\ndecoder = "integer"\nfield = "domain"\n' + proven
    )  # fmt: skip
    async with simulated_grandmaster(secrets) as gm:
        await run("probe", *v2c(gm), "--profile", str(file), "--json")
        report = json.loads(capsys.readouterr().out)
    site = report["snmp"]["profiles"][0]
    values = {each["field"]: each["values"][0] for each in site["objects"]}

    assert (values["oscillator"]["raw"], values["oscillator"]["problem"]) == (72, "unknown(72)")
    assert values["domain"]["raw"] == {"hex": gm.device.name.encode().hex()}
    assert "instead of a 64-bit integer" in values["domain"]["problem"]


REFUSALS: dict[str, tuple[list[str], str]] = {
    "wrong community": (["--community-env", "WRONG"], "community is wrong"),
    "unknown user": (["--user", "unknown", "--auth-pass-env", "GM_A", "--priv-pass-env", "GM_P"], "unknown user"),
    "wrong key": (["--user", "{user}", "--auth-pass-env", "WRONG", "--priv-pass-env", "GM_P"], "wrong"),
    "wrong privacy": (["--user", "{user}", "--auth-pass-env", "GM_A", "--priv-pass-env", "WRONG"], "privacy"),
}


@pytest.mark.parametrize("command", ["probe", "record"])
@pytest.mark.parametrize(("options", "message"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_grandmaster_that_refuses(
    secrets: Secrets, capsys: Captured, tmp_path: Path, command: str, options: list[str], message: str
) -> None:
    """One line names what is wrong, the status is 1, no secret shows, and no recording is begun."""
    async with simulated_grandmaster(secrets, "s650") as gm:
        folder = [str(tmp_path / "new")] if command == "record" else []
        given = [option.format(user=gm.user.name) for option in options]
        status = await run(command, *where(gm), *given, *folder)
        printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("timesyncd: ")]

    assert (status, printed.out, len(lines)) == (1, "", 1)
    assert f"{gm.agent.host}:{gm.agent.port}: " in lines[0]
    assert message in lines[0].lower()
    assert WRONG not in printed.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["probe", "record"])
async def test_a_host_that_is_down(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path, command: str
) -> None:
    """Without any answer the exit status is 1, with one line."""
    monkeypatch.setenv("GM_C", "hush-hush")
    folder = [str(tmp_path / "new")] if command == "record" else []
    port = str(closed_port())
    where = ["127.0.0.1", "--port", port, "--https-port", port, "--timeout", "0.2"]
    status = await run(command, *where, "--community-env", "GM_C", *folder)
    printed = capsys.readouterr()

    assert (status, printed.out) == (1, "")
    assert f"timesyncd: 127.0.0.1:{port}: no SNMP response" in printed.err


# aiohttp leaves the refused connection to close by itself, and the command's event loop ends before that.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_certificate_that_is_another(secrets: Secrets, capsys: Captured) -> None:
    """SNMP is reported all the same; the log-in is not tried, and the status shows that a part is missing."""
    async with simulated_grandmaster(secrets) as gm:
        account = ["--https-username", gm.username, "--https-password-env", "GM_W", "--fingerprint", "ab" * 32]
        status = await run("probe", *v2c(gm), *account)
        printed = capsys.readouterr()
        gc.collect()
    assert gm.web is not None

    assert status == 1
    assert "not the pinned one" in printed.err
    assert gm.web.certificate.fingerprint in printed.out
    assert "objects of profile ptpbase" in printed.out


async def test_a_wrong_password(secrets: Secrets, capsys: Captured) -> None:
    """HTTPS alone is asked: one line, and no word of the password."""
    async with simulated_grandmaster(secrets) as gm:
        account = [option.replace("GM_W", "WRONG") for option in web(gm)]
        status = await run("probe", *where(gm), *account)
        printed = capsys.readouterr()

    assert status == 1
    assert "check username and password" in printed.err
    assert WRONG not in printed.out + printed.err
