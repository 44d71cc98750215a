"""`timesyncd advise`: what it prints of a recording, and its exit statuses."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy, saved
from jsonschema_rs import Draft202012Validator

from timesyncd.__main__ import main
from timesyncd.cli.schemas import documents


@pytest.fixture
def slow(tmp_path: Path) -> str:
    recording = job(300, ranks=4, computing=late(3, 10 * MS, noisy()))
    return str(saved(tmp_path / "recording.json", recording))


def test_the_advice_is_in_the_order_of_its_price(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its interval, what to do, and what it assumes; then what has no price, and why."""
    assert main(["advise", slow]) == 0
    text = capsys.readouterr().out

    assert text.startswith("Advice for train, by 300 steps of 21.3 ms:\n  1. ")
    assert "Give each rank a share of the batch by its speed: saves 39." in text
    assert "(95 %: " in text and "Shares: rank 0 28." in text and "Assumption: " in text
    assert text.index("Without a price:") < text.index("- Let near ranks add up first: all ranks are on one node")


def test_the_json_has_the_same(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Gains as shares of the time, and codes for what is unknown."""
    assert main(["advise", slow, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["job"], found["steps"]) == ("train", 300)
    by_kind = {one["kind"]: one for one in found["advice"]}
    assert by_kind["batch_shares"]["gain"]["low"] < 0.393 < by_kind["batch_shares"]["gain"]["high"] + 0.01
    assert by_kind["groups"]["reason_code"] == "no_other_node"


def test_without_a_price_the_answer_is_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 where the steps are too few for any price."""
    path = saved(tmp_path / "recording.json", job(30))
    assert main(["advise", str(path)]) == 1
    assert "too few for an error" in capsys.readouterr().out


def test_a_broken_recording_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2."""
    path = tmp_path / "recording.json"
    path.write_text("{")
    assert main(["advise", str(path)]) == 2
    assert capsys.readouterr().err.startswith("timesyncd: ")


def test_a_folder_that_is_missing_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that ends as a folder's does is looked for on this machine alone."""
    assert main(["advise", f"{tmp_path}/nosuch/"]) == 2
    assert capsys.readouterr().err.startswith(f"timesyncd: {tmp_path}/nosuch: no such file or folder")


def test_the_committed_schema_is_exported(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    """schemas/job_advice.json equals what `make schemas` would write now, and the output fits it."""
    text = files("timesyncd.schemas").joinpath("job_advice.json").read_text()
    main(["advise", slow, "--json"])

    assert text == documents()["job_advice.json"]
    Draft202012Validator(json.loads(text)).validate(json.loads(capsys.readouterr().out))
