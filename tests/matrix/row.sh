#!/bin/sh
# row.sh CHROOT BIN PROGRAM... -- COMMAND...: runs the command where CHROOT's PROGRAMs are the first on its path, in namespaces of its
# own. /run is new, so the programs' default sockets are found where a user finds them; the port numbers below 1024 are free.
#
# BIN is an empty folder, for a script a program.
set -eu
if [ "${1:-}" != --inside ]; then
    exec unshare --mount --net --pid --fork --kill-child --mount-proc sh "$0" --inside "$@"
fi
chroot=$2 bin=$3
shift 3

# Reachable by every user, wherever the cache is.
root=/mnt
mount --bind "$chroot" "$root"
mount -t tmpfs -o mode=755 run /run
for folder in /dev /proc /run /sys /tmp "$PWD"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
ip link set lo up
mount --bind "$root/usr/lib/systemd/system" /lib/systemd/system

# Root changes its root, so that a program finds the users of its own release; another user has the release's libraries.
libraries=$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/systemd
while [ "$1" != -- ]; do
    path=$(chroot "$root" sh -c "command -v $1") || { echo "$chroot has no $1" >&2; exit 2; }
    cat >"$bin/$1" <<END
#!/bin/sh
[ "\$(id -u)" -ne 0 ] || exec /usr/sbin/chroot $root $path "\$@"
exec $root/lib64/ld-linux-x86-64.so.2 --library-path $libraries $root$path "\$@"
END
    chmod 755 "$bin/$1"
    shift
done
shift
PATH=$bin:$PATH exec "$@"
