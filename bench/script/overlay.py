"""Redirects the files that a script writes to a folder of its own, and reads them from there.

The launcher copies this file beside the hook, which installs it in every Python process that a
script starts. It sees what goes through ``open``, ``os``, torch and safetensors, but neither other
programs nor libraries that open files in C++. For these, folders are made where the script asks for
them; the launcher removes those that stay empty. Caches, in hidden folders of the home folder and
where ``CACHES`` say, are written as ever.
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

# Variables that name folders of caches.
CACHES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
)
SYSTEM = ("/dev", "/proc", "/sys")
# Functions of ``os`` that take a path first, and change nothing.
READERS = ("stat", "lstat", "access", "readlink", "listxattr", "getxattr")
# Those that change no contents: of the user's own files and folders they change nothing.
ATTRIBUTES = ("chmod", "utime", "setxattr", "chown")

_open, _lstat, _scandir = builtins.open, os.lstat, os.scandir


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that puts a function in the place of an attribute.

    The function gets the old one as its first argument.
    """
    old = getattr(owner, name)

    def replace(wrapper: Callable[..., Any]) -> None:
        @wraps(old)
        def new(*args, **kwargs):
            return wrapper(old, *args, **kwargs)

        setattr(owner, name, new)

    return replace


class Overlay:
    """Maps the paths that a script uses to those that hold their contents, its twins."""

    def __init__(self, home: str, refuse: Callable[[str], None]) -> None:
        """Prepare to redirect.

        Args:
            home: the launcher's folder for this process; what the script writes in it is not
                redirected.
            refuse: ends the process, with what it was about to do.
        """
        self.redirected = os.path.join(home, "redirected")
        self.made = os.path.join(home, "made")
        """The file with the folders that the script's processes have made, which the launcher
        removes if empty."""
        self.refuse = refuse
        here = os.path.join(os.getcwd(), "")
        left_alone = [os.path.join(folder, "") for folder in (home, *SYSTEM)]
        caches = [os.path.expanduser("~/.")]
        for name in CACHES:
            if os.environ.get(name):
                caches.append(os.path.join(os.path.abspath(os.environ[name]), ""))
        # A script in a hidden folder writes no caches beside itself.
        left_alone += [start for start in caches if not here.startswith(start)]
        self.left_alone = tuple(left_alone)

    def twin(self, path: Any) -> str:
        """Return the path that a file is redirected to.

        It is empty if the file is written where the script says.
        """
        if not isinstance(path, str | bytes | os.PathLike):  # a descriptor, or an open file
            return ""
        text = os.path.abspath(os.fsdecode(path))
        return "" if text.startswith(self.left_alone) else self.redirected + text

    def reading(self, path: Any) -> Any:
        """Return the path to read: where the file is redirected to, if it is."""
        twin = self.twin(path)
        return twin if is_file(twin) else path

    def writing(self, path: Any, *, keep: bool = False) -> Any:
        """Return the path to write; with ``keep`` the user's file is copied there before.

        Without a folder for it this is the script's own path, so that writing fails as it would.
        """
        twin = self.twin(path)
        if not twin or not os.path.isdir(os.path.dirname(os.path.abspath(os.fsdecode(path)))):
            return path
        os.makedirs(os.path.dirname(twin), exist_ok=True)
        if keep and is_file(path) and not is_file(twin):
            shutil.copyfile(path, twin)
        return twin

    def protect(self, path: Any, doing: str) -> None:
        """End the process before it changes the user's own: each file that is not redirected is."""
        if self.twin(path) and os.path.lexists(path):
            self.refuse(f"it was about to {doing} '{os.path.abspath(os.fsdecode(path))}'")


def is_file(path: Any) -> bool:
    """Return whether there is a file at just this path."""
    try:
        return not stat.S_ISDIR(_lstat(path).st_mode)
    except OSError:
        return False


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of ``os`` that takes a path first, as ``wrap`` does."""

    @wrap(os, name)
    def _(old, path=".", *args, dir_fd=None, **kwargs):
        if isinstance(path, int):  # a descriptor
            return old(path, *args, **kwargs)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        return function(old, path, *args, **kwargs)


def install(overlay: Overlay) -> None:
    """Put functions in the places of Python's own that open, move, remove and look at files."""
    install_openers(overlay)
    install_movers(overlay)
    install_readers(overlay)


def install_openers(overlay: Overlay) -> None:
    """Put functions in the places of those that open files."""

    @wrap(builtins, "open")
    def _(old, file, mode="r", *args, **kwargs):
        if set(mode) & set("wax+"):
            file = overlay.writing(file, keep="w" not in mode)
        else:
            file = overlay.reading(file)
        return old(file, mode, *args, **kwargs)

    def opened(old, path, flags, *args, **kwargs):
        changes = flags & (os.O_WRONLY | os.O_RDWR)
        path = overlay.writing(path, keep=True) if changes else overlay.reading(path)
        return old(path, flags, *args, **kwargs)

    io.open = builtins.open
    replace("open", opened)


def list_by_paths(own: Any) -> None:
    """Let rmtree list folders by their paths, which are redirected, and not by descriptors.

    Args:
        own: the module ``shutil``.
    """
    own._use_fd_functions = False
    if hasattr(own, "_rmtree_impl"):  # from Python 3.14 on, chosen when shutil is imported
        own._rmtree_impl = own._rmtree_unsafe


def install_movers(overlay: Overlay) -> None:
    """Put functions in the places of those that make, move and remove files and folders."""
    list_by_paths(shutil)

    def removed(old, path):
        path = overlay.reading(path)
        overlay.protect(path, "remove")
        old(path)

    def moved(old, source, target):
        source = overlay.reading(source)
        overlay.protect(source, "move")
        old(source, overlay.writing(target))

    def linked(old, source, target, *args, **kwargs):
        whole = os.path.join(os.path.dirname(os.path.abspath(target)), source)
        if not overlay.twin(target) or os.path.lexists(target):
            old(source, target, *args, **kwargs)
        elif not os.path.isdir(whole):
            # A copy: what is written through a link would change the user's file.
            shutil.copyfile(overlay.reading(whole), overlay.writing(target))

    def made(old, path, *args, **kwargs):
        old(path, *args, **kwargs)
        if overlay.twin(path):
            with _open(overlay.made, "a") as file:
                file.write(os.path.join(os.path.abspath(os.fsdecode(path)), "\n"))

    def emptied(old, path):
        twin = overlay.twin(path)
        if os.path.isdir(twin):
            old(twin)  # which fails, as it should, if redirected files are in it
        old(path)

    replace("remove", removed)
    replace("unlink", removed)
    replace("rename", moved)
    replace("replace", moved)
    replace("symlink", linked)
    replace("mkdir", made)
    replace("rmdir", emptied)


def install_readers(overlay: Overlay) -> None:
    """Put functions in the places of those that look at files and folders."""

    def read(old, path, *args, **kwargs):
        return old(overlay.reading(path), *args, **kwargs)

    def changed(old, path, *args, **kwargs):
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

    def listed(_old, path):
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
