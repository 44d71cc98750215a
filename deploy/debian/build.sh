#!/bin/sh
# build.sh VERSION: makes /build/out/timesyncd_VERSION_ARCHITECTURE.deb. Runs inside a root of the release that the package is for
# (in_root.sh), with /build/wheels, /build/requirements.txt and /build/source in place. SOURCE_DATE_EPOCH is the time of all files.
set -eu
version=$1
umask 022
source=/build/source
package=/tmp/package
home=/opt/timesyncd

# The environment is made where it will be, since its programs name their own place.
python3 -m venv --without-pip $home
python3 -m venv /tmp/pip
install() { /tmp/pip/bin/pip --disable-pip-version-check --python $home/bin/python install --quiet --no-compile --no-index --find-links /build/wheels "$@"; }
install --require-hashes --requirement /build/requirements.txt
install --no-deps /build/wheels/timesyncd-*.whl
# What pip notes of this build's own files.
rm -f $home/lib/python3*/site-packages/*.dist-info/direct_url.json
rm -f $home/bin/Activate.ps1 $home/bin/activate*
# Bytecode has the times of this build; the installation compiles.
find $home -name __pycache__ -prune -exec rm -rf {} +

mkdir -p $package/DEBIAN $package/opt $package/usr/bin $package/etc/timesyncd
cp -a $home $package/opt/
ln -s $home/bin/timesyncd $package/usr/bin/timesyncd
put() { command install -D -m 644 "$source/$1" "$package/$2"; }
units=usr/lib/systemd/system
put systemd/timesyncd.service $units/timesyncd.service
put systemd/timesyncd-traps.socket $units/timesyncd-traps.socket
put systemd/timesyncd-syslog.socket $units/timesyncd-syslog.socket
put systemd/ptp4l@.service.d/timesyncd.conf $units/ptp4l@.service.d/timesyncd.conf
put systemd/phc2sys@.service usr/share/timesyncd/phc2sys@.service
put systemd/timesyncd.sysusers usr/lib/sysusers.d/timesyncd.conf
put systemd/timesyncd.tmpfiles usr/lib/tmpfiles.d/timesyncd.conf
put systemd/timesyncd.sysctl usr/lib/sysctl.d/60-timesyncd.conf
put systemd/timesyncd.rules usr/lib/udev/rules.d/70-timesyncd.rules
put deploy/debian/timesyncd.toml etc/timesyncd/timesyncd.toml
put LICENSE usr/share/doc/timesyncd/copyright
put CHANGELOG.md usr/share/doc/timesyncd/changelog
put manual/timesyncd.1 usr/share/man/man1/timesyncd.1
put manual/completion.bash usr/share/bash-completion/completions/timesyncd
put manual/completion.zsh usr/share/zsh/vendor-completions/_timesyncd
gzip --best --no-name $package/usr/share/doc/timesyncd/changelog $package/usr/share/man/man1/timesyncd.1

minor=$(python3 -c 'import sys; print(sys.version_info.minor)')
architecture=$(dpkg --print-architecture)
cat >$package/DEBIAN/control <<END
Package: timesyncd
Version: $version
Architecture: $architecture
Maintainer: The maintainers of timesyncd <maintainers@timesyncd.invalid>
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), systemd
Suggests: linuxptp, chrony, mosquitto
Section: net
Priority: optional
Installed-Size: $(du --summarize --apparent-size --block-size=1024 $package | cut -f1)
Description: watch PTP clocks and bound their error for training jobs
 The daemon reads ptp4l, phc2sys, chronyd, the kernel and Microchip TimeProvider
 grandmasters. It bounds each clock's error and reports what synchronization
 costs a training job. It sets no clock.
 .
 It is not systemd-timesyncd, which sets the clock by SNTP.
END
echo /etc/timesyncd/timesyncd.toml >$package/DEBIAN/conffiles
for script in postinst prerm postrm; do
    command install -m 755 "$source/deploy/debian/$script" $package/DEBIAN/$script
done
(cd $package && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find $package -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
mkdir -p /build/out
dpkg-deb --root-owner-group -Zxz --build $package /build/out/timesyncd_"${version}"_"$architecture".deb >&2
