#!/bin/sh
# slurm.conf: TaskProlog=/etc/holdfast/slurm/task_prolog.sh   (runs as the user before each task; `export` lines count)
#
# Gives jobs without `holdfast run` a folder for telemetry in the node's memory, so that the agent of the node sees their
# steps, losses and checkpoints. Ranks take their number from RANK, as torchrun sets it. epilog.sh removes the folder.
[ -n "$HOLDFAST_TELEMETRY_DIR" ] && exit 0
uid=$(/usr/bin/id -u)
dir=/dev/shm/holdfast-telemetry-$uid-$SLURM_JOB_ID
# Everybody knows the name: what somebody else has made there, a folder or a link, is not used. One look tells both.
if /bin/mkdir -m 700 "$dir" 2>/dev/null || [ "$(/usr/bin/stat -c '%u %a %F' "$dir" 2>/dev/null)" = "$uid 700 directory" ]; then
    echo "export HOLDFAST_TELEMETRY_DIR=$dir"
fi
exit 0
