#!/bin/sh
# Starts a job only where the clocks of its nodes agree. In slurm.conf: PrologSlurmctld=/etc/slurm/timesyncd_prolog_slurmctld.sh
#
# PrologSlurmctld runs once for each job, on the controller. When it does not exit with 0, Slurm requeues the job (an interactive
# one is cancelled) and drains nothing. As Prolog the same exit would drain every node of the job, the innocent ones too;
# TaskProlog runs for each task, when the job has already started.
#
# The nodes' names are those of Slurm: let [node] name be the same where host names differ.

PATH="${PATH:+$PATH:}/opt/timesyncd/bin:/usr/local/bin:/usr/bin:/bin" # Slurm sets none
[ ! -r /etc/timesyncd/slurm.env ] || . /etc/timesyncd/slurm.env
hub="${TIMESYNCD_HUB:-https://hub:8319/}"
token="${TIMESYNCD_TOKEN_FILE:-/etc/timesyncd/slurm.token}" # readable by SlurmUser alone; role "job" will do
# What the job demands (job_submit.lua has checked it), else what the site does.
demand=$(printf '%s\n' "${SLURM_JOB_COMMENT:-}" | sed -n 's/^.*max-alignment=\([0-9a-z.]*\).*$/\1/p')
most="${demand:-${TIMESYNCD_MAX_ALIGNMENT:-1us}}"

report() { # to the log of the controller's machine, since Slurm keeps no output of this
    echo "job $SLURM_JOB_ID: $1"
    logger -t timesyncd-preflight "job $SLURM_JOB_ID: $1" 2>/dev/null || true
}

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") # expands the list by itself, asks no daemon
if [ -z "$nodes" ]; then
    report "FAIL: no nodes in '$SLURM_JOB_NODELIST'"
    exit 1
fi
# By standard input: the names of thousands are too long for a command line.
result=$(echo "$nodes" | timesyncd preflight --nodes - --max-alignment "$most" --timeout 30s --url "$hub" --token-file "$token" 2>&1)
status=$?
report "$(printf '%s\n' "$result" | tail -n 1)"
exit $status
