"""The status page in a real browser: what it shows, that it follows, that it ages, and that names cannot inject."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import fake_view
import pytest
from chromium import Page, opened
from fake_view import FakeView, as_json
from page_pixels import colour, green_pixels
from reworded import reworded

from timesyncd import config
from timesyncd.bound import Reason
from timesyncd.build import this_build
from timesyncd.clocks import SystemClocks
from timesyncd.ipc.job_segment import Method
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import (
    AlarmEventMessage,
    BoundMessage,
    ChainStep,
    FindingMessage,
    GrandmasterState,
    Message,
    NodeState,
    SourceState,
)
from timesyncd.model.observation import Observation
from timesyncd.sample import Satellite, TimeErrorSeries
from timesyncd.store.engine import StoreLocation
from timesyncd.store.writer import Store
from timesyncd.web.app import WebServer, serve
from timesyncd.web.view import StreamEvent

pytestmark = pytest.mark.integration


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def store(tmp_path: Path) -> StoreLocation:
    """A history with two time errors of gm-a, of now."""
    path = tmp_path / "history.sqlite"
    store = Store(config.StoreSettings(path=path), SystemClocks(), lambda problem: None)
    store.start()
    now_ns = time.time_ns()
    points = ((now_ns - 3_000_000_000_000, -40), (now_ns - 1_000_000_000, 55))
    store.put(Observation(TimeErrorSeries("gm-a", "gnss-1", "te", points), None))
    store.stop()
    return StoreLocation(path)


@pytest.fixture
async def server(view: FakeView, store: StoreLocation) -> AsyncIterator[WebServer]:
    server = await serve(config.WebSettings(port=0), view, store)
    yield server
    await server.close()


@pytest.fixture
async def page(server: WebServer) -> AsyncIterator[Page]:
    async with opened(server.url + "node/trainer-01") as page:
        yield page


async def go(page: Page, path: str) -> None:
    """Another view of the same page, as a link within it opens it."""
    await page.evaluate(f"history.pushState(null, '', '/{path}'); dispatchEvent(new PopStateEvent('popstate'))")


async def test_the_page_answers_the_questions(page: Page, tmp_path: Path) -> None:
    """Status, bound, reference, since when, and the job's cost: each view states it in words, with units."""
    await page.until("status", "SYNCHRONIZED")
    shown = {name: await page.text(name) for name in ("reference", "since", "bound")}
    body = ""
    for path, element, text in (
        ("node/trainer-01", "terms", "path delay"),
        ("job", "jobs", "straggler"),
        ("grandmaster", "grandmasters", "HOLDOVER"),
    ):
        await go(page, path)
        await page.until(element, text)
        body += str(await page.evaluate("document.body.innerText"))

    assert shown["reference"] == "to grandmaster gm-a (001122.fffe.334455)"
    assert shown["bound"].startswith("±") and shown["bound"].endswith("µs")
    assert shown["since"].startswith("for ") and "since" in shown["since"]
    for fact in ("−412 ns", "20.9 µs", "SLAVE", "path delay", "◐ HOLDOVER", "GNSS antenna open", "3/9 satellites",
                 "18.3 %", "rank 1 on trainer-02", "41.2 ms ±55.0 µs", "timed from step 1100", "1 ▲ straggler"):  # fmt: skip
        assert fact in body


async def test_the_page_names_its_build(page: Page) -> None:
    """Version, commit and Python of the daemon, as `timesyncd --version` prints them."""
    await page.until("build", str(this_build()))


async def test_the_budget_is_shown_term_by_term(page: Page) -> None:
    """
    Hard and statistical beside each other, their sums, how fast they grow, and when the bound leaves the next limit.
    """
    await page.until("status", "SYNCHRONIZED")
    rows = """(id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => [...row.cells].map((cell) => cell.innerText).join("|"))"""
    terms, rates = [await page.evaluate(f"({rows})('{name}')") for name in ("terms", "rates")]

    assert "path delay|21.1 µs||74 %" in terms
    assert "noise||618 ns|" in terms
    assert "granularity|8 ns|8 ns|0 %" in terms
    assert "to the grandmaster|±28.4 µs|±21.1 µs|" in terms
    assert rates[2:] == ["steering|49.0 µs|", "grandmaster rate|100 ns|", "to the grandmaster, total|50.1 µs|1.09 µs"]
    assert (await page.text("forecast")).startswith("without new samples: exceeds 100 µs in ")


async def test_the_header_says_what_each_of_its_times_is(page: Page, view: FakeView) -> None:
    """The numbers of a view may be older than the last event, so the silence is not called how far behind they are."""
    await page.until("status", "SYNCHRONIZED")
    view.publish(StreamEvent("node", view.node()))
    shown = await page.until("connection", "● live")

    assert re.fullmatch(r"● live, last event \d\.\d s ago · as of 2023-11-14 22:18:\d\d UTC", shown)


async def test_sources_of_every_kind_are_shown(page: Page) -> None:
    """An NTP daemon and the kernel in words, and a falseticker by name."""
    await page.until("status", "SYNCHRONIZED")
    shown = await page.text("sources")

    assert "ntp ✕ falseticker" in shown
    assert "follows 192.0.2.1, stratum 2" in shown and "+940 µs ±410 µs" in shown
    assert "disciplined by: none found" in shown


async def test_a_lost_source_shows_the_reason_and_its_last_value(page: Page, view: FakeView) -> None:
    """Its state is the reason; "last known" appears only before a value."""
    await page.until("status", "SYNCHRONIZED")
    first, *_ = view.node().sources
    gave = first.model_copy(
        update={"reason": "no answer", "reason_code": "no_valid_sample", "port_state": "SLAVE", "clock": "phc:0"}
    )
    never = SourceState(
        name="nic",
        driver="phc",
        reachable=False,
        reason="no PHC behind it",
        reason_code="no_valid_sample",
        since_poll_ns=42_000_000_000,
    )
    view.publish(StreamEvent("node", view.node().model_copy(update={"sources": [gave, never], "sequence": 4712})))
    await page.until("sources", "nic ✕")
    shown = await page.text("sources")

    assert "no answer; last known: SLAVE" in shown
    assert "no PHC behind it; last polled 42 s ago" in shown and shown.count("last known") == 1


async def test_the_offset_of_a_network_card_s_clock_is_named_as_such(page: Page, view: FakeView) -> None:
    """With hardware timestamps ptp4l's offset is the PHC's, in the table and in the chart; the bound is the system clock's."""
    await page.until("status", "SYNCHRONIZED")
    before = await page.until("band-note", "offset")
    first, *others = view.node().sources
    measured = first.model_copy(update={"clock": "phc:0"})
    view.publish(StreamEvent("node", view.node().model_copy(update={"sources": [measured, *others], "sequence": 4712})))
    await page.until("sources", "−412 ns of phc:0")

    assert "offset (line) and ± bound of the system clock" in before
    assert "offset of phc:0 (line) and ± bound of the system clock" in await page.until("band-note", "phc:0")


async def test_a_utc_bound_that_is_not_the_grandmaster_s_gives_its_reason(page: Page, view: FakeView) -> None:
    """The source that narrowed it is named, and so is a bound that covers sources which contradict each other."""
    await page.until("status", "SYNCHRONIZED")
    utc = BoundMessage(bound_ns=9_000, growth_ppb=0, reason="")
    known = view.node().model_copy(update={"utc": utc, "utc_status": "SYNCHRONIZED"})
    narrowed = known.model_copy(update={"utc_narrowed_by": ["ntp"], "sequence": 4713})
    torn = known.model_copy(update={"sources_contradict": True, "sequence": 4714})
    view.publish(StreamEvent("node", narrowed))
    await page.until("utc", "by ntp")
    view.publish(StreamEvent("node", torn))
    await page.until("utc", "whichever source is right")


async def test_without_announce_the_page_names_no_grandmaster(page: Page, view: FakeView) -> None:
    """That none is followed would be another statement."""
    await page.until("status", "SYNCHRONIZED")
    why = Reason.NO_ANNOUNCE
    unnamed = BoundMessage(bound_ns=None, growth_ppb=0, reason=why.text, reason_code=why.code)
    changes = {
        "gm": unnamed,
        "utc": unnamed,
        "grandmaster_identity": None,
        "parent_identity": None,
        "grandmaster": None,
    }
    state = view.node().model_copy(update=changes | {"status": "UNKNOWN", "sequence": 4713})
    view.publish(StreamEvent("node", state))
    await page.until("reference", "grandmaster unknown: no Announce")


async def test_a_node_that_ntp_keeps_shows_utc_first(page: Page, view: FakeView) -> None:
    """Its UTC bound is the large one, and a missing grandmaster is no fault."""
    await page.until("status", "SYNCHRONIZED")
    nothing = BoundMessage(bound_ns=None, growth_ppb=0, reason=Reason.NO_GRANDMASTER.text, reason_code="no_grandmaster")
    utc = BoundMessage(bound_ns=1_500_000, growth_ppb=51_000, reason="")
    alone = {
        "status": "UNKNOWN", "utc_status": "SYNCHRONIZED", "reason": "", "parent": nothing, "gm": nothing, "gm_stat": nothing,
        "utc": utc, "utc_stat": nothing, "terms": {}, "stat_terms": {}, "rates": {}, "grandmaster_identity": None,
        "sources": view.node().sources[1:], "falsetickers": [], "sequence": 4712,
    }  # fmt: skip
    view.publish(StreamEvent("node", view.node().model_copy(update=alone)))
    await page.until("status", "● UTC SYNCHRONIZED")

    assert await page.text("bound") == "±1.51 ms"
    assert await page.text("reference") == "to UTC; this node has no grandmaster"
    assert (await page.text("reason"), await page.text("forecast")) == ("", "without new samples: expires in 16 min")
    assert "to UTC, total" in await page.text("rates")


async def test_a_jobs_cost_is_shown_with_its_stragglers_and_error(page: Page) -> None:
    """
    Overhead three ways, stragglers with where and verdict, what arrivals were compared by, and rank by rank; what is
    not known is not shown.
    """
    await go(page, "job")
    await page.until("jobs", "llama-pretrain")
    shown = await page.text("jobs")
    rows = """(rows) => [...document.querySelectorAll(`#jobs [data-rows="${rows}"] tr`)].map((row) => [...row.cells].map((cell) => cell.innerText).join("|"))"""
    stragglers, ranks = [await page.evaluate(f"({rows})('{name}')") for name in ("stragglers", "ranks")]

    for fact in ("newest step 17.9 %, epoch 18.1 %", "0.22 : 1", "39.8 ms median, 44.1 ms p99 ±55.0 µs", "link rack-7",
                 "the nodes' clocks, error ±55.0 µs; small enough to name the late rank", "median 0 updates behind, at most 2",
                 "0 → 1 212 µs ±55.0 µs", "steps start 130 ms into each period of 260 ms on rack-7", "0.021 % of its time", "selsync(quantile=0.94) + topk(ratio=0.01)",
                 "2 groups, in 2 larger groups (by topology and node)"):  # fmt: skip
        assert fact in shown
    assert stragglers == [
        "1 ▲ straggler|trainer-02|bucket 2|39.8 ms|38.1 s|97.0 %", "0 ? inconclusive|trainer-01|bucket 0|41.0 µs|0 ns|61.0 %",
    ]  # fmt: skip
    assert ranks[1] == "1 ▲ straggler|trainer-02|◐ HOLDOVER|310 µs|900 µs|39.8 ms|97.0 %|2.40 ms|1.2 %|1"
    assert "parameter server response time" in shown and "3.10 ms median, 9.40 ms p99" in shown
    assert "lost" not in shown


async def test_a_job_without_trusted_clocks_is_marked(page: Page, view: FakeView) -> None:
    """It shows how arrivals were compared; a job of a later epoch and without optional fields is shown too."""
    await go(page, "job")
    await page.until("jobs", "llama-pretrain")
    doubtful: dict[str, object] = {
        "method": Method.COLLECTIVE_ENDS, "clock_bound_ns": 90_000_000, "trusted": False, "stragglers": [], "straggler_rank": None, "step": (2 << 32) + 7, "comm_compute": None,
        "sync_overhead_step": None, "sync_overhead_epoch": None, "staleness_max": None, "delays": [], "marks_repeated": 3,
        "response_p50_ns": None, "response_p99_ns": None, "barrier_wait_p50_ns": None, "barrier_wait_p99_ns": None,
    }  # fmt: skip
    view.publish(StreamEvent("job", view.jobs()[0].model_copy(update=doubtful)))
    shown = await page.until("jobs", "too large to name the late rank: most differences are smaller")

    assert "the ends of collectives (no clock is trusted), error ±90.0 ms" in shown
    assert "2:7 newest" in shown and "3 duplicate" in shown
    assert (
        "▲ straggler" not in shown
        and "persistently late" not in shown
        and "staleness" not in shown
        and "epoch" not in shown
    )
    assert "parameter server" not in shown and "wait in barriers" not in shown
    assert (
        await page.evaluate(
            "getComputedStyle(document.querySelector('#jobs [data-rows=stragglers]').parentElement).display"
        )
        == "none"
    )


async def test_the_page_breaks_no_rule_of_its_own(page: Page) -> None:
    """No exception, no refused request and no violation of the content policy while each view is shown."""
    await page.until("status", "SYNCHRONIZED")
    for path, element, text in SETTLED:
        await go(page, path)
        await page.until(element, text)

    assert page.complaints == []


#: Each view, with an element and a text of it that come last.
SETTLED = (
    ("fleet", "nodes", "trainer-02"),
    ("node/trainer-01", "terms", "path delay"),
    ("grandmaster/gm-a", "grandmasters", "HOLDOVER"),
    ("job", "lateness-note", "2 ranks"),
    ("timeline", "findings", "grandmaster-alarm"),
)


async def test_the_page_follows(page: Page, view: FakeView) -> None:
    """A published event changes what is shown, without a reload."""
    await page.until("status", "SYNCHRONIZED")
    changes = {
        "status": "DISRUPTED",
        "reason": "the system clock was stepped",
        "reason_code": "clock_stepped",
        "sequence": 4712,
    }
    view.publish(StreamEvent("node", view.node().model_copy(update=changes)))
    status = await page.until("status", "DISRUPTED")

    assert status == "✕ DISRUPTED"
    assert await page.text("bound") == "no bound"
    assert await page.text("reason") == "the system clock was stepped"


#: JavaScript: the tag, id, class, status and visibility of every element of the view, without those that a clock changes
#: (a hub becomes silent) and the parts that uPlot draws.
APPEARANCE = """[...document.querySelectorAll(".view:not([hidden]) *:not(#hubs *):not(.uplot):not(.uplot *)")].map((element) =>
    [element.tagName, element.id, element.getAttribute("class"), element.dataset.status ?? null, element.hidden])"""


async def appearance(view: FakeView) -> list[Any]:
    """How each view shows these states, without its texts."""
    server = await serve(config.WebSettings(port=0), view)
    try:
        async with opened(server.url + "fleet") as page:
            found: list[Any] = []
            await page.until("node-name", "trainer-01")
            for path, element, _ in SETTLED:
                await go(page, f"{path}?last=7d")  # the ticks of a short range move from one view to the other
                await page.becomes(f"document.getElementById('{element}').textContent !== ''", True)
                await page.becomes(f"document.querySelectorAll('{DRAWN[path]}').length > 0", True)
                found.append(await settled(page))
            return found
    finally:
        await server.close()


async def settled(page: Page) -> Any:
    """The view's appearance once it is the same in three readings: its parts come with responses of their own."""
    seen: list[Any] = []
    async with asyncio.timeout(60):
        while len(seen) < 3 or seen[-3:] != [seen[-1]] * 3:
            seen.append(await page.evaluate(APPEARANCE))
            await asyncio.sleep(1)
    return seen[-1]


#: What each view draws of its own; more may follow.
DRAWN = {
    "fleet": "#chain .stop",
    "node/trainer-01": "#forecast-chart canvas",
    "grandmaster/gm-a": "#gm-holdover canvas",
    "job": "#parts canvas",
    "timeline": "#lanes rect",
}


async def test_no_sentence_decides_how_something_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a random text in place of every sentence each element has the same class, status and visibility."""
    recorded = deepcopy(fake_view.RECORDED)
    for node in recorded["nodes"]:
        node["holdover_after_ns"] = node["void_after_ns"]  # a slow machine's page must not age between the two views
    monkeypatch.setattr(fake_view, "RECORDED", recorded)
    as_written = await appearance(FakeView())
    models: dict[str, type[Message]] = {
        "nodes": NodeState,
        "grandmasters": GrandmasterState,
        "jobs": JobState,
        "findings": FindingMessage,
    }
    for name, model in models.items():
        recorded[name] = [as_json(reworded(model.model_validate(each))) for each in recorded[name]]

    assert await appearance(FakeView()) == as_written


async def test_no_sentence_decides_whether_utc_is_first(page: Page, view: FakeView) -> None:
    """A node that NTP keeps is known by the code of its reason: the page shows UTC first, whatever the sentence is."""
    nothing = {"bound_ns": None, "growth_ppb": 0, "reason": "b5e1", "reason_code": Reason.NO_GRANDMASTER.code}
    changes = {
        "status": "UNKNOWN",
        "utc_status": "SYNCHRONIZED",
        "gm": BoundMessage.model_validate(nothing),
        "sources": view.node().sources[1:],
    }
    await page.until("status", "SYNCHRONIZED")
    view.publish(StreamEvent("node", view.node().model_copy(update=changes)))

    await page.until("status", "● UTC SYNCHRONIZED")


async def test_an_ended_finding_is_removed(page: Page, view: FakeView) -> None:
    """An active finding is shown until a message ends it."""
    await go(page, "timeline")
    await page.until("findings", "Check the antenna's connector.")
    over = view.findings()[0].model_copy(update={"until_realtime_ns": 1_700_000_400_000_000_000})
    view.publish(StreamEvent("finding", over))

    await page.until("findings-section", "No active finding.")


async def test_a_finding_is_shown_with_its_chain(page: Page) -> None:
    """From the root cause to the affected jobs, link by link, in order."""
    await go(page, "timeline")
    await page.until("findings", "Check the antenna's connector.")
    links = await page.evaluate("[...document.querySelectorAll('#findings .chain li')].map((link) => link.textContent)")

    assert links[:3] == ["GNSS antenna open", "reference GNSS-1 lost", "holdover since 22:00Z"]
    assert len(links) == 5


def fields_of(grandmaster: str) -> str:
    """JavaScript: the visible text of a grandmaster's card, by field or list."""
    return f"""(() => {{
      const card = [...document.querySelectorAll(".grandmaster")].find((c) => c.querySelector('[data-field="name"]').textContent === {grandmaster!r});
      const parts = [...card.querySelectorAll("[data-field], [data-rows]")];
      card.querySelectorAll("details").forEach((part) => {{ part.open = true; }});
      return Object.fromEntries(parts.map((part) => [part.dataset.field ?? part.dataset.rows, part.innerText]));
    }})()"""


async def test_a_link_to_acknowledge_names_the_finding(page: Page, view: FakeView) -> None:
    """The form has the kind and the finding of the link, and keeps the finding when another one arrives."""
    found = view.findings()[0]
    linked, later = [found.model_copy(update={"subject": subject}) for subject in ("linked", "later")]
    view.publish(StreamEvent("finding", linked))
    await go(page, f"timeline?note=acknowledge&finding={found.id}&subject=linked")
    wanted = f'["{found.id}","linked"]'
    await page.becomes("document.getElementById('note-finding').value", wanted)
    assert await page.evaluate("document.getElementById('note-kind').value") == "acknowledge"
    view.publish(StreamEvent("finding", later))
    await page.becomes("document.querySelectorAll('#note-finding option').length", 3)

    assert await page.evaluate("document.getElementById('note-finding').value") == wanted


async def test_an_unhealthy_grandmaster_shows_its_details(page: Page) -> None:
    """
    State, error and budget, references, ports, alarms with the grandmaster's own severity, time errors, inventory: in
    words.
    """
    await go(page, "grandmaster")
    await page.until("grandmasters", "HOLDOVER")
    shown = await page.evaluate(fields_of("gm-a"))
    bars = await page.evaluate("[...document.querySelectorAll('.sky rect')].map((bar) => bar.getAttribute('class'))")

    assert shown["state"] == "◐ HOLDOVER"
    assert shown["since"].endswith("18 min")
    assert shown["utc"].startswith("±1.") and shown["utc"].endswith("µs")
    assert shown["left"].startswith("holdover budget left: 3 h 39 min (92 %)")
    assert "to gm-b" in shown["offsets"] and "−85 ns ±240 ns" in shown["offsets"]
    assert (bars.count("healthy"), bars.count("unhealthy")) == (3, 6)
    assert "412 of 500 clients" in shown["ports"] and "load 63 %" in shown["ports"]
    assert "▲ major" in shown["alarms"] and "2023-11-14 22:00:02" in shown["alarms"]
    assert "−310 ns" in shown["time-errors"]
    assert "SN100234" in shown["inventory"] and "10 d 0 h" in shown["inventory"]
    assert "phase to its reference" in shown["clock"] and "not provided" in shown["clock"]


async def test_satellites_with_a_direction_are_in_the_sky(page: Page, view: FakeView) -> None:
    """A healthy one is filled; one whose direction the grandmaster does not report is in the table of C/N0 alone."""
    await go(page, "grandmaster/gm-a")
    await page.until("grandmasters", "HOLDOVER")
    assert await page.evaluate("document.getElementById('gm-sky').getBoundingClientRect().width") == 0
    gm = next(each for each in view.grandmasters() if each.name == "gm-a")
    sky = [Satellite(5, 44, True, 120, 40), Satellite(7, 30, False, 300, 10), Satellite(9, 41, True)]
    view.publish(
        StreamEvent(
            "grandmaster", gm.model_copy(update={"satellites": sky, "reachable": True, "sequence": gm.sequence + 1})
        )
    )
    await page.becomes(
        "[...document.querySelectorAll('#gm-sky circle[class$=healthy]')].map((dot) => dot.getAttribute('class')).join()",
        "healthy,unhealthy",
    )

    assert "2 satellites with a known direction, 1 of them healthy" in await page.evaluate(
        "document.getElementById('gm-sky').ariaLabel"
    )
    assert await page.evaluate("document.getElementById('gm-sky').getBoundingClientRect().width") > 100


async def test_the_time_errors_are_drawn(page: Page) -> None:
    """A channel of which the store holds rows is a line with its lowest and highest value, and pixels of its colour."""
    await go(page, "grandmaster/gm-a?last=6h")
    note = await page.until("gm-error-note", "gnss-1")
    await page.becomes(pixels_of("#gm-errors canvas", "series-1") + " > 0", True)

    assert note == "gnss-1: −40 ns to +55 ns"


#: JavaScript: from now on `labels` has for each text that a chart draws its begin, its end, and where the last vertical mark was.
RECORDING = f"""(() => {{
  const pen = CanvasRenderingContext2D.prototype;
  const {{ fillText, moveTo, lineTo }} = pen;
  window.labels = {{}};
  let [from, mark] = [null, null];
  pen.fillText = function (text, x, ...rest) {{ labels[text] = [x, x + this.measureText(text).width, mark]; fillText.call(this, text, x, ...rest); }};
  pen.moveTo = function (x, y) {{ from = x; moveTo.call(this, x, y); }};
  pen.lineTo = function (x, y) {{
    if (x === from && this.strokeStyle === "#" + {colour("warn")}) mark = x;
    lineTo.call(this, x, y);
  }};
}})()"""


async def test_the_line_of_the_budget_s_end_does_not_cross_its_label(page: Page) -> None:
    """It is near the chart's end, where its label has no room on the right of it."""
    await page.until("status", "SYNCHRONIZED")
    await page.evaluate(RECORDING)
    await go(page, "grandmaster/gm-a")
    await page.becomes("Object.keys(labels).some((text) => text.startsWith('ends at '))", True)
    labels = await page.evaluate("labels")
    begin, end, mark = next(its for text, its in labels.items() if text.startswith("ends at "))

    assert begin < end < mark
    assert labels["now"][2] < labels["now"][0]


async def test_an_unknown_grandmaster_shows_no_time_errors(page: Page) -> None:
    """Those of the grandmaster that was shown before go with it, and come back with it."""
    await go(page, "grandmaster/gm-a?last=6h")
    await page.until("gm-error-note", "gnss-1")
    await go(page, "grandmaster/nosuch?last=6h")
    await page.until("no-grandmasters", "This daemon polls no grandmaster named nosuch.")

    assert await page.evaluate("document.getElementById('gm-error-section').hidden") is True
    await go(page, "grandmaster/gm-a?last=6h")
    await page.becomes("document.getElementById('gm-error-section').hidden", False)


def pixels_of(canvas: str, name: str) -> str:
    """JavaScript: how many pixels of a canvas have about a colour of the theme."""
    return f"""(() => {{
      const canvas = document.querySelector({canvas!r});
      if (canvas === null || canvas.width === 0) return 0;
      const hex = {colour(name)};
      const wanted = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
      const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200 && wanted.every((part, channel) => Math.abs(part - data[at + channel]) < 12)) found += 1;
      return found;
    }})()"""


async def test_what_a_grandmaster_does_not_provide_is_marked(page: Page, view: FakeView) -> None:
    """Never 0, never "none": for a grandmaster without data every part is "not provided"."""
    await page.until("status", "SYNCHRONIZED")
    order = {"node": "n", "incarnation": 1, "sequence": 1, "published_realtime_ns": 1, "age_ns": 0}
    view.publish(
        StreamEvent("grandmaster", GrandmasterState.model_validate(order | {"name": "bare", "reachable": True}))
    )
    await go(page, "grandmaster")
    await page.until("grandmasters", "bare")
    shown = await page.evaluate(fields_of("bare"))

    assert shown["state"] == "✕ STATE NOT PROVIDED"
    assert shown["utc"] == "no bound"
    for part in ("alarms", "references", "ports", "sensors", "interfaces", "time-errors"):
        assert shown[part] == "not provided"
    assert "not provided" in shown["gnss"] and "satellites" in shown["gnss"]


async def test_a_grandmaster_without_snmp_replies_is_marked(page: Page, view: FakeView) -> None:
    """Its web interface replies: a state that was not read differs from a state that it does not provide."""
    await page.until("status", "SYNCHRONIZED")
    order = {"node": "n", "incarnation": 1, "sequence": 1, "published_realtime_ns": 1, "age_ns": 0}
    content = order | {"name": "bare", "reachable": True, "snmp_error": "gm:161: no SNMP response"}
    view.publish(StreamEvent("grandmaster", GrandmasterState.model_validate(content)))
    await go(page, "grandmaster")
    await page.until("grandmasters", "bare")
    shown = await page.evaluate(fields_of("bare"))

    assert (shown["state"], shown["reason"]) == ("✕ STATE NOT READ", "gm:161: no SNMP response")


async def test_unhealthy_grandmasters_come_first_and_open(page: Page, view: FakeView) -> None:
    """Fifty healthy ones are fifty lines; one that becomes unhealthy moves to the top and opens by itself."""
    await page.until("status", "SYNCHRONIZED")
    well = view.grandmasters()[0].model_copy(update={"clock_state": "locked", "alarms": []})
    for number in range(50):
        view.publish(StreamEvent("grandmaster", well.model_copy(update={"name": f"well-{number:02}"})))
    await go(page, "grandmaster")
    await page.until("grandmasters", "well-49")
    view.publish(StreamEvent("grandmaster", well.model_copy(update={"name": "well-30", "clock_state": "holdover"})))
    await page.becomes(OPEN_NAMES, ["gm-a", "well-30"])

    assert (await page.evaluate(NAMES))[:2] == ["gm-a", "well-30"]


NAMES = """[...document.querySelectorAll('.grandmaster [data-field="name"]')].map((name) => name.textContent)"""
OPEN_NAMES = NAMES.replace(".grandmaster", ".grandmaster[open]")


def alarm_event(**changes: Any) -> AlarmEventMessage:
    event = AlarmEventMessage(
        node="n1", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=1_700_000_300_000_000_000, action="raise",
        id=97, index=1, severity="major", text="GNSS antenna open", lost=2,
    )  # fmt: skip
    return event.model_copy(update=changes)


async def test_an_alarm_event_is_shown_as_it_happens(page: Page, view: FakeView) -> None:
    """A grandmaster's notification appears with the number of lost ones, the newest first."""
    await page.until("status", "SYNCHRONIZED")
    await go(page, "grandmaster")
    view.publish(StreamEvent("alarm", alarm_event()))
    view.publish(StreamEvent("alarm", alarm_event(sequence=2, action="clear", severity="clear", lost=0)))
    await page.until("alarm-events", "clear")
    rows = (await page.text("alarm-events")).splitlines()

    assert "GNSS antenna open" in rows[0] and "clear" in rows[0]
    assert "raise · major" in rows[1] and "(2 earlier notifications lost)" in rows[1]


@pytest.mark.parametrize("path", ["fleet", "node/trainer-01", "grandmaster/gm-a"])
async def test_nothing_is_green_while_the_daemon_is_silent(page: Page, view: FakeView, path: str) -> None:
    """Without messages a banner states how old everything is, and title, icon and every pixel lose their green."""
    await page.until("status", "SYNCHRONIZED")
    await go(page, path)
    view.publish(StreamEvent("node", view.node()))
    await page.until("connection", "● live")
    icon = await page.evaluate("document.getElementById('favicon').href")
    banner = await page.until("banner", "no event from the daemon for")

    assert "everything below is as of " in banner and banner.rstrip().endswith("s ago")
    assert (await page.evaluate("document.title")).startswith("⚠ no answer")
    assert await page.evaluate("document.getElementById('favicon').href") != icon
    assert await green_pixels(page) == 0


async def test_a_silent_daemon_is_reported_and_the_bound_grows(page: Page, view: FakeView) -> None:
    """Without messages the page shows for how long, widens the bound, and turns to HOLDOVER when it is due."""
    await page.until("status", "SYNCHRONIZED")
    first = await page.text("bound")
    await page.until("connection", "no event from the daemon for")
    await page.until("status", "HOLDOVER")
    later = await page.text("bound")
    view.publish(StreamEvent("node", view.node()))
    await page.becomes("document.getElementById('banner').hidden", True)

    assert float(later.strip("±µs ")) > float(first.strip("±µs "))


async def test_a_lost_connection_is_reported_and_restored(page: Page, server: WebServer, view: FakeView) -> None:
    """When the daemon stops the page reports it, and when it listens again the page is live again."""
    await page.until("status", "SYNCHRONIZED")
    await server.close()
    await page.until("connection", "connection to the daemon lost")
    again = await serve(config.WebSettings(port=int(server.url.rsplit(":", 1)[1].rstrip("/"))), view)
    try:
        await page.until("connection", "● live")
        await page.becomes("document.getElementById('banner').hidden", True)
    finally:
        await again.close()


def poisoned(grandmaster: GrandmasterState, evil: str) -> GrandmasterState:
    """
    Every text that the grandmaster reports, also within its lists; a receiver rejects a message with a poisoned code.
    """

    def evil_of(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key.endswith("reason_code") else evil_of(item) for key, item in value.items()}
        if isinstance(value, list):
            return [evil_of(item) for item in value]
        return evil if isinstance(value, str) else value

    return GrandmasterState.model_validate(evil_of(grandmaster.model_dump(mode="json")) | {"node": grandmaster.node})


async def test_a_poisoned_name_stays_text(page: Page, view: FakeView) -> None:
    """Markup in a name, a reason, an alarm or a job is shown as it is and never becomes an element."""
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    await page.until("status", "SYNCHRONIZED")
    view.publish(StreamEvent("job", view.jobs()[0].model_copy(update={"job": evil, "verdict": evil, "job_id": evil})))
    view.states.append(
        view.states[1].model_copy(update={"node": evil, "grandmaster_summary": evil, "topology": "<img src=x>"})
    )
    polled = view.grandmasters()
    grandmaster = poisoned(polled[0], evil).model_copy(update={"name": "poisoned"})
    view.grandmasters = lambda: [*polled, grandmaster]  # type: ignore[method-assign]
    view.publish(StreamEvent("grandmaster", grandmaster))
    view.publish(StreamEvent("hub", view.hubs()[0].model_copy(update={"node": evil, "url": "javascript:alert(1)"})))
    view.publish(
        StreamEvent(
            "finding",
            view.findings()[0].model_copy(update={"id": evil, "chain": [ChainStep(code="step", text=evil)] * 2}),
        )
    )
    view.publish(StreamEvent("alarm", alarm_event(name=evil, action=evil, severity=evil, text=evil)))
    shown = (
        ("job", "jobs"), ("fleet", "nodes"), ("fleet", "hubs"), ("fleet", "attention"), ("grandmaster", "grandmasters"),
        ("grandmaster", "alarm-events"), ("timeline", "findings"),
    )  # fmt: skip
    for path, element in shown:
        await go(page, path)
        await page.until(element, evil)
    await go(page, "fleet")
    await page.until("fleet-map", "<img src=x>")

    assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert page.complaints == []


@pytest.mark.parametrize("view_name", ["node", "grandmaster", "job"])
async def test_an_address_with_markup_stays_text(server: WebServer, view_name: str) -> None:
    """A node, a grandmaster or a job named `<script>` in the address is a name that this daemon does not know."""
    note = {"node": "node-note", "grandmaster": "no-grandmasters", "job": "no-jobs"}[view_name]
    async with opened(f"{server.url}{view_name}/%3Cscript%3Ealert(1)%3C%2Fscript%3E") as page:
        shown = await page.until(note, "<script>alert(1)</script>")

        assert "no" in shown
        assert await page.evaluate("document.querySelectorAll('main script').length") == 0


async def test_each_view_has_an_address_that_can_be_reloaded(page: Page, server: WebServer) -> None:
    """After a reload of its address a view, its time range and its zone are the same; a link within the page keeps both."""
    await page.until("status", "SYNCHRONIZED")
    await page.command("Page.navigate", url=server.url + "grandmaster/gm-a?last=6h&tz=local")
    await page.until("gm-text", "gm-a: holdover")
    kept = await page.evaluate("document.querySelector('nav a[data-view=job]').getAttribute('href')")
    texts = [await page.text("zone"), await page.evaluate("document.getElementById('range').value")]

    assert kept == "/job?last=6h&tz=local"
    assert texts == ["local time", "6h"]


async def press(page: Page, key: str) -> None:
    await page.command("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
    await page.command("Input.dispatchKeyEvent", type="keyUp", key=key)


async def test_the_keyboard_alone_reaches_a_rank(page: Page) -> None:
    """`/` searches ranks too, Enter opens the hit, `?` shows the keys, and digits change the view."""
    await page.until("status", "SYNCHRONIZED")
    await press(page, "/")
    await page.becomes("document.activeElement.id", "search")
    await page.command("Input.insertText", text="rank 1")
    await page.until("search-results", "rank 1 of llama-pretrain on trainer-02")
    await press(page, "Enter")
    await page.becomes("location.pathname", "/job/0f3a9c51d2b4e687")
    await press(page, "?")
    await page.becomes("document.getElementById('help').open", True)
    await page.evaluate("document.getElementById('help').close()")
    await press(page, "1")
    await page.becomes("location.pathname", "/fleet")


async def test_a_time_range_is_shared_and_in_the_address(page: Page) -> None:
    """A longer range, an earlier one and the zone are in the address, and "back to live" ends them."""
    await page.until("status", "SYNCHRONIZED")
    await press(page, "[")
    await page.becomes("new URLSearchParams(location.search).has('from')", True)
    await press(page, "u")
    await page.becomes("new URLSearchParams(location.search).get('tz')", "local")
    await page.evaluate("document.getElementById('range-live').click()")
    await page.becomes("new URLSearchParams(location.search).has('from')", False)

    assert await page.text("zone") == "local time"


async def test_a_past_range_shows_its_own_steps_and_says_what_shows_now(page: Page) -> None:
    """
    The lateness of a job's newest steps is not drawn under a range in which none of them began. What is recent follows
    from the daemon's clock, which here is years behind the browser's.
    """
    await go(page, "job")
    await page.until("lateness-note", "2 ranks, 2 steps of this time range")
    await go(page, "job?from=2023-11-14T10:00:00Z&to=2023-11-14T11:00:00Z")
    note = await page.until("lateness-note", "No step that the daemon keeps is in this time range")

    assert "the newest 2 steps, from " in note
    assert await page.evaluate("['lateness', 'parts-section'].map((id) => document.getElementById(id).hidden)") == [
        True,
        True,
    ]
    assert await page.text("range-note") == (
        "Charts and the timeline show 2023-11-14 10:00:00 to 11:00:00 UTC. Headlines and tables show now."
    )
    await page.evaluate("document.getElementById('range-live').click()")
    await page.until("lateness-note", "2 ranks, 2 steps of this time range")
    await page.becomes("document.getElementById('range-note').hidden", True)


async def test_a_grandmasters_headline_counts_the_nodes_that_follow_it(page: Page, view: FakeView) -> None:
    """As the API's overview does."""
    [followers] = [each.followers for each in view.overview().grandmasters if each.name == "gm-a"]
    await go(page, "grandmaster/gm-a")

    assert f" · {followers} nodes follow it · " in await page.until("gm-why", "follow it")


async def test_the_timeline_links_a_finding_to_its_subject(page: Page) -> None:
    await go(page, "timeline")
    await page.until("findings", "grandmaster-alarm")
    await page.evaluate("document.querySelector('#findings tr[data-key^=grandmaster-alarm] a').click()")
    await page.becomes("location.pathname.startsWith('/grandmaster/')", True)


WIDTHS = (390, 1440, 3840)
#: What is wider than the window or than the box around it.
CUT = """[...document.querySelectorAll('html, .scroll, article')].filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.getAttribute('aria-label') ?? box.tagName}: ${box.scrollWidth} > ${box.clientWidth}`)"""


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_is_cut_at_any_width(page: Page, width: int) -> None:
    """No view is wider than the window, from a phone to 4K, and no table than its box; nor is a header with a fixed range."""
    await page.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    cut = {}
    for path, element, text in SETTLED:
        await go(page, path)
        await page.until(element, text)
        cut[path] = await page.evaluate(CUT)
        await go(page, f"{path}?from=2023-11-14T10:00:00Z&to=2023-11-14T11:00:00Z&tz=local")
        await page.becomes("document.getElementById('range-live').hidden", False)
        cut[path] += await page.evaluate(CUT)

    assert cut == {path: [] for path, _, _ in SETTLED}
