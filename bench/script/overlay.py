"""Redirects the files that a script writes to a folder of its own, and reads them from there.

The launcher copies this file beside the hook, which installs it in every Python process that a script starts. It sees
what goes through ``open``, ``os``, torch and safetensors, but neither other programs nor libraries that open files in
C++. For these, folders are made where the script asks for them; the launcher removes those that stay empty. Caches, in
hidden folders of the home folder and where ``CACHES`` say, are written as ever.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
)
"""Variables that name folders of caches."""
SYSTEM = ("/dev", "/proc", "/sys")
READERS = ("stat", "lstat", "statvfs", "access", "readlink", "listxattr", "getxattr")
"""Functions of ``os`` that take a path first, and change nothing."""
ATTRIBUTES = ("chmod", "utime", "setxattr", "chown")
"""Those that change no contents: of the user's own files and folders they change nothing."""

_open, _open_descriptor, _lstat = builtins.open, os.open, os.lstat
_mkdir, _rename, _remove, _symlink, _rmdir = os.mkdir, os.replace, os.remove, os.symlink, os.rmdir
_listdir, _scandir = os.listdir, os.scandir


class Overlay:
    """Maps the paths that a script uses to those that hold their contents."""

    def __init__(self, home: str, started_s: float, refuse: Callable[[str], None]) -> None:
        """Prepare to redirect.

        Args:
            home: the launcher's folder for this process; what the script writes in it is not redirected.
            started_s: when the launcher started the script, seconds since 1970. Files that are older are the user's.
            refuse: ends the process, with what it was about to do.
        """
        self.redirected, self.made = os.path.join(home, "redirected"), os.path.join(home, "made")
        self.started_s, self.refuse = started_s, refuse
        caches = [os.path.join(os.path.abspath(os.environ[name]), "") for name in CACHES if os.environ.get(name)]
        here = os.path.join(os.getcwd(), "")
        caches = [start for start in (os.path.expanduser("~/."), *caches) if not here.startswith(start)]
        self.left_alone = (*(os.path.join(folder, "") for folder in (home, *SYSTEM)), *caches)

    def twin(self, path: Any, dir_fd: int | None = None) -> str:
        """Return the path that a file is redirected to; empty if it is written where the script says."""
        if not isinstance(path, str | bytes | os.PathLike):  # a descriptor, or an open file
            return ""
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.abspath(text)
        return "" if text.startswith(self.left_alone) else self.redirected + text

    def reading(self, path: Any, dir_fd: int | None = None) -> Any:
        """Return the path to read: where the file is redirected to, if it is."""
        twin = self.twin(path, dir_fd)
        return twin if twin and is_file(twin) else path

    def writing(self, path: Any, *, keep: bool = False) -> Any:
        """Return the path to write; with ``keep`` the user's file is copied there before it is changed.

        Without a folder for it this is the script's own path, so that writing fails as it would.
        """
        twin = self.twin(path)
        if not twin or not os.path.isdir(os.path.dirname(os.path.abspath(os.fsdecode(path)))):
            return path
        os.makedirs(os.path.dirname(twin), exist_ok=True)
        if keep and is_file(path) and not is_file(twin):
            copy(path, twin)
        return twin

    def is_users(self, path: Any, dir_fd: int | None = None) -> bool:
        """Return whether a file was there before the script was started, or a folder that it has not made."""
        twin = self.twin(path, dir_fd)
        if not twin:
            return False
        try:
            state = _lstat(path, dir_fd=dir_fd)
        except OSError:  # there is none
            return False
        if not stat.S_ISDIR(state.st_mode):
            return state.st_ctime < self.started_s
        # The time of a folder changes with each entry, so it does not tell who made it.
        try:
            with _open(self.made) as file:
                made = tuple(file.read().splitlines())
        except OSError:
            return True
        return not os.path.join(twin.removeprefix(self.redirected), "").startswith(made)

    def protect(self, path: Any, doing: str, dir_fd: int | None = None) -> None:
        """End the process before it changes the user's own file."""
        if self.is_users(path, dir_fd):
            twin = self.twin(path, dir_fd)
            self.refuse(f"it was about to {doing} '{twin.removeprefix(self.redirected)}'")

    def move(self, source: Any, target: Any) -> None:
        """Rename a file or a folder, of the script's or redirected, with what is redirected inside."""
        twin, new_twin = self.twin(source), self.twin(target)
        if twin and is_file(twin):
            source = twin
        else:
            self.protect(source, "move")
        if os.path.isdir(source):
            self.protect(target, "replace")
            _rename(source, target)
            self.note_folder(target)
            if twin and new_twin and os.path.isdir(twin):
                os.makedirs(os.path.dirname(new_twin), exist_ok=True)
                _rename(twin, new_twin)
            return
        target = self.writing(target)
        try:
            _rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:  # the folder of redirected files may be on another file system
                raise
            copy(source, target)
            _remove(source)

    def note_folder(self, path: Any) -> None:
        """Let the launcher remove a folder, if it is empty at the end."""
        if self.twin(path):
            with _open(self.made, "a") as file:
                file.write(os.path.join(os.path.abspath(os.fsdecode(path)), "\n"))


def is_file(path: Any) -> bool:
    """Return whether there is a file at just this path."""
    try:
        return not stat.S_ISDIR(_lstat(path).st_mode)
    except OSError:
        return False


def copy(source: Any, target: str) -> None:
    """Copy the contents of a file."""
    with _open(source, "rb") as old, _open(target, "wb") as new:
        while part := old.read(2**20):
            new.write(part)


def install(overlay: Overlay) -> None:
    """Put functions in the places of Python's own that open, move and remove files."""

    @wraps(_open)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is None:  # which opens a path of its own, as that of a temporary file does
            changes = any(letter in mode for letter in "wax+")
            file = overlay.writing(file, keep="w" not in mode) if changes else overlay.reading(file)
        return _open(file, mode, *args, **kwargs)

    builtins.open = io.open = opened
    install_readers(overlay)
    install_links(overlay)

    def made(path: Any, *args: Any, **kwargs: Any) -> None:
        _mkdir(path, *args, **kwargs)
        overlay.note_folder(path)

    def removed(path: Any, *, dir_fd: int | None = None) -> None:
        twin = overlay.twin(path, dir_fd)
        if twin and is_file(twin):
            _remove(twin)
            return
        overlay.protect(path, "remove", dir_fd)
        _remove(path, dir_fd=dir_fd)

    def emptied(path: Any, *, dir_fd: int | None = None) -> None:
        import shutil

        twin = overlay.twin(path, dir_fd)
        if twin and not _listdir(twin.removeprefix(overlay.redirected)):  # else it fails, as os.removedirs expects
            overlay.protect(path, "remove", dir_fd)
        _rmdir(path, dir_fd=dir_fd)
        if twin:  # a listing by descriptor, such as rmtree's, has not shown what was redirected into it
            shutil.rmtree(twin, ignore_errors=True)

    def moved(src: Any, dst: Any, **kwargs: Any) -> None:
        if kwargs:  # folders' descriptors
            overlay.refuse(f"it was about to move '{os.fsdecode(src)}'")
        overlay.move(src, dst)

    def opened_descriptor(path: Any, flags: int, *args: Any, dir_fd: int | None = None) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            path = overlay.reading(path, dir_fd)
        elif dir_fd is not None:
            overlay.protect(path, "overwrite", dir_fd)
        elif not flags & os.O_DIRECTORY:  # O_TMPFILE has it: a file without a name in a folder
            path = overlay.writing(path, keep=True)
        return _open_descriptor(path, flags, *args, dir_fd=dir_fd)

    def truncated(path: Any, length: int) -> None:
        if isinstance(path, int):
            os.ftruncate(path, length)
        else:
            with opened(path, "r+b") as file:
                file.truncate(length)

    replacements: dict[str, Callable[..., Any]] = {
        "mkdir": made,
        "rmdir": emptied,
        "open": opened_descriptor,
        "truncate": truncated,
        "remove": removed,
        "unlink": removed,
        "rename": moved,
        "replace": moved,
    }
    for name, function in replacements.items():
        replace(name, function)


def install_links(overlay: Overlay) -> None:
    """Put functions in the places of those that make links."""

    def linked(src: Any, dst: Any, **_options: Any) -> None:
        if os.path.lexists(dst):
            raise FileExistsError(errno.EEXIST, "File exists", dst)
        copy(overlay.reading(src), overlay.writing(dst))  # what is written through a link would change the user's

    def symlinked(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("dir_fd") is not None:
            overlay.refuse(f"it was about to link '{os.fsdecode(dst)}'")
        target = os.path.join(os.path.dirname(os.path.abspath(os.fsdecode(dst))), os.fsdecode(src))
        found = overlay.twin(target)
        _symlink(found if os.path.lexists(found) else target, overlay.writing(dst), *args)

    replace("link", linked)
    replace("symlink", symlinked)


def install_readers(overlay: Overlay) -> None:
    """Put functions in the places of those that look at files and folders."""

    def scanned(path: Any = ".") -> Entries:
        twin = overlay.twin(path)
        is_redirected = os.path.isdir(twin) and not isinstance(path, bytes)
        entries: dict[Any, Any] = {}
        for folder in [path, twin] if is_redirected else [path]:
            for entry in _scandir(folder):
                entries.setdefault(entry.name, entry)
        return Entries(entries.values())

    def listed(path: Any = ".") -> list[Any]:
        return [entry.name for entry in scanned(path)]

    for name in (*READERS, *ATTRIBUTES):
        if hasattr(os, name):
            replace(name, reader(overlay, getattr(os, name), changes=name in ATTRIBUTES))
    replace("listdir", listed)
    replace("scandir", scanned)


def reader(overlay: Overlay, old: Any, *, changes: bool = False) -> Callable[..., Any]:
    """Return a function of ``os`` that looks at a redirected file where it is, and ``changes`` none of the user's."""

    def read(path: Any, *args: Any, **kwargs: Any) -> Any:
        twin = overlay.twin(path, kwargs.get("dir_fd"))
        if twin and is_file(twin):
            path = twin
        elif changes and overlay.is_users(path, kwargs.get("dir_fd")):
            return None
        return old(path, *args, **kwargs)

    return read


class Entries:
    """What ``os.scandir`` returns, of two folders."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of ``os``."""
    setattr(os, name, wraps(getattr(os, name))(function))
