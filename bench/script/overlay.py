"""Redirects the files that a script writes to a folder of its own, and reads them from there.

The launcher copies this file beside the hook, which installs it in every Python process that a script starts. It sees
what goes through ``open``, ``os``, torch and safetensors, but neither other programs nor libraries that open files in
C++. For these, folders are made where the script asks for them; the launcher removes those that stay empty. Caches, in
hidden folders of the home folder and where ``CACHES`` say, are written as ever.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import shutil
import stat
from collections.abc import Callable
from functools import wraps
from typing import Any

CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
)
"""Variables that name folders of caches."""
SYSTEM = ("/dev", "/proc", "/sys")
READERS = ("stat", "lstat", "access", "readlink", "listxattr", "getxattr")
"""Functions of ``os`` that take a path first, and change nothing."""
ATTRIBUTES = ("chmod", "utime", "setxattr", "chown")
"""Those that change no contents: of the user's own files and folders they change nothing."""

_open, _lstat, _listdir, _scandir = builtins.open, os.lstat, os.listdir, os.scandir


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that puts a function, which gets the old one first, in the place of an attribute."""
    old = getattr(owner, name)

    def replace(wrapper: Callable[..., Any]) -> None:
        @wraps(old)
        def new(*args: Any, **kwargs: Any) -> Any:
            return wrapper(old, *args, **kwargs)

        setattr(owner, name, new)

    return replace


class Overlay:
    """Maps the paths that a script uses to those that hold their contents, its twins."""

    def __init__(self, home: str, refuse: Callable[[str], None]) -> None:
        """Prepare to redirect.

        Args:
            home: the launcher's folder for this process; what the script writes in it is not redirected.
            refuse: ends the process, with what it was about to do.
        """
        self.redirected = os.path.join(home, "redirected")
        self.made = os.path.join(home, "made")
        """The file with the folders that the script's processes have made, a line for each."""
        self.refuse = refuse
        _open(self.made, "a").close()
        here = os.path.join(os.getcwd(), "")
        left_alone = [os.path.join(folder, "") for folder in (home, *SYSTEM)]
        caches = [os.path.expanduser("~/.")]
        for name in CACHES:
            if os.environ.get(name):
                caches.append(os.path.join(os.path.abspath(os.environ[name]), ""))
        for start in caches:
            if not here.startswith(start):  # a script in a hidden folder writes no caches beside itself
                left_alone.append(start)
        self.left_alone = tuple(left_alone)

    def twin(self, path: Any) -> str:
        """Return the path that a file is redirected to; empty if it is written where the script says."""
        if not isinstance(path, str | bytes | os.PathLike):  # a descriptor, or an open file
            return ""
        text = os.path.abspath(os.fsdecode(path))
        return "" if text.startswith(self.left_alone) else self.redirected + text

    def reading(self, path: Any) -> Any:
        """Return the path to read: where the file is redirected to, if it is."""
        twin = self.twin(path)
        return twin if is_file(twin) else path

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

    def protect(self, path: Any, doing: str) -> None:
        """End the process before it changes what it has not made: each file that is not redirected is the user's."""
        if self.twin(path) and os.path.lexists(path) and not self.has_made(path):
            self.refuse(f"it was about to {doing} '{os.path.abspath(os.fsdecode(path))}'")

    def has_made(self, path: Any) -> bool:
        """Return whether the script has made a folder, or the one that something is in."""
        with _open(self.made) as file:
            folders = tuple(file.read().splitlines())
        return os.path.join(os.path.abspath(os.fsdecode(path)), "").startswith(folders)

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
        shutil.copyfileobj(old, new)


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function, which gets the old one first, in the place of one of ``os`` that takes a path."""

    @wrap(os, name)
    def _(old: Any, path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
        if isinstance(path, int):  # a descriptor
            return old(path, *args, **kwargs)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        return function(old, path, *args, **kwargs)


def install(overlay: Overlay) -> None:
    """Put functions in the places of Python's own that open, move and remove files."""
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # rmtree then lists folders by their paths

    @wrap(builtins, "open")
    def _(old: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if any(letter in mode for letter in "wax+"):
            file = overlay.writing(file, keep="w" not in mode)
        else:
            file = overlay.reading(file)
        return old(file, mode, *args, **kwargs)

    def opened(old: Any, path: Any, flags: int, *args: Any) -> Any:
        if flags & (os.O_WRONLY | os.O_RDWR):
            path = overlay.writing(path, keep=True)
        else:
            path = overlay.reading(path)
        return old(path, flags, *args)

    def removed(old: Any, path: Any) -> None:
        path = overlay.reading(path)
        overlay.protect(path, "remove")
        old(path)

    io.open = builtins.open
    replace("open", opened)
    replace("remove", removed)
    replace("unlink", removed)
    install_folders(overlay)
    install_moves(overlay)
    install_readers(overlay)


def install_folders(overlay: Overlay) -> None:
    """Put functions in the places of those that make and remove folders."""

    def made(old: Any, path: Any, *args: Any) -> None:
        old(path, *args)
        overlay.note_folder(path)

    def emptied(old: Any, path: Any) -> None:
        twin = overlay.twin(path)
        if os.path.isdir(twin):
            old(twin)  # which fails, as it should, if redirected files are in it
        if twin and not _listdir(path):  # else it fails, as os.removedirs expects
            overlay.protect(path, "remove")
        old(path)

    replace("mkdir", made)
    replace("rmdir", emptied)


def install_moves(overlay: Overlay) -> None:
    """Put functions in the places of those that rename and link; a copy stands for a link."""

    def moved(old: Any, source: Any, target: Any) -> None:
        twin, new_twin = overlay.twin(source), overlay.twin(target)
        source = overlay.reading(source)
        overlay.protect(source, "move")
        if not os.path.isdir(source):
            old(source, overlay.writing(target))
            return
        old(source, target)
        overlay.note_folder(target)
        if new_twin and os.path.isdir(twin):
            os.makedirs(os.path.dirname(new_twin), exist_ok=True)
            old(twin, new_twin)

    def linked(old: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        whole = os.path.join(os.path.dirname(os.path.abspath(target)), source)
        if not overlay.twin(target) or os.path.lexists(target):
            old(source, target, *args, **kwargs)
        elif not os.path.isdir(whole):  # of a folder, such as that of the latest run, none is made
            copy(overlay.reading(whole), overlay.writing(target))

    replace("rename", moved)
    replace("replace", moved)
    replace("symlink", linked)


def install_readers(overlay: Overlay) -> None:
    """Put functions in the places of those that look at files and folders."""

    def read(old: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return old(overlay.reading(path), *args, **kwargs)

    def changed(old: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        path = overlay.reading(path)
        if overlay.twin(path) and os.path.lexists(path):
            return None
        return old(path, *args, **kwargs)

    def scanned(old: Any, path: Any) -> Entries:
        twin = overlay.twin(path)
        entries = {entry.name: entry for entry in old(path)}
        if os.path.isdir(twin):
            for entry in old(twin):
                entries.setdefault(entry.name, entry)
        return Entries(entries.values())

    def listed(_old: Any, path: Any) -> list[Any]:
        return [entry.name for entry in scanned(_scandir, path)]

    for name in READERS:
        replace(name, read)
    for name in ATTRIBUTES:
        replace(name, changed)
    replace("listdir", listed)
    replace("scandir", scanned)


class Entries(itertools.chain[Any]):
    """What ``os.scandir`` returns, of two folders."""

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_error: object) -> None:
        pass
