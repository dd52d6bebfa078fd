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
FREEZER = (
    "[2025-03-01T10:00:00.584] error: cgroup namespace 'freezer' not mounted. aborting\n[2025-03-01T10:00:00.584] error: unable to create freezer cgroup namespace\n"
    "[2025-03-01T10:00:00.584] error: Couldn't load specified plugin name for proctrack/cgroup: Plugin init() callback failed\n[2025-03-01T10:00:00.584] error: slurmd initialization failed\n"
)
PRRTE = "An PRRTE daemon has unexpectedly failed after launch and before\ncommunicating back to mpirun. This could be caused by a number\nof factors, including an inability to create a connection back\n"
NVML = "2025/03/01 10:00:00 Starting Plugins.\n2025/03/01 10:00:00 Failed to initialize NVML: could not load NVML library.\n2025/03/01 10:00:00 If this is a GPU node, did you set the docker default runtime to `nvidia`?\n"
HOST_ENGINE = 'time="2025-03-01T10:00:00Z" level=info msg="Starting dcgm-exporter"\nCacheManager Init Failed. Error: -17\ntime="2025-03-01T10:00:00Z" level=fatal msg="Error starting nv-hostengine: DCGM initialization error"\n'
HOST_ENGINE_NOTES = 'time="2025-03-01T10:00:00Z" level=info msg="Starting webserver"\n2025-03-01 10:00:01.530 ERROR [1:25] Got nvmlSt 3,3 from nvmlDeviceGetFieldValues fieldValues [/w/dcgmlib/src/DcgmCacheManager.cpp:10168] [DcgmCacheManager::ReadAndCacheNvLinkBandwidthTotal]\n2025-03-01 10:00:31.485 ERROR [1:31] GetLatestSample returned No data is available for entityId 0 groupId 1 fieldId 230 [/w/dcgmlib/src/DcgmCacheManager.cpp:4538] [DcgmCacheManager::GetMultipleLatestSamples]\n'
NO_BOOT = "2025-03-01 10:00:00,127 - [slurm_plugin.slurm_resources:is_backing_instance_valid] - WARNING - Node state check: no corresponding instance in EC2 for node p5-dy-8(10.6.11.250), node state: ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP\n2025-03-01 10:00:00,127 - [slurm_plugin.slurm_resources:is_backing_instance_valid] - WARNING - EC2 instance availability for node p5-dy-8(10.6.11.250) has timed out.\n"
FEWER = "2025-03-01 10:00:02,000 - [slurm_plugin.resume:_resume] - ERROR - Failed to launch following nodes, setting nodes to down: (x1) ['gpu-st-p5-7']\n"
FLEET = "2025-03-01 10:00:00,935 - [slurm_plugin.clustermgtd:_maintain_nodes] - INFO - Following nodes are currently in replacement: (x0) []\n2025-03-01 10:00:00,936 - [slurm_plugin.clustermgtd:_maintain_nodes] - INFO - Found the following bootstrap failure nodes: (x0) []\n"
RAYLET = "[2025-03-01 10:00:00,907 W 149 199] node_manager.cc:157: Last heartbeat was sent 6901 ms ago. There might be resource pressure on this node.\n[2025-03-01 10:01:00,789 C 149 149] node_manager.cc:170: This node has beem marked as dead.\n*** StackTrace Information ***\n    ray::SpdLogMessage::Flush()\n"
PYXIS = "srun: error: task 0 launch failed: Plugin initialization failed\n[2025-03-01T10:00:00.901] [321.0] error: pyxis: couldn't mkdir /run/pyxis/1000: No such file or directory\n[2025-03-01T10:00:00.901] [321.0] error: spank: required plugin spank_pyxis.so: init_post_opt() failed with rc=-1\n"
ADMIT = "Mar  1 10:00:00 gpu07 kubelet[2278]: W0301 10:00:00.953485    2278 eviction_manager.go:159] Failed to admit pod train-0_ml(d228d315) - node has conditions: [DiskPressure]\n"
CONDITIONS = "  Type                 Status  LastHeartbeatTime                 Reason         Message\n  DiskPressure         False   Wed, 20 Aug 2025 20:00:40 +0000   KubeletHasNoDiskPressure     kubelet has no disk pressure\n  ReadonlyFilesystem   False   Wed, 20 Aug 2025 20:00:40 +0000   FilesystemIsNotReadOnly      Filesystem is not read-only\n"
XID_CONDITION = '  XidCriticalError     True    Wed, 20 Aug 2025 20:00:40 +0000   {"79":true}    6e43a052\n'
EQ = "Unable to write to EQ: Missing or unavailable event queue. err: Input/output error (5) prov_errno: Unknown error -12 (-12) prov/efa/src/rxr/rxr.h:1343\n"
TABLE = "slurmdbd: error: We should have gotten a new id: Table 'slurm_acct_db.linux_job_table' doesn't exist\nslurmdbd: error: It looks like the storage has gone away trying to reconnect\n"
VALIDATOR = 'time="2025-03-01T10:00:00Z" level=info msg="Attempting to validate a driver container installation"\ntime="2025-03-01T10:00:00Z" level=warning msg="failed to validate the driver, retrying after 5 seconds\\n"\n'
SMI = "| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |\n"
FLUX = '1660667516.807220 start\n1660667516.910088 exception type="exec" severity=0 userid=5588 note="task 1 (host n294): start failed: ./train: No such file or directory"\n1660667516.916128 finish status=32512\n'
KUEUE = "  Normal  QuotaReserved                 3m5s   kueue-admission            Quota reserved in ClusterQueue team, wait time since queued was 1s\n  Normal  EvictedDueToPodsReadyTimeout  2m5s   kueue-workload-controller  Exceeded the PodsReady timeout ml/train-67543\n"
LOST = "Reason:   UnexpectedAdmissionError\nMessage:  Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device 5: nvml: GPU is lost, which is unexpected\n"
HYDRA = "[mpiexec@n1] check_exit_codes (../libhydra/demux/hydra_demux_poll.c:114): unable to run bstrap_proxy on n2 (pid 39814, exit code 256)\n[mpiexec@n1] poll_for_event (../libhydra/demux/hydra_demux_poll.c:152): check exit codes error\n[mpiexec@n1] HYD_bstrap_setup (../libhydra/bstrap/src/intel/i_hydra_bstrap.c:650): error waiting for event\n"
EXECVP = "[proxy:0:0@n1] HYDU_create_process (./utils/launch/launch.c:69): execvp error on file ./train (No such file or directory)\n[mpiexec@n1] HYDT_dmxu_poll_wait_for_event (./tools/demux/demux_poll.c:76): callback returned error status\n"
NRTD = "nrtd[1]: [TDRV:tdrv_init_mla_phase1] Could not open the device index:0\nnrtd[1]: [TDRV:tdrv_destroy_one_mla] close device failed\nnrtd[1]: [NRTD:InitTongas] Failed to initialize devices, error:1\n"
MUNGED = 'Mar  1 10:00:00 n1 munged[5006]: munged: Error: Failed to check keyfile "/etc/munge/munge.key": No such file or directory\n'
MUNGE_UNIT = "Mar  1 10:00:00 n1 systemd[1]: Failed to start MUNGE authentication service.\n"
RECEIVE = "srun: error: slurm_receive_msgs: [[n7]:6818] failed: Socket timed out on send/recv operation\n"
RESOLVE = 'slurmstepd: error: Unable to resolve "10.0.0.2": Resolver internal error\nslurmstepd: error: Unable to establish control machine address\n'
NO_SOURCE = "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsqueue: fatal: Could not establish a configuration source\n"
IMEX = "[Mar 01 2025 10:00:00] [INFO] [tid 39] IMEX library communication bind port = 50000\n[Mar 01 2025 10:00:00] [ERROR] [tid 39] No matching network interface found for any IP addresses in the node configuration file\n"
API = "E0301 10:00:0{0}.135176   17481 reflector.go:199] factory.go:473: Failed to list *api.Service: Get https://10.0.0.2:6443/api/v1/services?resourceVersion=0: dial tcp 10.0.0.2:6443: connect: connection refused\n"
NO_API = "".join(API.format(n) for n in range(4))
LEASE = "I0301 10:00:15.969939       1 leaderelection.go:260] successfully acquired lease kube-system/kube-scheduler\n"
STANDBY = "I0301 10:00:10.969915       1 leaderelection.go:344] lock is held by m2 and has not yet expired\nI0301 10:00:10.969939       1 leaderelection.go:240] failed to acquire lease kube-system/kube-scheduler\n"
THREADS = "(WorkerDict pid=27497) [2025-03-01 10:00:00,014 E 27497 27497] logging.cc:113: Unhandled exception: N5boost10wrapexceptINS_6system12system_errorEEE. what(): thread: Resource temporarily unavailable [system:11]\n"
PERSISTENCED = "Mar  1 10:00:00 n1 nvidia-persistenced: Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, and that user 0 has read and write permissions for those files.\n"
ABORT = "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n[n1:24154] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 2147\n"
OVERLAY = "Mar  1 10:00:00 n7 flux[371635]: heartbeat.warning[1150]: heartbeat overdue\nMar  1 10:05:00 n7 flux[371635]: overlay.crit[1150]: disconnecting: no heartbeat for 5.1m\n"
DEAD = "[ +21.998384] broker[0]: n2 (rank 2) has disconnected unexpectedly. Marking it LOST.\n[ +22.100710] broker[0]: dead to Flux: n[2,6-7] (rank 2,6-7)\n"
BOOT = 'Mar  1 10:00:00 n1 containerd[512]: time="2025-03-01T10:00:00.314767915Z" level=error msg="failed to load cni during init, please check CRI plugin status before setting up network for pods" error="cni config load failed: no network config found in /etc/cni/net.d: cni plugin not initialized: failed to load cni config"\nMar  1 10:00:00 n1 containerd[512]: time="2025-03-01T10:00:00.314994242Z" level=info msg="Start event monitor"\n'
CORRECTED = "[Mar 01 2025 10:00:00] [INFO] [tid 1808] multicast group 1 is allocated.\n[Mar 01 2025 10:00:01] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61\n"
CORES = "[2025-03-01T10:00:00.044] error: _node_config_validate: gres/gpu: invalid GRES core specification (48-63,176-191) on node node01\n"
CDI = "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.\nError: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n"
CRUN = "Error: crun: executable file `train` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found\n"
STAT = "[2025-03-01T10:00:00.999] error: gres_device_major: stat(/dev/nvidia0): No such file or directory\n"
PLEG = "  Ready            False   Mon, 03 Jun 2019 13:54:18 +0000   KubeletNotReady              PLEG is not healthy: pleg was last seen active 16h17m50.791825508s ago; threshold is 3m0s\n"
SLOTS = "Either there are not enough slots available in the system to launch\nthe 45 processes that were requested by the application, or there are\nnot enough CPUs to bind them as requested:\n"
HELP = "Sorry!  You were supposed to get help about:\n    prte-rmaps-base:alloc-error\nBut I couldn't open the help file:\n    (null).  Sorry!\n"
SENTINEL = '{"time":"2026-03-06T09:34:56Z","level":"INFO","msg":"Health events received","events":[{"agent":"gpu-health-monitor","componentClass":"GPU","checkName":"GpuXidError","isFatal":true,"message":"GPU has fallen off the bus (XID 79). Node requires reboot.","errorCode":["DCGM_FR_GPU_FALLEN_OFF_BUS"],"nodeName":"n7"}]}\n'
SENTINEL_WELL = '{"time":"2026-03-06T09:44:56Z","level":"INFO","msg":"Attempting to send health event","events":[{"checkName":"SysLogsXIDError","isHealthy":true,"message":"No Health Failures","nodeName":"n7"}]}\n'
REGISTER = "2025/03/01 10:00:00 Starting to serve on /var/lib/kubelet/device-plugins/nvidia.sock\n2025/03/01 10:00:12 Could not register device plugin: context deadline exceeded\n2025/03/01 10:00:13 Could not contact Kubelet, retrying. Did you enable the device plugin feature gate?\n"
REGISTERED = "2025/03/01 10:01:45 Registered device plugin with Kubelet\n"
RAY_CHECK = "(raylet) [2025-03-01 10:00:00,848 C 210 210] local_object_manager.cc:260:  Check failed: objects_pending_spill_.count(object_id) \n(raylet) *** StackTrace Information ***\n(raylet)     ray::SpdLogMessage::Flush()\n"
NO_VERBS = "n1:14926:14926 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nNCCL version 2.9.6+cuda11.2\n           8             2   float       0    45.82    0.00    0.00    N/A    38.17    0.00    0.00    N/A\n"
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
    Whole("slurmd without its cgroup", FREEZER, "fault", ("slurm.cgroup",), "platform"),
    Whole("a launch daemon failed", PRRTE, "fault", ("mpi.daemon_lost",), "network"),
    Whole("hydra's proxy did not start on a node", HYDRA, "fault", ("mpi.daemon_lost",), "network", nodes=("n2",)),
    Whole("hydra has no program to start", EXECVP, "fault", ("launching.command",), "application"),
    Whole("Flux has no program to start", FLUX, "fault", ("launching.command",), "application"),
    Whole("a device plugin without NVML", NVML, "fault", ("cuda.no_driver",), "platform"),
    Whole("a host engine that does not start", HOST_ENGINE, "fault", ("health.dcgm.engine",), "platform"),
    Whole("what DCGM notes", HOST_ENGINE_NOTES, "healthy"),
    Whole("a cloud node that never came up", NO_BOOT, "fault", ("cloud.node_boot",), "platform", nodes=("p5-dy-8",)),
    Whole("no machine, so no node", POOL + FEWER, "fault", ("cloud.no_capacity",), "platform"),
    Whole("a fleet in order", FLEET, "healthy"),
    Whole("a raylet that was given up", RAYLET, "fault", ("python.ray.node_died",), "hardware"),
    Whole("pyxis has no folder", PYXIS, "fault", ("slurm.pyxis",), "platform"),
    Whole("a pod that a full node refuses", ADMIT, "fault", ("k8s.pressure",), "platform"),
    Whole("a node's conditions", CONDITIONS, "healthy"),
    Whole("an Xid among a node's conditions", CONDITIONS + XID_CONDITION, "fault", ("k8s.node_health",), "hardware"),
    Whole("EFA's queue is gone", EQ, "fault", ("ofi.completion",), "network"),
    Whole("the accounting lacks a table", TABLE, "fault", ("slurm.database",), "platform"),
    Whole("a driver that does not come", VALIDATOR * 4, "fault", ("k8s.driver_wait",), "platform"),
    Whole("a driver that came", VALIDATOR * 4 + SMI, "healthy"),
    Whole("pods that were not ready in time", KUEUE, "fault", ("k8s.evicted",), "platform"),
    Whole("a lost GPU keeps a pod out", LOST, "fault", ("nvidia.smi.lost",), "hardware"),
    Whole("an accelerator that cannot be opened", NRTD, "fault", ("neuron.runtime",), "unknown"),
    Whole("munge has no key", MUNGED, "fault", ("slurm.munge",), "platform"),
    Whole("munge's unit", MUNGE_UNIT, "fault", ("health.service",), "platform", nodes=("n1",)),
    Whole("a slurmd that does not answer srun", RECEIVE * 3, "fault", ("generic.error",), "network"),
    Whole("a controller without an address", RESOLVE * 3, "fault", ("slurm.controller",), "network"),
    Whole("a controller that DNS does not know", NO_SOURCE, "fault", ("slurm.controller",), "platform"),
    Whole("IMEX without an interface", IMEX, "fault", ("nvidia.imex",), "platform"),
    Whole("no API server", NO_API, "fault", ("k8s.api",), "platform"),
    Whole("an API server that came back", NO_API + LEASE, "healthy"),
    Whole("a missed call to the API server", API.format(1), "healthy"),
    Whole("a standby that waits for the lease", STANDBY * 2, "healthy"),
    Whole("a Ray worker without threads", THREADS, "fault", ("resources.threads",), "platform"),
    Whole("a persistence daemon without devices", PERSISTENCED, "fault", ("cuda.no_driver",), "platform"),
    Whole("an abort and its noise", ABORT, "fault", ("mpi.abort",), "application"),
    Whole("Flux lost its parent", OVERLAY, "fault", ("flux.node_lost",), "hardware", nodes=("n7",)),
    Whole("Flux lost a node", DEAD, "fault", ("flux.node_lost",), "hardware", nodes=("n2",)),
    Whole("containerd boots before its network", BOOT, "healthy"),
    Whole("an NVSwitch that corrected itself", CORRECTED, "healthy"),
    Whole("gres.conf does not fit", CORES * 3, "fault", ("slurm.conf_invalid",), "platform", nodes=("node01",)),
    Whole("podman knows no such GPU", CDI, "fault", ("launching.container",), "platform"),
    Whole("no program in the container", CRUN, "fault", ("launching.container",), "platform"),
    Whole("a controller without GPUs", STAT * 4, "healthy"),
    Whole("a node whose runtime hangs", PLEG, "fault", ("k8s.runtime",), "platform"),
    Whole("more processes than slots", SLOTS, "fault", ("mpi.init",), "platform"),
    Whole("mpirun cannot even say why", HELP, "fault", ("mpi.init",), "platform"),
    Whole("a health agent's fatal event", SENTINEL, "fault", ("health.agent",), "hardware", nodes=("n7",)),
    Whole("a health agent's good news", SENTINEL_WELL, "healthy"),
    Whole("a device plugin without a kubelet", REGISTER, "fault", ("k8s.device_registration",), "platform"),
    Whole("a device plugin that registered at last", REGISTER + REGISTERED, "healthy"),
    Whole("a check of Ray's own", RAY_CHECK, "fault", ("process.check",), "application"),
    Whole("NCCL over sockets", NO_VERBS, "healthy"),
    Whole("the cloud has no machine", POOL, "fault", ("cloud.no_capacity",), "platform"),
)  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)
