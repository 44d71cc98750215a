"""The suggested sizes of gradient buckets, for synthetic jobs whose best sizes are known, and their use."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from audit_lab import MS, job
from bucket_lab import DEFAULT, EVEN, LATENCY_MS, MS_PER_MIB, trained, truly_exposed
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from timesyncd.audit.buckets import MIB, MIN_STEPS, BucketAdvice, advise
from timesyncd.audit.build import report
from timesyncd.audit.headline import bucket_lines, sizes_text
from timesyncd.audit.html import write
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AuditReport
from timesyncd.cli.schemas import documents
from timesyncd.client.torch.ddp import bucket_options
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import StepMark
from timesyncd.jobs.recording import Recording


def advice_of(recording: Recording) -> BucketAdvice:
    found = advise(measured(recording))
    assert found is not None
    return found


def report_of(recording: Recording) -> AuditReport:
    return report(measured(recording))


def test_the_best_size_is_suggested() -> None:
    """5 MiB is the best of the tried sizes: 4.5 of 9.5 ms stay exposed, which saves 4.5 % of the step."""
    found = advice_of(trained())

    assert found.bytes == (MIB, 25 * MIB, 14 * MIB)
    assert truly_exposed(EVEN, DEFAULT, LATENCY_MS, MS_PER_MIB) == 9.5
    assert found.caps_mib == (5.0,)
    assert found.saved_ns == pytest.approx(5 * MS, rel=0.05)
    assert found.error_ns is not None and found.error_ns < 0.5 * MS
    assert found.exposed_ns == 9.5 * MS
    assert found.cost is not None and found.cost.bytes_per_s == pytest.approx(MIB * 1e3 / MS_PER_MIB, rel=0.02)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    latency_ms=st.sampled_from([0.1, 1.0, 4.0]),
    ms_per_mib=st.sampled_from([0.1, 0.7, 1.2]),
    caps=st.sampled_from([DEFAULT, (2.0, 10.0), (10.0, 30.0)]),
)
def test_the_suggestion_is_better(seed: int, latency_ms: float, ms_per_mib: float, caps: tuple[float, ...]) -> None:
    """For networks of small parameters, the suggested sizes save about as much as predicted."""
    chance = random.Random(seed)
    parameters = [(0.25, chance.uniform(0.1, 0.4)) for _ in range(240)]

    found = advice_of(trained(parameters, caps, latency_ms, ms_per_mib))

    before_ms = truly_exposed(parameters, caps, latency_ms, ms_per_mib)
    if found.caps_mib is not None:
        assert found.saved_ns is not None
        saved_ms = before_ms - truly_exposed(parameters, found.caps_mib, latency_ms, ms_per_mib)
        assert saved_ms >= 0.7 * found.saved_ns / MS
    elif found.cost is not None:
        least_ms = min(truly_exposed(parameters, (cap,), latency_ms, ms_per_mib) for cap in (1, 2, 5, 10, 25, 50, 100))
        assert before_ms - least_ms < 0.06 * (60 + before_ms + sum(ms for _, ms in parameters))


def test_a_smaller_first_bucket_is_suggested_where_it_is_worth_it() -> None:
    """In a job that mostly transfers, few buckets cost the least, and a small first one begins early."""
    parameters = [(1.0, 0.2)] * 100
    found = advice_of(trained(parameters, (1.0, 15.0), 2, 1, forward_ms=5))

    assert found.caps_mib is not None and len(found.caps_mib) > 1
    assert found.caps_mib[0] < found.caps_mib[1]
    with_first = truly_exposed(parameters, found.caps_mib, 2, 1)
    assert with_first < min(truly_exposed(parameters, (cap,), 2, 1) for cap in (1, 2, 5, 10, 25, 50, 100))


def test_a_hook_s_buckets_are_buckets() -> None:
    """Buckets of a user's communication hook give the same suggestion."""
    assert advice_of(trained(kind=Kind.HOOK)).caps_mib == (5.0,)


@pytest.mark.parametrize(
    ("recording", "reason"),
    [
        (trained(forward_ms=2_000), "less than 3 % is not worth a change"),
        (trained(caps=(5.0,)), "all buckets have about the same size"),
        (trained([(mib, 0.01) for mib, _ in EVEN]), "or their reductions overlap throughout"),
        (trained(caps=(100.0,)), "one bucket holds all gradients"),
        (trained(steps=MIN_STEPS), f"{MIN_STEPS - 1} steps with the same buckets are too few"),
        (trained(EVEN, (1.0, 15.0), 2.5, forward_ms=5, steps=30, noise_ms=9), "but the error of this estimate is"),
    ],
    ids=["small", "one size", "one queue", "one bucket", "few steps", "unsure"],
)
def test_no_suggestion_has_its_reason(recording: Recording, reason: str) -> None:
    """A saving that is too small or unknown is not suggested, with the reason."""
    found = advice_of(recording)

    assert found.caps_mib is None
    assert reason in found.reason


def test_two_buckets_that_do_not_overlap_are_enough() -> None:
    """If the first is reduced before the second is ready, the cost can be fitted."""
    found = advice_of(trained(caps=(5.0, 100.0)))

    assert found.cost is not None
    assert found.cost.latency_ns == pytest.approx(LATENCY_MS * MS, rel=0.01)
    assert found.cost.ns_per_byte == pytest.approx(MS_PER_MIB * MS / MIB, rel=0.01)


def test_two_passes_of_a_step_are_not_one() -> None:
    """The buckets of two backward passes of a step do not count as those of one."""
    one = trained(steps=120)
    halves = [replace(sync, step=sync.step // 2, sync=sync.sync + 3 * (sync.step % 2)) for sync in one.syncs]
    whole = [
        StepMark(first.step // 2, first.arrival_ns, second.ready_ns, second.end_ns)
        for first, second in pairwise(one.steps[0])
        if first.step % 2 == 0
    ]
    found = advice_of(replace(one, syncs=halves, steps={0: whole, 1: whole}))

    assert len(found.bytes) == 6
    assert found.caps_mib is None and "several backward passes" in found.reason


def test_without_buckets_or_comparison_there_is_no_advice() -> None:
    """All-reduces are no buckets, and ranks that are not comparable do not show when all were ready."""
    assert advise(measured(trained(kind=Kind.ALL_REDUCE))) is None
    alone = trained()
    assert report_of(replace(alone, world_size=1, ranks={0: alone.ranks[0]})).buckets is None


def test_buckets_that_come_at_once_are_advice_of() -> None:
    """A bucket that is ready 20 ms after the previous one may have delayed two that follow within 100 us."""
    parameters = [(1.0, 1.0)] * 6 + [(5.0, 20.0), (5.0, 0.05), (5.0, 0.05), (2.0, 1.0)]
    found = advice_of(trained(parameters, (1.0, 5.0)))

    assert found.order is not None
    assert found.order.startswith(
        "bucket 2 is ready 20 ms after the previous one, and buckets 3 to 4 follow within 100 \N{MICRO SIGN}s"
    )
    assert advice_of(trained()).order is None


def test_the_suggestion_is_a_remedy_of_the_report() -> None:
    """It is in the order of gains, with the remaining overhead, and the schema accepts it."""
    found = report_of(trained())
    (remedy,) = (each for each in found.remedies if each.name == "buckets")

    assert (remedy.title, remedy.step_saved_ns) == ("Buckets of 5 MiB", found.buckets and found.buckets.saved_ns)
    assert remedy.gain == pytest.approx(5 / 110.5, rel=0.05)
    assert remedy.sync_overhead == pytest.approx(4.5 / 105.5, rel=0.05)
    gains = [each.gain for each in found.remedies if each.gain is not None]
    assert gains == sorted(gains, reverse=True)
    validator = Draft202012Validator(json.loads(documents()["audit_report.json"]))
    for each in (found, report_of(job(120, 3)), report_of(trained(caps=(100.0,)))):
        assert [error.message for error in validator.iter_errors(json.loads(each.model_dump_json()))] == []


def test_no_suggestion_is_a_remedy_that_does_not_apply() -> None:
    """It follows the remedies that apply, with its reason."""
    found = report_of(trained(caps=(5.0,)))

    names = [each.name for each in found.remedies if each.gain is None]
    (remedy,) = (each for each in found.remedies if each.name == "buckets")
    assert "buckets" in names
    assert remedy.reason.startswith("all buckets have about the same size")


def test_the_page_describes_the_suggestion(tmp_path: Path) -> None:
    """The page has the buckets, the cost of a reduction, the suggestion and its use."""
    write(trained(), tmp_path)
    page = (tmp_path / "report.html").read_text()

    assert (
        "A step has 41.9 MB of gradients in 3 buckets, of 1.05 to 26.2 MB. After its last gradient it waits 9.5 ms"
        in page
    )
    assert "MB/s." in page
    assert "Suggested: 5 MiB, which would save " in page
    assert "bucket_options(&#34;report.json&#34;)" in page or 'bucket_options("report.json")' in page


def test_the_page_gives_the_reason_of_no_suggestion(tmp_path: Path) -> None:
    """A single bucket gives no suggestion; the page of a job without buckets has no such section."""
    found = report_of(trained(caps=(100.0,))).buckets
    assert found is not None
    write(trained(kind=Kind.ALL_REDUCE), tmp_path)

    assert bucket_lines(found)[0].startswith("A step has 41.9 MB of gradients in 1 bucket.")
    assert bucket_lines(found)[-1].startswith("No other sizes are suggested: one bucket holds all gradients")
    assert "Gradient buckets" not in (tmp_path / "report.html").read_text()


def test_sizes_are_short() -> None:
    """Equal consecutive sizes are one."""
    assert [sizes_text(caps) for caps in ((0.25,), (1, 25, 25, 5))] == ["0.25 MiB", "1, then 25, then 5 MiB"]


def test_ddp_takes_the_suggestion(tmp_path: Path) -> None:
    """The options from report.json are one size, a list of sizes, or none."""
    write(trained(), tmp_path)
    whole = json.loads((tmp_path / "report.json").read_text())

    assert bucket_options(tmp_path / "report.json") == {"bucket_cap_mb": 5.0}
    for caps, options in (([1, 25.0], {"bucket_cap_mb_list": [1, 25.0]}), (None, {})):
        (tmp_path / "other.json").write_text(json.dumps(whole | {"buckets": {"caps_mib": caps}}))
        assert bucket_options(str(tmp_path / "other.json")) == options
    (tmp_path / "other.json").write_text(json.dumps(whole | {"buckets": None}))
    assert bucket_options(tmp_path / "other.json") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "report.json: cannot be read: No such file or directory; run `timesyncd audit` first"),
        ("{", "report.json: this is not a report.json of"),
        ("[]", "report.json: this is not a report.json of"),
        ('{"job": "train"}', "report.json: this is not a report.json of"),
        ('{"buckets": {"caps_mib": [0]}}', "it must be a list of sizes in MiB above 0"),
        ('{"buckets": {"caps_mib": "5"}}', "it must be a list of sizes in MiB above 0"),
        ('{"buckets": {"caps_mib": []}}', "it must be a list of sizes in MiB above 0"),
    ],
)
def test_an_invalid_file_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    """An invalid report.json is an error on every rank, because ranks with different sizes would be worse."""
    if text is not None:
        (tmp_path / "report.json").write_text(text)

    with pytest.raises(ValueError, match=message):
        bucket_options(tmp_path / "report.json")
