"""The simulated web interface, read by the real curl."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from timesyncd.simulation.grandmaster import SCENARIOS, Device
from timesyncd.simulation.grandmaster.actions import Reboot
from timesyncd.simulation.grandmaster.https import COOKIE, HUGE_OCTETS, MAX_SESSIONS, LoginSessions, WebInterface

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

USER, PASSWORD = "watch", "correct-horse"
LOGIN = {"txtuname": USER, "txtpasswd": PASSWORD, "action": "applylogin"}
STATES = {"tgrp": "-1"}
CHART = {"metric": "te", "xRange": "600", "tStart": "-1", "channelName": "gnss", "channelId": "1"}
FILE = {
    "chart_metric": "te", "action1": "savefile", "file_type": "0", "chart_x_range": "600", "chart_gnssId": "1",
    "gnss_id": "1", "gnss_ref": "GNSS", "gnss_status": "Monitoring", "down_metric": "0", "ChannelName": "gnss",
    "reference_id": "1",
}  # fmt: skip
FILE_PATH = "/perfmon_gnss_stat"


@dataclass(frozen=True)
class Answer:
    status: int
    kind: str
    head: str
    body: str

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Curl:
    """The real curl with a cookie jar of its own."""

    def __init__(self, web: WebInterface, folder: Path) -> None:
        self._origin = f"https://{web.host}:{web.port}"
        self._jar = folder / f"cookies-{web.port}"
        self._ca = folder / f"ca-{web.port}.pem"
        self._ca.write_text(web.certificate.pem)

    async def run(self, path: str, *options: str) -> tuple[int, str]:
        """Exit status and output."""
        always = ("-s", "-i", "--max-time", "20", "--cacert", str(self._ca), "-b", str(self._jar), "-c", str(self._jar))
        process = await asyncio.create_subprocess_exec(
            "curl", *always, *options, self._origin + path, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    async def post(self, path: str, fields: dict[str, str], *options: str, script: bool = True) -> Answer:
        form = [part for name, value in fields.items() for part in ("-d", f"{name}={value}")]
        header = ["-H", "X-Requested-With: XMLHttpRequest"] if script else []
        _, output = await self.run(path, *header, *form, *options)
        head, _, body = output.partition("\r\n\r\n")
        status, kind = int(head.split()[1]), "html" if "<html" in body else "data"
        return Answer(status, kind, head, body)


async def reading(device: Device, folder: Path, path: str, fields: dict[str, str]) -> Answer:
    """One answer after a log-in."""
    async with interface(device) as web:
        curl = Curl(web, folder)
        await curl.post("/login", LOGIN)
        return await curl.post(path, fields)


def interface(device: Device, **more: Any) -> WebInterface:
    return WebInterface(device, username=USER, password=PASSWORD, **more)


async def test_channel_states(tmp_path: Path) -> None:
    """After a log-in the channels are a JSON list with name and status of each."""
    answer = await reading(Device(), tmp_path, "/channels_thresholdValue", STATES)
    states = {item["monitorChannelString"]: item["monitorChStatusString"] for item in answer.data}

    assert len(states) == 13
    assert states["GNSS-1"] == states["PTP-1"] == "Monitoring"
    assert states["PPS-2"] == "Disabled"


async def test_a_chart_is_what_the_device_measured(tmp_path: Path) -> None:
    """Points stand on TAI seconds, ten apart, with the grandmaster's UTC offset; the newest is the device's own phase."""
    device = Device(clock=lambda: 1_772_600_400.0)
    device.advance(600)
    answer = await reading(device, tmp_path, "/get_chart_data", CHART)
    points = answer.data["chartData"]

    assert [point["X"] for point in points[:2]] == [1_772_600_447, 1_772_600_457]
    assert len(points) == 60
    assert points[-1] == {"X": 1_772_601_037, "Y": round(device.phase_offset_ns, 1), "OFFSET": 37}
    assert {name: value for name, value in answer.data.items() if name != "chartData"} == {
        "alarm_thresh": 100,
        "channelStatus": "Monitoring",
        "reference": "GNSS",
    }


async def test_a_wrong_utc_offset_is_published_with_right_tai(tmp_path: Path) -> None:
    """A grandmaster with a wrong offset stamps in true TAI and publishes the wrong offset beside it."""
    device = Device(clock=lambda: 1_772_600_400.0)
    device.utc_offset_s = 36
    answer = await reading(device, tmp_path, "/get_chart_data", CHART)

    assert answer.data["chartData"][-1] == {"X": 1_772_600_437, "Y": -3.2, "OFFSET": 36}


async def test_the_day_file(tmp_path: Path) -> None:
    """A text with # lines and a row a minute, whose name ends in the time of ten digits."""
    answer = await reading(Device(clock=lambda: 1_772_600_400.0), tmp_path, FILE_PATH, FILE)
    lines = answer.body.splitlines()

    assert lines[0].startswith("# Title: GNSS(te):")
    assert lines[-1] == "2026-03-04,05:00:00, -3.2"
    assert len([line for line in lines if not line.startswith("#")]) == 1_440
    assert 'filename="GNSS-1_te_1772600400"' in answer.head


async def test_a_channel_without_reference_reports_it(tmp_path: Path) -> None:
    """In holdover the GNSS channel is not monitored."""
    device = Device()
    SCENARIOS["antenna-cut"](device)
    device.advance(1)
    answer = await reading(device, tmp_path, "/channels_thresholdValue", STATES)

    assert answer.data[0]["monitorChStatusString"] == "No reference"


@pytest.mark.parametrize(
    ("firmware", "path", "fields", "seen"),
    [
        ("2.4.7", "/channels_thresholdValue", STATES, (401, "html")),
        ("2.4.7", "/get_chart_data", CHART, (401, "html")),
        ("2.4.7", FILE_PATH, FILE, (401, "html")),
        ("2.4.7", "/login", LOGIN | {"txtpasswd": "wrong"}, (401, "html")),
        ("2.4.6", "/channels_thresholdValue", STATES, (200, "html")),
        ("2.4.6", "/get_chart_data", CHART, (200, "data")),
        ("2.3.12", FILE_PATH, FILE, (200, "html")),
        ("2.3.12", "/login", LOGIN | {"txtpasswd": "wrong"}, (200, "html")),
    ],
)
async def test_without_a_session(
    tmp_path: Path, firmware: str, path: str, fields: dict[str, str], seen: tuple[int, str]
) -> None:
    """Since 2.4.7 nothing is answered without a session; before, a log-in is always 200 and the chart is for anybody."""
    async with interface(Device(firmware=firmware)) as web:
        answer = await Curl(web, tmp_path).post(path, fields)

    assert (answer.status, answer.kind) == seen


@pytest.mark.parametrize(("firmware", "kept"), [("2.4.6", True), ("2.4.7", False)])
async def test_a_planted_session_name(tmp_path: Path, firmware: str, kept: bool) -> None:
    """The old firmware logs in under the name that the asker brought, the new one under a new name."""
    async with interface(Device(firmware=firmware)) as web:
        answer = await Curl(web, tmp_path).post("/login", LOGIN, "-H", f"Cookie: {COOKIE}=planted")

    assert (f"{COOKIE}=planted" in answer.head) == kept


async def test_a_failed_login_gives_no_session(tmp_path: Path) -> None:
    """With a wrong password, though the answer may be 200, the next read gets the log-in page."""
    async with interface(Device(firmware="2.3.12")) as web:
        curl = Curl(web, tmp_path)
        await curl.post("/login", LOGIN | {"txtpasswd": "wrong"})
        answer = await curl.post("/channels_thresholdValue", STATES)

    assert answer.kind == "html"


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/channels_thresholdValue", ("-X", "GET"), 405),
        ("/login", ("-X", "GET"), 405),
        ("/nothing", ("-X", "GET"), 404),
        ("/nothing", ("-X", "POST"), 404),
        ("/perfmon_other_stat", ("-X", "POST"), 404),
        (FILE_PATH, ("-X", "POST"), 400),
        ("/channels_thresholdValue", ("-X", "POST"), 400),
    ],
)
async def test_only_what_it_knows_is_answered(tmp_path: Path, path: str, options: tuple[str, ...], status: int) -> None:
    """GET is not allowed, another path is not found, and a form that lacks its fields is refused."""
    async with interface(Device()) as web:
        curl = Curl(web, tmp_path)
        await curl.post("/login", LOGIN)
        answer = await curl.post(path, {}, *options)

    assert answer.status == status


@pytest.mark.parametrize(
    "change", [{"metric": "cte2"}, {"channelId": "3"}, {"channelName": "GNSS"}, {"xRange": "1;ls"}]
)
async def test_a_chart_of_nothing_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    """Another metric, channel or range than there is."""
    answer = await reading(Device(), tmp_path, "/get_chart_data", CHART | change)

    assert answer.status == 400


async def test_a_browser_gets_a_page(tmp_path: Path) -> None:
    """Without the header that scripts send, a session is no use."""
    async with interface(Device()) as web:
        curl = Curl(web, tmp_path)
        await curl.post("/login", LOGIN)
        answer = await curl.post("/channels_thresholdValue", STATES, script=False)

    assert answer.kind == "html"


async def test_a_reboot_ends_the_sessions(tmp_path: Path) -> None:
    """While it boots no client is answered; afterwards each must log in again."""
    device = Device()
    async with interface(device) as web:
        curl = Curl(web, tmp_path)
        await curl.post("/login", LOGIN)
        device.schedule(0, Reboot().apply)
        device.advance(0)
        booting, _ = await curl.run("/channels_thresholdValue", "-d", "tgrp=-1")
        device.advance(60)
        after = await curl.post("/channels_thresholdValue", STATES)

    assert booting in (52, 56)
    assert after.status == 401


def test_sessions_are_few_and_end() -> None:
    """The oldest of too many ends, and so does one that was silent for half an hour."""
    sessions = LoginSessions()
    names = [sessions.begin(0.0) for _ in range(MAX_SESSIONS + 1)]

    assert not sessions.holds(names[0], 1.0)
    assert sessions.holds(names[1], 1_800.0)
    assert not sessions.holds(names[2], 1_801.0)
    assert sessions.holds(names[1], 3_600.0)


@pytest.mark.parametrize(
    ("fault", "status", "text"), [("html", 200, "<html"), ("redirect", 302, "Location: https://192.0.2.1/login")]
)
async def test_pages_and_redirects_where_data_belongs(tmp_path: Path, fault: str, status: int, text: str) -> None:
    """A fault is set at any time, and shows in every answer."""
    device = Device(firmware="2.3.12")
    async with interface(device) as web:
        device.https_fault = fault
        answer = await Curl(web, tmp_path).post("/get_chart_data", CHART)

    assert answer.status == status
    assert text in answer.head + answer.body


async def test_a_huge_answer(tmp_path: Path) -> None:
    """A hundred megabytes come, as far as one reads."""
    async with interface(Device(https_fault="huge")) as web:
        options = ("-X", "POST", "-o", "/dev/null", "-w", "%{size_download}")
        _, output = await Curl(web, tmp_path).run("/get_chart_data", *options)

    assert int(output) == HUGE_OCTETS


async def test_a_dripping_answer(tmp_path: Path) -> None:
    """It comes an octet a second: after two and a half seconds there are at most three."""
    async with interface(Device(firmware="2.3.12", https_fault="drip")) as web:
        options = ("-X", "POST", "-o", str(tmp_path / "body"), "--max-time", "2.5", "-N")
        status, _ = await Curl(web, tmp_path).run("/channels_thresholdValue", *options)

    assert status == 28
    assert "<!D".startswith((tmp_path / "body").read_text().rpartition("\n\n")[2])


async def test_a_new_certificate() -> None:
    """A client that connects after the fault was set is shown it, and it is not the published one."""
    device = Device()
    async with interface(device) as web:
        before = await asyncio.to_thread(ssl.get_server_certificate, (web.host, web.port))
        device.https_fault = "certificate"
        after = await asyncio.to_thread(ssl.get_server_certificate, (web.host, web.port))

    assert before == web.certificate.pem
    assert after != before


async def test_a_recording_is_played(tmp_path: Path) -> None:
    """What was recorded is answered as it came, and what was not is not found."""
    recorded = {"channels_thresholdValue": b'[{"from": "a real grandmaster"}]'}
    async with interface(Device(), recorded=recorded) as web:
        curl = Curl(web, tmp_path)
        await curl.post("/login", LOGIN)
        states = await curl.post("/channels_thresholdValue", STATES)
        chart = await curl.post("/get_chart_data", CHART)

    assert states.data == [{"from": "a real grandmaster"}]
    assert chart.status == 404
