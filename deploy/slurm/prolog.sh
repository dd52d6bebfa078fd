#!/bin/sh
# slurm.conf: Prolog=/etc/holdfast/slurm/prolog.sh      (runs as root on every node of the job, before it)
#
# A prolog that fails makes Slurm drain the node and requeue the job: only what is CRITICAL may do that. A check that
# hangs, is missing or was asked for wrongly is not. Slurm starts this in an almost empty environment, without a PATH.
# The agent of the node has made its checks already: what it found within the last AGE_S seconds is read, in a few
# hundredths of a second. What happens without that is OLD: `check` (the checks of the mode `prolog` are made now),
# `start` (the job starts unchecked) or `refuse` (the node is drained). AGE_S=0: the checks are always made now.
#
# Such checks end within LIMIT_S, whatever hangs: DCGM's diagnostic of level 2 takes about two minutes. Keep Slurm's
# PrologEpilogTimeout well above it (300): a prolog that Slurm itself ends drains the node.
HOLDFAST=${HOLDFAST:-/opt/holdfast/bin/holdfast}
LATEST=${HOLDFAST_AGENT_STATE:-/var/lib/holdfast/agent}/latest
AGE_S=${HOLDFAST_PROLOG_AGE_S:-60}
OLD=${HOLDFAST_PROLOG_OLD:-check}
# Also measure, not only look: suites of `holdfast validate`, such as "software,cpu" (about ten seconds). Empty: none.
SUITES=${HOLDFAST_PROLOG_SUITES:-}
LIMIT_S=${HOLDFAST_PROLOG_LIMIT_S:-240}

# The agent's result, when it is of this boot and young enough: `holdfast 1 BOOT_ID UPTIME_S`, then a line for each problem.
is_fresh() {
    [ "$AGE_S" != 0 ] && found=$(/bin/cat "$LATEST" 2>/dev/null) || return 1
    head=${found%%"
"*}
    read -r boot </proc/sys/kernel/random/boot_id
    read -r now _ </proc/uptime
    at=${head#"holdfast 1 $boot "}
    case $at in '' | *[!0-9]*) return 1 ;; esac
    [ $((${now%%.*} - at)) -le "$AGE_S" ] || return 1
    found=${found#"$head"}
    found=${found#"
"}
    code=2
}

if ! is_fresh; then
    case $OLD in
    start) found= code=0 ;;
    refuse) found="CRITICAL  agent  no result of the node's agent within $AGE_S s" code=2 ;;
    *)
        found=$("$HOLDFAST" check --mode prolog --limit "$LIMIT_S" --quiet 2>&1)
        code=$?
        ;;
    esac
fi
[ -n "$found" ] && printf '%s\n' "$found"
# The word counts, not only the code: a wrong option also ends with 2, and must not drain a fleet.
if [ "$code" -eq 2 ] && printf '%s\n' "$found" | /bin/grep -q '^CRITICAL'; then
    exit 1
fi
if [ -n "$SUITES" ]; then
    found=$("$HOLDFAST" validate --suite "$SUITES" --journal none --quiet 2>&1)
    printf '%s\n' "$found"
    printf '%s\n' "$found" | /bin/grep -q '^not fit: ' && exit 1
fi
exit 0
