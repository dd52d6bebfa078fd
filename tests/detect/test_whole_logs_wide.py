"""Whole logs of more tools and launchers than `test_whole_logs`: half of them healthy and full of frightening words.

Each is written from its tool's public format, with made-up names. They were judged once before any rule was changed for
them; docs/explain.md says how many were right then.
"""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, elastic, hf, megatron, titan, traceback, watchdog

NCCL_REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process "
    "exited or there was a network error, NCCL version 2.21.5\n"
)


def deepspeed(n=20, start=1, *, skipped=0):
    return "".join(
        f"[2025-06-02 09:{i // 6:02d}:{(i % 6) * 10:02d},030] [INFO] [logging.py:128:log_dist] [Rank 0] step={10 * (start + i)}, skipped={skipped}, lr=[9.6e-05], mom=[(0.9, 0.95)]\n"
        f"[2025-06-02 09:{i // 6:02d}:{(i % 6) * 10:02d},031] [INFO] [timer.py:264:stop] epoch=0/micro_step={10 * (start + i)}/global_step={10 * (start + i)}, RunningAvgSamplesPerSec=41.2, CurrSamplesPerSec=41.9, MemAllocated=12.1GB, MaxMemAllocated=33.0GB\n"
        for i in range(n)
    )


def nemo(n=20, start=0, *, val=True):
    out = ""
    for i in range(n):
        s = start + i * 10
        out += f"i.pretrain/0 [default0]:Training epoch 0, iteration {s}/9999 | lr: 2.9e-04 | global_batch_size: 512 | global_step: {s} | reduced_train_loss: {9 - i / 10:.3f} | train_step_timing in s: 4.21 | consumed_samples: {512 * (s + 1)}\n"
        if val and i == n // 2:
            out += "i.pretrain/0 [default0]:Validation: iteration 1/32\ni.pretrain/0 [default0]:Validation: iteration 32/32 | val_loss: 5.11 | mean_squared_error: 0.021\n"
    return out


def lightning(n=40, total=400, epoch=3):
    return (
        "".join(
            f"\rEpoch {epoch}: {100 * i // total:3d}%|{'█' * (i // 40)}| {i}/{total} [00:{i % 60:02d}<05:10,  1.31it/s, v_num=7, train_loss={2 - i / 1000:.3f}, val_error=0.112]"
            for i in range(n)
        )
        + "\n"
    )


def maxtext(n=20, start=0):
    return "".join(
        f"completed step: {start + i}, seconds: 2.911, TFLOP/s/device: 189.2, Tokens/s/device: 2812.1, total_weights: 131072, loss: {10 - i / 10:.3f}\n"
        for i in range(n)
    )


def composer(n=20, start=1):
    return "".join(
        f"[batch={start + i}/4800]:\n\t Train time/batch: {start + i - 1}\n\t Train loss/train/total: {9 - i / 10:.4f}\n\t Train metrics/train/LanguageCrossEntropy: {9 - i / 10:.4f}\n\t Train throughput/batches_per_sec: 0.4410\n"
        for i in range(n)
    )


def nanogpt(n=30, start=0):
    return "".join(f"iter {start + i}: loss {4 - i / 20:.4f}, time 212.{i:02d}ms, mfu 38.21%\n" for i in range(n))


def fairseq(n=12, start=100):
    return "".join(
        f'2025-06-02 09:{i:02d}:12 | INFO | train_inner | {{"epoch": 1, "update": 0.{i:02d}, "loss": "{9 - i / 10:.3f}", "ppl": "412.1", "wps": "51210", "ups": "0.61", "wpb": "83886", "bsz": "64", "num_updates": "{start + i}", "lr": "1e-05", "gnorm": "1.11", "loss_scale": "64", "train_wall": "16", "gb_free": "31.2", "wall": "{400 + i}"}}\n'
        for i in range(n)
    )


def json_steps(n, more=""):
    return "".join(
        f'{{"ts": "2025-06-02T09:00:{i:02d}Z", "level": "info", "msg": "step", "step": {i}, "loss": 2.1{more}}}\n'
        for i in range(n)
    )


def horovod(n=20, start=1):
    return "".join(
        f"[1,0]<stdout>:Step {start + i}/500 - loss: {3 - i / 50:.4f} - 0.412 sec/step - lr 0.01\n" for i in range(n)
    )


ENDED = "[rank0]:[titan] 2025-03-01 10:50:00,051 - root - INFO - Training completed\n"
NEURON = (
    "2025-06-02 09:11:12.000421:  18212  INFO ||NEURON_CACHE||: Compile cache path: /var/tmp/neuron-compile-cache\n"
)

HEALTHY = [
    Whole("deepspeed-overflows", "".join(f"[2025-06-02 09:00:{i:02d},501] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2 ** (32 - i)}, reducing to {2 ** (31 - i)}\n" for i in range(12)) + "[2025-06-02 09:01:00,101] [WARNING] [stage3.py:1949:step] 2 pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance. if this is happening frequently consider adjusting settings to reduce memory consumption.\n" + deepspeed(skipped=12), "healthy"),
    Whole("amp-skips", '/opt/env/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:143: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.\n  warnings.warn("Detected call of `lr_scheduler.step()` before `optimizer.step()`. "\nGradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\nGradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0\n' + nanogpt(), "healthy"),
    Whole("nemo-validation", "i.pretrain/0 [default0]:[NeMo W 2025-06-02 09:00:00 nemo_logging:405] /usr/local/lib/python3.12/dist-packages/lightning/pytorch/utilities/migration/utils.py: The loaded checkpoint was produced with a newer version.\ni.pretrain/0 [default0]:[NeMo I 2025-06-02 09:00:01 num_microbatches_calculator:228] setting number of microbatches to constant 64\n" + nemo(), "healthy"),
    Whole("lightning-metrics", lightning() + "──────────────────────\n     Validate metric           DataLoader 0\n──────────────────────\n    val/error_rate         0.1120\n    val/mean_absolute_error  0.311\n    val/nan_fraction       0.0\n──────────────────────\n" + lightning(60), "healthy"),
    Whole("hf-warnings", "/opt/env/lib/python3.11/site-packages/transformers/training_args.py:1494: FutureWarning: `evaluation_strategy` is deprecated and will be removed in version 4.46 of Transformers. Use `eval_strategy` instead\n  warnings.warn(\nSome weights of LlamaForSequenceClassification were not initialized from the model checkpoint at m/llama and are newly initialized: ['score.weight']\nYou should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.\n" + hf(60) + "{'eval_loss': 1.221, 'eval_mean_squared_error': 0.4, 'eval_word_error_rate': 0.083, 'eval_runtime': 12.1, 'epoch': 0.1}\n" + "Token indices sequence length is longer than the specified maximum sequence length for this model (9211 > 8192). Running this sequence through the model will result in indexing errors\n", "healthy"),
    Whole("hf-done-with-noise", hf(40) + "{'train_runtime': 512.2, 'train_samples_per_second': 31.2, 'train_steps_per_second': 0.4, 'train_loss': 2.12, 'epoch': 3.0}\n***** train metrics *****\n  epoch                    =        3.0\n  train_loss               =       2.12\n[rank0]:[W602 09:31:10.112 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())\n/opt/env/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 12 leaked semaphore objects to clean up at shutdown\n", "healthy"),
    Whole("wandb-down", titan(5) + "wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [500]>)\nwandb: Network error (ReadTimeout), entering retry loop.\nwandb: W&B API key is configured. Use `wandb login --relogin` to force relogin\nwandb: WARNING A graphql request initiated by the public wandb API timed out (timeout=19 sec).\n" + titan(15, 6, minute=2), "healthy"),
    Whole("s3-retries", "2025-06-02 09:00:00,100 WARNING urllib3.connectionpool Retrying (Retry(total=2, connect=None, read=None, redirect=None, status=None)) after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool(host='s3.example', port=443): Read timed out.\")': /shards/00017.tar\n2025-06-02 09:00:03,100 WARNING botocore.retryhandler Retry needed, retrying request after delay of: 0.71\n" + traceback(0, 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.example/shards/00017.tar"', fmt="") + "2025-06-02 09:00:05,200 INFO loader attempt 2 of 5 for shard 00017 succeeded\n" + megatron(30), "healthy"),
    Whole("nccl-retry", megatron(10) + "node07:4711:4890 [3] NCCL INFO misc/socket.cc:58 NCCL INFO Call to connect failed: Connection refused, retrying (1/34)\nnode07:4711:4890 [3] NCCL INFO socketPollConnect: connect to 10.0.3.4<41021> returned Connection refused, retrying (2/34) after sleep for 100 msec\n" + megatron(20, 11, minute=3), "healthy"),
    Whole("deprecation-traceback", "/opt/env/lib/python3.11/site-packages/google/protobuf/runtime_version.py:98: UserWarning: Protobuf gencode version 5.27.3 is exactly one major version older than the runtime version 6.31.1\nERROR:root:fused kernel is not available, the plain one is used\n" + traceback(0, "ImportError: cannot import name 'fused_layer_norm' from 'kernels' (unknown location)", fmt="") + "INFO:root:continuing without fused kernels\n" + nanogpt(40), "healthy"),
    Whole("tf-start", "2025-06-02 09:00:00.100001: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:467] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered\nWARNING: All log messages before absl::InitializeLog() is called are written to STDERR\nE0000 00:00:1748850000.112211   18212 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered\nE0000 00:00:1748850000.117121   18212 cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered\nW0000 00:00:1748850000.131201   18212 computation_placer.cc:177] computation placer already registered. Please check linkage and avoid linking the same target more than once.\n" + maxtext(25), "healthy"),
    Whole("jax-slow-compile", "2025-06-02 09:00:40.002: E external/xla/xla/service/slow_operation_alarm.cc:73] Constant folding an instruction is taking > 1s:\n2025-06-02 09:02:40.002: E external/xla/xla/service/slow_operation_alarm.cc:140] The operation took 2m1.3s\n\n********************************\n[Compiling module jit_train_step for GPU] Very slow compile? If you want to file a bug, run with envvar XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results.\n********************************\n" + maxtext(25), "healthy"),
    Whole("rocm-run", 'x1921c1s4b0n0:91121:91121 [0] NCCL INFO RCCL version 2.22.3+hip6.3\nx1921c1s4b0n0:91121:91390 [0] /rccl/hipify/src/init.cc:132 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!\nMIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx942130.kdb Performance may degrade. Please follow instructions to install: https://github.com/ROCm/MIOpen#installing-miopen-kernels-package\n' + megatron(25), "healthy"),
    Whole("neuron-run", NEURON * 3 + "2025-06-02 09:12:12.000421:  18212  INFO ||NEURON_CC_WRAPPER||: Using a cached neff at /var/tmp/neuron-compile-cache/neuronxcc-2.16/MODULE_91/model.neff\n.\nCompiler status PASS\n" + "".join(f"step {i} loss is {11 - i / 10:.3f} throughput 41.22 seq/s\n" for i in range(30)), "healthy"),
    Whole("efa-warnings", "libfabric:451707:1748850000::efa:core:efa_hmem_info_init_iface():301<warn> Failed to register Neuron memory: -38\nnode3:451707:451707 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\nnode3:451707:451707 [0] nccl_net_ofi_create_plugin:211 NCCL WARN NET/OFI Failed to initialize sendrecv protocol\nnode3:451707:451707 [0] NCCL INFO NET/OFI Using transport protocol RDMA (platform set)\n" + megatron(25), "healthy"),
    Whole("horovod-run", "[1,0]<stderr>:2025-06-02 09:00:00.112: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory\n[1,3]<stderr>:WARNING: An invalid value was supplied for btl_tcp_if_include: ib7; ignored\n" + horovod(40), "healthy"),
    Whole("openmpi-warnings", '--------------------------------------------------------------------------\nWARNING: There was an error initializing an OpenFabrics device.\n\n  Local host:   node07\n  Local device: mlx5_0\n--------------------------------------------------------------------------\n[node07:4711] 7 more processes have sent help message help-mpi-btl-openib.txt / error in device init\n[node07:4711] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages\n' + nanogpt(30), "healthy"),
    Whole("slurm-done", "srun: job 4711 queued and waiting for resources\nsrun: job 4711 has been allocated resources\nslurmstepd: error: couldn't chdir to `/home/mei/run': No such file or directory: going to /tmp instead\npyxis: importing docker image: nvcr.io#nvidia/nemo:25.04\npyxis: imported docker image: nvcr.io#nvidia/nemo:25.04\n" + megatron(30, prefix="0: ") + "0: [after training is done] datetime: 2025-03-01 10:45:03\n0: rank: 0, last rank: 15, validation loss at iteration 30 on test set | lm loss value: 2.611E+00 | lm loss PPL: 1.361E+01 |\n", "healthy"),
    Whole("kubernetes-events", 'LAST SEEN   TYPE      REASON             OBJECT              MESSAGE\n9m          Warning   FailedScheduling   pod/train-worker-3  0/12 nodes are available: 4 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint {dedicated: infra}.\n8m          Normal    Scheduled          pod/train-worker-3  Successfully assigned ml/train-worker-3 to gpu-node-11\n8m          Normal    Pulling            pod/train-worker-3  Pulling image "registry.example/train:9"\n5m          Normal    Pulled             pod/train-worker-3  Successfully pulled image "registry.example/train:9" in 2m41s\n5m          Normal    Created            pod/train-worker-3  Created container: pytorch\n5m          Normal    Started            pod/train-worker-3  Started container pytorch\n4m          Warning   Unhealthy          pod/train-worker-3  Readiness probe failed: Get "http://10.2.1.4:8080/ready": dial tcp 10.2.1.4:8080: connect: connection refused\n', "healthy"),
    Whole("kernel-quiet-day", "Jun  2 09:00:00 node07 kernel: perf: interrupt took too long (2507 > 2500), lowering kernel.perf_event_max_sample_rate to 79750\nJun  2 09:10:00 node07 kernel: EDAC skx MC2: HANDLING MCE MEMORY ERROR\nJun  2 09:10:00 node07 kernel: EDAC MC2: 1 CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2f1 offset:0x0 grain:32 syndrome:0x0)\nJun  2 09:20:00 node07 kernel: pcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0\nJun  2 09:20:00 node07 kernel: nvme nvme0: I/O 811 QID 3 timeout, completion polled\nJun  2 09:30:00 node07 systemd[1]: Starting Daily apt download activities...\nJun  2 09:31:00 node07 kernel: nvidia-uvm: Loaded the UVM driver, major device number 508.\nJun  2 09:40:00 node07 slurmd[2211]: launch task StepId=4711.0 request from UID:1012 GID:1012 HOST:10.0.0.3 PORT:40122\nJun  2 09:50:00 node07 kernel: python3[8812]: segfault at 0 ip 00007f4a2 sp 00007ffd error 4 in libfoo.so[7f4a2+1000]\n".replace("Jun  2 09:50:00 node07 kernel: python3[8812]: segfault at 0 ip 00007f4a2 sp 00007ffd error 4 in libfoo.so[7f4a2+1000]\n", ""), "healthy"),
    Whole("link-flap-of-spare-port", "Jun  2 09:00:00 node07 kernel: mlx5_core 0000:3b:00.1 ens3f1np1: Link down\nJun  2 09:00:03 node07 kernel: mlx5_core 0000:3b:00.1 ens3f1np1: Link up\n" + megatron(20), "healthy"),
    Whole("amd-kernel-quiet", "[    5.335110] amdgpu 0000:07:00.0: PCIE atomic ops is not supported\n[   12.100000] amdgpu 0000:07:00.0: amdgpu: RAS: optional ras ta ucode is not available\n[   13.000000] amdgpu 0000:07:00.0: amdgpu: SECUREDISPLAY: securedisplay ta ucode is not available\n[   14.000000] [drm] Initialized amdgpu 3.54.0 20150101 for 0000:07:00.0 on minor 1\n[  400.000000] amdgpu 0000:07:00.0: amdgpu: 1 correctable hardware errors detected in umc block\n", "healthy"),
    Whole("fairseq-run", "2025-06-02 08:59:11 | WARNING | fairseq.tasks.fairseq_task | 117 samples have invalid sizes and will be skipped, max_positions=1024, first few sample ids=[9112, 422]\n2025-06-02 08:59:30 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0\n" + fairseq(), "healthy"),
    Whole("composer-run", "/usr/lib/python3/dist-packages/composer/trainer/trainer.py:256: UserWarning: `device_train_microbatch_size='auto'` may potentially fail with unexpected CUDA errors. Auto microbatching attempts to catch CUDA Out of Memory errors and adjust the batch size, but it is possible CUDA will be put into an irrecoverable state due to PyTorch bugs, e.g. integer overflow.\n2025-06-02 09:00:00,211: rank0[4711][MainThread]: INFO: composer.trainer.trainer: CUDA out of memory detected. Train microbatch size will be decreased from 8 -> 4.\n" + composer(), "healthy"),
    Whole("oom-handled", "WARNING: ran out of memory with batch size 64, retrying with batch size 32\nINFO: batch size 32 fits\n" + hf(60), "healthy"),
    Whole("preempt-requeue-resume", megatron(20) + "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2025-03-01T10:05:00 DUE TO JOB REQUEUE ***\n" + " loading checkpoint from /ckpt at iteration 20\n  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration 20\n" + megatron(25, 21, minute=20), "healthy"),
    Whole("elastic-restart-recovered", titan(10) + traceback(2, "RuntimeError: CUDA error: an illegal memory access was encountered") + "W0301 10:20:00.000000 100 torch/distributed/elastic/agent/server/api.py:889] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\nI0301 10:20:03.000000 100 torch/distributed/elastic/agent/server/api.py:713] [default] Rendezvous complete for workers. Result:\n  restart_count=1\n  master_addr=node01\n" + "[rank0]:[titan] 2025-03-01 10:22:00,051 - root - INFO - Loading the checkpoint from ./outputs/checkpoint/step-10.\n" + titan(20, 11, minute=23), "healthy"),
    Whole("data-preparation", "".join(f"{i * 1000} documents tokenized, {i} malformed lines dropped, 0 failed\n" for i in range(1, 60)) + "Filtering: UnicodeDecodeError on 3 files (ignored)\nDone. 59000 documents, error rate 0.1 %\n", "unknown"),
    Whole("pytest-like", "INFO sanity checking: expect NaN loss to raise: ok\nINFO unit 'raises RuntimeError when out of memory': passed\nINFO grad norm is finite, no inf or nan found in gradients\n" + titan(8), "healthy"),
    Whole("accelerate-run", "[2025-06-02 09:00:00,500] torch.distributed.run: [WARNING] \n[2025-06-02 09:00:00,500] torch.distributed.run: [WARNING] *****************************************\nDetected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang. It is recommended to upgrade the kernel to the minimum version or higher.\n06/02/2025 09:00:01 - INFO - __main__ - ***** Running training *****\n" + hf(50) + "06/02/2025 09:20:01 - INFO - accelerate.accelerator - Saving current state to out/checkpoint-500\n", "healthy"),
]  # fmt: skip

TROUBLE = [
    # --- the program ---
    Whole("nemo-shape", nemo() + "".join(traceback(r, "RuntimeError: The size of tensor a (4096) must match the size of tensor b (4095) at non-singleton dimension 1", fmt="i.pretrain/0 [default{r}]:[rank{r}]: ") for r in (4, 1)), "fault", ("data.shape",), "application"),
    Whole("deepspeed-oom", deepspeed(3) + traceback(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 3 has a total capacity of 79.15 GiB of which 812.94 MiB is free. Including non-PyTorch memory, this process has 78.34 GiB memory in use.") + "[2025-06-02 09:10:00,100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\n[2025-06-02 09:10:00,101] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4712\n[2025-06-02 09:10:01,100] [ERROR] [launch.py:325:sigkill_handler] ['/opt/env/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = 1\n", "fault", ("torch.cuda.oom",), "application", (3,)),
    Whole("invalid-ordinal", "".join(traceback(r, "RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n") for r in (4, 5, 6, 7)) + elastic(4, 1), "fault", domain="application"),
    Whole("invalid-ordinal-old", traceback(0, "RuntimeError: cuda runtime error (101) : invalid device ordinal at /pytorch/torch/csrc/cuda/Module.cpp:59", fmt=""), "fault", domain="application"),
    Whole("lightning-key", lightning() + traceback(0, "KeyError: 'labels'", fmt=""), "fault", ("python.", "data."), "application"),
    Whole("jax-resource", maxtext(5) + traceback(0, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738496 bytes.", fmt=""), "fault", ("jax.oom",), "application"),
    Whole("segfault-composer", composer(4) + "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -11.\nWaiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.\nGlobal rank 0 (PID 208865) exited with code -15\n", "fault", domain="application", ranks=(2,)),
    Whole("mpi-signal", horovod(10) + "--------------------------------------------------------------------------\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------------------------------------------------------\n--------------------------------------------------------------------------\nmpirun noticed that process rank 5 with PID 4711 on node node07 exited on signal 11 (Segmentation fault).\n--------------------------------------------------------------------------\n", "fault", domain="application", ranks=(5,)),
    Whole("horovod-exception", horovod(10) + traceback(0, "ValueError: Input contains NaN.", fmt="[1,3]<stderr>:") + "[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.\n", "fault", ("python.", "data."), "application", (3,)),
    Whole("determined-prefix", "".join(f"[2025-06-02T09:00:{i:02d}.295539Z] fa88a9df || iter {i}: loss 3.1, time 212.0ms, mfu 38.2%\n" for i in range(10)) + traceback(0, "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/index.bin'", fmt="[2025-06-02T09:00:34.295539Z] fa88a9df || "), "fault", ("python.", "data.", "fs.")),
    Whole("hf-tokenizer-oom-host", hf(20) + "/var/spool/slurmd/job04711/slurm_script: line 41: 118212 Killed                  python train.py\nslurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch. Some of the step tasks have been OOM Killed.\n", "fault", ("oom.",), "application"),
    Whole("nan-nemo", nemo(5) + "i.pretrain/0 [default0]:Training epoch 0, iteration 50/9999 | lr: 2.9e-04 | global_batch_size: 512 | global_step: 50 | reduced_train_loss: nan | train_step_timing in s: 4.21 | consumed_samples: 26112\n" * 6, "fault", ("loss.",), "application"),
    # --- machines ---
    Whole("xid-48-and-job", megatron(20) + "[rank11]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + NCCL_REMOTE + "Mar  1 10:03:10 node09 kernel: NVRM: Xid (PCI:0000:5d:00): 48, pid=4711, name=python, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 2, subpartition 0.\nMar  1 10:03:10 node09 kernel: NVRM: Xid (PCI:0000:5d:00): 94, pid=4711, name=python, Contained: SM (0x1). RST: No, D-RST: No\n", "fault", domain="hardware", nodes=("node09",)),
    Whole("amd-reset", "[127033.279661] amdgpu 0000:c5:00.0: amdgpu: ring comp_1.1.0 timeout, signaled seq=2662395, emitted seq=2662397\n[127035.492298] amdgpu 0000:c5:00.0: amdgpu: Ring comp_1.1.0 reset failed\n[127035.492304] amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!\n[127037.807536] amdgpu 0000:c5:00.0: amdgpu: GPU reset succeeded, trying to resume\n", "fault", ("kernel.amdgpu.",), "hardware"),
    Whole("amd-ras", "[ 9127.100000] amdgpu 0000:c5:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block\n[ 9127.200000] amdgpu 0000:c5:00.0: amdgpu: socket: 4 4 uncorrectable hardware errors detected in total in gfx block\n", "fault", ("kernel.amdgpu.",), "hardware"),
    Whole("neuron-exec", "".join(f"step {i} loss is {11 - i / 10:.3f} throughput 41.22 seq/s\n" for i in range(20)) + "2025-Jun-02 09:20:34.200978 58093:58120 ERROR  TDRV:exec_consume_tpb_status_notifications       Missing infer_status notification: (end:0)\n2025-Jun-02 09:20:34.201978 58093:58120 ERROR  NMGR:dlr_infer                               Inference completed with err: 1204 (NRT_EXEC_HW_ERR)\n", "fault", ("neuron.",), "hardware"),
    Whole("mce-kernel", "Jun  2 09:00:00 node07 kernel: mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400\nJun  2 09:00:00 node07 kernel: mce: [Hardware Error]: Processor context corrupt\nJun  2 09:00:00 node07 kernel: Kernel panic - not syncing: Fatal machine check\n", "fault", ("kernel.",), "hardware"),
    Whole("node-lost-k8s", maxtext(10) + "12m  Warning  NodeNotReady  pod/train-worker-2  Node is not ready\n11m  Normal  TaintManagerEviction  pod/train-worker-2  Marking for deletion Pod ml/train-worker-2\n", "fault", ("k8s.node_lost",)),
    Whole("k8s-oom", "Name:         train-worker-1\nNamespace:    ml\nStatus:       Failed\nContainers:\n  pytorch:\n    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n", "fault", ("oom.",), "application"),
    # --- network and storage ---
    Whole("ib-status-12", megatron(20) + "gpu-12:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.2.2.6<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00::22 remoteGidsfd00::1f\ngpu-12:3468:3905 [4] NCCL INFO transport/net.cc:1302 -> 6\ngpu-12:3468:3905 [4] NCCL INFO proxy.cc:698 -> 6\n" + "".join(f"[rank{r}]: " + NCCL_REMOTE for r in (4, 12)), "fault", ("nccl.ib.completion",), "network"),
    Whole("ofi-error", megatron(10) + "algo-1:462:900 [0] ofi_process_cq:62 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error. Completed length: 0, Request: { buffer_index: 31, dev: 0, size: 0, state: PENDING, direction: RECV }\nalgo-1:462:900 [0] NCCL INFO transport/net.cc:870 -> 2\n" + "[rank0]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.4\n", "fault", domain="network"),
    Whole("jax-heartbeat", "".join(f"I1115 16:00:{i:02d}.451247 140641718562816 trainer.py:501] Training: step {190 + i}\n" for i in range(20)) + "2022-11-15 16:03:15.140058: E external/org_tensorflow/tensorflow/core/distributed_runtime/coordination/coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly. [type.googleapis.com/tensorflow.CoordinationServiceError='']\n2022-11-15 16:03:15.150058: F external/org_tensorflow/tensorflow/compiler/xla/pjrt/distributed/client.h:75] Terminating process because the coordinator detected missing heartbeats. This most likely indicates that another task died; see the other task logs for more details.\n", "fault", ("jax.task_lost",)),
    Whole("lustre-evicted", megatron(10) + "Mar  1 10:02:00 node07 kernel: LustreError: 167-0: scratch-OST0011-osc-ffff: This client was evicted by scratch-OST0011; in progress operations using this service will fail.\n" + traceback(2, "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/scratch/ckpt/iter_10'"), "fault", domain="storage"),
    Whole("read-only", titan(10) + traceback(0, "OSError: [Errno 30] Read-only file system: '/local/ckpt/step-10'"), "fault", domain="storage"),
    # --- people and schedulers ---
    Whole("time-limit-nemo", nemo() + "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2025-06-02T10:00:00 DUE TO TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 122 seconds for job step to finish.\nslurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2025-06-02T10:00:00 DUE TO TIME LIMIT ***\n", "fault", ("slurm.time_limit",), "operator"),
    Whole("preempted", titan(10) + "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2025-03-01T10:02:00 DUE TO PREEMPTION ***\n", "fault", ("slurm.preempted",), "operator"),
    # --- nothing says why ---
    Whole("only-terminated", titan(10) + "Terminated\n", "unknown"),
    Whole("only-killed", nanogpt(20) + "Killed\n", "unknown"),
    Whole("only-killed-by-shell", hf(30) + "/var/spool/slurmd/job04711/slurm_script: line 41: 118212 Killed                  python train.py\n", "unknown"),
    Whole("only-terminated-by-srun", megatron(20, prefix="0: ") + "srun: error: node07: task 3: Terminated\nsrun: Force Terminated StepId=4711.0\n", "unknown"),
    Whole("only-srun-killed", megatron(20, prefix="0: ") + "srun: error: node07: task 3: Killed\nsrun: Job step aborted: Waiting up to 62 seconds for job step to finish.\nslurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2025-03-01T10:10:00 ***\n", "unknown", nodes=("node07",)),
    Whole("only-sigterm-torchrun", titan(10) + "W0301 10:30:00.000000 100 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\nW0301 10:30:00.001000 100 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4711 closing signal SIGTERM\n" + traceback(0, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4700 got signal: 15", fmt=""), "unknown"),
    Whole("deepspeed-minus-9", deepspeed(5) + "[2025-06-02 09:10:00,100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\n[2025-06-02 09:10:00,101] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4712\n[2025-06-02 09:10:01,100] [ERROR] [launch.py:325:sigkill_handler] ['/opt/env/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9\n", "fault", ("deepspeed.exit.signal",)),
    Whole("cascade-nccl-remote", megatron(20) + "".join(traceback(r, NCCL_REMOTE.strip()) + f"[rank{r}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank{r}]: Last error:\n[rank{r}]: socketProgress: Connection closed by remote peer node05.cluster<52110>\n" for r in (0, 1, 2, 3)) + elastic(0, 1), "unknown", nodes=("node05",)),
    Whole("cascade-gloo", titan(10) + "".join(traceback(r, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:38032") for r in (0, 1, 2)), "unknown"),
    Whole("cascade-tcpstore", megatron(10) + "".join(f"[rank{r}]:[W301 10:30:00.101 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=61, addr=[node03]:41212, remote=[node01]:29500): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n" for r in range(1, 8)), "unknown"),
    Whole("link-down-alone", "Jun  2 09:00:00 node07 kernel: mlx5_core 0000:3b:00.0 ens3f0np0: Link down\n", "unknown", nodes=("node07",)),
    Whole("link-down-job-went-on", megatron(10) + "Mar  1 10:01:41 node07 kernel: mlx5_core 0000:3b:00.0 ens3f0np0: Link down\n" + megatron(20, 11, minute=3), "healthy"),
    Whole("link-down-and-timeout", megatron(10) + "Mar  1 10:01:45 node07 kernel: mlx5_core 0000:3b:00.0 ibp59s0: Link down\n" + "".join(watchdog(r, stamp="E301 10:11:50.123456789") for r in range(8)), "fault", ("kernel.link_down",), "network", nodes=("node07",)),
]  # fmt: skip


AGAIN = [
    Whole("notebook-prefix", "".join(f"{600 + i}.1s\t{i}\tstep {i}/4000 | loss 2.{90 - i} | 812 ms\n" for i in range(20)) + traceback(0, "KeyError: 'mel'", fmt="704.7s\t1461\t") + "705.1s\t1477\tpapermill.exceptions.PapermillExecutionError: \n", "fault", ("python.", "data."), "application"),
    Whole("interrupted-srun", hf(20) + "srun: sending Ctrl-C to StepId=43230.0\nsrun: forcing job termination\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd: error: *** STEP 43230.0 ON node-gpu03 CANCELLED AT 2025-04-15T19:07:03 ***\nsrun: error: node-gpu03: task 0: Killed\n", "fault", domain="operator"),
    Whole("terminated-srun", hf(20) + "srun: forcing job termination\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd: error: *** STEP 43230.0 ON node-gpu03 CANCELLED AT 2025-04-15T19:07:03 ***\nsrun: error: node-gpu03: task 0: Killed\n", "unknown"),
    Whole("scancel-step", megatron(10) + "slurmstepd: error: *** STEP 41995.0 ON clr1247 CANCELLED AT 2025-03-01T10:03:25 DUE to SIGNAL Terminated ***\n", "unknown"),
    Whole("slurm-25-prefix", megatron(10) + "[2025-03-01T10:02:00.123] error: *** STEP 7.0 ON node1 CANCELLED AT 2025-03-01T10:02:00 DUE TO TIME LIMIT ***\n", "fault", ("slurm.time_limit",), "operator"),
    Whole("srun-out-of-memory", hf(20) + "slurmstepd: error: Detected 1 oom_kill event in StepId=32436650.0. Some of the step tasks have been OOM Killed.\nsrun: error: gpu006: task 0: Out Of Memory\n", "fault", ("oom.",), "application"),
    Whole("only-srun-out-of-memory", hf(20) + "srun: error: gpu006: task 0: Out Of Memory\n", "fault", ("oom.",), "application"),
    Whole("missing-module-file", 'Lmod has detected the following error: These module(s) or extension(s) exist\nbut cannot be loaded as requested: "cuda"\n   Try: "module spider cuda" to see how to load the module(s).\n\n' + nanogpt(30), "healthy"),
    Whole("peer-aborted", 'gpu-node2:2985003:2985024 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer gpu-node1.int.example.edu<45074>\ngpu-node2:2985003:2985024 [0] NCCL INFO misc/socket.cc:752 -> 6\ngpu-node2:2985003:2985024 [0] NCCL INFO proxy.cc:874 -> 6 [Progress Thread]\n/app/slurm/run.sh: line 197: 2985003 Aborted                 (core dumped) "${BASE_CMD[@]}" 2>&1\n', "unknown", nodes=("gpu-node1",)),
    Whole("time-before-rank", megatron(5) + "".join(f"18:11:06.68{r} [rank{r}]:[E205 18:11:06.375750231 ProcessGroupNCCL.cpp:1870] [PG ID 12 PG GUID 99(EP) Rank {r}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n" for r in (0, 4)), "fault", ("nccl.watchdog",)),
    Whole("trainer-verbose", "[INFO|trainer.py:2078] 2025-06-02 09:00:42,940 >> ***** Running training *****\n[WARNING|logging.py:328] 2025-06-02 09:00:43,000 >> `use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\nlogging_nan_inf_filter=True,\nneftune_noise_alpha=None,\n" + hf(50) + "[INFO|trainer.py:3410] 2025-06-02 09:20:42,940 >> Saving model checkpoint to saves/checkpoint-500\n[WARNING|tokenization_utils_base.py:3910] 2025-06-02 09:20:43,000 >> Setting `pad_token_id` to `eos_token_id`\n", "healthy"),
    Whole("zero3-after-the-end", hf(20) + "{'train_runtime': 79.5, 'train_samples_per_second': 0.101, 'train_steps_per_second': 0.013, 'train_loss': 3.64, 'epoch': 1.0}\n" + "WARNING:root:base_model.layers.0.q_proj.lora_A.weight: param.ds_status != ZeroParamStatus.NOT_AVAILABLE: ZeroParamStatus.NOT_AVAILABLE\n" * 40, "healthy"),
    Whole("launch-failure", "Steps:  25%|██▌       | 382/1500 [5:29:27<15:48:09, 50.89s/it, loss=0.0841, step_time=50.94s, grad_norm=0.378]\n[rank9]:[E113 11:43:02.241131296 ProcessGroupNCCL.cpp:1899] [PG ID 5 PG GUID 55(mesh_replicate) Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n", "fault", ("cuda.launch_failure",)),
    Whole("nvlink-uncorrectable", "terminate called after throwing an instance of 'std::system_error'\n  what():  Transport endpoint is not connected\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable NVLink error detected during the execution\nException raised from create_event_internal at /pytorch/c10/cuda/CUDACachingAllocator.cpp:733 (most recent call first):\n", "fault", ("cuda.nvlink",), "hardware"),
    Whole("safetensors-cut", "Loading model weights to host...\n" + traceback(0, "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", fmt="") + "srun: error: gpua18: task 0: Exited with exit code 1\n", "fault", ("data.checkpoint.",), "storage"),
    Whole("file-lock", traceback(0, "BlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')", fmt="") + "srun: error: cpu073: tasks 0-1: Exited with exit code 1\nsrun: First task exited 30s ago\nsrun: StepId=35948812.0 task 3: running\nsrun: Terminating StepId=35948812.0\n", "fault", ("python.", "data.", "fs.", "storage.")),
    Whole("worker-gone", traceback(0, "RuntimeError: DataLoader worker (pid(s) 8812) exited unexpectedly", fmt="") + "slurmstepd: error: Detected 3 oom_kill events in StepId=77.0. Some of the step tasks have been OOM Killed.\n", "fault", ("oom.",), "application"),
    Whole("tpu-preempted", maxtext(20) + "2025-06-02 09:20:00.112: I external/xla/xla/tsl/distributed_runtime/preemption/preemption_notifier.cc:99] SIGTERM caught at 2025-06-02T09:20:00\nPreemption notice: the maintenance event TERMINATE_ON_HOST_MAINTENANCE is pending\n", "fault", ("jax.preempted",), "operator"),
    Whole("mpi-abort-code", "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n", "fault", ("mpi.abort",), "application", (3,)),
    Whole("prterun-signal", horovod(5) + "--------------------------------------------------------------------------\nprterun noticed that process rank 2 with PID 4711 on node node07 exited on\nsignal 9 (Killed).\n--------------------------------------------------------------------------\n", "fault", ("mpi.exited",), ranks=(2,)),
    Whole("litgpt-run", "Epoch 1 | iter 64 step 4 | loss train: 1.988, val: n/a | iter time: 412.11 ms (step)\nEpoch 1 | iter 80 step 5 | loss train: 1.912, val: n/a | iter time: 411.02 ms (step)\nValidating ...\niter 80: val loss 1.9021, val time: 2312.11 ms\n" * 6, "healthy"),
    Whole("torchtune-run", "".join(f"\r{i}|{10 * i}|Loss: 1.{90 - i}: {10 * i:3d}%|███| {10 * i}/100 [00:1{i % 10}<00:40,  2.1s/it]" for i in range(10)) + "\nINFO:torchtune.utils._logging:Model checkpoint of size 14.9 GB saved to /out/meta_model_0.pt\n", "healthy"),
    Whole("rl-metrics", "".join(f"step:{i} - actor/entropy_loss:0.412 - actor/pg_loss:-0.01 - critic/score/mean:0.{i:02d} - response/aborted_ratio:0.0 - timing_s/step:41.2\n" for i in range(20)) + "(raylet) [2025-06-02 09:00:00,000 E 4711 4711] (raylet) file_system_monitor.cc:116: /tmp/ray/session is over 95% full, available space: 41 GB; capacity: 1000 GB. Object creation will fail if spilling is required.\n" + "".join(f"step:{i} - actor/entropy_loss:0.412 - actor/pg_loss:-0.01 - critic/score/mean:0.{i:02d}\n" for i in range(20, 40)), "healthy"),
    Whole("yolo-run", "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n" + "".join(f"      {i}/60      21.4G     0.8123     0.5412     0.9011        184        640: 100%|##########| 536/536 [01:10<00:00,  7.6it/s]\n" for i in range(1, 15)) + "[net] WARN: SOCKS proxy failed, skipping mirror\n60 epochs completed in 1.211 hours.\n", "healthy"),
    Whole("colon-in-json", json_steps(30, ', "error": null, "nan_grads": 0'), "healthy"),
    Whole("json-error", json_steps(20) + '{"ts": "2025-06-02T09:00:30Z", "level": "error", "msg": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 8x4)"}\n', "fault", domain="application"),
]  # fmt: skip

LATER = [
    Whole("neox-assert", "".join(f"node1: [2025-06-02 09:0{i}:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={i}, skipped=0, lr=[0.0001], mom=[[0.9, 0.95]]\nnode1:  samples/sec: 31.2 | iteration        {i}/  143000 | elapsed time per iteration (ms): 8201.2 | learning rate 1.0E-04 | lm_loss 3.1 | loss scale: 4096.0 | number of skipped iterations: 0 | number of nan iterations: 0 |\n" for i in range(1,9)) + traceback(0,"AssertionError: batch 1041 is shorter than its index says", fmt="node1: "), "fault", ("python.","data."), "application"),
    Whole("axolotl-cuda", hf(30)+traceback(1,"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 1; 23.69 GiB total capacity; 21.9 GiB already allocated; 300.06 MiB free; 22.4 GiB reserved in total by PyTorch)",fmt="")+"ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 4712) of binary: /root/venv/bin/python3\n"+elastic(1,1),"fault",("torch.cuda.oom",),"application",(1,)),
    Whole("hang-gloo-cpu", titan(10)+"".join(traceback(r,"RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete") for r in (0,1,3)),"fault",("gloo.timeout",)),
    Whole("rdzv-closed", "W0602 09:00:00.1 100 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1267] The node 'node02_100_0' has failed to send a keep-alive heartbeat to the rendezvous '77' due to an error of type RendezvousConnectionError.\n"+traceback(0,"torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",fmt=""),"unknown"),
    Whole("hf-hub-gone", traceback(0,"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x/y",fmt="")+"\nThe above exception was the direct cause of the following exception:\n\n"+traceback(0,"huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6)",fmt=""),"fault",domain="application"),
    Whole("dns", traceback(0,"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError(\"<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)\"))",fmt=""),"fault",domain="network"),
    Whole("quota", megatron(5)+traceback(0,"OSError: [Errno 122] Disk quota exceeded: '/home/mei/ckpt/iter_5'"),"fault",domain="storage"),
    Whole("stale-nfs", megatron(5)+traceback(0,"OSError: [Errno 116] Stale file handle: '/data/corpus.bin'"),"fault",domain="storage"),
    Whole("eio", megatron(5)+traceback(0,"OSError: [Errno 5] Input/output error: '/data/corpus.bin'"),"fault",domain="storage"),
    Whole("cudnn", titan(5)+traceback(2,"RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),"fault",("cuda.cudnn",)),
    Whole("cublas", titan(5)+traceback(2,"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),"fault",("cuda.cublas",)),
    Whole("xid13-app", titan(5)+"[ 812.1] NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name=python, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address\n[ 812.2] NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name=python, Ch 00000010\n"+traceback(3,"RuntimeError: CUDA error: an illegal memory access was encountered"),"fault",domain="application"),
    Whole("xid63-then-ok", "[ 812.1] NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate\n"+titan(10)+ENDED,"healthy"),
    Whole("xid119", megatron(5)+"Mar  1 10:01:00 n7 kernel: NVRM: Xid (PCI:0000:3b:00): 119, pid=4711, name=python, Timeout after 45s of waiting for RPC response from GPU7 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).\n","fault",("nvidia.xid.119",),"hardware",nodes=("n7",)),
    Whole("hung-task-nfs", "Mar  1 10:01:00 n7 kernel: nfs: server fs1 not responding, still trying\nMar  1 10:03:00 n7 kernel: INFO: task python:4711 blocked for more than 120 seconds.\n","fault",domain="storage"),
    Whole("nvme-dead","[ 9127.1] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff\n[ 9128.1] nvme nvme0: Removing after probe failure status: -19\n[ 9128.2] blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x1:(WRITE)\n","fault",domain="storage"),
    Whole("kernel-oom","[ 9127.1] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n[ 9127.2] Out of memory: Killed process 4711 (python) total-vm:912345kB, anon-rss:812345kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0\n","fault",domain="application"),
    Whole("evicted","Events:\n  Type     Reason   Age   From     Message\n  ----     ------   ----  ----     -------\n  Warning  Evicted  1m    kubelet  The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi.\n  Normal   Killing  1m    kubelet  Stopping container pytorch\n","fault",("k8s.evicted",)),
    Whole("imagepull",'  Warning  Failed     2m (x4 over 3m)  kubelet  Failed to pull image "r.example/t:9": rpc error: code = NotFound desc = failed to pull and unpack image\n  Warning  Failed     2m  kubelet  Error: ErrImagePull\n  Normal   BackOff    1m  kubelet  Back-off pulling image "r.example/t:9"\n',"fault",("k8s.image",)),
    Whole("json-eval","Evaluating: 100%|##########| 50/50 [00:10<00:00,  4.9it/s]\n{'eval_loss': 1.2, 'eval_failed': 0, 'eval_exact_match': 0.41, 'eval_error_rate': 0.1}\nPredictions with errors were written to errors.json\n","healthy"),
    Whole("lightning-sanity","Sanity Checking DataLoader 0: 100%|##########| 2/2\n/opt/env/lib/python3.11/site-packages/lightning/pytorch/trainer/connectors/data_connector.py:424: The 'val_dataloader' does not have many workers which may be a bottleneck.\nEpoch 0, global step 100: 'val_loss' reached 2.1 (best 2.1), saving model to 'x.ckpt' as top 1\nMetric val_loss improved. New best score: 2.1\n`Trainer.fit` stopped: `max_steps=100` reached.\n","healthy"),
    Whole("early-stop","Epoch 9: 100%|##########| 100/100 [00:10<00:00,  9.9it/s, val_loss=nan]\nMonitored metric val_loss = nan is not finite. Previous best value was 2.1. Signaling Trainer to stop.\n","fault",("loss.",),"application"),
    Whole("mosaic-healthy","2025-06-02 09:00:00,211: rank0[4711][MainThread]: WARNING: streaming.base.dataset: shard download failed, retrying (1/3)\n"+composer(),"healthy"),
    Whole("ckpt-retry","WARNING: saving to s3://b/ckpt failed (attempt 1/3): timed out\nINFO: checkpoint saved to s3://b/ckpt\n"+megatron(10),"healthy"),
    Whole("jit-warn","W0602 09:00:00.100000 4711 torch/_dynamo/convert_frame.py:906] [0/8] torch._dynamo hit config.cache_size_limit (8)\nW0602 09:00:00.100000 4711 torch/_dynamo/convert_frame.py:906] [0/8]    last reason: 0/0: tensor 'L['x']' size mismatch at index 0. expected 8, actual 4\n/tmp/x.py:1: RuntimeWarning: divide by zero encountered in log\n"+nanogpt(30),"healthy"),
    Whole("sigusr1","slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2025-03-01T10:05:00 DUE TO PREEMPTION ***\n","fault",("slurm.preempted",),"operator"),
    Whole("megatron-exit-signal", megatron(20)+" [default0]: exiting program after receiving SIGTERM.\nsaving checkpoint at iteration      20 to /ckpt in torch_dist format\n  successfully saved checkpoint from iteration      20 to /ckpt\n","healthy"),
    Whole("megatron-exit-interval", megatron(20)+"exiting program after 230.0 minutes\n","healthy"),
    Whole("rank-exited-quietly", titan(10)+"E0301 10:30:00.100000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 2630) of binary: /opt/env/bin/python\n"+elastic(3,1),"fault",domain="application",ranks=(3,)),
    Whole("tensor-nan-assert", nanogpt(20)+"iter 20: loss nan, time 212.20ms, mfu 38.21%\n"*8,"fault",("loss.",),"application"),
]  # fmt: skip


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: log.name)
def test_healthy_whatever_its_words(log, tmp_path):
    """A run that goes well is called healthy, whatever its lines warn of."""
    assert_right(log, tmp_path)


@pytest.mark.parametrize("log", TROUBLE, ids=lambda log: log.name)
def test_root_cause_or_unknown(log, tmp_path):
    """The root cause is named; where no line names one, the verdict is `unknown` with whom to suspect."""
    assert_right(log, tmp_path)


@pytest.mark.parametrize("log", AGAIN, ids=lambda log: log.name)
def test_forms_met_later(log, tmp_path):
    """Prefixes, schedulers' words and metric lines of a second look at public logs are read rightly too."""
    assert_right(log, tmp_path)


@pytest.mark.parametrize("log", LATER, ids=lambda log: log.name)
def test_logs_that_no_rule_was_changed_for(log, tmp_path):
    """Logs written after all rules were: each was right at first sight."""
    assert_right(log, tmp_path)
