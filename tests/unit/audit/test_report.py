"""The report of a recorded job: stragglers, places, costs, confidence, and what is unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from timesyncd.audit import html
from timesyncd.audit.build import report
from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.html import summary, write
from timesyncd.audit.measured import IN_GROUPS, measured, overhead_sources, stages
from timesyncd.audit.report import AuditReport
from timesyncd.cli.schemas import documents
from timesyncd.errors import TimesyncdError
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs.arrivals import Arrival, compare
from timesyncd.jobs.exposed import OwnWait
from timesyncd.jobs.issued_calls import CallKind, IssuedCallCounts
from timesyncd.jobs.missing_ranks import Presence
from timesyncd.jobs.recording import Recording, ServerRequest
from timesyncd.jobs.recording_files import load


def report_of(recording: Recording, before: Recording | None = None) -> AuditReport:
    return report(measured(recording), None if before is None else measured(before))


def test_a_straggler_is_named_with_place_and_cost() -> None:
    """Rank 1 is 5 ms late in each step: it is named with its place and the others' waiting."""
    found = report_of(job(200, 3, late(1, computing=noisy())))

    (one,) = found.stragglers
    assert (one.rank, one.verdict, one.last_share) == (1, "straggler", 1.0)
    assert one.lateness_p50_ns == pytest.approx({"bucket 0": 2.5 * MS, "bucket 1": 5 * MS}[one.where], rel=0.1)
    assert one.exposed_ns == pytest.approx(199 * 5 * MS, rel=0.05)
    assert found.headline.startswith("Rank 1 on node-0 is persistently late: ")
    assert (found.method, found.clock_bound_ns) == ("one_clock", 1_000)


def test_where_calls_have_no_marks_nothing_is_concluded() -> None:
    """A rank may have waited in them for another one: the overhead is null, not 0, no rank is named and no remedy offered."""
    calls = IssuedCallCounts(600, {CallKind("send", 4, None): 412, CallKind("recv", 4, None): 412})
    recording = job(200, 3, late(1, computing=noisy()))
    found = report_of(replace(recording, calls=calls), recording)

    assert (found.sync_overhead, found.sync_overhead_interval, found.before_after) == (None, None, None)
    assert (found.stragglers, found.late_spans, found.rare, found.sources) == ([], [], None, [])
    assert all(remedy.gain is None for remedy in found.remedies)
    assert found.headline.endswith(
        "and which rank is late, is unknown: 824 of its calls are not metered (recv: 412 calls, send: 412 calls)."
    )
    assert any("no rank is named" in note for note in found.notes)
    assert not any("not comparable" in note for note in found.notes)


def test_a_few_calls_without_marks_are_stated() -> None:
    """One in a hundred changes no conclusion."""
    calls = IssuedCallCounts(600, {CallKind("broadcast", 3, None): 2})
    found = report_of(replace(job(200, 3, late(1, computing=noisy())), calls=calls))

    assert [each.rank for each in found.stragglers] == [1]
    assert "Not metered: broadcast in groups of 3 ranks: 2 calls; 600 calls are." in found.notes
    assert [(each.name, each.group_size, each.calls) for each in found.unmetered] == [("broadcast", 3, 2)]


def test_equal_ranks_give_no_straggler() -> None:
    """Ranks that differ only by chance give an empty list and a headline that states it."""
    found = report_of(job(200, 4, noisy()))

    assert found.stragglers == []
    assert found.headline.startswith("Synchronization costs ")
    assert found.headline.endswith("no rank is persistently late.")


def test_the_overhead_is_exposed_time_over_step_time() -> None:
    """10 ms of computing, 1 of exposed transfer, 0.3 of update: 1 / 11.3."""
    found = report_of(job(100))

    assert found.sync_overhead == pytest.approx(1 / 11.3)
    assert found.step_ns is not None and found.step_ns.value == pytest.approx(11_300_000)
    assert [(wait.p50, wait.total) for wait in found.wait_ns] == [(0, 0), (0, 0)]
    assert found.own_overhead == pytest.approx(100 * 2_000 / (99 * 11_300_000))
    assert found.steps == 100


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 4), buckets=st.integers(1, 4))
def test_the_sources_are_all_exposed_time(seed: int, ranks: int, buckets: int) -> None:
    """The costs of the causes add up to the exposed time of all ranks."""
    recording = job(8, ranks, noisy(seed, 3 * MS), (2 * MS,) * buckets)
    now = measured(recording)

    found = overhead_sources(now)

    assert sum(source.exposed_ns for source in found) == now.exposed_ns
    assert [source.exposed_ns for source in found] == sorted((s.exposed_ns for s in found), reverse=True)
    assert sum(source.share for source in found) == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 4), buckets=st.integers(1, 4), marked=st.booleans())
def test_the_stages_are_the_step(seed: int, ranks: int, buckets: int, marked: bool) -> None:
    """The stages' costs add up to the slowest rank's steps, and none is negative."""
    recording = job(8, ranks, noisy(seed, 3 * MS), (2 * MS,) * buckets, marked=marked)
    now = measured(recording)
    whole = [cost for cost in now.costs if len(cost.ranks) == ranks]

    found = stages(now)

    slowest_ns = [max(rank.elapsed_ns for rank in cost.ranks.values()) for cost in whole]
    assert sum(stage.cost_ns for stage in found) == pytest.approx(sum(slowest_ns) / len(whole), abs=len(found))
    assert all(stage.cost_ns >= 0 for stage in found)
    assert sum(stage.share for stage in found) == pytest.approx(1)


def test_a_stage_names_its_slowest_rank() -> None:
    """Rank 1 computes 5 ms longer, half of it before a hidden bucket: it is the slowest of one stage."""
    found = report_of(job(200, 3, late(1))).stages

    assert [(stage.where, stage.stage, round(stage.cost_ns / MS, 1), stage.rank) for stage in found] == [
        ("bucket 0", "compute", 9.5, None),
        ("bucket 0", "synchronize", 0, None),
        ("bucket 1", "compute", 5.5, 1),
        ("bucket 1", "synchronize", 1.0, None),
        ("", "update", 0.3, None),
    ]


def test_equal_ranks_lead_no_stage() -> None:
    """Ranks that are slowest by chance, or never, lead no stage."""
    for recording in (job(200, 4, noisy()), job(200, 4)):
        assert {stage.rank for stage in report_of(recording).stages} == {None}


def test_the_sources_add_up_where_marks_are_missing_and_requests_overlap() -> None:
    """Unmeasured steps have no cause, and a request within a collective counts for the request only."""
    whole = job(30, transfers_ns=(4 * MS,), missing=frozenset((1, step) for step in range(20, 30)))
    asked = [
        ServerRequest(sync.step, sync.arrivals[0].begin_ns + MS, sync.arrivals[0].end_ns - MS)
        for sync in whole.syncs[5:15]
    ]
    gone = {0: [mark for mark in whole.steps[0] if mark.step % 3], 1: whole.steps[1]}
    now = measured(replace(whole, steps=gone, requests={0: asked}))
    found = overhead_sources(now)

    assert sum(source.exposed_ns for source in found) == now.exposed_ns
    assert [source.exposed_ns for source in found if source.cause == "request"] == [10 * 2 * MS]


def test_waits_in_groups_of_a_few_steps_have_no_known_cause() -> None:
    """A hub's window has them without their marks: they count in full, no rank is named for them, and no stage has them."""
    whole = job(30, missing=frozenset((1, step) for step in range(3, 9)))
    marked = {0: whole.steps[0], 1: [mark for mark in whole.steps[1] if mark.step >= 9]}
    own = {step: {rank: OwnWait(13 * MS, 2 * MS, work=1) for rank in (0, 1)} for step in range(2, 9)}
    now = measured(replace(whole, steps=marked, own_waits=own))
    found = overhead_sources(now)

    assert now.own_waits is None, "most steps have none"
    assert sum(source.exposed_ns for source in found) == now.exposed_ns
    assert [(source.rank, source.exposed_ns) for source in found if source.where == IN_GROUPS] == [
        (None, 7 * 2 * 2 * MS)
    ]
    assert stages(now) == stages(measured(replace(whole, steps=marked)))


def test_waiting_is_attributed_to_the_last_rank() -> None:
    """Rank 1 computes 5 ms longer: the others wait 5 ms for it, and the next millisecond is transfer."""
    found = report_of(job(100, computing=late(1), transfers_ns=(MS,)))
    by_cause = {source.cause: source for source in found.sources}

    assert (by_cause["wait"].rank, by_cause["wait"].where) == (1, "bucket 0")
    assert by_cause["wait"].exposed_ns == 99 * 5 * MS
    assert by_cause["transfer"].exposed_ns == 99 * 2 * MS
    assert sum(source.overhead for source in found.sources) == pytest.approx(found.sync_overhead)


def test_a_lateness_within_the_clocks_error_is_inconclusive() -> None:
    """A lateness of 2 ms by clocks with an error of 5 ms each gives no straggler."""
    clocks, errors = {0: 0, 1: 0}, {0: 5 * MS, 1: 5 * MS}
    found = report_of(job(100, 2, late(1, 2 * MS), (40 * MS,), clocks_ahead_ns=clocks, errors_ns=errors))

    assert [(one.rank, one.verdict) for one in found.stragglers] == [(1, "inconclusive")]
    assert (found.method, found.clock_bound_ns) == ("clock_bounds", 10_001_000)
    assert {source.rank for source in found.sources} == {None}
    assert "by less than the error of the clocks" in found.headline
    assert next(remedy for remedy in found.remedies if remedy.name == "no_straggler").gain is None


def test_what_no_mark_separates_is_before_the_first_bucket() -> None:
    """A rank that computes 5 ms longer is late before the only bucket, by work that the marks do not tell apart."""
    found = report_of(job(100, 3, late(1), (MS,)))

    assert found.stragglers[0].place == "before bucket 0"
    assert "late: 5 ms before bucket 0." in found.headline
    assert any("since no mark separates them" in note for note in found.notes)


def test_a_slow_optimizer_is_late_in_the_update() -> None:
    """Rank 1 updates its parameters 5 ms longer, so it comes late to the next step's first bucket."""
    whole = job(100, 2, late(1), (MS,))
    steps = {
        rank: [
            replace(mark, arrival_ns=mark.arrival_ns + 5 * MS * rank, end_ns=mark.end_ns + 5 * MS * rank)
            for mark in marks
        ]
        for rank, marks in whole.steps.items()
    }
    found = report_of(replace(whole, steps=steps))

    assert found.stragglers[0].place == "in the update before bucket 0"
    assert found.headline.startswith("Rank 1 on node-0 is persistently late: 5 ms in the update before bucket 0.")


def test_a_recording_that_ends_in_a_hang_has_it_as_its_headline(tmp_path: Path) -> None:
    """Rank 0 was killed after 15 s in the barrier of step 40; rank 1 had ended after step 39."""
    whole = job(40)
    end_ns = whole.steps[0][-1].end_ns
    last = Mark(39, 0, Kind.STEP, end_ns - MS, end_ns - MS, end_ns, 0)
    inside = Mark(40, 0, Kind.ARRIVAL, end_ns, end_ns, end_ns + 15_000 * MS, Kind.BUCKET)
    left = Mark(39, 0, Kind.LEFT, end_ns + MS, end_ns + MS, end_ns + MS, 0)
    ranks = {
        rank: replace(record, presence=Presence(last, sign))
        for (rank, record), sign in zip(whole.ranks.items(), (inside, left), strict=True)
    }
    found = write(load(saved(tmp_path / "recording.json", replace(whole, ranks=ranks))), tmp_path)

    assert found.headline == (
        "The recording ends in a hang. Rank 0 waited 15.0 s in bucket 0 of step 40; rank 1 never came; its last mark: "
        "step 39, update; it ended: the ranks take unequal numbers of steps."
    )
    assert found.hang is not None
    assert (found.hang.waiting, [(each.rank, each.cause) for each in found.hang.absent]) == (
        [0],
        [(1, "unequal_steps")],
    )
    assert report_of(whole).hang is None


def test_a_rare_cause_is_the_headline(tmp_path: Path) -> None:
    """Rank 0 saves for 2 s every 20 steps: the report states the steps, the rank, and the overhead without it."""
    computing = noisy()
    found = write(
        job(100, 2, lambda rank, step: computing(rank, step) + 2_000 * MS * (rank == 0 and step % 20 == 19)), tmp_path
    )

    assert found.stragglers == []
    assert found.rare is not None
    assert (found.rare.count, found.rare.rank, found.rare.every) == (5, 0, 20)
    assert (
        "5 of 99 steps hold 100 % of the waiting, for rank 0, 2.00 s each, every 20 steps; the other steps"
        in found.headline
    )
    assert found.rare.overhead_elsewhere == pytest.approx(1.1 / 11.3, rel=0.05)
    assert found.remedies[0].name == "no_pauses"
    assert "These steps: 19, 39, 59, 79, 99" in (tmp_path / "report.html").read_text()


def test_an_onset_is_in_the_headline_and_on_the_page(tmp_path: Path) -> None:
    """Rank 1 is late in the last fifth of the steps, which is too few for a straggler of all steps: it is named with its onset."""
    computing = noisy()
    recording = job(400, 3, lambda rank, step: computing(rank, step) + 5 * MS * (rank == 1 and step >= 320), (MS,))
    found = write(recording, tmp_path)

    (span,) = found.late_spans
    assert (span.rank, span.to_step, span.place) == (1, None, "before bucket 0")
    assert span.from_step is not None and abs(span.from_step - 320) <= 3
    assert span.lateness_p50_ns == pytest.approx(5 * MS, rel=0.05)
    sentence = f"Rank 1 on node-0 is late since step {span.from_step}: "
    assert found.headline.startswith(sentence)
    assert sentence in (tmp_path / "report.html").read_text()
    assert next(remedy for remedy in found.remedies if remedy.name == "no_straggler").gain


def test_ranks_that_train_apart_get_no_remedy() -> None:
    """58 of 60 steps reduce nothing: that is the headline, and nothing is replayed."""
    whole = job(60)
    found = report_of(replace(whole, syncs=[sync for sync in whole.syncs if sync.step in (0, 30)]))

    assert found.headline.startswith("58 of 60 steps reduce nothing: the ranks train apart in them")
    assert found.remedies == []
    assert any(note.startswith("No remedy is offered") for note in found.notes)


def test_the_headline_names_no_rank_that_is_not_late() -> None:
    """Equal ranks wait for one another: the one that came last most often is not named."""
    for seed in range(10):
        found = report_of(job(100, 2, noisy(seed, 3 * MS), (MS,)))

        assert "rank 0" not in found.headline and "rank 1" not in found.headline
        assert "waiting for one another at bucket 0" in found.headline


def test_where_the_waits_are_for_one_rank_it_is_no_waiting_for_one_another() -> None:
    """Rank 1 is late in every other spell of 20 steps: not persistently, and no other rank is waited for."""
    slow = late(1, 40 * MS, noisy())
    computing = noisy()
    found = report_of(job(200, 3, lambda rank, step: (slow if step // 20 % 2 else computing)(rank, step), (MS,)))

    assert found.stragglers == []
    assert " waiting for rank 1 at bucket 0; no rank is persistently late." in found.headline


def test_the_number_of_a_rank_that_is_late_in_every_other_step_fits_its_cost() -> None:
    """Its lateness there, and the share of these steps, in the headline and in the terminal's line."""
    usual, slow = noisy(), late(1, 40 * MS, noisy(2))
    found = report_of(job(201, 3, lambda rank, step: (slow if step % 2 else usual)(rank, step), (MS,)))
    (one,) = found.stragglers

    assert one.late_share == 0.5
    assert one.lateness_p50_ns == pytest.approx(40 * MS, rel=0.05)
    assert f"late: {short_duration(one.lateness_p50_ns)} in 50 % of the steps, before bucket 0." in found.headline
    assert " late in 50 % of the steps, before bucket 0, last in " in "".join(summary(found, Path()))


def skipped(recording: Recording, rank: int, since: int) -> Recording:
    """The rank left out the update of the step before: what it marks in a step is what the others mark in the next one."""
    following = {(sync.step, sync.sync): sync.arrivals[rank] for sync in recording.syncs}
    syncs = []
    for sync in recording.syncs:
        arrivals = dict(sync.arrivals)
        if sync.step >= since and (sync.step + 1, sync.sync) in following:
            arrivals[rank] = following[sync.step + 1, sync.sync]
        syncs.append(replace(sync, arrivals=arrivals, comparison=compare(arrivals)))
    return replace(recording, syncs=syncs)


def test_where_the_ranks_steps_are_apart_it_is_unknown_which_is_late() -> None:
    """A rank that leaves out an update is a step behind from there on: the few steps before show nothing of the rest."""
    found = report_of(skipped(job(120, 3, late(2, 40 * MS, noisy())), 1, since=30))

    assert (found.stragglers, found.remedies, found.rare) == ([], [], None)
    assert found.headline.endswith(
        "which rank is late is unknown: since step 30 rank 1 is one or more steps apart from the others."
    )


def test_where_few_steps_are_apart_the_others_are_assessed() -> None:
    """The shares are of those steps alone, and a note says so."""
    found = report_of(skipped(job(120, 3, late(2, 40 * MS, noisy())), 1, since=90))

    assert [(each.rank, each.verdict) for each in found.stragglers] == [(2, "straggler")]
    assert found.stragglers[0].exposed_ns == pytest.approx(89 * 40 * MS, rel=0.1)
    assert found.steps == 90
    assert (
        "Since step 90 rank 1 is one or more steps apart from the others, so only the steps before that one are assessed."
        in found.notes
    )


def test_the_terminal_and_the_page_show_the_notes(tmp_path: Path) -> None:
    """What limits the figures is in both, and the best remedy has its assumption."""
    found = write(replace(job(50, computing=late(1)), notes=("A note of the recording.",)), tmp_path)
    lines, page = summary(found, tmp_path), (tmp_path / "report.html").read_text()

    assert len(found.notes) > 2
    assert [line for line in lines if line.startswith("Note: ")] == [f"Note: {note}" for note in found.notes]
    assert "Note: A note of the recording." in lines
    assert page.index("A note of the recording.") < page.index('id="stragglers"')
    assert any(line.startswith("Best remedy: No straggler") and "Assumption: Each straggler" in line for line in lines)


def test_without_trusted_clocks_the_ends_align_the_ranks() -> None:
    """Two nodes whose clocks differ by 3 s without a bound: the straggler is found by the collectives' ends, with a note."""
    found = report_of(job(200, computing=late(1, computing=noisy()), clocks_ahead_ns={0: 0, 1: 3_000 * MS}))

    assert (found.method, [one.rank for one in found.stragglers]) == ("collective_ends", [1])
    assert found.sync_overhead == pytest.approx(6 / 16.3 * 0.5 + 1 / 16.3 * 0.5, rel=0.1)
    assert any("aligned on the ends" in note for note in found.notes)
    gain = next(remedy for remedy in found.remedies if remedy.name == "no_straggler")
    assert gain.step_saved_ns == pytest.approx(5 * MS, rel=0.15)


def test_clocks_that_are_not_comparable_give_no_straggler() -> None:
    """If a rank's clock was stepped throughout, durations are known, lateness is not, and nothing is replayed."""
    recording = job(50)
    syncs = []
    for sync in recording.syncs:
        arrivals = {rank: replace(arrival, clock=None if rank else "clock") for rank, arrival in sync.arrivals.items()}
        syncs.append(replace(sync, arrivals=arrivals, comparison=compare(arrivals)))
    found = report_of(replace(recording, syncs=syncs))

    assert (found.method, found.stragglers, found.remedies, found.clock_bound_ns) == (None, [], [], None)
    assert [wait.p50 for wait in found.wait_ns] == [None, None]
    assert {source.cause for source in found.sources} <= {"undivided"}
    assert found.sync_overhead is not None
    assert "not comparable" in found.headline


def test_an_unrecorded_rank_has_a_note() -> None:
    """A recording of one node gives durations and a note on the missing marks."""
    recording = job(50, missing=frozenset((1, step) for step in range(50)))
    found = report_of(replace(recording, ranks={0: recording.ranks[0]}, steps={0: recording.steps[0]}))

    assert (found.method, found.stragglers) == (None, [])
    assert found.headline.endswith("the recording has 1 of 2 ranks, so no straggler can be named.")
    assert any("put the *.marks files of all nodes into one folder" in note for note in found.notes)


def test_a_node_s_missing_file_still_makes_a_page(tmp_path: Path) -> None:
    """Two of three ranks are recorded and comparable: the page has these."""
    recording = job(50, 3, late(1), missing=frozenset((2, step) for step in range(50)))
    two = {rank: recording.steps[rank] for rank in (0, 1)}
    syncs = [replace(sync, comparison=compare(sync.arrivals)) for sync in recording.syncs]
    now = measured(replace(recording, syncs=syncs, steps=two))
    now = replace(now, attribution=replace(now.attribution, syncs=syncs))

    assert "rank 2" not in (html.typical_step(now, [0, 1, 2]) or "")
    assert "rank 1" in (html.lateness(now, [0, 1, 2]) or "")


def test_marks_that_are_a_step_apart_give_no_straggler() -> None:
    """On one clock it is certain that no rank waited: a note states it, and none mentions the clocks."""
    whole = job(60)
    apart = []
    for sync in whole.syncs:
        moved = {rank: _later(each, 14 * MS * rank) for rank, each in sync.arrivals.items()}
        apart.append(replace(sync, arrivals=moved, comparison=compare(moved)))
    found = report_of(replace(whole, syncs=apart))

    assert (found.stragglers, found.method) == ([], None)
    assert found.headline.endswith("is unknown: since step 1 the ranks' steps are one or more apart.")
    assert any(note.startswith("118 synchronizations did not make all ranks wait") for note in found.notes)
    assert not any("clocks are not comparable" in note for note in found.notes)


def _later(one: Arrival, by_ns: int) -> Arrival:
    return replace(one, arrival_ns=one.arrival_ns + by_ns, begin_ns=one.begin_ns + by_ns, end_ns=one.end_ns + by_ns)


def test_a_short_recording_s_straggler_has_a_note() -> None:
    """3 s of steps give a straggler and a note that load of another process looks alike; 20 s give no note."""
    short, long = report_of(job(200, computing=late(1))), report_of(job(1_300, computing=late(1)))

    assert [bool(found.stragglers) for found in (short, long)] == [True, True]
    assert [any("Record longer" in note for note in found.notes) for found in (short, long)] == [True, False]


def test_one_rank_has_nothing_to_compare() -> None:
    """A single process has its own times and no comparison."""
    found = report_of(job(50, ranks=1))

    assert (found.world_size, found.stragglers, found.remedies) == (1, [], [])
    assert "nothing to compare" in found.headline


def test_without_a_complete_step_nothing_is_known() -> None:
    """A recording of one step without an end has no overhead."""
    recording = job(1, marked=False)
    found = report_of(recording)

    assert (found.sync_overhead, found.step_ns) == (None, None)
    assert "cannot be assessed" in found.headline


def test_a_job_without_a_step_has_a_report_with_the_reason(tmp_path: Path) -> None:
    """A script that updates its parameters by hand ends no step: the report states what would end one."""
    found = write(replace(job(), syncs=[], steps={}), tmp_path)

    assert (found.steps, found.sync_overhead, found.stragglers) == (0, None, [])
    assert found.headline == (
        "No step of train has ended, so its synchronization cannot be assessed: a step ends when an optimizer of torch.optim updates parameters."
    )
    assert not any("not comparable" in note for note in found.notes)


def test_ranks_that_update_nothing_have_no_steps_in_common_with_the_others() -> None:
    """Only rank 0 has an optimizer: its clock is not to blame that nothing compares, and no overhead is stated."""
    whole = job(70)
    syncs = [
        replace(sync, arrivals={0: sync.arrivals[0]}, comparison=None) if sync.step else sync for sync in whole.syncs
    ]
    found = report_of(replace(whole, syncs=syncs, steps={0: whole.steps[0]}))

    assert (found.sync_overhead, found.method, found.sources) == (None, None, [])
    assert found.headline == (
        "What synchronization costs train, and which rank is late, is unknown: rank 1 ended fewer steps than the others "
        "(a step ends when an optimizer of torch.optim updates parameters)."
    )
    assert any(note.startswith("Rank 1 ended less than half as many steps") for note in found.notes)
    assert not any("not comparable" in note for note in found.notes)


def test_the_report_fits_its_schema() -> None:
    """Every report is valid by the published schema."""
    validator = Draft202012Validator(json.loads(documents()["audit_report.json"]))
    reports = [
        report_of(job(120, 3, late(1)), job(120, 3)),
        report_of(job(1, marked=False)),
        report_of(job(5, ranks=1)),
    ]

    for found in reports:
        assert [error.message for error in validator.iter_errors(json.loads(found.model_dump_json()))] == []


def test_the_committed_schema_is_exported() -> None:
    """schemas/audit_report.json equals what `make schemas` would write now."""
    assert files("timesyncd.schemas").joinpath("audit_report.json").read_text() == documents()["audit_report.json"]


def test_faster_has_its_interval() -> None:
    """A job without its straggler is faster: the interval of the ratio is below 1 and contains the true ratio."""
    found = report_of(job(400, computing=noisy(2)), job(400, computing=late(1, computing=noisy(3)))).before_after

    assert found is not None and found.verdict == "faster"
    ratio = found.step_ratio
    assert ratio.low is not None and ratio.high is not None
    assert ratio.low < ratio.value < ratio.high < 1
    assert ratio.value == pytest.approx(11.4 / 16.4, rel=0.02)


def test_no_change_is_no_difference() -> None:
    """Two recordings of the same job show no significant difference."""
    found = report_of(job(400, computing=noisy(2)), job(400, computing=noisy(3))).before_after

    assert found is not None and found.verdict == "no_difference"
    assert found.sentence.startswith("No significant difference")


def test_few_steps_have_no_interval() -> None:
    """Thirty steps give the change without an interval."""
    found = report_of(job(30), job(30, computing=late(1))).before_after

    assert found is not None and found.verdict == "too_few_steps"
    assert (found.step_ratio.low, found.step_ratio.high) == (None, None)
    assert "too few" in found.sentence


def test_the_page_and_the_file_are_written(tmp_path: Path) -> None:
    """report.html loads nothing, report.json is the report, and the summary begins with the headline."""
    found = write(job(120, computing=late(1)), tmp_path / "out", job(120))
    page = (tmp_path / "out" / "report.html").read_text()

    assert AuditReport.model_validate_json((tmp_path / "out" / "report.json").read_text()) == found
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]
    assert found.headline in page.replace("&#39;", "'")
    assert not [word for word in ("src=", "@import", "url(http", "<script", "<link") if word in page]
    assert summary(found, tmp_path)[0] == found.headline


def test_names_are_shown_as_text(tmp_path: Path) -> None:
    """Markup in the name of a job is shown as text."""
    recording = replace(job(30), job="<script>alert(1)</script>")
    write(recording, tmp_path)

    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """The error names the file that cannot be written."""
    (tmp_path / "out").write_text("in the way")

    with pytest.raises(TimesyncdError, match="report.json: cannot be written"):
        write(job(3), tmp_path / "out")


def test_figures_are_short_and_never_falsely_zero() -> None:
    """A duration has three digits, and a share above 0 is never 0."""
    assert [short_duration(ns) for ns in (0, 999, 4_830_000, 1.5e9)] == ["0 ns", "999 ns", "4.83 ms", "1.5 s"]
    assert [percent(ratio) for ratio in (0, 0.0000123, 0.1234)] == ["0.0 %", "0.001 %", "12.3 %"]
