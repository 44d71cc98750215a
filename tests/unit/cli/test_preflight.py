"""`timesyncd preflight`: its screen, its exit status and its token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, aligned, hub_state, node, page, serving

from timesyncd import __main__ as program
from timesyncd.cli.preflight import MAX_NODES_SHOWN, screen
from timesyncd.client import PreflightNode, PreflightReason, PreflightResult
from timesyncd.units import span_ns

HOSTILE = "\x1b]0;owned\x07\nnext"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    with serving() as hub:
        yield hub


def run(hub: FakeHub, *words: str) -> int:
    asked = ("--nodes", "a,b", "--max-alignment", "1us", "--timeout", "0s", "--url", hub.url)
    return program.main(["preflight", *asked, *words])


def test_the_screen_of_clocks_that_agree(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes have bounds with units, and the verdict is PASS."""
    hub.agree(400)
    code = run(hub)

    assert (code, capsys.readouterr().out.splitlines()) == (
        0,
        [
            "node  status        within",
            "a     SYNCHRONIZED  +-200 ns",
            "b     SYNCHRONIZED  +-200 ns",
            "",
            "PASS: 2 nodes, clocks agree within 400 ns, limit 1 us (one grandmaster)",
        ],
    )


def test_the_screen_of_a_node_that_fails(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """It is first, and in the verdict, with its reason."""
    nodes = [node("b", None, "the PTP parent changed").model_dump(), node("a").model_dump()]
    hub.agree(None, nodes=nodes)
    code = run(hub)

    assert (code, capsys.readouterr().out.splitlines()) == (
        1,
        [
            "node  status        within",
            "b     UNKNOWN       unknown   the PTP parent changed",
            "a     SYNCHRONIZED  +-200 ns",
            "",
            "FAIL: b: the PTP parent changed",
        ],
    )


def test_a_large_fleet_fits_a_screen() -> None:
    """The screen has the worst of 10,000 nodes, the number of the others and the verdict, in 24 lines."""
    nodes = tuple(PreflightNode(f"n{n}", "SYNCHRONIZED", 10_000 - n, "ok", "") for n in range(10_000))
    lines = screen(PreflightResult(True, 500, PreflightReason.OK, "UTC", nodes), 1_000)

    assert len(lines) <= 24
    assert lines[-3:-1] == [f"and {10_000 - MAX_NODES_SHOWN} more nodes with smaller bounds", ""]
    assert lines[-1].startswith("PASS: 10000 nodes")


def test_strings_from_the_network_are_text(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in any field are not printed."""
    hub.agree(
        None,
        names="a",
        nodes=[{"node": HOSTILE, "status": HOSTILE, "bound_ns": None, "reason_code": HOSTILE, "reason": HOSTILE}],
        reason=HOSTILE,
    )
    run(hub)
    printed = capsys.readouterr().out

    assert "\x1b" not in printed and "\x07" not in printed
    assert "?]0;owned??next" in printed


def test_json_is_the_result_in_nanoseconds(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the fields of the Python result, and the limit."""
    hub.agree(400)
    code = run(hub, "--json")
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)

    assert code == 0
    assert printed == {
        "ok": True, "alignment_ns": 400, "max_alignment_ns": 1_000, "reason_code": "ok", "reason": "one grandmaster",
        "pair": ["a", "b"], "url": hub.url,
        "nodes": [{"node": n, "status": "SYNCHRONIZED", "bound_ns": 200, "reason_code": "ok", "reason": ""} for n in "ab"],
    }  # fmt: skip


def test_without_a_terminal_stderr_stays_empty(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a prolog has only the verdict."""
    hub.agree(None)
    run(hub, "--timeout", "1ms")

    assert capsys.readouterr().err == ""


def test_the_token_is_read_from_a_file(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file takes precedence over the environment, and its line end is removed."""
    monkeypatch.setenv("TIMESYNCD_TOKEN", "of-the-environment")
    (tmp_path / "token").write_text("of-the-file\n")
    hub.agree()
    run(hub)
    run(hub, "--token-file", str(tmp_path / "token"))

    assert [shown for _, shown in hub.asked] == ["Bearer of-the-environment", "Bearer of-the-file"]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"two\nlines"])
def test_an_unusable_token_is_2(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    """The error is one line without the token."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    code = run(hub, "--token-file", str(path))
    printed = capsys.readouterr().err

    assert code == 2
    assert "token" in printed and "two" not in printed and len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        [], ["--nodes", "a"], ["--max-alignment", "1us"], ["--nodes", "a", "--job", "j", "--max-alignment", "1us"],
        ["--nodes", "a", "--max-alignment", "1"], ["--nodes", "a", "--max-alignment", "1us", "--password", "x"],
    ],
)  # fmt: skip
def test_a_usage_error_is_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A token cannot be given as an argument either."""
    with pytest.raises(SystemExit) as ended:
        program.main(["preflight", *words])

    assert ended.value.code == 2


@pytest.mark.parametrize("text", ["a\nb\n", "a,b", " a , b\n"])
def test_names_are_read_from_standard_input(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Names are separated by lines, as `scontrol show hostnames` prints them, or by commas."""
    seen = []

    def asked(query: dict[str, list[str]]) -> tuple[int, object]:
        seen.append(query["nodes"])
        return 200, aligned(400)

    monkeypatch.setattr("sys.stdin", StringIO(text))
    hub.answers["/api/v1/alignment"] = asked

    assert (run(hub, "--nodes", "-"), seen) == (0, [["a,b"]])


@pytest.mark.parametrize(
    "words",
    [
        ["--nodes", "-"],
        ["--nodes", ""],
        ["--nodes", "a,,b"],
        ["--nodes", "a", "--token-file", "/nonexistent"],
        ["--job", ""],
    ],
)
def test_an_invalid_query_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The error is one line, before a hub is queried."""
    monkeypatch.setattr("sys.stdin", StringIO())
    code = program.main(["preflight", "--max-alignment", "1us", *words])

    assert code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_configured_daemon_names_the_hub(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configured daemon is queried, then the hub that it names."""
    config = tmp_path / "timesyncd.toml"
    config.write_text(f"[web]\nport = {hub.url.rstrip('/').rpartition(':')[2]}\n")
    with serving() as other:
        hub.agree(None, names="a")
        hub.answers["/api/v1/hubs"] = (200, page(hub_state("h", other.url, primary=True)))
        other.agree(400)
        code = program.main(
            ["preflight", "--nodes", "a,b", "--max-alignment", "1us", "--timeout", "0s", "--config", str(config)]
        )

    assert (code, [path for path, _ in other.asked]) == (0, ["/api/v1/alignment"])


def test_an_unusable_configuration_names_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 2, and the error names --url."""
    config = tmp_path / "timesyncd.toml"
    config.write_text("[web\n")
    code = program.main(["preflight", "--nodes", "a", "--max-alignment", "1us", "--config", str(config)])

    assert code == 2
    assert capsys.readouterr().err.endswith("or name a hub with --url\n")


@pytest.mark.parametrize(
    ("text", "ns"),
    [("500ns", 500), ("1us", 1_000), ("2.3us", 2_300), ("20ms", 20_000_000), ("30s", 30 * 10**9), ("2min", 120 * 10**9), ("2m", 120 * 10**9)],
)  # fmt: skip
def test_a_span_has_a_unit(text: str, ns: int) -> None:
    """Spans are parsed to the nanosecond, as by all commands."""
    assert span_ns(text) == ns
