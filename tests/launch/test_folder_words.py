"""What `holdfast run` says of a job folder that it cannot use: whether what runs goes on."""

import os

import pytest

from holdfast.launch import epoch
from holdfast.launch.folder import TELL_S, FolderWatch, unusable
from holdfast.os.files import locked


@pytest.mark.parametrize(("is_read", "said"), [(True, "what runs goes on, but"), (False, "what runs is killed when")])
def test_a_folder_that_cannot_be_read_promises_nothing(is_read, said, tmp_path):
    """The attempt lease lives on reading the folder: a removed one is not told as a full one is."""
    told: list[str] = []
    watch = FolderWatch(tmp_path / "job", told.append)
    watch.look("No such file or directory", 10.0, is_read=is_read)
    watch.look("No such file or directory", 10.0 + TELL_S, is_read=is_read)
    assert [said in text for text in told] == [True]


def test_another_launcher_that_holds_the_lock_of_the_epoch_is_named(tmp_path, monkeypatch):
    """Nothing is wrong with the folder: the file, its holder and what to do, and no advice to free space."""
    monkeypatch.setattr(epoch, "LOCK_S", 0.0)
    with locked(tmp_path / epoch.LOCK_FILE), pytest.raises(BlockingIOError) as held:
        epoch.raise_epoch(tmp_path, 2)
    said = str(unusable(tmp_path, held.value))
    assert said.startswith(
        f"another launcher holds {tmp_path}/.epoch.lock (pid {os.getpid()} on {os.uname().nodename})"
    )
    assert "nothing is lost; end that process or let it go on, then start the job again" in said
    assert "free space" not in said
    assert epoch.raise_epoch(tmp_path, 2) is None
