"""What `holdfast run` says of a job folder that it cannot use: whether what runs goes on."""

import pytest

from holdfast.launch.folder import TELL_S, FolderWatch


@pytest.mark.parametrize(("is_read", "said"), [(True, "what runs goes on, but"), (False, "what runs is killed when")])
def test_a_folder_that_cannot_be_read_promises_nothing(is_read, said, tmp_path):
    """The attempt lease lives on reading the folder: a removed one is not told as a full one is."""
    told: list[str] = []
    watch = FolderWatch(tmp_path / "job", told.append)
    watch.look("No such file or directory", 10.0, is_read=is_read)
    watch.look("No such file or directory", 10.0 + TELL_S, is_read=is_read)
    assert [said in text for text in told] == [True]
