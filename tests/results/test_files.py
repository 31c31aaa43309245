"""Files are replaced as a whole, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from bench.results.files import sync, write_atomically


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_file_is_replaced_and_what_fails_on_the_way_names_it_and_leaves_the_old_content(
    tmp_path, monkeypatch, call
):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "run.json"
    write_atomically(path, "old")
    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, {"write": "write_text"}.get(call, call), fail)
    with pytest.raises(OSError, match="No space") as failure:
        write_atomically(path, "new")
    assert failure.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_synchronised_is_named_unless_its_file_system_never_can(
    tmp_path, monkeypatch
):
    def fail(number):
        def sync_fails(_):
            raise OSError(number, "no")

        monkeypatch.setattr(os, "fsync", sync_fails)

    fail(errno.EINVAL)
    sync(tmp_path)
    fail(errno.EIO)
    with pytest.raises(OSError, match="no") as failure:
        sync(tmp_path)
    assert failure.value.filename == str(tmp_path)
