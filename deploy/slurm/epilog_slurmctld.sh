#!/bin/sh
# Writes what synchronization cost a job that ended. In slurm.conf: EpilogSlurmctld=/etc/slurm/timesyncd_epilog_slurmctld.sh
#
# EpilogSlurmctld runs once for each job, on the controller, and delays nothing. A hub knows a job for a minute after its end. Each
# step of the job that metered itself gets a folder with report.html, report.json and summary.txt; the log has the summary too.

PATH="${PATH:+$PATH:}/opt/timesyncd/bin:/usr/local/bin:/usr/bin:/bin" # Slurm sets none
[ ! -r /etc/timesyncd/slurm.env ] || . /etc/timesyncd/slurm.env
hub="${TIMESYNCD_HUB:-https://hub:8319/}"
reports="${TIMESYNCD_REPORTS:-/var/lib/timesyncd-jobs}"
TIMESYNCD_TOKEN=$(cat "${TIMESYNCD_TOKEN_FILE:-/etc/timesyncd/slurm.token}" 2>/dev/null)
export TIMESYNCD_TOKEN

report() {
    printf '%s\n' "$2" | sed "s/^/job $1: /" | logger -t timesyncd-audit 2>/dev/null || true
}

# Job() is named by job and step (docs/jobs.md). The exit status is about the hub's own clock.
known=$(timesyncd status --url "$hub" --json 2>&1)
steps=$(printf '%s\n' "$known" | grep -o "\"job\": \"$SLURM_JOB_ID\.[0-9]*\"" | cut -d '"' -f 4 | sort -u)
case "$steps:$known" in
:{*) report "$SLURM_JOB_ID" "no report: no step metered itself" ;;
:*) report "$SLURM_JOB_ID" "no report: $(printf '%s\n' "$known" | tail -n 1)" ;;
esac
for step in $steps; do
    summary=$(timesyncd audit --job "$step" --url "$hub" --out "$reports/$step" 2>&1)
    mkdir -p "$reports/$step" && printf '%s\n' "$summary" >"$reports/$step/summary.txt"
    report "$step" "$summary"
done
exit 0
