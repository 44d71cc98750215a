"""What a node of Kubernetes is to have: the label with its bound, and the taint where that is unknown or too wide. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timesyncd.bound import Bound
from timesyncd.errors import Malformed
from timesyncd.messages.node import NodeState

#: The key of the label and of the taint.
KEY = "timesyncd.io/bound-ns"

#: The label's value, and the taint's, where no bound is known; and the taint's where the bound exceeds the limit.
UNKNOWN = "unknown"
EXCEEDED = "exceeded"

#: The nodes that are looked at: an operator labels those that run the daemon.
SELECTOR = "timesyncd.io/node=true"

Taint = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """What matters here of a Node object (core/v1). `label` None: it has none."""

    name: str
    resource_version: str
    label: str | None
    taints: tuple[Taint, ...]


def node_of(body: Any) -> KubernetesNode:
    """Raises Malformed for what is no Node object."""
    try:
        metadata, spec = body["metadata"], body.get("spec") or {}
        labels, taints = metadata.get("labels") or {}, spec.get("taints") or []
        return KubernetesNode(
            str(metadata["name"]),
            str(metadata["resourceVersion"]),
            labels.get(KEY),
            tuple(dict(each) for each in taints),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Malformed(f"the Kubernetes API's object is no node: {error!r}") from error


def bound_ns(state: NodeState, elapsed_ns: int) -> int | None:
    """How far the node's clock may be off, in ns, rounded up, `elapsed_ns` after the hub's answer. None: unknown."""
    if state.main_status not in ("SYNCHRONIZED", "HOLDOVER") or state.main_bound is None or state.age_ns is None:
        return None
    age_ns = state.age_ns + elapsed_ns
    if age_ns > state.void_after_ns:
        return None
    return Bound(state.main_bound.bound_ns, state.main_bound.growth_ppb).at(age_ns)


def label_of(bound: int | None, present: str | None) -> str:
    """
    The bound rounded up to 1, 2 or 5 times a power of ten, so that it seldom changes.

    A wider one counts at once. A narrower one counts only where a fourth more would still fit: a bound at the edge of two
    values does not change the label each time.
    """
    if bound is None:
        return UNKNOWN
    wanted = _rounded_up(bound)
    if present is None or not present.isdecimal() or int(present) < wanted:
        return str(wanted)
    return str(min(int(present), _rounded_up(bound + bound // 4)))


def _rounded_up(bound: int) -> int:
    power = 1
    while True:
        for factor in (1, 2, 5):
            if bound <= factor * power:
                return factor * power
        power *= 10


def taint_of(bound: int | None, limit_ns: int) -> Taint | None:
    """None: pods may start there."""
    if bound is not None and bound <= limit_ns:
        return None
    return {"key": KEY, "value": UNKNOWN if bound is None else EXCEEDED, "effect": "NoSchedule"}


def patch_of(node: KubernetesNode, bound: int | None, limit_ns: int) -> dict[str, Any] | None:
    """
    The merge patch that gives the node its label and taint; None: it has them.

    Its resource version makes the API refuse it (409) where another client changed the node meanwhile: a patch replaces
    the list of taints as a whole.
    """
    label, taint = label_of(bound, node.label), taint_of(bound, limit_ns)
    others = [dict(each) for each in node.taints if each.get("key") != KEY]
    taints = [*others, *([dict(taint)] if taint is not None else [])]
    own = [
        {name: each.get(name) for name in ("key", "value", "effect")} for each in node.taints if each.get("key") == KEY
    ]
    metadata: dict[str, Any] = {"resourceVersion": node.resource_version}
    patch: dict[str, Any] = {"metadata": metadata}
    if label != node.label:
        metadata["labels"] = {KEY: label}
    if own != ([taint] if taint is not None else []):
        patch["spec"] = {"taints": taints}
    return patch if len(metadata) > 1 or "spec" in patch else None
