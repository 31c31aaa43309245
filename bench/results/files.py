"""Files that are whole or absent, and known to have reached the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: str) -> None:
    """Replace a file: whoever reads it finds the old content or the new, also after a crash.

    Raises:
        OSError: it cannot be written; it names the file, and the old content is still there.
    """
    with replacing(path) as draft:
        draft.write_text(content, encoding="utf-8", errors="backslashreplace")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, of the same suffix, which then replaces a file.

    An error removes the draft.

    Raises:
        OSError: it cannot be written; it names the file, and the old content is still there.
    """
    draft = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        # Writing to an open file names none.
        if isinstance(error, OSError) and error.filename in (None, str(draft)):
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Some network file systems cannot do that, which is no error.

    Raises:
        OSError: it cannot be written; it names the file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)
