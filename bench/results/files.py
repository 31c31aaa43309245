"""Files that are whole or absent, and known to have reached the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file: whoever reads it finds the old content or the new, also after a crash.

    Raises:
        OSError: it cannot be written; it names the file, and the old content is still there.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with replacing(path) as draft:
        draft.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft to write, of the same suffix, which then replaces a file; an error removes it.

    Raises:
        OSError: it cannot be written; it names the file, and the old content is still there.
    """
    draft = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        try:
            yield draft
            sync(draft)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        if error.filename is None or error.filename == str(draft):  # writing to an open file names none
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Wait until what a file or a folder holds is on the disk.

    Raises:
        OSError: it cannot be written; it names the file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk; some network file systems cannot, and keep them in their own way."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
