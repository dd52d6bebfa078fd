#!/bin/sh
# slurm.conf: HealthCheckProgram=/etc/holdfast/slurm/healthcheck.sh
#             HealthCheckInterval=300
#             HealthCheckNodeState=ANY,CYCLE
#
# For sites without Holdfast's agent and controller, which do this themselves, at once, and with brakes. slurmd ends it
# after 60 s. It drains a node for what is CRITICAL, and lifts only drains that it set itself: a reason that somebody
# else wrote is never overwritten, and a check that hung changes nothing.
HOLDFAST=${HOLDFAST:-/opt/holdfast/bin/holdfast}
SCONTROL=${SCONTROL:-/usr/bin/scontrol}
MARK='[holdfast check]'
node=${SLURMD_NODENAME:-$(/bin/hostname -s)}

found=$("$HOLDFAST" check --mode periodic --quiet 2>&1)
code=$?
critical=$(printf '%s\n' "$found" | /bin/grep '^CRITICAL' | /usr/bin/head -n 1)
reason=$("$SCONTROL" show node "$node" --oneliner 2>/dev/null | /bin/sed -n 's/.* Reason=\(.*\) \[[^]]*@[^]]*\].*/\1/p')

if [ "$code" -eq 2 ] && [ -n "$critical" ]; then
    if [ -z "$reason" ]; then
        text=$(printf '%s' "$critical" | /usr/bin/tr -s ' ' | /usr/bin/cut -c 1-200)
        "$SCONTROL" update nodename="$node" state=drain reason="$MARK ${text#CRITICAL }"
    fi
elif [ "$code" -eq 0 ] || [ "$code" -eq 1 ]; then
    case $reason in
    "$MARK"*) "$SCONTROL" update nodename="$node" state=resume ;;
    esac
fi
exit 0
