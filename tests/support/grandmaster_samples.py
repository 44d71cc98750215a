"""A grandmaster that reports everything, to be varied."""

from __future__ import annotations

from samples import HEALTHY

from timesyncd.sample import (
    Alarm,
    ClockState,
    GrandmasterSample,
    InputReference,
    Interface,
    Position,
    PtpPort,
    Satellite,
    Sensor,
    TimeError,
)

REAL_MINUS_BOOT_NS = HEALTHY.real_minus_boot_ns

#: No field is None: a test finds that here a field without a column, a metric or a line is missing.
EVERYTHING = GrandmasterSample(
    source="gm",
    boottime_ns=HEALTHY.as_of_ns,
    profiles=("system", "symm-common"),
    sys_descr="TimeProvider 4100",
    sys_name="gm-1",
    sys_object_id="1.3.6.1.4.1.9070.1.2",
    uptime_s=864_000,
    engine_boots=3,
    model="TimeProvider 4100",
    serial="SN100234",
    firmware="2.5.0",
    oscillator="OCXO",
    clock_state=ClockState.HOLDOVER,
    phase_offset_ns=-12,
    selected_reference="GNSS-1",
    references=(InputReference("GNSS-1", "selected"), InputReference("PTP-1", "disqualified")),
    clock_identity="00a069.fffe.704760",
    clock_class=7,
    clock_accuracy=0x21,
    offset_scaled_log_variance=20_061,
    priority1=128,
    priority2=127,
    domain=24,
    utc_offset_s=37,
    leap="insert",
    time_source=0x20,
    time_traceable=True,
    frequency_traceable=False,
    steps_removed=0,
    ports=(PtpPort("eth1", "master", True, "g8275.1", 24, "00a069.fffe.704761", 412, 500, 63),),
    gnss_state="tracking",
    gnss_position_mode="position_hold",
    satellites=(Satellite(3, 45, True), Satellite(7, 38, True), Satellite(19, 21, False)),
    position=Position(50.12, 8.68, 112.5),
    antenna="open",
    ntp_mode="server",
    ntp_stratum=1,
    ntp_leap="none",
    alarms=(Alarm(97, 1, "major", "GNSS antenna open", "2023-11-14 22:00:00"),),
    time_errors=(
        TimeError("gnss-1", "te", 23, 1_700_000_000_000_000_000, "GNSS", "ok", 100),
        TimeError("gnss-1", "cte", -4, 1_700_000_000_000_000_000),
    ),
    sensors=(Sensor("board", "temperature", 41.5, "C", True), Sensor("fan 1", "fan", None, None, False)),
    interfaces=(Interface("eth1", True, 10_000), Interface("mgmt", False)),
    unknown=("gnss_state=unknown(9)",),
)
