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
# The daemons that come along are started by the tests themselves, each with its own configuration; chronyd would steer the clock.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
# --no-remove: the machine keeps the time daemon that it has. Where chrony would replace it, run the tests in a container.
apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-remove --no-install-recommends $missing >/dev/null || exit 2
