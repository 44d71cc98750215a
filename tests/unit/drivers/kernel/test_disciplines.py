"""Which daemon steers which clock, by command lines as /proc shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel import _disciplines
from timesyncd.drivers.kernel._disciplines import (
    MIN_SCAN_INTERVAL_NS,
    SCAN_EVERY_NS,
    Disciplines,
    ProcessScanner,
    disciplines,
    find_processes,
    may_steer_between,
)
from timesyncd.drivers.kernel._programs import COMMS, Process, options

pytestmark = pytest.mark.disable_socket

CHRONYD = "/usr/sbin/chronyd -F 1"
TIMESYNCD = "/lib/systemd/systemd-timesyncd"
PHC2SYS = "/usr/sbin/phc2sys -a -r"
PTP4L = "/usr/sbin/ptp4l -f /etc/linuxptp/ptp4l.conf -i eth0"


def process(line: str) -> Process:
    words = tuple(line.split())
    return Process(42, Path(words[0]).name[:15], words)


def found(*lines: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    judged = disciplines(process(line) for line in lines)
    return judged.steering, judged.undecided


@pytest.mark.parametrize(
    ("line", "steering"),
    [
        (CHRONYD, "chronyd"),
        ("/usr/sbin/chronyd -x -F 1", None),
        ("chronyd -nx", None),
        ("chronyd -f /etc/x -d", "chronyd"),
        ("chronyd -fx", "chronyd"),
        ("chronyd -u x", "chronyd"),
        ("chronyd -d allow -x", None),
        ("chronyd -d -- -x", "chronyd"),
        ("chronyd -Q", None),
        ("chronyd -q", "chronyd"),
        ("/usr/sbin/ntpd -p /run/ntpd.pid -g -u 103:112", "ntpd"),
        ("/usr/sbin/ntpd -f /etc/openntpd/ntpd.conf", "openntpd"),
        (TIMESYNCD, "systemd-timesyncd"),
        ("ntp-daemon -c /etc/ntpd-rs/ntp.toml", "ntpd-rs"),
        (PHC2SYS, "phc2sys"),
        ("phc2sys -arr", "phc2sys"),
        ("phc2sys -a", None),
        ("phc2sys -s eth0 -w", "phc2sys"),
        ("phc2sys -seth0 -O0 -w", "phc2sys"),
        ("phc2sys -w -s /dev/ptp0 -c CLOCK_REALTIME", "phc2sys"),
        ("phc2sys -s CLOCK_REALTIME -c eth0", None),
        ("phc2sys -s eth0 -c eth1", None),
        ("phc2sys -s eth0 -c eth1 -c CLOCK_REALTIME", "phc2sys"),
        ("phc2sys -s eth0 -E ntpshm", None),
        ("phc2sys -a -r -f /not/there -E pi", "phc2sys"),
        ("phc2sys -s eth0 -E linreg", "phc2sys"),
        ("phc2sys --step_threshold 1 -s CLOCK_REALTIME -c eth0", None),
        ("phc2sys --step_threshold=1 -a -r", "phc2sys"),
        ("ptp4l -S -i eth0", "ptp4l"),
        ("ptp4l -mSi eth0", "ptp4l"),
        ("ptp4l -H -i eth0", None),
        ("ptp4l -i eth0", None),
        ("phc2sys --clock_servo ntpshm -a -r", None),
        ("phc2sys --clock_servo=ntpshm -a -r", None),
        ("phc2sys --clock_servo REFCLOCK_SOCK -a -r", None),
        ("phc2sys -a -r -E pi --free_running=1", None),
        ("phc2sys --clock_servo linreg -a -r", "phc2sys"),
        ("phc2sys --free_running 0 -a -r", "phc2sys"),
        ("ptp4l --time_stamping software -i eth0", "ptp4l"),
        ("ptp4l --time_stamping=software -i eth0", "ptp4l"),
        ("ptp4l -i eth0 -f /absent/ptp4l.conf --time_stamping hardware", None),
        ("ptp4l -S --free_running 1 -i eth0", None),
        ("ptp4l -S --clock_servo ntpshm -i eth0", None),
        ("ptp4l -S --serverOnly 1 -i eth0", None),
        ("ptp4l -S --masterOnly=1 -i eth0", None),
        ("ptp4l -S -H -i eth0", None),
        ("sfptpd -i eth1", "sfptpd"),
        ("ptpd2 -i eth0 -s", "ptpd"),
        ("ptpd -i eth0", "ptpd"),
        ("ptpd2 -i eth0 --noadjust", None),
        ("ptpd2 -M -i eth0", None),
        ("statime", "statime"),
        ("busybox ntpd -n -p pool.ntp.org", "busybox-ntpd"),
        ("busybox sh", None),
        ("ts2phc -s nmea -c eth0", None),
        ("timemaster -f /etc/linuxptp/timemaster.conf", None),
        ("VBoxService --disable-timesync", None),
        ("vmtoolsd -n vmusr", None),
    ],
)
def test_the_daemons_that_steer_the_system_clock(line: str, steering: str | None) -> None:
    """chronyd -x, a phc2sys that sets another clock and a ptp4l with hardware stamps do not."""
    assert found(line) == ((steering,) if steering else (), ())


def test_a_ptp4l_without_flags_is_undecided() -> None:
    """The time stamping may be set in its file, so the process does not show whether it steers the system clock."""
    assert found(PTP4L, PHC2SYS) == (("phc2sys",), ("ptp4l",))


@pytest.mark.parametrize(
    ("line", "undecided"),
    [
        ("phc2sys -a -r -f /absent/phc2sys.conf", "phc2sys"),
        ("sfptpd -f /absent/sfptpd.conf", "sfptpd"),
        ("ptpd2 -c /absent/ptpd2.conf", "ptpd"),
        ("sptp -config /absent/sptp.yaml", "sptp"),
        ("statime -c /absent/statime.toml", "statime"),
        ("timebeat -e", "timebeat"),
        ("vmtoolsd", "vmtoolsd"),
        ("vmtoolsd -n vmsvc", "vmtoolsd"),
        ("VBoxService --timesync-interval 10000", "VBoxService"),
        ("prltoolsd", "prltoolsd"),
        ("google_guest_agent", "google_guest_agent"),
    ],
)
def test_a_program_that_does_not_show_what_it_does_is_named(line: str, undecided: str) -> None:
    """Its configuration cannot be read, or is the hypervisor's: it is unknown whether a process steers."""
    assert found(line) == ((), (undecided,))
    assert found(CHRONYD, line) == (("chronyd",), (undecided,))


@pytest.mark.parametrize(
    ("line", "file", "steers"),
    [
        ("ptp4l -f {}", "[global]\ntime_stamping\tsoftware\n", True),
        ("ptp4l -f {}", "[global]\n# comment\nverbose 1\n[eth0]\n", False),
        ("ptp4l -f {}", "[global]\ntime_stamping software\nfree_running 1\n", False),
        ("ptp4l -f {} --free_running=0", "[global]\ntime_stamping software\nfree_running 1\n", True),
        ("ptp4l -f {} -H", "[global]\ntime_stamping software\n", False),
        ("phc2sys -a -r -f {}", "[global]\nclock_servo ntpshm\n", False),
        ("phc2sys -a -r -f {} -E pi", "[global]\nclock_servo ntpshm\n", True),
        ("sfptpd -f {}", "[general]\nsync_module freerun fr1\nclock_readonly system\n", False),
        ("sfptpd -f {}", "[general]\nsync_module ptp ptp1\n", True),
        ("ptpd2 -c {}", "ptpengine:interface=eth0\nclock:no_adjust=y\n", False),
        ("ptpd2 -c {}", "ptpengine:preset=slaveonly\n", True),
        ("sptp -config {}", "iface: eth0\ntimestamping: hardware\n", False),
        ("sptp --config={}", "iface: eth0\ntimestamping: software\n", True),
        ("statime -c {}", "virtual-system-clock = true\n", False),
        ("statime -c {}", "[[port]]\n", True),
        ("timebeat -e -c {}", "timebeat:\n  clock_sync:\n    adjust_clock: true\n", True),
        ("ntpd -g -c {}", "server pool.ntp.org\ndisable ntp\n", False),
        ("ntpd -g -c {}", "server pool.ntp.org\n", True),
    ],
)
def test_the_configuration_file_decides(tmp_path: Path, line: str, file: str, steers: bool) -> None:
    """A process shows its file's name; what is in the file, or overrides it on the command line, is what it does."""
    config, folder = tmp_path / "program.conf", tmp_path / "proc" / "42"
    config.write_text(file)
    command = line.format(config).split()
    for pid in (folder.parent / "1", folder):
        pid.mkdir(parents=True)
        (pid / "comm").write_text("init" if pid.name == "1" else command[0])
    (folder.parent / "1" / "cmdline").write_bytes(b"/sbin/init\0")
    (folder / "cmdline").write_bytes("\0".join((*command, "")).encode())
    judged = disciplines(find_processes(folder.parent, COMMS) or ())

    assert (bool(judged.steering), judged.undecided) == (steers, ())


def test_the_file_of_a_process_in_a_container_is_not_this_machines(tmp_path: Path) -> None:
    """Its path names another file there, so what a file of that name here contains is no evidence."""
    config, folder = tmp_path / "ptp4l.conf", tmp_path / "proc" / "42"
    config.write_text("[global]\ntime_stamping hardware\n")
    for pid in (folder.parent / "1", folder):
        pid.mkdir(parents=True)
        (pid / "comm").write_text("init" if pid.name == "1" else "ptp4l")
        (pid / "cmdline").write_bytes(f"ptp4l\0-f\0{config}\0".encode())
    (folder / "cgroup").write_text("0::/kubepods.slice/pod7/cri-containerd-9.scope\n")
    (folder.parent / "1" / "cgroup").write_text("0::/init.scope\n")
    judged = disciplines(find_processes(folder.parent, COMMS) or ())

    assert (judged.steering, judged.undecided) == ((), ("ptp4l",))


def test_a_decided_ptp4l_decides_for_all() -> None:
    """Where one certainly steers, the doubt about another one adds nothing."""
    assert found(PTP4L, "ptp4l -S -i eth1") == (("ptp4l",), ())


def test_openntpd_is_one_daemon_of_several_processes() -> None:
    """Its parts are called ntpd, and show what they do instead of a command line."""
    parts = (Process(2, "ntpd", ("ntpd: ntp engine",)), Process(3, "ntpd", ("ntpd: dns engine",)))

    assert disciplines((process("/usr/sbin/ntpd -s"), *parts)) == Disciplines(("openntpd",), ())


def test_pitfall_17_two_disciplines_steer_one_clock() -> None:
    """phc2sys beside chronyd or systemd-timesyncd is reported as two; two processes of one daemon are one."""
    assert found(PHC2SYS, CHRONYD)[0] == ("chronyd", "phc2sys")
    assert found(PHC2SYS, TIMESYNCD)[0] == ("phc2sys", "systemd-timesyncd")
    assert found(CHRONYD, CHRONYD)[0] == ("chronyd",)
    assert found(PHC2SYS, CHRONYD + " -x")[0] == ("phc2sys",)


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("phc2sys -a -r", True),
        ("phc2sys -a", False),
        ("phc2sys -s eth0", True),
        ("phc2sys -s eth1", False),
        ("phc2sys -s elsewhere0", True),
        ("phc2sys -s /dev/ptp0", True),
        ("phc2sys -s /dev/ptp1", False),
        ("phc2sys -s CLOCK_REALTIME -c eth0", True),
        ("phc2sys -s eth0 -c eth1", False),
        ("phc2sys -d /dev/pps0 -s eth1", True),
        ("phc2sys -d /dev/pps0", True),
        ("phc2sys -s eth0 -E ntpshm", False),
        ("phc2sys -a -r -E refclock_sock", False),
        ("ptp4l -S -i eth0", False),
    ],
)
def test_which_phc2sys_may_steer_between_two_clocks(line: str, may: bool) -> None:
    """About PHC 0 behind eth0; a clock that cannot be identified, of another namespace or a PPS, may be this one."""
    index = {"eth0": 0, "eth1": 1}

    assert may_steer_between(process(line), 0, index.get) is may


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("p -a -b", [("a", ""), ("b", "")]),
        ("p -ab", [("a", ""), ("b", "")]),
        ("p -f x -a", [("f", "x"), ("a", "")]),
        ("p -afx", [("a", ""), ("f", "x")]),
        ("p -f", [("f", "")]),
        ("p --long=1 --other 2 -a", [("--long", "1"), ("--other", "2"), ("a", "")]),
        ("p word -a -- -b", [("a", "")]),
        ("p -", []),
    ],
)
def test_command_lines_are_read_as_getopt_reads_them(line: str, given: list[tuple[str, str]]) -> None:
    """Letters in a cluster, values joined or apart, words in between, nothing after `--`."""
    assert list(options(process(line), "f")) == given


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, comm, line in (
        (1, "init", b"/sbin/init\0"),
        (7, "chronyd", b"/usr/sbin/chronyd\0-F\x001\0"),
        (30, "systemd-timesyn", b"/lib/systemd/systemd-timesyncd\0"),
        (31, "bash", b"bash\0chronyd\0"),
        (32, "phc2sys", b"phc2sys\0-s\0\xff\0"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
        (tmp_path / str(pid) / "cmdline").write_bytes(line)
    (tmp_path / "40").mkdir()  # it ended between two looks
    (tmp_path / "uptime").touch()
    return tmp_path


def test_processes_are_found_by_their_name(proc: Path) -> None:
    """By the kernel's name, not by the command line; a process that has just ended is not found."""
    assert find_processes(proc, COMMS) == (
        Process(7, "chronyd", ("/usr/sbin/chronyd", "-F", "1")),
        Process(30, "systemd-timesyn", ("/lib/systemd/systemd-timesyncd",)),
        Process(32, "phc2sys", ("phc2sys", "-s", "�")),
    )


def test_hidden_processes_are_not_none(proc: Path) -> None:
    """Where process 1 cannot be seen, /proc hides the others', and nothing is known."""
    (proc / "1" / "comm").unlink()

    assert find_processes(proc, COMMS) is None


async def test_it_looks_seldom_and_soon_after_a_change(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan every 30 s; after a request as soon as 5 s have passed since the last scan, and the request is not lost."""
    looks: list[Path] = []
    counted: list[int] = []

    def counting(folder: Path, comms: frozenset[str]) -> None:
        looks.append(folder)

    monkeypatch.setattr(_disciplines, "find_processes", counting)
    lookout = ProcessScanner(proc, COMMS)
    for at_s, wanted in (
        (0, False),
        (29, False),
        (30, False),
        (31, True),
        (34, False),
        (35, False),
        (36, False),
        (40, False),
    ):
        if wanted:
            lookout.request_scan()
        await lookout.processes(at_s * NS_PER_S)
        counted.append(len(looks))

    assert counted == [1, 1, 2, 2, 2, 3, 3, 3]
    assert (SCAN_EVERY_NS, MIN_SCAN_INTERVAL_NS) == (30 * NS_PER_S, 5 * NS_PER_S)
