"""`timesyncd check-config`: what would run, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timesyncd.cli.check_config import describe, unusable
from timesyncd.config import Config, parse
from timesyncd.driver import options_of
from timesyncd.simulation.bed.authority import Authority


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
            "mqtt         b:1883, topics timesyncd/v1/..., history until one hub, whichever, stored it",
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
                "topics timesyncd/v1/..., history until h1 and h2 stored it"
            ),
        ),
        ({"web": {}}, "web          http://127.0.0.1:8319/, everybody on this machine may read"),
        (
            {"web": {"token": [{"name": "ops", "secret": {"file": "/t"}}]}},
            "web          http://127.0.0.1:8319/, token ops: reader (file /t)",
        ),
        (
            {
                "web": {
                    "host": "::", "certificate": "/c", "key": "/k", "client_ca": "/ca", "client_role": "job",
                    "token": [{"name": "ops", "role": "admin", "secret": {"file": "/t"}}],
                }
            },
            "web          https://[::]:8319/, certificate /c, key /k, client certificates of /ca: job, token ops: admin (file /t)",
        ),
    ],
)  # fmt: skip
def test_a_section_is_told_in_a_line(sections: dict[str, Any], line: str) -> None:
    """With its defaults; secrets by where they come from."""
    assert line in describe(config(**sections))


def test_what_can_be_used_is_not_complained_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates, keys and tokens as they should be."""
    authority = Authority(tmp_path)
    own = authority.identity("n1")
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    tls = {"certificate": str(own.certificate), "key": str(own.key)}
    known = config(
        mqtt={"host": "b", "tls": True, "ca": str(authority.ca)} | tls,
        web={"client_ca": str(authority.ca), "token": [{"name": "r", "secret": {"env": "TOKEN"}}]} | tls,
    )

    assert unusable(known) == []


def test_each_wrong_file_is_named(tmp_path: Path) -> None:
    """All of them, not the first alone."""
    own, another = Authority(tmp_path).identity("n1"), Authority(tmp_path, "other-ca").identity("n2")
    mixed = {"certificate": str(own.certificate), "key": str(another.key)}
    lines = unusable(config(mqtt={"host": "b", "tls": True} | mixed, web=mixed))

    assert [line.split(" ")[0] for line in lines] == ["mqtt.key", "web.certificate"]
