#!/bin/sh
# slurm.conf: Epilog=/etc/holdfast/slurm/epilog.sh      (runs as root on every node of the job, after it)
#
# Finds what the job left behind: processes on GPUs or elsewhere, faults that it brought to light. An epilog that fails
# makes Slurm drain the node: only what is CRITICAL does.
HOLDFAST=${HOLDFAST:-/opt/holdfast/bin/holdfast}
# What task_prolog.sh has made, and what a `holdfast srun` or `holdfast run` that was killed has left.
[ -n "$SLURM_JOB_UID" ] && [ -n "$SLURM_JOB_ID" ] &&
    /bin/rm -rf "/dev/shm/holdfast-telemetry-$SLURM_JOB_UID-$SLURM_JOB_ID" "/dev/shm/holdfast-telemetry-$SLURM_JOB_UID-$SLURM_JOB_ID".* \
        "/dev/shm/holdfast-$SLURM_JOB_UID-$SLURM_JOB_ID"-*
found=$("$HOLDFAST" check --mode epilog --limit 240 --quiet 2>&1)
code=$?
[ -n "$found" ] && printf '%s\n' "$found"
if [ "$code" -eq 2 ] && printf '%s\n' "$found" | /bin/grep -q '^CRITICAL'; then
    exit 1
fi
exit 0
