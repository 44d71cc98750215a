"""The state of a grandmaster, and what its interfaces serve of it."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from timesyncd.simulation.grandmaster import gnss, hardware
from timesyncd.simulation.grandmaster import hardware as ptp
from timesyncd.simulation.grandmaster.alarms import AlarmBoard, SimulatedAlarm
from timesyncd.simulation.grandmaster.gnss import GnssReceiver, SimulatedSatellite
from timesyncd.simulation.grandmaster.hardware import SimulatedClient, SimulatedNtp, SimulatedPort, SimulatedReference
from timesyncd.simulation.grandmaster.servo import OSCILLATORS, Dwell, Servo, SimulatedOscillator

_DAY_S = 86_400
#: How long satellites must be usable before the input is qualified.
QUALIFY_S = 30.0


@dataclass
class DeviceSnapshot:
    """
    A grandmaster of `kind` (a key of hardware.MODELS). What a seed draws, it draws the same each time.

    `utc_offset_s` is the TAI - UTC that it serves, `tai_offset_s` what is true. `unix_s` is what its own clock shows,
    `elapsed_s` simulated time since it was made. `lying`: it reports healthy GNSS, whatever it sees.

    For those who answer for it: `answer_delay_s` and `loss` (a share of datagrams) are how its management behaves;
    `https_fault` is None, html, huge, drip, redirect or certificate; `answering` is False while it boots.
    """

    serial: str = "SIM0001"
    name: str = "gm-a"
    kind: str = "tp4100"
    model: str = ""
    firmware: str = ""
    domain: int = 24
    profile: str = ptp.PROFILE_G8275_1
    priority1: int = 128
    priority2: int = 128
    utc_offset_s: int = 37
    offset_scaled_log_variance: int = 0x4E5D
    phase_offset_ns: float = -3.2
    clock: Callable[[], float] = time.time
    started_s: float = 0.0
    engine_boots: int = 4
    servo: Servo = Servo.LOCKED
    clock_class: int = Servo.LOCKED.clock_class
    clock_accuracy: int = Servo.LOCKED.clock_accuracy
    satellites: tuple[SimulatedSatellite, ...] = ()
    leap: str = "none"
    leap_at_s: float | None = None
    client_total: int = 12
    seed: int = 0
    speed: float = 0.0
    answer_delay_s: float = 0.0
    loss: float = 0.0
    https_fault: str | None = None
    lying: bool = False
    oscillator_kind: str = ""
    elapsed_s: float = 0.0
    board: AlarmBoard = field(init=False)
    dwell: Dwell = field(init=False)
    receiver: GnssReceiver = field(init=False)
    oscillator: SimulatedOscillator = field(init=False)

    def __post_init__(self) -> None:
        self.epoch_s = self.clock()
        self.tai_offset_s = self.utc_offset_s
        self.started_s = self.started_s or self.epoch_s - 3 * _DAY_S
        self.model = self.model or self.made_of.name
        self.firmware = self.firmware or self.made_of.firmware
        oscillator = OSCILLATORS[self.oscillator_kind or self.made_of.oscillator]
        self.dwell = Dwell(warmup_s=oscillator.warmup_s, holdover_s=oscillator.holdover_s)
        self.receiver = GnssReceiver(self.seed)
        self.oscillator = SimulatedOscillator(oscillator, self.seed, self.phase_offset_ns)
        self.satellites = self.satellites or self.receiver.sky(0.0)
        self.failures: set[tuple[str, int]] = set()
        self.board = AlarmBoard()
        self._usable_since_s: float | None = -math.inf
        self._boots_until_s: float | None = None

    @property
    def made_of(self) -> hardware.ModelKind:
        return hardware.MODELS[self.kind]

    @property
    def clock_identity(self) -> bytes:
        """EUI-64 of the serial number, so that two grandmasters never share one."""
        return bytes.fromhex("00a069fffe") + hashlib.sha256(self.serial.encode()).digest()[:3]

    def port_identity(self, port: int) -> bytes:
        """The TimeProviders 4100 and 4500 show one clock identity a port; the first is the grandmaster's."""
        own = int.from_bytes(self.clock_identity, "big")
        return (own + (port - 1 if self.made_of.web else 0)).to_bytes(8, "big")

    @property
    def identities(self) -> list[bytes]:
        return sorted({port.clock_identity for port in self.ports})

    @property
    def oscillator_name(self) -> str:
        return self.oscillator.kind.name

    @property
    def unix_s(self) -> float:
        """Real time where it runs at a speed; where time does not run, real time and what it was advanced by."""
        if self.speed > 0:
            return self.epoch_s + self.elapsed_s / self.speed
        return self.clock() + self.elapsed_s

    def elapsed_at(self, unix_s: float) -> float:
        """The simulated time at which its clock showed that."""
        return self.elapsed_s - (self.unix_s - unix_s) * (self.speed or 1.0)

    @property
    def uptime_s(self) -> float:
        """Since it booted: sysUpTime and snmpEngineTime."""
        return max(0.0, self.unix_s - self.started_s)

    @property
    def answering(self) -> bool:
        return self._boots_until_s is None

    @property
    def alarms(self) -> tuple[SimulatedAlarm, ...]:
        """Those that stand, the oldest first."""
        return self.board.standing

    @property
    def events(self) -> deque[SimulatedAlarm]:
        """The last that did not stand, the newest last."""
        return self.board.events

    @property
    def has_time_reference(self) -> bool:
        return self.servo.follows

    @property
    def reference_usable(self) -> bool:
        """Whether the GNSS input is good and has been for long enough."""
        since = self._usable_since_s
        return self.lying or (since is not None and self.elapsed_s - since >= QUALIFY_S - 1e-6)

    @property
    def references(self) -> tuple[SimulatedReference, ...]:
        usable = "qualified" if self.reference_usable else "disqualified"
        return (
            SimulatedReference("GNSS-1", hardware.GNSS_IF_INDEX, "selected" if self.has_time_reference else usable),
            SimulatedReference("PTP-1", 1, "disabled"),
        )

    @property
    def gnss_state(self) -> str:
        """locked, tracking or searching."""
        if not self.satellites:
            return "searching"
        return "locked" if gnss.solves(self.satellites) else "tracking"

    @property
    def ports(self) -> tuple[SimulatedPort, ...]:
        kind, state = self.made_of, "listening" if self.servo is Servo.WARMUP else "master"
        ports = [
            SimulatedPort(
                at, f"eth{at}", state, self.profile, self.domain, self.port_identity(at), count, kind.max_clients
            )
            for at, count in enumerate(self._client_counts, start=1)
        ]
        return tuple(port.unplugged() if port.number in self._down else port for port in ports)

    @property
    def _client_counts(self) -> list[int]:
        kind = self.made_of
        return ptp.shared_out(min(self.client_total, kind.max_clients * kind.ptp_ports), kind.ptp_ports)

    @property
    def clients(self) -> tuple[SimulatedClient, ...]:
        return ptp.clients(tuple(port.clients for port in self.ports), self.seed)

    @property
    def ntp(self) -> SimulatedNtp:
        served = self.servo.held
        leap = self.leap if served else "unsynchronized"
        mode = "syncToRefclock" if served else "notSynchronized"
        return SimulatedNtp(mode, 1 if served else 16, leap, 2, int(self.uptime_s * 40))

    @property
    def sensors(self) -> tuple[hardware.SimulatedSensor, ...]:
        return hardware.sensors(self.elapsed_s, self.receiver.antenna_current_ma, frozenset(self.failures))

    @property
    def interfaces(self) -> tuple[hardware.SimulatedInterface, ...]:
        return hardware.interfaces(self.made_of, self.uptime_s, self._down)

    @property
    def modules(self) -> tuple[hardware.SimulatedModule, ...]:
        return hardware.modules(self.made_of, self.serial, self.firmware)

    @property
    def _down(self) -> frozenset[int]:
        return frozenset(index for name, index in self.failures if name == "port-down")
