"""Stubs of functions of CUDA, the driver, NVML, NCCL and CUPTI that nobody wrote and torch wants.

The lists are read from the symbol tables of the installed libraries, so a torch newer than the
simulation loads.
"""

import mmap
import re
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """A library that is stood in for."""

    stem: str
    """Its file's name up to the first dot; the rest differs by version and package."""
    names: str
    """How its functions are called, as a regular expression without groups."""
    unsupported: int
    """Its own error code for a call that is not supported."""
    by_name: bool = False
    """Whether torch looks its functions up by their names as it runs, too."""


RUNTIME = Library("libcudart", r"(?:__)?cuda[A-Z]\w*", 801)
DRIVER = Library("libcuda", r"cu[A-Z]\w*", 801, by_name=True)
NVML = Library("libnvidia-ml", r"nvml[A-Z]\w*", 3)
NCCL = Library("libnccl", r"p?nccl[A-Z]\w*", 5)
"""NCCL has no such code; this is ncclInvalidUsage."""
CUPTI = Library("libcupti", r"cupti[A-Z]\w*", 27)
"""All of it is stubs: the real one recurses without end on a driver that it cannot look into."""
LIBRARIES = (RUNTIME, DRIVER, NVML, NCCL, CUPTI)


def symbols(files: Iterable[Path], *options: str) -> set[str]:
    """Return the symbols that nm lists of files, without their versions.

    Args:
        files: libraries and object files; what nm cannot read has none.
        options: nm's, such as ``--undefined-only`` and ``--dynamic``. Weak symbols, which may stay
            undefined, are left out.
    """
    command = ["nm", *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names = re.findall(r" [A-Za-uxyz] ([^@\s]+)", done.stdout)  # U cudaMalloc@libcudart.so.13
    return set(names)


def wanted(files: Collection[Path], library: Library) -> set[str]:
    """Return the functions of a library that other libraries want and that none of them has.

    Args:
        files: the installed libraries; those that are stood in for, under whatever version, do not
            count.
        library: the one that is stood in for.
    """
    replaced = {each.stem for each in LIBRARIES}
    others = []
    for file in files:
        stem, *_ = file.name.split(".")
        if stem not in replaced:
            others.append(file)
    names = symbols(others, "--dynamic", "--undefined-only")
    if library.by_name:
        for file in others:
            if file.name.startswith(("libtorch", "libc10")):
                names |= _texts(file, library)
    names -= symbols(others, "--dynamic", "--defined-only")
    pattern = re.compile(library.names)
    return set(filter(pattern.fullmatch, names))


def _texts(file: Path, library: Library) -> set[str]:
    """Return the names of a library's functions that a file holds as texts, to look them up by."""
    name = re.compile(rb"(?<=\0)%b(?=\0)" % library.names.encode())
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        texts = name.findall(content)
    return {text.decode() for text in texts}


def source(library: Library, names: Iterable[str]) -> str:
    """Return C code with a stub of each function, which logs its name and returns the error."""
    is_runtime = int(library is RUNTIME)
    error = library.unsupported
    code = "void simgpu_unsupported(const char*, int);\n"
    for name in sorted(names):
        call = f'simgpu_unsupported("{name}", {is_runtime})'
        code += f"int {name}() {{ {call}; return {error}; }}\n"
    return code
