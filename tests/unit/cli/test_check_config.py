"""`timesyncd check-config`: what the daemon would run, and errors of the named files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from authority import Authority

from timesyncd.__main__ import main
from timesyncd.cli.check_config import describe, unusable_files
from timesyncd.config import Config, parse
from timesyncd.driver import options_of


def config(**sections: Any) -> Config:
    return parse({"node": {"name": "n1"}} | sections, options_of, "t.toml")


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"node": {"name": "n1", "topology": "hall-1/rack-2"}}, "topology     hall-1/rack-2"),
        (
            {"store": {"path": "/s", "keep_days": 2}},
            "store        /s; keeps samples for 2 days, minutes for 90 days, hours for 1095 days",
        ),
        (
            {"store": {"url": "postgresql://u@db/t", "password": {"env": "P"}}},
            "store        postgresql://u@db/t, password (env P); keeps samples for 7 days, minutes for 90 days, hours for 1095 days",
        ),
        (
            {"mqtt": {"host": "b"}},
            "mqtt         b:1883, topics timesyncd/v1/..., history kept until any hub stored it",
        ),
        (
            {
                "mqtt": {
                    "host": "b", "tls": True, "ca": "/ca", "certificate": "/c", "key": "/k", "username": "u",
                    "password": {"file": "/p"}, "hubs": ["h1", "h2"],
                }
            },
            (
                "mqtt         b:8883 over TLS, ca /ca, certificate /c, key /k, as u, password (file /p), "
                "topics timesyncd/v1/..., history kept until h1 and h2 stored it"
            ),
        ),
        ({"node": {"link": "rack-7"}}, "link         rack-7, shared by the jobs of its nodes"),
        ({"web": {}}, "web          http://127.0.0.1:8319/, every user of this machine may read"),
        (
            {"web": {"token": [{"name": "ops", "secret": {"file": "/t"}}]}},
            "web          http://127.0.0.1:8319/, token ops: role reader (file /t)",
        ),
        (
            {
                "web": {
                    "host": "::", "certificate": "/c", "key": "/k", "client_ca": "/ca", "client_role": "job",
                    "token": [{"name": "ops", "role": "admin", "secret": {"file": "/t"}}],
                }
            },
            "web          https://[::]:8319/, certificate /c, key /k, client certificates of /ca: role job, token ops: role admin (file /t)",
        ),
    ],
)  # fmt: skip
def test_a_section_is_one_line(sections: dict[str, Any], line: str) -> None:
    """A line gives the section's defaults, and of a secret its origin."""
    assert line in describe(config(**sections))


def test_usable_files_are_no_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid certificates, keys and tokens give no error."""
    authority = Authority(tmp_path)
    own = authority.identity("n1")
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    tls = {"certificate": str(own.certificate), "key": str(own.key)}
    known = config(
        mqtt={"host": "b", "tls": True, "ca": str(authority.ca)} | tls,
        web={"client_ca": str(authority.ca), "token": [{"name": "r", "secret": {"env": "TOKEN"}}]} | tls,
    )

    assert unusable_files(known) == []


def test_each_unusable_file_is_named(tmp_path: Path) -> None:
    """All unusable files are reported, not only the first."""
    own, another = Authority(tmp_path).identity("n1"), Authority(tmp_path, "other-ca").identity("n2")
    mixed = {"certificate": str(own.certificate), "key": str(another.key)}
    lines = unusable_files(config(mqtt={"host": "b", "tls": True} | mixed, web=mixed))

    assert [line.split(" ")[0] for line in lines] == ["mqtt.key", "web.certificate"]


def test_values_of_a_file_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal would act on what a string of TOML may hold."""
    path = tmp_path / "node.toml"
    path.write_text('[node]\nname = "n1"\n[traps]\nhost = "\\u001b[31m\\u001b]0;x"\n')
    main(["check-config", "--config", str(path)])
    printed = capsys.readouterr()

    assert "\x1b" not in printed.out + printed.err and "[31m" in printed.out + printed.err
