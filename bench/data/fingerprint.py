"""What a folder of images holds, wherever it lies: the same on every machine that has the same files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench.data import folder

READ = 256
"""Images of each split whose bytes are read, evenly spaced; of all others the name and the size count."""


def of_folder(path: str) -> str:
    """Return 16 hex digits of a folder's images: their classes, names and sizes, and the bytes of some.

    The time of change does not count, for a copy has another one. An image that was replaced by another one of the
    same size, and is not among those read, is not seen.

    Raises:
        UsageError: the folder is not laid out as it must be.
        OSError: an image cannot be read.
    """
    root, found = Path(path), hashlib.sha256()
    for split, place in sorted(folder.find(root, need_test=False).items()):
        listing = folder.list_split(root, place)
        files = [Path(name) for name in listing.paths]
        for file in files:
            name = f"{split}\0{file.relative_to(place).as_posix()}\0{file.stat().st_size}\0"
            found.update(name.encode(errors="surrogateescape"))
        for file in files[:: max(1, len(files) // READ)]:
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]
