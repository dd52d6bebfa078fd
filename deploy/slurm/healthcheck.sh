#!/bin/sh
# slurm.conf: HealthCheckProgram=/etc/holdfast/slurm/healthcheck.sh
#             HealthCheckInterval=300
#             HealthCheckNodeState=ANY,CYCLE
#
# For sites without Holdfast's agent and controller, which do this themselves, at once, and with brakes. slurmd ends it
# after 60 s. It drains a node in service for what is CRITICAL, and lifts only drains that it set itself: a drain of
# somebody else's is never touched, and a check that hung changes nothing.
HOLDFAST=${HOLDFAST:-/opt/holdfast/bin/holdfast}
SCONTROL=${SCONTROL:-/usr/bin/scontrol}
MARK='[holdfast check]'
node=${SLURMD_NODENAME:-$(/bin/hostname -s)}

found=$("$HOLDFAST" check --mode periodic --quiet 2>&1)
code=$?
critical=$(printf '%s\n' "$found" | /bin/grep '^CRITICAL' | /usr/bin/head -n 1)
shown=$("$SCONTROL" show node "$node" --oneliner 2>/dev/null)
# The state says whether it is out of service. Its reason only says by whom: Slurm leaves one standing after RESUME.
state=$(printf '%s\n' "$shown" | /bin/sed -n 's/.* State=\([^ ]*\).*/\1/p')
reason=$(printf '%s\n' "$shown" | /bin/sed -n 's/.* Reason=\(.*\) \[[^]]*@[^]]*\].*/\1/p')
case $state in
'') exit 0 ;;
*DRAIN* | *FAIL* | *DOWN*) is_out=1 ;;
*) is_out= ;;
esac

if [ "$code" -eq 2 ] && [ -n "$critical" ]; then
    if [ -z "$is_out" ]; then
        text=$(printf '%s' "$critical" | /usr/bin/tr -s ' ' | /usr/bin/cut -c 1-200)
        "$SCONTROL" update nodename="$node" state=drain reason="$MARK ${text#CRITICAL }"
    fi
elif [ -n "$is_out" ] && { [ "$code" -eq 0 ] || [ "$code" -eq 1 ]; }; then
    case $reason in
    "$MARK"*) "$SCONTROL" update nodename="$node" state=resume ;;
    esac
fi
exit 0
