#!/bin/sh
# slurm.conf: Prolog=/etc/holdfast/slurm/prolog.sh      (runs as root on every node of the job, before it)
#
# A prolog that fails makes Slurm drain the node and requeue the job: only what is CRITICAL may do that. A check that
# hangs, is missing or was asked for wrongly is not. Slurm starts this in an almost empty environment, without a PATH.
# Its checks end within LIMIT_S, whatever hangs: DCGM's diagnostic of level 2 takes about two minutes. Keep Slurm's
# PrologEpilogTimeout well above it (300): a prolog that Slurm itself ends drains the node.
HOLDFAST=${HOLDFAST:-/opt/holdfast/bin/holdfast}
# Also measure, not only look: suites of `holdfast validate`, such as "software,cpu" (about ten seconds). Empty: none.
SUITES=${HOLDFAST_PROLOG_SUITES:-}
LIMIT_S=${HOLDFAST_PROLOG_LIMIT_S:-240}
found=$("$HOLDFAST" check --mode prolog --limit "$LIMIT_S" --quiet 2>&1)
code=$?
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
