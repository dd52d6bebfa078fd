"""Whole logs of daemons: what is wrong with the node or the platform is named, and their everyday errors are not.

Written here anew in the formats of slurmctld, slurmd, slurmdbd, kubelet, containerd, device plugins, the fabric manager
and a cloud's node pool.
"""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right

CTLD = "[2025-03-01T09:00:00.000] slurmctld version 23.02.7 started on cluster ai\n[2025-03-01T09:01:00.000] sched: Allocate JobId=812 NodeList=gpu[01-08] #CPUs=512 Partition=train\n"
SLURMD = "[2025-03-01T09:00:00.000] slurmd version 23.02.7 started\n"
NO_DATABASE = "[2025-03-01T10:00:00.000] error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db01:6819: Connection refused\n[2025-03-01T10:00:00.000] error: Sending PersistInit msg: Connection refused\n"
DATABASE = "[2025-03-01T10:05:00.000] accounting_storage/slurmdbd: clusteracct_storage_p_register_ctld: Registering slurmctld at port 6817 with slurmdbd\n"
NO_CNI = 'E0301 10:00:00.000000    1234 kubelet.go:2448] "Container runtime network not ready" networkReady="NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"\n'
NO_RUNTIME = 'E0301 10:00:00.000000    1234 remote_runtime.go:116] "RunPodSandbox from runtime service failed" err="rpc error: code = Unavailable desc = connection error: desc = \\"transport: Error while dialing dial unix /run/containerd/containerd.sock: connect: connection refused\\""\n'
POD_UP = 'I0301 10:01:00.000000    1234 pod_startup_latency_tracker.go:102] "Observed pod startup duration" pod="ml/train-0"\n'
EVERYDAY = (
    'E0301 10:00:00.000000    1234 kubelet_node_status.go:449] "Error getting the current node from lister" err="node \\"gpu07\\" not found"\n'
    'I0301 10:00:05.000000    1234 kubelet_node_status.go:73] "Successfully registered node" node="gpu07"\n'
    'E0301 10:00:07.000000    1234 summary_sys_containers.go:48] "Failed to get system container stats" err="failed to get cgroup stats"\n'
    'I0301 10:00:08.000000    1234 kubelet.go:2199] "SyncLoop ADD" source="api" pods=["ml/train-0"]\n'
)
CONTAINERD = (
    'time="2025-03-01T10:00:00Z" level=error msg="failed to load cni during init, please check CRI plugin status before setting up network for pods" error="cni config load failed: no network config found in /etc/cni/net.d: cni plugin not initialized: failed to load cni config"\n'
    'time="2025-03-01T10:00:01Z" level=info msg="containerd successfully booted in 0.03s"\n'
    'time="2025-03-01T10:01:01Z" level=info msg="StartContainer for \\"abc\\" returns successfully"\n'
)
PLUGIN = "I0301 10:00:01.000000       1 server.go:245] 'nvidia.com/gpu' device marked unhealthy: GPU-8f3c\n"
FABRIC = "[Mar 01 2025 10:00:00] [ERROR] [tid 1234] detected NVSwitch fatal error 20034 on device id:3 fid:0 physical id:3 port 12\n[Mar 01 2025 10:00:01] [ERROR] [tid 1234] aborting all running CUDA jobs\n"
VERSIONS = "[Mar 01 2025 10:00:00] [ERROR] [tid 1234] failed to initialize NV Switch library: fabric manager NVIDIA GPU driver interface version 535.86.10 don't match with driver version 535.104.05. Please update with matching NVIDIA driver package.\n"
POOL = "2025-03-01 10:00:01,000 - [slurm_plugin.instance_manager:_launch_instances] - ERROR - Encountered exception when launching instances for nodes (x1) ['gpu-st-p5-7']: An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation (reached max retries: 1): There is no Spot capacity.\n"

LOGS = (
    Whole("a node without one of its GPUs", CTLD + "[2025-03-01T10:00:00.000] error: gres/gpu: count on node gpu07 inconsistent with slurmctld count (7 != 8)\n[2025-03-01T10:00:00.001] drain_nodes: node gpu07 state set to DRAIN\n", "fault", ("slurm.node_invalid",), "hardware", nodes=("gpu07",)),
    Whole("a node without some of its memory", CTLD + "[2025-03-01T10:00:00.000] error: Setting node gpu07 state to INVAL with reason:Low RealMemory (reported:900000 < 100.00% of configured:1031000)\n", "fault", ("slurm.node_invalid",), "hardware", nodes=("gpu07",)),
    Whole("a site's health check", SLURMD + "[2025-03-01T10:00:00.000] error: health_check failed: rc:1 output:NHC: check_nvidia_smi_healthmon: nvidia-healthmon returned 1\n", "fault", ("slurm.health_check",), "hardware"),
    Whole("the accounting is not there", CTLD + NO_DATABASE, "fault", ("slurm.database",), "platform"),
    Whole("the accounting was away", CTLD + NO_DATABASE + DATABASE, "healthy"),
    Whole("a device plugin takes a GPU away", PLUGIN, "fault", ("k8s.device_unhealthy",), "hardware"),
    Whole("no container runtime", EVERYDAY + NO_RUNTIME, "fault", ("k8s.runtime",), "platform"),
    Whole("no pod network", EVERYDAY + NO_CNI, "fault", ("k8s.cni",), "network"),
    Whole("the pod network came late", NO_CNI + EVERYDAY + POD_UP, "healthy"),
    Whole("a kubelet's everyday errors", EVERYDAY, "healthy"),
    Whole("containerd before its network is set up", CONTAINERD, "healthy"),
    Whole("an NVSwitch failed", FABRIC, "fault", ("nvidia.fabric_manager",), "hardware"),
    Whole("the fabric manager is of another version", VERSIONS, "fault", ("nvidia.driver.mismatch",), "platform"),
    Whole("the cloud has no machine", POOL, "fault", ("cloud.no_capacity",), "platform"),
)  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)
