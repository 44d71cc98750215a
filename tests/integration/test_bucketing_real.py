"""The sizes of gradient buckets on real gloo ranks: what a reduction costs is found over a link of known rate, and a suggestion is applied."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rank_lab import RankLab, needs_namespaces
from torch_ranks import run_ranks

from timesyncd.audit.html import write
from timesyncd.jobs.recording_files import load

pytestmark = pytest.mark.integration

pytest.importorskip("torch")

CHILD = Path(__file__).with_name("bucketing_child.py")

#: Each of the 16 layers of the child's network, in bytes.
LAYER = 4 * (256 * 256 + 256)

#: 200 Mbit/s each way; of two ranks each sends as many bytes as there are gradients.
RATE, BYTES_PER_S = "200mbit", 25_000_000


@needs_namespaces
def test_the_link_s_rate_is_found(tmp_path: Path) -> None:
    """Two ranks over shaped links: the rate that is fitted to the reductions is the link's, within a factor of 2."""
    with RankLab(2, rate=RATE) as lab:
        written = lab.run([sys.executable, str(CHILD), "--record", str(tmp_path), "--seconds", "0.02"])
    found = write(load(tmp_path), tmp_path / "audit").buckets
    sizes = [json.loads(text.strip().splitlines()[-1]) for text in written]

    assert found is not None and found.bytes_per_s is not None
    assert BYTES_PER_S / 2 < found.bytes_per_s < BYTES_PER_S * 2
    assert sizes == [found.bytes, found.bytes] == [[LAYER, 2 * LAYER, 4 * LAYER, 4 * LAYER, 4 * LAYER, LAYER]] * 2
    assert found.exposed_ns is not None and found.exposed_ns > 0


@pytest.mark.parametrize(
    ("caps_mib", "layers"),
    [([0.5], [2] * 8), ([0.25, 0.5, 2.0], [1, 2, 8, 5]), (None, [4, 12])],
    ids=["one size", "several sizes", "none"],
)
def test_a_suggestion_is_applied(caps_mib: list[float] | None, layers: list[int], tmp_path: Path) -> None:
    """Ranks that read the report make the buckets that it suggests, in their order; without a suggestion torch's own."""
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"buckets": {"caps_mib": caps_mib}}))

    sizes = run_ranks(CHILD, ["--report", str(report), "--steps", "5"])

    assert sizes == [[count * LAYER for count in layers]] * 2


def test_what_the_audit_writes_is_read(tmp_path: Path) -> None:
    """The recording of two ranks, the audit's own report of it, and two ranks with that report: all know the same buckets."""
    run_ranks(CHILD, ["--record", str(tmp_path), "--sizes", "1"])
    found = write(load(tmp_path), tmp_path / "audit")

    sizes = run_ranks(CHILD, ["--report", str(tmp_path / "audit" / "report.json"), "--steps", "5"])

    assert found.buckets is not None
    assert found.buckets.bytes == [4 * LAYER] * 4
    assert found.buckets.caps_mib is None and found.buckets.reason.startswith("all buckets have about the same size")
    assert sizes == [[4 * LAYER, 12 * LAYER]] * 2
