"""Emulated GPUs: the real binding loads our library; commands, library and faults share one state."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.emulated import dcgmi, devices, layout
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.errors import UsageError

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]


@pytest.fixture
def folder(tmp_path):
    devices.prepare(tmp_path / "dev", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "dev"


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess:
    return subprocess.run([folder / "bin" / argv[0], *argv[1:]], capture_output=True, text=True, timeout=90, env={})


def binding(folder: Path, code: str) -> str:
    """Run lines of Python with nvidia-ml-py over the folder's library."""
    done = subprocess.run(
        [sys.executable, "-c", f"import pynvml as n\nn.nvmlInit()\n{code}"],
        capture_output=True, text=True, timeout=90, env={"LD_LIBRARY_PATH": str(folder / "lib")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_library_and_python_agree_on_the_layout():
    """The size of the state in C is that of the ctypes structure."""
    library = ctypes.CDLL(str(devices.build()))
    library.holdfast_emulated_state_size.restype = ctypes.c_ulong
    assert library.holdfast_emulated_state_size() == ctypes.sizeof(layout.State)


def test_the_real_binding_sees_eight_gpus_that_say_what_they_are(folder):
    """Names and driver say that they are emulated; addresses are those of the node's table."""
    out = binding(folder, "h = n.nvmlDeviceGetHandleByIndex(6)\nprint(n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), "
                  "n.nvmlDeviceGetPciInfo(h).busId, n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetNvLinkState(h, 17))")  # fmt: skip
    assert out == "8 NVIDIA H100 80GB HBM3 (emulated) 00000000:B9:00.0 570.124.06-emulated 1"


def test_the_guides_injection_reaches_nvml_nvidia_smi_and_health(folder):
    """`dcgmi test --inject --gpuid 0 -f 319 -v 4`: four uncorrectable errors, seen by everyone."""
    assert (
        "Successfully injected"
        in run(folder, "dcgmi", "test", "--inject", "--gpuid", "0", "-f", "319", "-v", "4").stdout
    )
    assert binding(folder, "print(n.nvmlDeviceGetTotalEccErrors(n.nvmlDeviceGetHandleByIndex(0), 1, 0))") == "4"
    csv = run(folder, "nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader")
    assert csv.stdout.splitlines()[:2] == ["0, 4", "1, 0"]
    assert "Failure" in run(folder, "dcgmi", "health", "-c").stdout
    diag = run(folder, "dcgmi", "diag", "-r", "2", "-j")
    assert (diag.returncode, '"emulated": true' in diag.stdout) == (226, True)


def test_a_reset_settles_what_passes_and_keeps_history(folder):
    """Volatile counters and pending remaps are gone after `nvidia-smi -r`, lifetime counts are not."""
    with Devices(folder / "state") as found:
        FAULTS["ecc"].apply(found, Hit(gpu=2, value=3))
    assert run(folder, "nvidia-smi", "-r", "-i", "2").returncode == 0
    with Devices(folder / "state") as found:
        gpu = found.gpu(2)
        assert (gpu.ecc[1][0], gpu.ecc[1][1], gpu.remap_pending, gpu.remap_uncorrected) == (0, 3, 0, 1)


def test_reboot_settles_and_another_machine_has_no_history(folder):
    """A boot id that changed is a reboot; another machine starts from nothing."""
    with Devices(folder / "state") as found:
        FAULTS["ecc"].apply(found, Hit(value=1))
        FAULTS["row_remap"].apply(found, Hit())
    devices.prepare(folder, GPUS, machine="i-1", booted="b-1")
    with Devices(folder / "state") as found:
        assert found.gpu(0).ecc[1][0] == 1
    devices.prepare(folder, GPUS, machine="i-1", booted="b-2")
    with Devices(folder / "state") as found:
        assert (found.gpu(0).ecc[1][0], found.gpu(0).ecc[1][1], found.gpu(0).remap_failed) == (0, 1, 1)
    devices.prepare(folder, GPUS, machine="i-2", booted="b-3")
    with Devices(folder / "state") as found:
        assert (found.gpu(0).ecc[1][1], found.gpu(0).remap_failed) == (0, 0)


def test_events_and_a_lost_gpu(folder):
    """NVML tells of an Xid once; a lost GPU answers with its error, the others go on."""
    code = """
s = n.nvmlEventSetCreate()
h = n.nvmlDeviceGetHandleByIndex(1)
n.nvmlDeviceRegisterEvents(h, 8, s)
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from pathlib import Path
with Devices(Path({state!r})) as d:
    FAULTS['xid'].apply(d, Hit(gpu=1, value=79)); FAULTS['gpu_lost'].apply(d, Hit(gpu=3))
e = n.nvmlEventSetWait(s, 1000)
print(e.eventData, n.nvmlDeviceGetIndex(e.device))
for what in (lambda: n.nvmlEventSetWait(s, 0), lambda: n.nvmlDeviceGetHandleByIndex(3)):
    try: what()
    except n.NVMLError as error: print(error)
print(n.nvmlDeviceGetTemperature(n.nvmlDeviceGetHandleByIndex(4), 0))
""".format(state=str(folder / "state"))
    assert binding(folder, code).splitlines() == ["79 1", "Timeout", "GPU is lost", "41"]


def test_every_summary_says_that_it_is_emulated(folder):
    """Whatever a person looks at."""
    for argv in (("nvidia-smi",), ("nvidia-smi", "-L"), ("nvidia-smi", "-q"), ("dcgmi", "discovery", "-l"),
                 ("dcgmi", "health", "-c"), ("dcgmi", "diag", "-r", "1"), ("dcgmi", "--version")):  # fmt: skip
        assert "emulated" in run(folder, *argv).stdout.lower(), argv


def test_policy_violations_are_printed_as_they_come(folder):
    """`dcgmi policy --reg` waits, and tells of the next violation in the real tool's words."""
    argv = [folder / "bin" / "dcgmi", "policy", "-g", "0", "--reg"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={}) as listening:
        try:
            assert listening.stdout.readline() == "Listening for violations.\n"
            run(folder, "dcgmi", "test", "--inject", "--gpuid", "1", "-f", "202", "-v", "99999")
            assert listening.stdout.readline().startswith("Timestamp: ")
            assert listening.stdout.readline() == "A PCIe replay event has violated policy manager values.\n"
            assert listening.stdout.readline() == "PCIe replay count: 99999\n"
        finally:
            listening.kill()


def test_wrong_wishes_are_refused(folder):
    """A field that cannot be injected, a GPU that does not exist, a query that the real tool does not know."""
    assert "known:" in run(folder, "dcgmi", "test", "--inject", "--gpuid", "0", "-f", "1", "-v", "4").stdout
    assert "not 9" in run(folder, "dcgmi", "test", "--inject", "--gpuid", "9", "-f", "319", "-v", "4").stdout
    assert run(folder, "nvidia-smi", "--query-gpu=colour", "--format=csv").returncode == 2
    assert set(dcgmi.INJECTABLE) >= {150, 202, 230, 319, 409}


def test_without_a_compiler_one_sentence_says_so(tmp_path, monkeypatch):
    """Nothing half-built is left."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="need a C compiler"):
        devices.build()
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_no_state_is_refused(tmp_path):
    """Too short, or of another version."""
    for content in (b"short", bytes(ctypes.sizeof(layout.State))):
        (tmp_path / "state").write_bytes(content)
        with pytest.raises(ValueError, match="not a state of emulated GPUs"):
            Devices(tmp_path / "state")


def test_code_is_loaded_from_our_own_folder_only(tmp_path, monkeypatch):
    """Without a home the library is kept in the temporary folder: not in one that others may write to."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert devices.build().parent == tmp_path / f"holdfast-{os.getuid()}"
    (tmp_path / f"holdfast-{os.getuid()}").chmod(0o777)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        devices.build()
