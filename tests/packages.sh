#!/bin/sh
# Debian packages: root installs what is missing; anybody else is told, and nothing is started (exit 2).
set -u
missing=""
for package in "$@"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "missing Debian packages:$missing" >&2
    echo "install them as root: apt-get install --no-install-recommends$missing" >&2
    exit 2
fi
echo "installing Debian packages:$missing"
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || exit 2
# The daemons that came along are started by the tests themselves, each with its own configuration.
for service in ptp4l mosquitto snmpd prometheus-node-exporter; do
    systemctl stop "$service" 2>/dev/null || true
done
