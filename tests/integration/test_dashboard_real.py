"""The dashboard and the recorded rules on a real Prometheus that scrapes the metrics of two daemons: every query returns rows."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from fake_clocks import FakeClocks
from monitoring_files import DASHBOARD, RULES, queries, recorded
from snapshots import EVERYTHING, NOW_NS

from timesyncd.metrics.exposition import Metrics
from timesyncd.simulation.bed.broker import free_port

pytestmark = pytest.mark.integration

#: Patience, not an expectation.
TIMEOUT_S = 120

STEPPED = replace(
    EVERYTHING,
    node=EVERYTHING.node.model_copy(update={"node": "trainer-02", "status": "DISRUPTED"}),
    fleet=None,
    lag=None,
)
DAEMONS = {
    "/hub": Metrics(lambda: EVERYTHING, FakeClocks(real_ns=NOW_NS)),
    "/node": Metrics(lambda: STEPPED, FakeClocks(real_ns=NOW_NS)),
}


class Handler(BaseHTTPRequestHandler):
    """What the daemons answer to a scrape; the path names the daemon."""

    def do_GET(self) -> None:
        body = DAEMONS[self.path].render()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Prometheus:
    """Asked by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def rows(self, path: str, **query: str) -> list[object]:
        try:
            with urlopen(f"{self._url}{path}?{urlencode(query)}", timeout=TIMEOUT_S) as response:
                data = json.loads(response.read())["data"]
        except OSError:  # it does not listen yet
            return []
        return list(data["result"] if isinstance(data, dict) else data)

    def wait_for(self, path: str, **query: str) -> list[object]:
        """The rows, once there are any; none after the time-out."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := self.rows(path, **query)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found


@contextmanager
def daemons() -> Iterator[int]:
    """The port at which both answer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def configuration(port: int) -> str:
    """Of Prometheus: both daemons under the job's name of examples/monitoring. JSON is YAML."""
    jobs = [
        {
            "job_name": f"timesyncd{path.replace('/', '-')}",
            "metrics_path": path,
            "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": path}}],
            "relabel_configs": [{"target_label": "job", "replacement": "timesyncd"}],
        }
        for path in DAEMONS
    ]
    settings = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    return json.dumps({"global": settings, "rule_files": ["rules.yml"], "scrape_configs": jobs})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "rules.yml").write_text(RULES)
    with daemons() as scraped:
        (folder / "prometheus.yml").write_text(configuration(scraped))
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
        running = subprocess.Popen(command, cwd=folder)
        try:
            yield Prometheus(port)
        finally:
            running.terminate()
            running.wait(TIMEOUT_S)


@pytest.mark.parametrize(
    "query", [each.replace("trainer-01", ".*").replace("offset 2m", "offset 1d") for each in queries()]
)
def test_every_query_of_the_dashboard_returns_rows(prometheus: Prometheus, query: str) -> None:
    """
    A panel without rows would show `noValue` for ever, whatever the fleet does. The annotation asks what has begun: this
    Prometheus has no yesterday.
    """
    assert prometheus.wait_for("query", query=query)


@pytest.mark.parametrize("name", recorded())
def test_every_recorded_series_has_rows(prometheus: Prometheus, name: str) -> None:
    """The rules record what they say from what daemons export."""
    assert prometheus.wait_for("query", query=name)


def test_every_variable_has_values(prometheus: Prometheus) -> None:
    """Grafana fills the lists of hubs, nodes, grandmasters and jobs."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = variable["query"]["query"].removeprefix("label_values(").rstrip(")").split(", ")
            assert prometheus.wait_for(f"label/{label}/values", **{"match[]": metric})


def test_hubs_that_share_are_added_up(prometheus: Prometheus) -> None:
    """The panel's expression on made-up series: shares are added, a standby's count is not."""
    [expression] = [each for each in queries() if each.startswith("sum(timesyncd_fleet_nodes_live")]
    shares = "timesyncd_hub_shares"

    def asked(is_shared: int) -> object:
        other = 'label_replace(timesyncd_fleet_nodes_live, "hub", "hub-b", "", "")'
        nodes = f"(timesyncd_fleet_nodes_live or {other})"
        flags = f'(({shares} or label_replace({shares}, "hub", "hub-b", "", "")) * 0 + {is_shared})'
        query = expression.replace('timesyncd_fleet_nodes_live{hub=~".*"}', nodes).replace(
            f"{shares} ==", f"{flags} =="
        )
        [row] = prometheus.wait_for("query", query=query)
        return row["value"][1]  # type: ignore[index]

    live = str(EVERYTHING.fleet.hub.nodes_live) if EVERYTHING.fleet else ""
    assert (asked(0), asked(1)) == (live, str(2 * int(live)))
