"""The configuration: what is accepted, and the one line that states what is wrong."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from timesyncd import config
from timesyncd.cli.check_config import describe
from timesyncd.config import validation_text
from timesyncd.driver import build_driver, options_of
from timesyncd.errors import ConfigError, ConfigErrors
from timesyncd.model.grandmaster import HoldoverCurve

GOOD = """
[node]
name = "node-a"
[[source]]
name = "ptp"
driver = "ptp4l"
uds_address = "/run/ptp/ptp4l"
[source.bounds]
local_drift_ppb = 20000
[[grandmaster]]
name = "gm-a"
driver = "timeprovider"
host = "192.0.2.1"
community = { env = "COMMUNITY" }
oscillator = "ocxo"
[oscillator.ocxo]
holdover = [[0, 100], [3600, 460]]
[mqtt]
host = "broker"
[web]
"""


def parse(text: str) -> config.Config:
    return config.parse(tomllib.loads(text), options_of, "t.toml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[store]\npath = "/a\\u0000b"\n', "a path cannot contain NUL"),
        (
            '[[source]]\nname = "a"\ndriver = "clockbound"\npath = "/a\\u0000b"\n[clockbound]\n',
            "a path cannot contain NUL",
        ),
        (f"source.{'.'.join(['a'] * 5000)} = 1\n", "nested too deeply"),
        (f"{'.'.join(['a'] * 5000)} = 1\n", r"a = \.\.\.: unknown key"),
    ],
    ids=["store", "source", "nested source", "nested"],
)
def test_a_path_or_a_table_that_no_system_takes_is_an_error(text: str, error: str, tmp_path: Path) -> None:
    """NUL in a path, and thousands of nested tables, are refused as any other wrong value."""
    (tmp_path / "t.toml").write_text(text)

    with pytest.raises(ConfigError, match=error):
        config.load(tmp_path / "t.toml", options_of)


def test_a_section_that_is_there_switches_its_part_on() -> None:
    """
    An empty section is enough, and one that is absent leaves its part off.
    """
    parsed = parse(GOOD)

    assert parsed.web is not None
    assert parsed.store is None
    assert parsed.source[0].ensemble_settings().source.local_drift_ppb == 20_000
    assert parsed.source[0].ensemble_settings().source.grandmaster_rate_ppb == 100


def test_independence_is_what_the_operator_declares() -> None:
    """
    Without a declaration a source is independent of none.
    """
    more = '[[source]]\nname = "utc"\ndriver = "chrony"\nindependent_of = ["ptp"]\n[mqtt]'
    ptp, utc = (source.ensemble_settings().independent_of for source in parse(GOOD.replace("[mqtt]", more)).source)

    assert (ptp, utc) == (frozenset(), frozenset({"ptp"}))


def test_what_runs_and_what_is_off_is_described() -> None:
    """The segment for clients of ClockBound too, by its path."""
    on = config.parse({"clockbound": {"path": "/run/x/shm0"}}, options_of, "t.toml")
    off = config.parse({}, options_of, "t.toml")

    assert "clockbound   /run/x/shm0" in describe(on)
    assert [describe(each)[-1] for each in (on, off)] == [
        "off          store, mqtt, web", "off          store, mqtt, web, clockbound",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "is_reachable"),
    [
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("127.0.0.1", False),
        ("192.0.2.1", True),
        ("hub-a.example", True),
    ],
)
def test_a_hub_publishes_an_address_that_others_can_reach(host: str, is_reachable: bool) -> None:
    """https://0.0.0.0/ is the address of the machine that connects, not of the hub."""
    web = {"host": host, "token": [{"name": "t", "secret": {"env": "T"}}]}

    assert config.parse({"web": web}, options_of, "t.toml").web.is_reachable is is_reachable  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("parts", "warnings"),
    [(("hub", "mqtt"), 1), (("hub", "mqtt", "store"), 0), (("hub",), 0), (("mqtt",), 0)],
)
def test_a_hub_without_a_store_is_warned_of(parts: tuple[str, ...], warnings: int) -> None:
    """The nodes' history would be lost in silence."""
    sections = {"hub": {}, "mqtt": {"host": "b"}, "store": {}}
    found = config.parse({part: sections[part] for part in parts}, options_of, "t.toml").warnings

    assert len(found) == warnings
    assert all(warning.startswith("hub: without [store] this hub stores no history") for warning in found)


@pytest.mark.parametrize(("parts", "warnings"), [({"mqtt"}, 1), ({"mqtt", "hub", "store"}, 0), (set(), 0)])
def test_a_policy_that_no_job_receives_is_warned_of(parts: set[str], warnings: int) -> None:
    """A node's daemon behind a broker plans nothing; alone, or with a hub in it, it does. A policy is kept as it is written."""
    sections = {part: {"host": "b"} if part == "mqtt" else {} for part in parts}
    parsed = config.parse({"job": [{"name": "j", "policy": " bsp  +topk( )"}], **sections}, options_of, "t.toml")

    assert parsed.policies == {"j": "bsp + topk"}
    assert len(parsed.warnings) == warnings
    assert all(warning.startswith("job: this daemon is not a hub") for warning in parsed.warnings)


def test_a_grandmaster_has_the_holdover_budget_of_its_oscillator() -> None:
    """
    By name; a grandmaster without an oscillator has none.
    """
    parsed = parse(GOOD)
    nameless = parse(GOOD.replace('oscillator = "ocxo"\n', ""))

    assert parsed.holdover_curve(parsed.grandmaster[0]) == HoldoverCurve(((0, 100), (3_600, 460)))
    assert nameless.holdover_curve(nameless.grandmaster[0]) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("[web]", "[web]\nprot = 1"),
            "t.toml: web.prot = 1: unknown key; did you mean port? allowed here: certificate, client_ca, client_role, host, key, peer, port, token",
        ),
        (
            ("[web]", '[web]\n"a\\nb" = 1'),
            "t.toml: web.'a\\nb' = 1: unknown key; allowed here: certificate, client_ca, client_role, host, key, peer, port, token",
        ),
        (
            ("[web]", "[wbe]"),
            "t.toml: wbe = {}: unknown key; did you mean web? allowed here: clockbound, grandmaster, hub, job, limits, log, mqtt, node, notify, oscillator, otlp, simulation, source, store, syslog, traps, web",
        ),
        (("20000", "-1"), "t.toml: source[0].bounds.local_drift_ppb = -1: Input should be greater than or equal to 0"),
        (("20000", '"fast"'), "t.toml: source[0].bounds.local_drift_ppb = 'fast': Input should be a valid integer"),
        (("uds_address", "socket"), "t.toml: source[0].socket = '/run/ptp/ptp4l': unknown key; allowed here: "),
        (('"gm-a"', '"ptp"'), "t.toml: name = 'ptp': used 2 times; names of sources and grandmasters must be unique"),
        (('"node-a"', '"no/de"'), "t.toml: node.name = 'no/de': String should match pattern"),
        (
            ('driver = "ptp4l"', 'driver = "ptp5l"'),
            "t.toml: source[0].driver = 'ptp5l': no such driver; did you mean ptp4l? installed drivers: ",
        ),
        (('driver = "ptp4l"', ""), "t.toml: source[0].driver = None: must be the name of a driver"),
        (('{ env = "COMMUNITY" }', '{ env = "A", file = "/b" }'), "t.toml: grandmaster[0].community"),
        (('host = "broker"', ""), "t.toml: mqtt.host: missing"),
        (
            ("3600, 460", "3600, 99"),
            "t.toml: oscillator.ocxo.holdover = [[0, 100], [3600, 99]]: the seconds",
        ),
        (
            ("[0, 100], ", ""),
            "t.toml: oscillator.ocxo.holdover = [[3600, 460]]: a holdover curve needs two points or more",
        ),
        (
            ("holdover = ", "ageing = 1\nholdover = "),
            "t.toml: oscillator.ocxo.ageing = 1: unknown key; allowed here: holdover",
        ),
        (
            ("[oscillator.ocxo]", "[oscillator.rb]"),
            "t.toml: grandmaster[0].oscillator = 'ocxo': no such section [oscillator.ocxo]; configured oscillators: rb",
        ),
        (
            ('driver = "ptp4l"', 'driver = "ptp4l"\nindependent_of = ["gm-a"]'),
            "t.toml: source[0].independent_of = 'gm-a': must name another source; there are: none",
        ),
        (
            ('driver = "ptp4l"', 'driver = "ptp4l"\nindependent_of = ["ptp"]'),
            "t.toml: source[0].independent_of = 'ptp': must name another source; there are: none",
        ),
        (("[[source]]", "[source]"), "t.toml: source = "),
        (
            ("[web]", '[[job]]\nname = "j"\npolicy = "local_sgd(h=0)"\n[web]'),
            "t.toml: job[0].policy = 'local_sgd(h=0)': policy 'local_sgd(h=0)': local_sgd(h, delay, across): h is 0",
        ),
        (
            ("[web]", '[[job]]\nname = "j"\npolicy = "bsp"\npriority = 0\n[web]'),
            "t.toml: job[0].priority = 0: ",
        ),
        (
            ("[web]", '[[job]]\nname = "j"\npolicy = "bsp"\n[[job]]\nname = "j"\npolicy = "asp"\n[web]'),
            "t.toml: job: name = 'j': used 2 times; names of jobs must be unique",
        ),
    ],
)
def test_one_line_names_file_key_value_and_what_is_allowed(change: tuple[str, str], message: str) -> None:
    """
    Whatever is wrong, the error is one line from which it can be mended.
    """
    with pytest.raises(ConfigError) as caught:
        parse(GOOD.replace(*change))

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"[node", b"\xff\xfe"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    """
    The file is named, and so is the place.
    """
    path = tmp_path / "t.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load(path, options_of)


def test_text_without_quotes_has_its_remedy(tmp_path: Path) -> None:
    """A newcomer's first error in TOML has its place and the remedy."""
    path = tmp_path / "t.toml"
    path.write_text("[node]\nname = node-a\n")
    with pytest.raises(ConfigError, match=r"line 2, column 8\); write text in quotes"):
        config.load(path, options_of)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """
    One line, no traceback.
    """
    with pytest.raises(
        ConfigError, match="cannot be read: No such file or directory; create it, or give another path with --config"
    ):
        config.load(tmp_path / "none.toml", options_of)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a = " + "[" * 3_000 + "]" * 3_000, "recursion"),
        ("a = " + "9" * 5_000, "4300 digits"),
        ("a = 0x" + "9" * 5_000, r"a = \.\.\.: unknown key"),
        ("a = 1 " * 200_000, "larger"),
    ],
    ids=["nested arrays", "a long number", "a long hexadecimal number", "a megabyte"],
)
def test_what_the_parser_cannot_take_is_one_line(tmp_path: Path, content: str, why: str) -> None:
    """
    It names the file, and no traceback follows.
    """
    path = tmp_path / "t.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=why) as caught:
        config.load(path, options_of)

    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_a_grandmaster_s_profile_is_named_alone(tmp_path: Path) -> None:
    """pydantic also reports that too few are left."""
    path = tmp_path / "t.toml"
    path.write_text(
        '[[grandmaster]]\nname = "gm"\ndriver = "timeprovider"\nhost = "gm"\n'
        'community = { env = "HOME" }\nprofiles = ["/dev/zero"]\n'
    )
    with pytest.raises(ConfigErrors) as caught:
        config.load(path, options_of)

    assert caught.value.texts == (
        f"{path}:6: grandmaster[0].profiles[0] = '/dev/zero': profile /dev/zero: cannot be read: it is no regular file",
    )


def test_a_secret_in_what_is_no_file_is_reported_at_once(tmp_path: Path) -> None:
    """
    A FIFO would wait for ever, and /dev/zero has no end.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match=f"secret: {path} cannot be read: "):
            config.SecretSettings(file=path).reveal()


def test_a_secret_is_never_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Neither by repr nor in the configuration's JSON; and it comes from a file or the environment alone.
    """
    monkeypatch.setenv("COMMUNITY", "s3cret")
    (tmp_path / "password").write_text("s3cret\n")
    parsed = parse(GOOD)
    from_env = config.SecretSettings(env="COMMUNITY").reveal()
    from_file = config.SecretSettings(file=tmp_path / "password").reveal()

    assert from_env == from_file
    assert from_file.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(from_env) + repr(parsed) + parsed.model_dump_json(serialize_as_any=True)


def test_a_missing_secret_is_reported(tmp_path: Path) -> None:
    """
    With its place, not its value.
    """
    with pytest.raises(ConfigError, match="cannot be read"):
        config.SecretSettings(file=tmp_path / "none").reveal()


def test_keys_that_exclude_each_other_are_reported_without_the_table() -> None:
    """The line names the table and what is wrong with it; its whole content would bury that."""
    grandmaster = {"name": "gm", "driver": "timeprovider", "host": "192.0.2.1"}

    with pytest.raises(ConfigError) as caught:
        config.parse({"grandmaster": [grandmaster]}, options_of, "t.toml")

    assert str(caught.value) == (
        "t.toml: grandmaster[0]: give at least one of community (SNMP v2c), user (SNMP v3) and https"
    )


def test_options_that_a_driver_rejects_name_their_grandmaster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An operator of fifty grandmasters must know which one the error means."""
    monkeypatch.setenv("SHORT", "1234567")
    user = {"name": "w", "auth_pass": {"env": "SHORT"}, "priv_pass": {"env": "SHORT"}}
    grandmaster = {"name": "gm-7", "driver": "timeprovider", "host": "192.0.2.1", "user": user}
    options = config.parse({"grandmaster": [grandmaster]}, options_of, "t.toml").grandmaster[0].options

    with pytest.raises(
        ConfigError, match=r"^gm-7: user\.auth_pass: the pass phrase is too short; SNMPv3 needs at least 8 characters"
    ):
        build_driver("gm-7", "timeprovider", options, tmp_path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[web]\nhost = "0.0.0.0"', "t.toml: web: host = '0.0.0.0' is not a loopback address, so [[web.token]] or client_ca is required"),
        ('[web]\ncertificate = "c.pem"', "t.toml: web: certificate and key must be set together, or neither"),
        ('[web]\nclient_ca = "ca.pem"', "t.toml: web: client_ca requires certificate and key"),
        ('[mqtt]\nhost = "b"\nca = "ca.pem"', "t.toml: mqtt: ca, certificate and key require tls = true"),
        ('[mqtt]\nhost = "b"\ntls = true\nkey = "k.pem"', "t.toml: mqtt: certificate and key must be set together, or neither"),
        ('[store]\npath = "a"\nurl = "postgresql://db/t"', "t.toml: store: path and url exclude each other: set one of them"),
        ('[store]\nurl = "postgresql://db/t?password=x"', "t.toml: store: url must not contain a password: set password = { file = ... }"),
        ('[store]\npassword = { env = "X" }', "t.toml: store: password requires url"),
        ("[store]\nkeep_days = 365", "t.toml: store: coarser data must be kept at least as long: keep_days <= keep_minutes_days <= keep_hours_days"),
        ("[store]\nkeep_minutes_days = 2000", "t.toml: store: coarser data must be kept at least as long: keep_days <= keep_minutes_days <= keep_hours_days"),
    ],
)  # fmt: skip
def test_what_keys_of_a_section_mean_together_is_checked(section: str, message: str) -> None:
    """A page on the network without a token, half a certificate, two places for one store: one line, and nothing starts."""
    with pytest.raises(ConfigError) as error:
        parse(section)

    assert str(error.value) == message


@pytest.mark.parametrize(
    "section",
    [
        '[store]\nurl = "postgresql://me:swordfish@db/t"',
        '[store]\nurl = "postgres://me:swordfish@db/t"',
        '[mqtt]\nhost = "b"\npassword = "swordfish"',
        '[mqtt]\nhost = "b"\npasswd = "swordfish"',
        '[[web.token]]\nname = "a"\nsecret = "swordfish"',
        '[[web.token]]\nname = "a"\nsecret = { value = "swordfish" }',
        '[traps]\ncommunities = ["swordfish"]',
    ],
)
def test_a_secret_in_the_file_is_not_shown(section: str) -> None:
    """Not even in the error that refuses it: that goes to a journal that others read."""
    with pytest.raises(ConfigError) as error:
        parse(section)

    assert "swordfish" not in str(error.value)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: int = 0
    password: int = 0


class Outer(BaseModel):
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("data", "with_value", "text"),
    [
        ({"inner": {"rate": "fast"}}, True, "at.inner.rate = 'fast': Input should be a valid integer"),
        ({"inner": {"rate": "fast"}}, False, "at.inner.rate: Input should be a valid integer"),
        ({"inner": {"password": "hunter2"}}, True, "at.inner.password = ...: Input should be a valid integer"),
        ({"inner": {"bad\nkey": 1}}, True, "at.inner.'bad\\nkey' = 1: unknown setting; allowed here: password, rate"),
        ({"inner": {"rate": "x" * 500}}, True, f"at.inner.rate = '{'x' * 79}...: Input should be a valid integer"),
        ({"inner": {"x" * 500: 1}}, True, f"at.inner.{'x' * 73} = 1: unknown setting; allowed here: password, rate"),
    ],
)
def test_a_validation_error_is_one_line(data: dict[str, object], with_value: bool, text: str) -> None:
    """Path, value and what is allowed; cut where it is long, escaped where it would begin a line, without a secret."""
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)

    line = validation_text(caught.value, "at", model=Outer, noun="setting", with_value=with_value)

    assert line.startswith(text)
    assert "\n" not in line


BROKEN = """[node]
name = "a"
[[source]]
name = "ptp"
driver = "ptp4l"
domain = "0"

[source.bounds]
holdover_after_ns = 1.5
[[source]]
name = "phc"
driver = "pch"
[mqtt]
host = "broker:1883"
tls = "yes"
[[grandmaster]]
name = "gm"
driver = "timeprovider"
host = "192.0.2.1"
community = "public"
[web]
prot = 1
port = "8319"
"""


def test_all_problems_are_reported_at_once_each_with_its_line(tmp_path: Path) -> None:
    """In the order of the file; the error's own text is the first of them."""
    path = tmp_path / "t.toml"
    path.write_text(BROKEN)
    with pytest.raises(ConfigErrors) as caught:
        config.load(path, options_of)

    texts = [text.removeprefix(f"{path}:") for text in caught.value.texts]
    expected = [
        "6: source[0].domain = '0': Input should be a valid integer: write it without quotes",
        "9: source[0].bounds.holdover_after_ns = 1.5: Input should be a valid integer",
        "12: source[1].driver = 'pch': no such driver; did you mean phc? installed drivers: ",
        "14: mqtt.host = 'broker:1883': must be a host name or an address: give the port as port = 1883",
        "15: mqtt.tls = 'yes': Input should be a valid boolean: write true or false",
        '20: grandmaster[0].community: a secret is not written here: give { file = "/path" } or { env = "NAME" }',
        "22: web.prot = 1: unknown key; did you mean port? allowed here: ",
        "23: web.port = '8319': Input should be a valid integer: write it without quotes",
    ]
    assert len(texts) == len(expected)
    for text, start in zip(texts, expected, strict=True):
        assert text.startswith(start)
    assert str(caught.value) == f"{caught.value.texts[0]}; 7 more: timesyncd check-config prints them"
    assert "public" not in str(caught.value.texts)


@pytest.mark.parametrize("host", ["broker", "192.0.2.1", "2001:db8::1", "::1"])
def test_a_host_may_be_any_address(host: str) -> None:
    """An IPv6 address is no host with a port."""
    assert parse(f'[mqtt]\nhost = "{host}"').mqtt == config.MqttSettings(host=host)


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    """Editors on Windows write it, and it is invisible."""
    path = tmp_path / "t.toml"
    path.write_bytes(b"\xef\xbb\xbf[web]\n")
    with pytest.raises(ConfigError, match=f"^{path}:1: begins with a byte order mark"):
        config.load(path, options_of)


@pytest.mark.parametrize(
    ("sections", "start"),
    [
        ("[traps]", "traps: without effect, because no [[grandmaster]]"),
        ("[syslog]", "syslog: without effect, because no [[grandmaster]]"),
        ("[clockbound]", "clockbound: without effect, because no [[source]]"),
        ('[hub]\nnodes = ["a"]', "hub.nodes: without effect, because without [mqtt]"),
        ("[oscillator.rb]\nholdover = [[0, 1], [9, 2]]", "oscillator.rb: without effect, because no [[grandmaster]]"),
    ],
)
def test_a_section_without_effect_is_warned_of(sections: str, start: str) -> None:
    """The daemon runs with it all the same."""
    (warning,) = parse(sections).warnings
    assert warning.startswith(start)


def test_sections_with_an_effect_are_not_warned_of() -> None:
    """Of the example no section is idle."""
    assert parse(GOOD + "[traps]\n[syslog]\n[clockbound]\n").warnings == []
