"""A grandmaster as a folder: its walk and the answers of its web interface, from which the simulator plays it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._profiles import DEFAULT, Profile, load_all
from timesyncd.errors import ConfigError, Malformed, Refused, TimesyncdError
from timesyncd.probe.access import ProbeAccess, Progress
from timesyncd.probe.mask import Kind, Masker
from timesyncd.probe.probe import PROGRESS_EVERY, object_reports, readable, rows_of
from timesyncd.probe.web import WebBodies, bodies
from timesyncd.sample import GrandmasterSample
from timesyncd.snmp import Oid, Session, format_oid
from timesyncd.snmp.snmprec import RecordedObject, format_snmprec

#: The subtrees below internet(1): an agent that breaks off in one of them is walked in the others.
ROOTS: tuple[Oid, ...] = tuple((1, 3, 6, 1, arc) for arc in range(1, 7))


@dataclass(frozen=True, slots=True)
class GrandmasterRecording:
    """What is written. `incomplete`: where the walk broke off, and `left_out` how many objects are not stored, of their kind."""

    at: datetime
    rows: list[RecordedObject]
    web: WebBodies
    sample: GrandmasterSample
    masked: tuple[Kind, ...] = ()
    left_out: int = 0
    incomplete: tuple[str, ...] = field(default=())

    def summary(self, folder: Path) -> list[str]:
        """For people, when it is written."""
        lines = [f"{folder}: {len(self.rows)} objects, {len(self.web.answers)} answers over HTTPS"]
        lines += [f"incomplete: {each}" for each in self.incomplete]
        lines += [f"masked: {', '.join(self.masked)}"] if self.masked else ["nothing was masked: see --mask"]
        return [
            *lines,
            "Read it before you give it away: the masking cannot know what a device keeps in unusual places.",
            f"Play it: timesyncd simulate --scenario {folder}",
        ]


async def record(access: ProbeAccess, masks: Sequence[Kind], most: int, progress: Progress) -> GrandmasterRecording:
    """Asks for `most` objects at most. Raises SourceError."""
    web = WebBodies({}, {}) if access.web is None else await bodies(access, access.web, progress)
    rows, incomplete = ([], []) if access.snmp is None else await _walk(access, most, progress)
    profiles = load_all(DEFAULT)
    models = {each for each in [_sample(profiles, rows).model] if each is not None}
    masker = Masker(masks, access.known_secrets(), profiles)
    masked = masker.walk(rows, models)
    answers = {name: masker.body(body) for name, body in web.answers.items()}
    return GrandmasterRecording(
        at=datetime.now(UTC),
        rows=masked.rows,
        web=WebBodies(answers, {name: masker.masked_text(why) for name, why in web.missing.items()}),
        sample=_sample(profiles, masked.rows),
        masked=tuple(masks),
        left_out=masked.left_out,
        incomplete=tuple(map(masker.masked_text, incomplete)),
    )


async def _walk(access: ProbeAccess, most: int, progress: Progress) -> tuple[list[RecordedObject], list[str]]:
    """All there is, and where it broke off. Raises Unreachable."""
    assert access.snmp is not None
    session = await Session.open(access.host, access.port, access.snmp.credentials, access.timeout_s)
    rows: list[RecordedObject] = []
    incomplete = []
    try:
        for root in ROOTS:
            try:
                async for oid, tag, raw in session.walk_subtree(root, most + 1 - len(rows)):
                    rows.append(RecordedObject(oid, tag, raw))
                    if len(rows) % PROGRESS_EVERY == 0:
                        progress(f"{access.device}: {len(rows)} objects, at {format_oid(oid)}")
            except (Malformed, Refused) as error:
                if not rows:
                    raise
                incomplete.append(f"{format_oid(root)}: {str(error).removeprefix(f'{access.device}: ')}")
    finally:
        session.close()
    incomplete += [f"{format_oid(oid)}: {problem}" for oid, problem in session.problems.items()]
    if len(rows) > most:
        incomplete.append(f"cut off after {most} objects")
    return rows[:most], incomplete


def _sample(profiles: Sequence[Profile], rows: Sequence[RecordedObject]) -> GrandmasterSample:
    found = rows_of(profiles, ((row.oid, row.value) for row in rows))
    served = [profile for profile in profiles if _is_served(profile, rows)]
    return assemble("", 0, served, readable(each for profile in served for each in object_reports(profile, found)))


def _is_served(profile: Profile, rows: Sequence[RecordedObject]) -> bool:
    return any(row.oid[: len(proof)] == proof for proof in profile.proved_by for row in rows)


def refuse_unless_empty(folder: Path) -> None:
    """Raises ConfigError: what lies there is not written over."""
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise ConfigError(f"{folder}: exists and is not an empty folder")


def write(folder: Path, recording: GrandmasterRecording) -> None:
    """Raises TimesyncdError."""
    try:
        (folder / "https").mkdir(parents=True, exist_ok=True)
        (folder / "walk.snmprec").write_text(format_snmprec(recording.rows))
        for name, body in recording.web.answers.items():
            (folder / "https" / name).write_bytes(body)
        (folder / "recording.toml").write_text(described(recording))
    except OSError as error:
        raise TimesyncdError(f"{folder}: cannot be written: {error.strerror}") from error


def described(recording: GrandmasterRecording) -> str:
    """recording.toml: of what, and how it was taken. Neither an address nor a secret is in it."""
    sample = recording.sample
    facts: dict[str, Any] = {
        "recorded": recording.at.replace(microsecond=0),
        "by": f"timesyncd {version('timesyncd')}",
        "model": sample.model,
        "firmware": sample.firmware,
        "profiles": sample.profiles,
        "masked": recording.masked,
        "objects": len(recording.rows),
        "left_out": recording.left_out,
        "incomplete": recording.incomplete,
        "https_answers": len(recording.web.answers),
        "https_missing": recording.web.missing or None,
    }
    return tomli_w.dumps({name: value for name, value in facts.items() if value is not None})
