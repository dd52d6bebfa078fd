"""What an agent knows of its node: PCI addresses in all their spellings, and facts from files."""

import time
from pathlib import Path

import pytest

from holdfast.agent.node_facts import GpuTable, driver_gpus, read_embedded, read_machine
from holdfast.detect.xid import pci_address
from holdfast.errors import ConfigError
from holdfast.model.evidence import Place


@pytest.mark.parametrize(
    "text",
    ["0000:b9:00", "0000:B9:00.0", "00000000:B9:00.0", "b9:00", "b9:00.0", " 0000:b9:00 "],
)
def test_one_address_in_all_its_spellings(text: str) -> None:
    """Domain, function, case and digits of the domain do not tell GPUs apart."""
    assert pci_address(text) == "0000:b9:00"


@pytest.mark.parametrize("text", ["", "GPU-1234", "b9", "0000:b9", "zz:00:00", "0000:b9:00:00"])
def test_what_is_no_address_is_said_so(text: str) -> None:
    """Anything else gives an empty string."""
    assert pci_address(text) == ""


def test_domains_tell_gpus_apart() -> None:
    """The same bus in another PCI domain is another GPU."""
    assert pci_address("0008:06:00") != pci_address("0000:06:00")


def test_a_place_gets_its_gpu_index() -> None:
    """By address; an index that is known already and an unknown address stay as they are."""
    table = GpuTable({"0000:53:00": 0, "00000000:B9:00.0": 6})
    assert table.located(Place(node="n", gpu_id="PCI:b9".removeprefix("PCI:") + ":00")).gpu == 6
    assert table.located(Place(node="n", gpu_id="0000:b9:00", gpu=3)).gpu == 3
    assert table.located(Place(node="n", gpu_id="0000:01:00")).gpu is None
    assert table.located(Place(node="n")).gpu is None


def test_the_drivers_folder_gives_nvmls_numbering(tmp_path: Path) -> None:
    """GPUs are numbered in ascending order of their PCI addresses; no driver, no GPUs."""
    for name in ("0000:b9:00.0", "0000:53:00.0", "0000:ca:00.0"):
        (tmp_path / name).mkdir()
    assert driver_gpus(tmp_path) == {"0000:53:00": 0, "0000:b9:00": 1, "0000:ca:00": 2}
    assert driver_gpus(tmp_path / "absent") == {}


def test_a_broken_node_file_is_named(tmp_path: Path) -> None:
    """Missing and malformed node.json are one sentence with the file's path."""
    with pytest.raises(ConfigError, match=r"node\.json: cannot be read"):
        read_embedded(tmp_path)
    (tmp_path / "node.json").write_text('{"name": 7}')
    with pytest.raises(ConfigError, match=r"node\.json: .*\$\.name"):
        read_embedded(tmp_path)


def test_the_real_machine_has_a_boot_id() -> None:
    """The kernel's boot id and the given name."""
    identity, _ = read_machine("here")
    assert identity.name == "here"
    assert len(identity.boot_id) == 36
    assert 0 < identity.booted_at <= time.time()
