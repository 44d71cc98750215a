"""
Grandmasters that lie, send too much, or are polled twice, beside others that do not: one clear error or finding each, and no other is
affected.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grandmaster_lab import Listener, Workshop, free_udp_port, grandmaster, place, secret, section, simulated
from lab import ask, eventually

from timesyncd.messages.fleet import NODE_PATH
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.grandmaster.actions import SCENARIOS
from timesyncd.simulation.grandmaster.lies import LIES
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

States = dict[str, dict[str, Any]]
"""The known state of each grandmaster, by its name."""


def state_of(node: DaemonProcess, name: str) -> dict[str, Any]:
    return next(gm for gm in ask(node, "grandmasters") if gm["name"] == name)


def standing(node: DaemonProcess, subject: str) -> list[dict[str, Any]]:
    found = [finding for finding in ask(node, "findings") if finding["until_realtime_ns"] is None]
    return [finding for finding in found if finding["subject"] == subject]


def ids(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["id"] for finding in findings]


def samples(node: DaemonProcess, name: str, since_ns: int) -> list[dict[str, Any]]:
    """Those stored of polls since then."""
    return list(history.samples(StoreLocation(node.store), name, since_ns, 2**62))


@dataclass(frozen=True)
class Pair:
    """Two daemons that poll one grandmaster; `first` comes first by name."""

    gm: SimulatedGrandmaster
    first: DaemonProcess
    second: DaemonProcess
    listener: Listener
    workshop: Workshop

    def bury_first(self) -> None:
        """Once it has reported the finding of the grandmaster; a second call is harmless."""
        if self.first.process.poll() is None:
            self.workshop.do(lambda: SCENARIOS["antenna-cut"](self.gm.device))
            eventually(lambda: standing(self.first, "gm"), len)
            eventually(lambda: state_of(self.second, "gm"), lambda state: state["clock_state"] == "holdover")
            self.first.kill()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with place() as (folder, marker), Workshop() as workshop, Mosquitto(marker=marker) as broker:
        (gm,) = workshop.grandmasters(model="tp5000e")
        nodes = [
            DaemonProcess(name, folder / name, "", marker, broker, hub=True, more=grandmaster("gm", gm.facts(), folder))
            for name in ("hub-1", "hub-2")
        ]
        with Listener(broker) as listener, nodes[0] as first, nodes[1] as second:
            for node in nodes:
                eventually(partial(state_of, node, "gm"), lambda state: state["clock_state"] == "locked")
            yield Pair(gm, first, second, listener, workshop)


def test_two_pollers_double_nothing(pair: Pair) -> None:
    """One finding, from the first by name; each lists the grandmaster once; and each one's states have an order of their own."""
    pair.workshop.do(lambda: SCENARIOS["antenna-cut"](pair.gm.device))
    eventually(lambda: standing(pair.first, "gm"), len)
    names = [pair.first.name, pair.second.name]
    orders = eventually(
        lambda: [holdover_orders(pair.listener, name) for name in names],
        lambda orders: all(len(order) > 2 for order in orders),
    )
    findings = {(node, finding["id"]) for node, finding in pair.listener.findings("gm")}
    sources = {event["source"] for _, event, _ in list(pair.listener.messages) if event.get("subject") == "gm"}

    assert ids(standing(pair.first, "gm")) == ["grandmaster-antenna"]
    assert standing(pair.second, "gm") == []
    assert findings == {("hub-1", "grandmaster-antenna")}
    assert sources == {f"{NODE_PATH}hub-1"}
    assert [[gm["node"] for gm in ask(node, "grandmasters")] for node in (pair.first, pair.second)] == [
        ["hub-1"],
        ["hub-2"],
    ]
    assert all(order == sorted(set(order)) for order in orders)
    pair.bury_first()


def holdover_orders(listener: Listener, node: str) -> list[tuple[int, int]]:
    """Incarnation and sequence of this node's states of the grandmaster since it is in holdover."""
    states = [state for state in listener.of("grandmaster/gm/state") if state["node"] == node]
    return [(state["incarnation"], state["sequence"]) for state in states if state["clock_state"] == "holdover"]


#: In real seconds: so long a test has to get ready; and how much faster than real the storm of a minute is.
READY_S, SPEED = 6, 10
STORM = f"""
[[action]]
at_s = {READY_S * SPEED}
do = "storm"
value = 60
"""


def test_a_storm_of_alarms_is_cut_off(tmp_path: Path) -> None:
    """Two hundred changes a second: the excess is dropped and counted, the daemon lives, the other grandmaster is polled, and the end is right."""
    (tmp_path / "storm.toml").write_text(STORM)
    port = free_udp_port()
    options = ("--model", "tp5000e", "--scenario", tmp_path / "storm.toml", "--speed", str(SPEED))
    with place() as (folder, marker), Workshop() as workshop, Mosquitto(marker=marker) as broker:
        (quiet,) = workshop.grandmasters(model="tp5000e", host="127.0.0.2")
        with simulated(marker, *options, f"--trap-to=127.0.0.1:{port}") as loud:
            traps = {"host": "127.0.0.1", "port": port, "communities": [secret(loud["community"], folder / "traps")]}
            more = [
                grandmaster("loud", loud, folder),
                grandmaster("quiet", quiet.facts(), folder),
                section("[traps]", traps),
            ]
            node = DaemonProcess("hub", folder / "hub", "", marker, broker, more="".join(more))
            with Listener(broker) as listener, node:
                suppressed = "grandmaster-traps-suppressed"
                (finding,) = eventually(lambda: [f for f in standing(node, "loud") if f["id"] == suppressed], len)
                now_ns = time.time_ns()
                eventually(lambda: samples(node, "quiet", now_ns), lambda stored: len(stored) > 3)
                alive = node.process.poll() is None
                calm = eventually(lambda: standing(node, "loud"), lambda found: not found)
                state = state_of(node, "loud")
                events = listener.alarms("loud")

    assert re.fullmatch(r"\d+ in the last second were not read", finding["evidence"])
    assert alive
    assert (calm, state["alarms"], state["reachable"]) == ([], [], True)
    assert 0 < len(events) < 60 * 20 // 2
    assert listener.alarms("quiet") == []


SNMP_LIES = {
    "truncated": r"not SNMP .* octets that begin 30",
    "lying-length": r"not SNMP .* octets that begin 30 84 7f ff ff ff",
    "other-request": r"a response to no pending request",
    "not-advancing": r"does not advance: 1\.3\.6\.1\.\d",
    "wrong-types": r"\w+ .*: b'locked' instead of ",
}
HTTPS_FAULTS = {
    "html": r"the log-in opened no session .*/channels_thresholdValue: the response is HTML .* instead of JSON",
    "huge": r"/channels_thresholdValue: the response exceeds \d+ octets",
    "drip": r"/channels_thresholdValue: no complete answer within 2 s",
    "redirect": r"/channels_thresholdValue: the response redirects to https://192\.0\.2\.1, another server, which is not followed",
    "certificate": r"/channels_thresholdValue: the certificate is not the pinned one: .*no request was sent",
}
HONEST, ENDLESS = "honest", "million-rows"
#: Twelve grandmasters answer from one process: on a slow machine to read all of their tables takes more than some seconds.
CALM_S, PATIENT_S = 4, 12
FIELDS = ("clock_state", "clock_class", "clock_accuracy", "utc_offset_s", "alarms", "ports", "references", "serial")


@dataclass(frozen=True)
class Lies:
    """
    The known state of each grandmaster before, while and after all but one lied; of the time between, how many samples and time errors
    of each are stored; and all that was ever published.
    """

    places: dict[str, str]
    before: States
    meanwhile: States
    findings: list[dict[str, Any]]
    stored: dict[str, int]
    time_errors: dict[str, int]
    after: States
    listener: Listener


@pytest.fixture(scope="module")
def lies() -> Iterator[Lies]:
    with place() as (folder, marker), Workshop() as workshop, Mosquitto(marker=marker) as broker:
        grandmasters = {name: workshop.grandmasters(model="tp5000e")[0] for name in (*SNMP_LIES, ENDLESS)}
        web = {name: workshop.grandmasters(model="tp4100")[0] for name in (*HTTPS_FAULTS, HONEST)}
        more = [polled(name, gm, folder) for name, gm in grandmasters.items()]
        more += [polled(name, gm, folder, https=True) for name, gm in web.items()]
        node = DaemonProcess("hub", folder / "hub", "", marker, broker, more="".join(more))
        set_faults(web, HTTPS_FAULTS)
        with Listener(broker) as listener, node:
            places = {name: gm.facts()["snmp"] for name, gm in grandmasters.items()}
            places |= {name: gm.facts()["https"] for name, gm in web.items()}
            yield lied_to(node, grandmasters | web, places, listener)


def polled(name: str, gm: SimulatedGrandmaster, folder: Path, *, https: bool = False) -> str:
    calm = {"state_interval_s": CALM_S, "table_interval_s": CALM_S, "timeout_s": PATIENT_S}
    return grandmaster(name, gm.facts(), folder, https=https, v3=False, **calm)


def lied_to(
    node: DaemonProcess, grandmasters: dict[str, SimulatedGrandmaster], places: dict[str, str], listener: Listener
) -> Lies:
    before = gathered(node, is_read)
    for name in (*SNMP_LIES, ENDLESS):
        grandmasters[name].agent.lie = LIES[name]()
    gathered(node, is_found_out)
    began_ns = time.time_ns()
    eventually(lambda: samples(node, HONEST, began_ns), lambda rows: len(rows) > 3)
    meanwhile, findings = gathered(node, is_found_out), ask(node, "findings")
    stored = {name: len(samples(node, name, began_ns)) for name in grandmasters}
    errors = {name: len(list(history.time_errors(StoreLocation(node.store), name, 0, 2**62))) for name in grandmasters}
    for gm in grandmasters.values():
        gm.agent.lie = LIES["none"]()
    set_faults(grandmasters, ())
    return Lies(places, before, meanwhile, findings, stored, errors, gathered(node, is_read), listener)


def gathered(node: DaemonProcess, holds: Callable[[dict[str, Any]], bool]) -> States:
    """Of each grandmaster the first state of which it holds: on a slow machine not every poll has the time to read all tables."""
    found: States = {}

    def add() -> States:
        found.update({name: state for name, state in states_of(node).items() if name not in found and holds(state)})
        return found

    return eventually(add, lambda found: len(found) == len(SNMP_LIES) + len(HTTPS_FAULTS) + 2, 120)


def set_faults(grandmasters: dict[str, SimulatedGrandmaster], faults: Iterable[str]) -> None:
    """Each grandmaster has the fault of its name, if that is one of these."""
    for name, gm in grandmasters.items():
        gm.device.https_fault = name if name in faults else None


def states_of(node: DaemonProcess) -> States:
    return {gm["name"]: gm for gm in ask(node, "grandmasters")}


def is_read(state: dict[str, Any]) -> bool:
    is_honest = state["name"] != HONEST or state["time_errors"]
    return bool(state["reachable"] and state["clock_state"] == "locked" and is_whole(state) and is_honest)


def is_whole(state: dict[str, Any]) -> bool:
    """Its last poll had the time to read all tables."""
    return not any("no answer within the time of a poll" in note for note in state["unknown"])


def is_found_out(state: dict[str, Any]) -> bool:
    if state["name"] in SNMP_LIES:
        return not state["reachable"]
    return is_whole(state) and (state["name"] == HONEST or bool(state["unknown"]))


def changed(state: dict[str, Any], before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields that are not as before, and not reported unknown: an agent may begin to lie in the middle of a read."""
    names = [name for note in state["unknown"] for name in note.partition("=")[0].split("/")]
    reported = {name.partition(".")[0] for name in names}
    pairs = {field: (before[field], state[field]) for field in FIELDS if field not in reported}
    return {field: pair for field, pair in pairs.items() if differ(*pair)}


def differ(one: Any, other: Any) -> bool:
    """What is None in one of them was not read yet: on a slow machine some tables come with a later poll."""
    if one is None or other is None:
        return False
    if isinstance(one, dict):
        return any(differ(value, other.get(key)) for key, value in one.items())
    if isinstance(one, list):
        return len(one) != len(other) or any(map(differ, one, other))
    return bool(one != other)


@pytest.mark.parametrize("name", SNMP_LIES)
def test_a_grandmaster_that_lies_over_snmp_is_one_clear_error(lies: Lies, name: str) -> None:
    """
    It names device, object and content, and is an active finding; the grandmaster's state stays what was last known. That
    is a finding too where the lie began in the middle of a read, in which the clock's state was lost.
    """
    state = lies.meanwhile[name]
    found = [finding for finding in lies.findings if finding["subject"] == name]
    found = [each for each in found if each["id"] != "grandmaster-not-locked" or state["clock_state"] != "unknown"]

    assert (state["reachable"], state["reason"].partition(": ")[0]) == (False, lies.places[name])
    assert re.search(SNMP_LIES[name], state["reason"])
    assert [(each["id"], each["until_realtime_ns"]) for each in found] == [("grandmaster-lost", None)]
    assert re.search(SNMP_LIES[name], found[0]["evidence"])
    assert changed(state, lies.before[name]) == {}


@pytest.mark.parametrize("name", SNMP_LIES)
def test_nothing_of_a_lie_is_stored_or_published(lies: Lies, name: str) -> None:
    """No sample is stored while it lies, and all that was ever published of it is its honest state."""
    states = [state for state in lies.listener.of(f"grandmaster/{name}/state") if state["clock_state"] is not None]

    assert lies.stored[name] == 0
    assert [found for state in states if (found := changed(state, lies.before[name]))] == []


@pytest.mark.parametrize("name", HTTPS_FAULTS)
def test_a_grandmaster_that_lies_over_https_is_read_over_snmp(lies: Lies, name: str) -> None:
    """One clear error that names device, object and content, beside all that SNMP reports; nothing of the lie is kept."""
    state = lies.meanwhile[name]
    states = lies.listener.of(f"grandmaster/{name}/state")

    assert (state["reachable"], state["clock_state"]) == (True, "locked")
    assert len(state["unknown"]) == 1
    # A later poll may report instead that a rejected log-in is not tried again yet.
    reported = [each["unknown"][0] for each in states if each["unknown"]]
    assert any(re.match(rf"https={re.escape(lies.places[name])}: {HTTPS_FAULTS[name]}", each) for each in reported)
    assert not any(each["time_errors"] for each in states if each["unknown"])
    assert lies.time_errors[name] == 0


def test_a_table_without_end_is_cut_off(lies: Lies) -> None:
    """A million satellites are reported as cut off, and cost nothing else."""
    state = lies.meanwhile[ENDLESS]

    assert (state["reachable"], state["clock_state"], state["clock_class"]) == (True, "locked", 6)
    assert len(state["satellites"]) == 200
    assert "satellites.cn0_db_hz=cut off after 200 rows" in state["unknown"]


def test_the_others_are_read_on(lies: Lies) -> None:
    """Beside eleven grandmasters that lie at once, the twelfth is read as before, over SNMP and over HTTPS."""
    state = lies.meanwhile[HONEST]

    assert lies.stored[HONEST] > 3
    assert (state["reachable"], state["unknown"]) == (True, [])
    assert {error["channel"] for error in state["time_errors"]} == {"GNSS-1", "PTP-1"}
    assert lies.time_errors[HONEST] > 6


def test_a_grandmaster_that_stops_lying_is_read_again(lies: Lies) -> None:
    """Of a former lie nothing stays: all are read as in the beginning."""
    assert [found for name, state in lies.after.items() if (found := changed(state, lies.before[name]))] == []


def test_the_second_poller_takes_over(pair: Pair) -> None:
    """When the first has been silent for a minute, the second publishes the active finding, with its chain."""
    pair.bury_first()
    (finding,) = eventually(lambda: standing(pair.second, "gm"), len, 120)
    published = eventually(lambda: [each for node, each in pair.listener.findings("gm") if node == "hub-2"], len)

    assert (finding["id"], len(finding["chain"]) > 2) == ("grandmaster-antenna", True)
    assert ids(published) == ["grandmaster-antenna"]
