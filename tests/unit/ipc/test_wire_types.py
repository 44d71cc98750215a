"""Types that segments, datagrams and messages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from timesyncd.ipc.job_segment import Method, Plan, PlanReason
from timesyncd.ipc.wire_types import Code, Count64, Int64, Limits, VarianceNs2
from timesyncd.messages.jobs import GroupsReason, PhaseReason, VerdictCode


@dataclass(frozen=True)
class Limited:
    number: Int64 = 0
    count: Count64 = 0
    text: Annotated[str, Limits(max_length=3, pattern="^[a-z]*$")] = ""


LIMITED = TypeAdapter(Limited)


@pytest.mark.parametrize(
    "fields", [{"number": 2**63}, {"number": -(2**63) - 1}, {"count": -1}, {"text": "abcd"}, {"text": "A"}]
)
def test_a_message_enforces_the_limits_of_a_dataclass(fields: dict[str, int | str]) -> None:
    """They are annotations that pydantic reads, though ipc needs no pydantic."""
    with pytest.raises(ValidationError):
        LIMITED.validate_python(fields)


def test_limits_are_in_the_schema() -> None:
    """A reader in another language finds them there."""
    properties = LIMITED.json_schema()["properties"]

    assert (properties["number"]["minimum"], properties["number"]["exclusiveMaximum"]) == (-(2**63), 2**63)
    assert (properties["text"]["maxLength"], properties["text"]["pattern"]) == (3, "^[a-z]*$")


@pytest.mark.parametrize("codes", [Method, PlanReason, PhaseReason, GroupsReason, VerdictCode])
def test_a_code_is_its_name_and_a_number(codes: type[Code]) -> None:
    """Both identify it; messages carry the name, segments the number."""
    assert [code.value for code in codes] == [code.name.lower() for code in codes]
    assert [codes.of_number(code.number) for code in codes] == list(codes)
    assert [code.number for code in codes] == list(range(1, len(codes) + 1))


@pytest.mark.parametrize("number", [0, -1, 99])
def test_a_number_of_a_newer_version_is_unknown(number: int) -> None:
    """It has no meaning here: UNKNOWN, or None where the enumeration has no such member."""
    assert PlanReason.of_number(number) is PlanReason.UNKNOWN
    assert Method.of_number(number) is None


def test_a_name_of_a_newer_version_is_unknown() -> None:
    """The message is read all the same."""
    plan = TypeAdapter(Plan).validate_python({"version": 3, "reason_code": "of_a_newer_version"})

    assert (plan.version, plan.reason_code) == (3, PlanReason.UNKNOWN)
    with pytest.raises(ValidationError):
        TypeAdapter(Method).validate_python("of_a_newer_version")


def test_the_variance_of_the_furthest_times_is_within_its_range() -> None:
    """Two sums of two 64-bit numbers each are up to 2^65 apart, and a little more by what is counted off them."""
    apart_ns = 2**65 + 2**40

    assert TypeAdapter(VarianceNs2).validate_python((apart_ns / 2) ** 2)
