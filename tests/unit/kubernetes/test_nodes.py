"""What a node of Kubernetes is given for a bound: label, taint and patch."""

from __future__ import annotations

import pytest
from node_states import node_state

from timesyncd.bound import Bound
from timesyncd.errors import Malformed
from timesyncd.kubernetes.nodes import KubernetesNode, bound_ns, label_of, node_of, patch_of, taint_of
from timesyncd.messages.node import BoundMessage

US = 1_000


def a_node(label: str | None = None, *taints: dict[str, str]) -> KubernetesNode:
    return KubernetesNode("node-a", "7", label, taints)


@pytest.mark.parametrize(
    ("bound", "present", "label"),
    [
        (0, None, "1"),
        (1, None, "1"),
        (3, None, "5"),
        (187, None, "200"),
        (200, None, "200"),
        (201, None, "500"),
        (501, None, "1000"),
        (5_000_001, None, "10000000"),
        (None, None, "unknown"),
        (None, "500", "unknown"),
        (187, "unknown", "200"),
        (187, "someone's", "200"),
        (501, "500", "1000"),
        (190, "500", "500"),
        (160, "500", "200"),
        (10, "500", "20"),
    ],
)
def test_the_label_never_understates_and_seldom_changes(bound: int | None, present: str | None, label: str) -> None:
    """It is rounded up; a narrower one needs room of a fourth."""
    assert label_of(bound, present) == label


@pytest.mark.parametrize(("bound", "value"), [(US, None), (US + 1, "exceeded"), (None, "unknown")])
def test_a_node_is_tainted_where_its_bound_is_not_within_the_limit(bound: int | None, value: str | None) -> None:
    """At the limit it is not."""
    taint = taint_of(bound, US)

    assert (None if taint is None else taint["value"]) == value


def test_a_node_that_has_what_it_needs_is_not_patched() -> None:
    """With and without a taint; what else a taint has is not ours to compare."""
    tainted = a_node(
        "unknown", {"key": "timesyncd.io/bound-ns", "value": "unknown", "effect": "NoSchedule", "timeAdded": "x"}
    )

    assert patch_of(a_node("200"), 187, US) is None
    assert patch_of(tainted, None, US) is None


def test_a_patch_keeps_the_taints_of_others() -> None:
    """A patch replaces the whole list, so it has theirs too, and the version that it was made from."""
    other = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    own = {"key": "timesyncd.io/bound-ns", "value": "exceeded", "effect": "NoSchedule"}

    assert patch_of(a_node("200", other), 1_500, US) == {
        "metadata": {"resourceVersion": "7", "labels": {"timesyncd.io/bound-ns": "2000"}},
        "spec": {"taints": [other, own]},
    }
    assert patch_of(a_node("2000", own, other), 150, US) == {
        "metadata": {"resourceVersion": "7", "labels": {"timesyncd.io/bound-ns": "200"}},
        "spec": {"taints": [other]},
    }


@pytest.mark.parametrize(
    ("changes", "elapsed_ns", "expected"),
    [
        ({}, 0, 400),
        ({"age_ns": 1_000_000_000}, 0, 500),
        ({"age_ns": 1_000_000_000}, 1_000_000_000, 600),
        ({"status": "HOLDOVER"}, 0, 400),
        ({"status": "DISRUPTED"}, 0, None),
        ({"status": "UNKNOWN"}, 0, None),
        ({"age_ns": None}, 0, None),
        ({"gm": None}, 0, None),
        ({"void_after_ns": 2_000_000_000}, 2_000_000_001, None),
    ],
)
def test_a_bound_grows_and_expires(changes: dict[str, object], elapsed_ns: int, expected: int | None) -> None:
    """By its own growth, from its age; an expired one is unknown."""
    state = node_state("node-a").model_copy(update={"gm": BoundMessage.of(Bound(400, 100))} | changes)

    assert bound_ns(state, elapsed_ns) == expected


@pytest.mark.parametrize(
    "body", [None, [], {}, {"metadata": {"name": "a"}}, {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": 3}]
)
def test_what_is_no_node_is_malformed(body: object) -> None:
    """And never a node without labels."""
    with pytest.raises(Malformed):
        node_of(body)
