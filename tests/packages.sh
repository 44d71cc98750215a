#!/bin/sh
# Debian packages: root installs what is missing; anybody else is told, and nothing is started (exit 2). Two are only unpacked, into
# .unpacked: chrony, installed, would start, steer the clock, and replace the time daemon that the machine has; of prometheus
# promtool alone is wanted.
set -u
missing=""
unpack=""
for package in "$@"; do
    case $package in
    chrony) program=sbin/chronyd ;;
    prometheus) program=bin/promtool ;;
    *)
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
        continue
        ;;
    esac
    [ -x "/usr/$program" ] || [ -x ".unpacked/usr/$program" ] || unpack="$unpack $package"
done
[ -z "$missing$unpack" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "missing Debian packages:$missing$unpack" >&2
    echo "install them as root: apt-get install --no-install-recommends$missing" >&2
    for package in $unpack; do
        echo "and: mkdir -p .unpacked && cd .unpacked && apt-get download $package && dpkg-deb -x ${package}_*.deb ." >&2
    done
    exit 2
fi
echo "installing Debian packages:$missing$unpack"
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
[ -z "$unpack" ] && exit 0
mkdir -p .unpacked && chmod 777 .unpacked && cd .unpacked || exit 2
for package in $unpack; do
    apt-get download -qq "$package" >/dev/null && dpkg-deb -x "${package}"_*.deb . && rm "${package}"_*.deb || exit 2
done
