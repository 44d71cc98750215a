"""The configuration to paste: what a probe found, in a form that the daemon takes, and no secret."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from timesyncd.config import SecretSettings, parse
from timesyncd.driver import options_of
from timesyncd.drivers.timeprovider._profiles import DEFAULT
from timesyncd.drivers.timeprovider.timeprovider import TimeProviderOptions
from timesyncd.probe.access import ProbeAccess, SnmpAccess, WebAccess, web_options
from timesyncd.probe.probe import Probe, SnmpReport
from timesyncd.probe.suggestion import array, grandmaster_name, inline, key, quoted, suggestion
from timesyncd.probe.web import WebReport
from timesyncd.sample import GrandmasterSample, PtpPort
from timesyncd.snmp import Community, User

FINGERPRINT = "ab" * 32
COMMUNITY = SnmpAccess(Community("hush-hush"), {"community": SecretSettings(env="GM_C")})
EVA = SnmpAccess(
    User("eva", "sha512", "auth phrase", "aes256", "priv phrase"),
    {"auth_pass": SecretSettings(env="GM_A"), "priv_pass": SecretSettings(file=Path("/etc/timesyncd/p"))},
)
WEB = WebAccess(
    web_options({"username": "eva", "port": 8443, "fingerprint": FINGERPRINT}),
    SecretStr("web word"),
    SecretSettings(env="GM_W"),
)
ACCESS = ProbeAccess("192.0.2.1", 161, 443, 2.0, COMMUNITY, None)
SAMPLE = GrandmasterSample(
    "192.0.2.1",
    0,
    profiles=("ptpbase", "system"),
    sys_name="gm-a.lab 7",
    clock_identity="00a069.fffe.000001",
    ports=(PtpPort("eth1", clock_identity="00a069.fffe.000001"), PtpPort("eth2", clock_identity="00a069.fffe.000002")),
)


def probed(access: ProbeAccess = ACCESS, sample: GrandmasterSample = SAMPLE) -> Probe:
    snmp = None if access.snmp is None else SnmpReport({}, {}, (), (), sample, (), False)
    return Probe(access, snmp, WebReport(FINGERPRINT), None, ())


def grandmaster_table(text: str) -> tuple[str, list[str], TimeProviderOptions]:
    """As the daemon takes it."""
    (found,) = parse(tomllib.loads(text), options_of, "paste").grandmaster
    assert isinstance(found.options, TimeProviderOptions)
    return found.name, found.identities, found.options


def test_a_community() -> None:
    """Name and identities are the grandmaster's own; each of its ports may have another identity."""
    name, identities, options = grandmaster_table(suggestion(probed()))

    assert (name, identities) == ("gm-a.lab-7", ["00a069.fffe.000001", "00a069.fffe.000002"])
    assert (options.host, options.port, options.profiles) == ("192.0.2.1", 161, DEFAULT)
    assert options.community == SecretSettings(env="GM_C")


def test_a_user_and_the_web_interface() -> None:
    """Each secret is where it was, and the certificate is pinned."""
    text = suggestion(probed(replace(ACCESS, port=1161, snmp=EVA, web=WEB)))
    _, _, options = grandmaster_table(text)

    assert options.user is not None and options.https is not None
    assert options.user.model_dump(include={"name", "auth", "priv"}) == {
        "name": "eva",
        "auth": "sha512",
        "priv": "aes256",
    }
    assert (options.user.auth_pass, options.user.priv_pass) == (EVA.secrets["auth_pass"], EVA.secrets["priv_pass"])
    assert (options.port, options.https.port, options.https.username) == (1161, 8443, "eva")
    assert (options.https.password, options.https.fingerprint) == (SecretSettings(env="GM_W"), FINGERPRINT)
    assert not any(secret in text for secret in ("hush", "phrase", "web word"))


def test_https_alone() -> None:
    """A grandmaster of which no SNMP credentials are known."""
    _, identities, options = grandmaster_table(suggestion(probed(replace(ACCESS, snmp=None, web=WEB))))

    assert (identities, options.community, options.user) == ([], None, None)
    assert options.https is not None


def test_insecure_is_not_handed_on() -> None:
    """A probe with --insecure gives a configuration without it: the certificate that was served is pinned."""
    web = replace(WEB, options=web_options({"username": "eva", "insecure": True}))
    _, _, options = grandmaster_table(suggestion(probed(replace(ACCESS, web=web))))

    assert options.https is not None
    assert (options.https.insecure, options.https.fingerprint) == (False, FINGERPRINT)


def test_a_secret_that_was_typed() -> None:
    """A place to put it is proposed."""
    typed = replace(ACCESS, snmp=SnmpAccess(Community("hush-hush"), {}))
    _, _, options = grandmaster_table(suggestion(probed(typed)))

    assert options.community == SecretSettings(file=Path("/etc/timesyncd/gm-a.lab-7.community"))


def test_profiles_that_answered() -> None:
    """The suggestion lists them; all stay configured, since the silent ones still explain traps and syslog messages."""
    text = suggestion(probed())

    assert "# answered: ptpbase, system\n" in text
    assert "\nprofiles" not in text


def test_a_profile_of_one_s_own(tmp_path: Path) -> None:
    """It goes before the shipped ones."""
    file = tmp_path / "site.toml"
    file.write_text(
        'name = "site"\ntitle = "t"\nproved_by = ["1.3.6.1.4.1.99999"]\n[[object]]\noid = "1.3.6.1.4.1.99999.1"\n'
        'decoder = "text"\nfield = "model"\nconfidence = "unproven"\nsource = "test"\n'
    )
    _, _, options = grandmaster_table(suggestion(probed(), [str(file)]))

    assert options.profiles == (str(file), *DEFAULT)


@pytest.mark.parametrize(
    ("sys_name", "name"),
    [("gm-a", "gm-a"), ("", "gm-a"), ("-", "gm-a"), ('x"\n[evil]', "x-evil"), ("a" * 99, "a" * 64), ("ü", "gm-a")],
)
def test_a_name_that_a_configuration_takes(sys_name: str, name: str) -> None:
    """Whatever name a grandmaster reports, nothing of it becomes another line."""
    assert grandmaster_name(replace(SAMPLE, sys_name=sys_name)) == name


@pytest.mark.parametrize("text", ["", 'a"b\\c', "ü\n\t\x00\x7f\x1f", "\U0001f570", "a=b # c"])
def test_whatever_text_is_toml(text: str) -> None:
    """It is read back as it was written, as a value, in an array, in a table, and as a key."""
    written = f"a = {quoted(text)}\nb = {array([text])}\nc = {inline({text: text})}\n{key('d' + text)} = 1\n"

    assert tomllib.loads(written) == {"a": text, "b": [text], "c": {text: text}, "d" + text: 1}
