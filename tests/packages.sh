#!/bin/sh
# Debian packages: root installs what is missing; anybody else is told, and nothing is started (exit 2). chrony is only unpacked, into
# .chrony: installed it would start, steer the clock, and replace the time daemon that the machine has.
set -u
missing=""
unpack=""
for package in "$@"; do
    if [ "$package" = chrony ]; then
        [ -x /usr/sbin/chronyd ] || [ -x .chrony/usr/sbin/chronyd ] || unpack=chrony
    else
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    fi
done
[ -z "$missing$unpack" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "missing Debian packages:$missing $unpack" >&2
    echo "install them as root: apt-get install --no-install-recommends$missing" >&2
    [ -z "$unpack" ] || echo "and: mkdir .chrony && cd .chrony && apt-get download chrony && dpkg-deb -x chrony_*.deb ." >&2
    exit 2
fi
echo "installing Debian packages:$missing $unpack"
apt-get update -qq || exit 2
if [ -n "$missing" ]; then
    # The daemons that come along are started by the tests themselves, each with its own configuration.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || exit 2
fi
if [ -n "$unpack" ]; then
    mkdir -p .chrony && chmod 777 .chrony && cd .chrony || exit 2
    apt-get download -qq chrony >/dev/null && dpkg-deb -x chrony_*.deb . && rm chrony_*.deb || exit 2
fi
