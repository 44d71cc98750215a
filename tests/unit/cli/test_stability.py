"""`timesyncd stability`: of a node, of a grandmaster's channel and of a pair of nodes, from real stores."""

from __future__ import annotations

import asyncio
import json
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from fake_view import FakeView
from samples import HEALTHY, nth

from timesyncd import config
from timesyncd.cli import stability
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import StoreSettings
from timesyncd.errors import Refused, TimesyncdError, Unreachable
from timesyncd.model.observation import Observation
from timesyncd.sample import ClockState, GrandmasterSample, KernelSample, TimeErrorSeries
from timesyncd.store.engine import StoreLocation
from timesyncd.store.writer import Store
from timesyncd.web.app import serve

SAMPLES = 400
BEGIN_NS = time.time_ns() - 600 * NS_PER_S


def store(path: Path, observations: list[Observation]) -> Path:
    made = Store(StoreSettings(path=path), SystemClocks(), lambda problem: None)
    made.start()
    for each in observations:
        made.put(each)
    made.stop()
    return path


def node(path: Path, offset_ns: int, spread_ns: int = 3, **changes: Any) -> Path:
    """Syncs at 8 Hz; the offset is a constant plus a saw tooth below `spread_ns`."""
    observations = []
    for index in range(SAMPLES):
        at_ns = BEGIN_NS + index * NS_PER_S // 8
        sample = nth(
            index,
            offset_ns=offset_ns + index % spread_ns,
            ingress_time_ns=at_ns,
            real_minus_boot_ns=at_ns - HEALTHY.as_of_ns - index * NS_PER_S // 8,
            **changes,
        )
        observations.append(Observation(sample, None))
    return store(path, observations)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node(tmp_path_factory.mktemp("here") / "history.sqlite", 40)


def run(*arguments: str | Path) -> int:
    parser = ArgumentParser()
    stability.add_arguments(parser)
    return stability.run(parser.parse_args([*map(str, arguments)]))


def series(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_node_s_numbers_are_printed_with_units_verdicts_and_the_caveat(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output states that an offset is not the truth, the samples and gaps, and each mask's verdict."""
    assert run("ptp", "--store", here) == 0
    out = capsys.readouterr().out
    assert "what the servo reports against its reference, not the truth" in out
    assert f"{SAMPLES} samples, one each 125 ms" in out
    assert "0 gaps, 0 changes of the reference" in out
    assert "max|TE|: 42 ns" in out
    assert "cTE), newest mean over 1,000 s: unknown (no 1,000 s without a gap)" in out
    assert [line for line in out.splitlines() if line.startswith("G.8272 PRTC-A") and "not enough data" in line]
    assert "class D, not compared: max|TE|, cTE, dTE_L and dTE_H: for further study" in out


def test_json_has_every_number_as_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object for the series, whose absent values are null."""
    assert run("ptp", "--store", here, "--json") == 0
    [found] = series(capsys)
    assert found["series"] == "ptp"
    assert (found["interval_ns"], found["samples"], found["constant_te_ns"]) == (125_000_000, SAMPLES, None)
    first = found["deviations"][0]
    assert (first["tau_ns"], first["mtie_ns"]) == (125_000_000, 2)
    assert {verdict["mask"] for verdict in found["verdicts"]} >= {
        "G.8272 PRTC-A",
        "G.8273.2 class C",
        "G.8271.1 point C",
    }


def test_a_pair_is_the_difference_of_two_stores(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This node minus the other one, at the same Syncs."""
    there = node(tmp_path / "there.sqlite", -60)
    assert run("ptp", "--store", here, "--against", there, "--json") == 0
    [found] = series(capsys)
    assert (found["max_abs_te_ns"], found["samples"]) == (100, SAMPLES)
    assert found["deviations"][0]["mtie_ns"] == 0
    assert "difference of two measured offsets" in found["note"]
    assert found["references"] == [HEALTHY.grandmaster_identity]
    assert f"Compared against {HEALTHY.grandmaster_identity}: that reference's own error is in both" in found["note"]


async def test_a_pair_is_the_difference_to_what_another_node_s_daemon_serves(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers by the other node's address as by its store, over more than one request."""
    there = node(tmp_path / "there.sqlite", -60)
    await asyncio.to_thread(run, "ptp", "--store", here, "--against", there, "--json")
    [by_store] = series(capsys)
    server = await serve(config.WebSettings(port=0), FakeView(), StoreLocation(path=there))
    assert await asyncio.to_thread(run, "ptp", "--store", here, "--against", server.url, "--json") == 0
    [by_address] = series(capsys)
    await server.close()

    assert (by_address["samples"], by_address["max_abs_te_ns"]) == (SAMPLES, 100)
    assert by_address | {"series": ""} == by_store | {"series": ""}


async def test_a_peer_without_such_readings_is_an_error_that_names_it(here: Path, tmp_path: Path) -> None:
    """A source that it does not know, one that measures no offset, and no daemon at all."""
    kernel = KernelSample("ptp", SystemClocks().boottime_ns(), 0, 0, 0, True, "none", 37, ())
    path = store(tmp_path / "kernel.sqlite", [Observation(kernel, None)])
    server = await serve(config.WebSettings(port=0), FakeView(), StoreLocation(path=path))
    with pytest.raises(Refused, match="a source of kind kernel measures no offset"):
        await asyncio.to_thread(run, "ptp", "--store", here, "--against", server.url)
    await server.close()
    with pytest.raises(Unreachable, match="is timesyncd running there"):
        await asyncio.to_thread(run, "ptp", "--store", here, "--against", server.url)


def test_a_pair_with_different_references_is_unknown(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes of two grandmasters have no known difference, and the output states the reason."""
    there = node(tmp_path / "there.sqlite", -60, grandmaster_identity="ffeedd.fffe.000001")
    assert run("ptp", "--store", here, "--against", there) == 1
    assert (
        f"unknown: the nodes followed different references at {SAMPLES} of the equal times" in capsys.readouterr().out
    )


def test_a_grandmaster_has_a_report_for_each_channel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The momentary time errors of each channel; the other metrics are no series of time errors."""
    points = tuple((BEGIN_NS + index * NS_PER_S, index % 5) for index in range(100))
    path = store(
        tmp_path / "history.sqlite",
        [
            Observation(GrandmasterSample("gm", SystemClocks().boottime_ns(), clock_state=ClockState.LOCKED), None),
            Observation(TimeErrorSeries("gm", "ptp-1", "te", points), None),
            Observation(TimeErrorSeries("gm", "pps-2", "te", points), None),
            Observation(TimeErrorSeries("gm", "pps-2", "max_te", points), None),
        ],
    )
    assert run("gm", "--store", path, "--json") == 0
    found = series(capsys)
    assert [each["series"] for each in found] == ["gm pps-2", "gm ptp-1"]
    assert {(each["interval_ns"], each["samples"], each["max_abs_te_ns"]) for each in found} == {(NS_PER_S, 100, 4)}


def test_what_has_no_offset_or_no_reading_is_unknown_with_the_reason(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's state is no offset, and a span without readings has no report; both are 1, and an unknown name is 2."""
    kernel = KernelSample("kernel", SystemClocks().boottime_ns(), 0, 0, 0, True, "none", 37, ())
    path = store(tmp_path / "history.sqlite", [Observation(kernel, None)])
    assert run("kernel", "--store", path) == 1
    assert "unknown: a source of kind kernel measures no offset" in capsys.readouterr().out
    assert run("ptp", "--store", here, "--until", "1h", "--since", "2h") == 1
    assert "unknown: fewer than two readings in this span" in capsys.readouterr().out
    assert run("nts", "--store", here) == 2
    assert "known sources: ptp" in capsys.readouterr().err


def test_the_plot_is_written_with_the_masks(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An SVG with the three curves; a file of another kind is refused before anything is read."""
    plot = tmp_path / "ptp.svg"
    assert run("ptp", "--store", here, "--plot", plot) == 0
    drawn = plot.read_text()
    assert drawn.startswith("<?xml")
    for text in ("MTIE in ns", "TDEV in ns", "ADEV", "G.8272 PRTC-B"):
        assert f"<!-- {text} -->" in drawn
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run("ptp", "--store", here, "--plot", tmp_path / "ptp.gif")
    assert "ends with none of .pdf, .png, .svg" in capsys.readouterr().err
    with pytest.raises(TimesyncdError, match="cannot be written"):
        run("ptp", "--store", here, "--plot", tmp_path / "nowhere" / "ptp.svg")


def test_a_series_without_variation_is_plotted(tmp_path: Path) -> None:
    """Its ADEV is 0 throughout, which a logarithmic axis has not."""
    still = node(tmp_path / "still.sqlite", 40, spread_ns=1)
    assert run("ptp", "--store", still, "--plot", tmp_path / "ptp.svg") == 0
    assert (tmp_path / "ptp.svg").read_text().startswith("<?xml")


def test_a_peer_s_address_is_checked_as_others_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the store is read."""
    with pytest.raises(SystemExit):
        run("ptp", "--store", here, "--against", "http://[::1")
    assert "'http://[::1' is no address of a page" in capsys.readouterr().err
