"""What examples/monitoring holds: the rules, the dashboard, and the queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
RULES = (FOLDER / "prometheus-rules.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def filled(expression: str) -> str:
    """With its variables as Grafana fills them in: one node, everything else."""
    for variable, value in (("$node", "trainer-01"), ("$__rate_interval", "5m")):
        expression = expression.replace(variable, value)
    return re.sub(r"\$(hub|grandmaster|job)\b", ".*", expression)


def queries() -> Iterator[str]:
    """Every expression of the dashboard, its variables filled in."""
    for panel in panels():
        for target in panel["targets"]:
            yield filled(target["expr"])
    for annotation in DASHBOARD["annotations"]["list"]:
        yield filled(annotation["expr"])


def recorded() -> dict[str, set[str]]:
    """The labels of each series that the rules record."""
    rules = re.findall(r"- record: (\S+)\n        expr: (.*)\n", RULES)
    return {
        name: set(re.findall(r"[a-z_]+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        for name, expression in rules
    }
