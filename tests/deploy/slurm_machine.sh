#!/bin/sh
# slurm_machine.sh PROJECT PORT PORT_A PORT_B PORT_C: a machine with Debian's Slurm, in namespaces of its own: what it writes below /etc,
# /run, /opt and /var is lost. Three nodes, each with a host name and a /run/timesyncd of its own, which is /run/nodes/NAME.
# /run/ready: all of it runs. The caller made the mount and PID namespaces.
set -eu
project=$1 port=$2 port_a=$3 port_b=$4 port_c=$5

mount -t tmpfs scratch /mnt
for folder in etc var; do
    mkdir -p /mnt/$folder/upper /mnt/$folder/work
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=/mnt/$folder/upper,workdir=/mnt/$folder/work" /$folder
done
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755 opt /opt
ln -s "$project/.venv" /opt/timesyncd

mkdir -p /run/munge /run/timesyncd /run/slurm/state /etc/slurm
install -d -o munge -g munge -m 755 /run/munge
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground >/run/munged.log 2>&1 &

cat >/etc/slurm/slurm.conf <<END
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool.%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.%n.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.%n.log
ReturnToService=2
NodeName=node-a Port=$port_a NodeAddr=127.0.0.1 CPUs=2
NodeName=node-b Port=$port_b NodeAddr=127.0.0.1 CPUs=2
NodeName=node-c Port=$port_c NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
END
while [ ! -S /run/munge/munge.socket.2 ]; do sleep 0.1; done
slurmctld -D >/run/slurm/slurmctld.out 2>&1 &
mkdir /run/bin
cat >/run/bin/systemctl <<'END'
#!/bin/sh
# There is no systemd here, so this is what restarts the controller, and waits until it answers.
set -eu
[ "$*" = "restart slurmctld" ]
pid=$(cat /run/slurm/slurmctld.pid)
kill "$pid"
while [ -d "/proc/$pid" ]; do sleep 0.1; done
setsid slurmctld -D >>/run/slurm/slurmctld.out 2>&1 &
until scontrol ping | grep -q UP; do sleep 0.1; done
END
chmod 755 /run/bin/systemctl
for node in node-a node-b node-c; do
    mkdir -p /run/nodes/$node
    unshare --uts --mount sh -euc "
        hostname $node
        mount --bind /run/nodes/$node /run/timesyncd
        exec slurmd -D
    " >/run/slurm/slurmd.$node.out 2>&1 &
done
touch /run/ready
# The first process of its namespace collects what ends.
while :; do
    wait
    sleep 1
done
