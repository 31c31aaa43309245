"""Files are replaced as a whole, or not at all."""

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from bench.results.files import sync, write_atomically


@pytest.mark.parametrize(
    ("owner", "call"), [(Path, "write_text"), (os, "fsync"), (Path, "replace")]
)
def test_a_file_is_replaced_and_what_fails_on_the_way_names_it_and_leaves_the_old_content(
    tmp_path, owner, call
):
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch.object(owner, call, side_effect=full),
        pytest.raises(OSError, match="No space") as failure,
    ):
        write_atomically(path, "new")
    assert failure.value.filename == str(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_a_folder_that_cannot_be_synchronised_is_named_unless_its_file_system_never_can(
    tmp_path, monkeypatch
):
    cannot = OSError(errno.EINVAL, "no")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=cannot))
    sync(tmp_path)
    cannot.errno = errno.EIO
    with pytest.raises(OSError, match="no") as failure:
        sync(tmp_path)
    assert failure.value.filename == str(tmp_path)
