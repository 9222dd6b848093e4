#!/usr/bin/env bash
# A single-node Slurm on this machine, for tests. Needs root and Debian's slurmctld, slurmd, munge.
set -euo pipefail
MARK="# Written by tests/slurm/start_slurm.sh"
CONF=/etc/slurm/slurm.conf
fail() { echo "error: $1" >&2; exit 3; }

[ "$(id -u)" = 0 ] || fail "Slurm is not tested here: only root can install and start it"
if ! { command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null; then
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        slurmctld slurmd slurm-client munge; } >/dev/null 2>&1 \
        || fail "Slurm is not tested here: apt cannot install slurmctld, slurmd and munge"
fi
if [ -e "$CONF" ] && ! grep -qxF "$MARK" "$CONF"; then
    fail "$CONF is another cluster's: it is left as it is, and Slurm is not tested here"
fi
if [ -e "$CONF" ] && timeout 20 scontrol ping 2>/dev/null | grep -q "is UP"; then exit 0; fi

# The job accounting poll kills a job above its memory: no cgroup rights are needed for it.
cat > "$CONF" <<CONFIG
$MARK
ClusterName=dosematch
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/dosematch-ctld
SlurmdSpoolDir=/var/lib/slurm/dosematch-d
SlurmctldPidFile=/run/dosematch-slurmctld.pid
SlurmdPidFile=/run/dosematch-slurmd.pid
SlurmctldLogFile=/var/log/dosematch-slurmctld.log
SlurmdLogFile=/var/log/dosematch-slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
MinJobAge=600
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONFIG
mkdir -p /var/lib/slurm/dosematch-ctld /var/lib/slurm/dosematch-d /run/munge
chown munge: /run/munge
[ -e /etc/munge/munge.key ] || mungekey --create
munge -n >/dev/null 2>&1 || runuser -u munge -- munged
slurmctld
slurmd
for _ in $(seq 30); do
    if sinfo --noheader --format %t 2>/dev/null | grep -qE 'idle|mix|alloc'; then exit 0; fi
    sleep 1
done
fail "Slurm did not come up in 30 s: see /var/log/dosematch-slurmctld.log and -slurmd.log"
