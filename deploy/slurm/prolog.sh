#!/bin/sh
# Starts a job on a node only where the node's own clock is known well enough. In slurm.conf: Prolog=/etc/slurm/timesyncd_prolog.sh
#
# Slurm runs it on each node of a job. It reads shared memory and asks no server. When it does not exit with 0, Slurm drains this
# node, and requeues and holds the job. Use prolog_slurmctld.sh instead where no node is to be drained.

PATH="${PATH:+$PATH:}/opt/timesyncd/bin:/usr/local/bin:/usr/bin:/bin" # Slurm sets none
[ ! -r /etc/timesyncd/slurm.env ] || . /etc/timesyncd/slurm.env
most="${TIMESYNCD_MAX_BOUND:-1us}"
node="${SLURMD_NODENAME:-$(uname -n)}"

# Five seconds: Slurm gives up a batch job whose launch takes longer than BatchStartTimeout (10 s).
if command -v timesyncd >/dev/null; then
    clock=$(timesyncd wait --within "$most" --timeout 5s 2>&1) && exit 0
    reason="timesyncd: clock not within $most: $(printf '%s\n' "$clock" | tail -n 1 | tr -s ' ')"
else
    reason="timesyncd: not installed on this node, or not in $PATH"
fi
echo "$node: job $SLURM_JOB_ID: $reason"
logger -t timesyncd-preflight "$node: job $SLURM_JOB_ID: $reason" 2>/dev/null || true
# Slurm drains the node after this script, for "Prolog error". It keeps a reason that is there already, for `sinfo -R`.
scontrol update NodeName="$node" State=DRAIN Reason="$reason" || true
exit 1
