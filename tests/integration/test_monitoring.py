"""The metrics of examples/monitoring and docs/monitoring.md are those that the daemon exports, and promtool accepts them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_clocks import FakeClocks
from monitoring_files import DASHBOARD, FOLDER, RULES, panels, queries, recorded
from prometheus_client.parser import text_string_to_metric_families
from snapshots import EVERYTHING, NOW_NS

from timesyncd.findings.catalogue import CATALOGUE
from timesyncd.metrics.exposition import Metrics

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
TESTS = (FOLDER / "prometheus-rules-tests.yml").read_text()
PAGE = (ROOT / "docs" / "monitoring.md").read_text()

EXPOSITION = Metrics(lambda: EVERYTHING, FakeClocks(real_ns=NOW_NS)).render().decode()
FAMILIES = [f for f in text_string_to_metric_families(EXPOSITION) if f.name.startswith("timesyncd_")]
#: As they are scraped: a histogram is its buckets, sum and count.
SERIES = {sample.name: set(sample.labels) for family in FAMILIES for sample in family.samples}

#: What Prometheus itself adds, or renames, at the scrape.
TARGET_LABELS = {"instance", "job", "exported_job"}


def promtool(*arguments: str, folder: Path = FOLDER) -> tuple[int, str]:
    """Its exit status and output."""
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def metrics_of(text: str) -> set[str]:
    return set(re.findall(r"\btimesyncd_[a-z0-9_]+", text))


def expressions() -> list[str]:
    """Of the rules, each on one line."""
    blocks = re.findall(r"^        expr: (?:>-\n((?:          .*\n)+)|(.*)\n)", RULES, re.MULTILINE)
    return [" ".join((folded or plain).split()) for folded, plain in blocks]


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES)


def test_the_exposition_is_as_prometheus_wants_it() -> None:
    """promtool accepts names, units, help and types of all the metrics that there are."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"], check=False, input=EXPOSITION.encode(), capture_output=True, timeout=60
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_the_rules_are_rules() -> None:
    """Prometheus loads them, templates included."""
    status, output = promtool("check", "rules", "prometheus-rules.yml")

    assert (status, f"{len(alerts()) + len(recorded())} rules found" in output) == (0, True), output


def test_the_scrape_configuration_loads() -> None:
    """Prometheus takes the example as it is."""
    status, output = promtool("check", "config", "prometheus.yml")

    assert status == 0, output


def test_alerts_fire_when_they_should_and_no_other_does() -> None:
    """Each case of the rules' own tests holds."""
    status, output = promtool("test", "rules", "prometheus-rules-tests.yml")

    assert status == 0, output


@pytest.mark.parametrize("alert", alerts())
def test_every_alert_has_its_case(alert: str) -> None:
    """No alert without a case in which it fires."""
    assert f'alertname="{alert}"' in TESTS


@pytest.mark.parametrize(
    ("rule", "without"),
    [
        (" and on (hub) timesyncd_hub_primary == 1\n", "\n"),
        ("max by (job_id, exported_job) (timesyncd_job_steps_complete)", "timesyncd_job_steps_complete"),
        ("timesyncd_job_straggler_rank) >= 0", "timesyncd_job_straggler_rank) > 0"),
        (
            'timesyncd_node_bound_seconds <= on () group_left () timesyncd:limit_seconds:min{limit="node_bound"}\n          and (timesyncd_node_bound_seconds +',
            "(timesyncd_node_bound_seconds +",
        ),
        (" unless on (hub) timesyncd_hub_shares == 1", ""),
        ("sum(timesyncd_fleet_nodes_compared and on (hub) timesyncd_hub_shares == 1) or ", ""),
        ("max(timesyncd_fleet_nodes_compared)", "sum(timesyncd_fleet_nodes_compared)"),
        ("max(timesyncd_fleet_alignment_seconds)", "timesyncd_fleet_alignment_seconds"),
        ("or absent(timesyncd_hub_primary) and count(timesyncd_mqtt_connected) > 0", ""),
        (" and count(timesyncd_mqtt_connected) > 0", ""),
        ('and on (hub) max_over_time(timesyncd_fleet_nodes_following{grandmaster!=""}[1d]) > 0', ""),
    ],
)
def test_the_cases_see_a_rule_that_is_wrong(rule: str, without: str, tmp_path: Path) -> None:
    """A condition taken out of a rule makes a case fail: what is tested is what counts."""
    shutil.copy(FOLDER / "prometheus-rules-tests.yml", tmp_path)
    (tmp_path / "prometheus-rules.yml").write_text(RULES.replace(rule, without))
    status, _ = promtool("test", "rules", "prometheus-rules-tests.yml", folder=tmp_path)

    assert rule in RULES
    assert status != 0


def test_every_alert_states_what_to_do() -> None:
    """A severity, a summary that names the node or job, and a description."""
    bodies = re.split(r"- alert: ", RULES)[1:]
    lacking = [b.split("\n")[0] for b in bodies if not all(k in b for k in ("severity:", "summary:", "description:"))]

    assert lacking == []


@pytest.mark.parametrize("expression", [*expressions(), *queries()])
def test_only_metrics_that_exist_are_asked_for(expression: str) -> None:
    """Each metric that a rule or a panel names is in the scrape of a daemon that has everything, with each label asked for."""
    labels = set(re.findall(r"\b([a-z_]+)(?:=~|!=|!~|=)\"", expression))
    grouped = re.findall(r"\b(?:by|on|group_left|ignoring) \(([^)]*)\)", expression)
    labels |= {label.strip() for group in grouped for label in group.split(",") if label.strip()}
    known = set().union(*(SERIES[name] for name in metrics_of(expression) if name in SERIES))
    known |= set().union(*(labels for name, labels in recorded().items() if name in expression))

    assert metrics_of(expression) <= set(SERIES)
    assert labels <= known | TARGET_LABELS


def test_only_findings_of_the_catalogue_are_alerted_on() -> None:
    """An id that was renamed would never fire again."""
    assert set(re.findall(r'findings_active\{id="([^"]+)"', RULES)) <= set(CATALOGUE)


def test_every_query_of_the_dashboard_parses(tmp_path: Path) -> None:
    """Prometheus understands each, as a rule's expression."""
    rules = "".join(f"  - record: q:{at}\n    expr: {json.dumps(query)}\n" for at, query in enumerate(queries()))
    (tmp_path / "queries.yml").write_text(f"groups:\n- name: dashboard\n  rules:\n{rules}")
    status, output = promtool("check", "rules", "queries.yml", folder=tmp_path)

    assert (status, f"{len(list(queries()))} rules found" in output) == (0, True), output


def test_the_dashboard_is_whole() -> None:
    """Ids are its panels' own, every panel has a place of its own, a title, a unit and a query on the chosen Prometheus."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(ids) == len(set(ids))
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels())
    assert {t["datasource"]["uid"] for panel in panels() for t in panel["targets"]} == {"${datasource}"}
    assert all(panel["fieldConfig"]["defaults"]["noValue"] for panel in panels())
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "hub", "node", "grandmaster", "job", "page"]
    assert {panel["type"] for panel in panels()} >= {"heatmap", "stat", "timeseries", "table", "state-timeline"}


def test_every_variable_is_a_label_of_its_metric() -> None:
    """A variable that finds no value would leave every panel empty."""
    asked = [
        re.fullmatch(r"label_values\((\w+), (\w+)\)", v["query"]["query"])
        for v in DASHBOARD["templating"]["list"]
        if v["type"] == "query"
    ]

    assert all(found is not None and found[2] in SERIES[found[1]] | TARGET_LABELS for found in asked)


def test_every_alert_has_its_place_in_the_page() -> None:
    """The link of an alert leads to a heading of docs/monitoring.md, and every alert has both."""
    links = re.findall(
        r'- alert: (\w+)\n(?:(?!- alert).*\n)*?          runbook_url: "https://RUNBOOK/monitoring\.html#(\w+)"', RULES
    )
    headings = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)

    assert [alert for alert, _ in links] == alerts() == headings
    assert [fragment for _, fragment in links] == [alert.lower() for alert in alerts()]
    assert "use_directory_urls: false" in (ROOT / "mkdocs.yml").read_text()  # so the site's page is monitoring.html


def test_the_page_sets_the_address_of_the_run_book(tmp_path: Path) -> None:
    """The page's own command leaves no placeholder, and promtool accepts the result."""
    command = re.search(r"^sed -i 's,https://RUNBOOK,.*$", PAGE, re.MULTILINE)
    assert command is not None
    shutil.copy(FOLDER / "prometheus-rules.yml", tmp_path)
    subprocess.run(["sh", "-euc", command[0]], cwd=tmp_path, check=True, timeout=60)
    rules = (tmp_path / "prometheus-rules.yml").read_text()

    assert promtool("check", "rules", "prometheus-rules.yml", folder=tmp_path)[0] == 0
    assert "RUNBOOK/" not in rules
    assert rules.count("/monitoring.html#") == len(alerts())


def documented() -> dict[str, set[str]]:
    """The table of the page: labels by metric."""
    rows = re.findall(r"^\| `(timesyncd_[a-z0-9_]+)` \| (.*?) \|", PAGE, re.MULTILINE)
    return {name: set(re.findall(r"`([a-z_]+)`", labels)) for name, labels in rows}


def test_every_metric_is_documented_with_its_labels() -> None:
    """docs/monitoring.md has a row for each metric that a daemon exports, and for no other."""
    counters = {f.name for f in FAMILIES if f.type == "counter"}
    exported = {
        f"{f.name}_total" if f.name in counters else f.name: {label for s in f.samples for label in s.labels} - {"le"}
        for f in FAMILIES
    }

    assert documented() == exported


def test_every_number_of_the_page_is_right() -> None:
    """The page states how many alerts there are."""
    assert f"{len(alerts())} alerts" in PAGE
