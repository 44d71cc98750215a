#!/bin/sh
# in_root.sh ROOT SHARED COMMAND...: runs the command in a view of the Debian release in ROOT; what it writes there is lost.
# The folder SHARED is its /build. Needs root; makes namespaces of its own, without a network.
set -eu
if [ "${1:-}" != --inside ]; then
    exec unshare --mount --net --pid --fork --kill-child --mount-proc sh "$0" --inside "$@"
fi
root=$2 shared=$3
shift 3

mount -t tmpfs -o mode=755 scratch /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mkdir -p /mnt/root/build /mnt/root/run
mount --bind "$shared" /mnt/root/build
mount --rbind /dev /mnt/root/dev
mount -t proc proc /mnt/root/proc
mount -t tmpfs -o mode=755 run /mnt/root/run
mount -t tmpfs -o mode=1777 tmp /mnt/root/tmp
# What another use of ROOT installed there.
mount -t tmpfs -o mode=755 opt /mnt/root/opt
ip link set lo up
exec chroot /mnt/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    ${SOURCE_DATE_EPOCH:+SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH} "$@"
