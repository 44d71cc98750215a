"""
A test bed of real parts on one machine, for the demo and for the tests.

`PtpBed` runs a ptp4l grandmaster and ptp4l slaves, each in a network namespace of its own, with software stamps: all of
them stamp with the one CLOCK_REALTIME, so a *direct* node's true offset is exactly 0. A *relayed* node receives its
grandmaster through a relay that adds a chosen x(t) to the grandmaster's timestamps, so its true offset is -x(t). Nothing
steers a clock (`free_running`).

Who runs where: `PtpBed` starts one helper process (`python -m timesyncd.simulation.bed`), which is the relay, holds the
namespaces and is the parent of every ptp4l. Only these live in namespaces; the management sockets are files in a
temporary folder, so the process that made the bed reaches them from outside. Without root the helper runs in a user namespace.

What remains afterwards: nothing. The helper ends when its standard input closes, be it that its maker was killed; the
ptp4l processes die with the helper; a namespace has no name and goes with its last process.
"""
