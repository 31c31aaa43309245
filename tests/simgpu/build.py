"""Building the simulated libraries against the installed torch, into a cache outside the checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).parent
HEADERS = ("nvidia-cuda-crt", "nvidia-cuda-cccl")
"""Packages with the headers of CUDA that torch's own dependencies lack."""


class UnavailableError(Exception):
    """Simulated GPUs cannot be built here; the message says why."""


@cache
def built() -> Path:
    """Return the folder of the libraries, built before if these sources and this torch have not been.

    Raises:
        UnavailableError: there is no compiler, or torch is no CUDA 13 build.
        RuntimeError: they do not compile, or CUDA's headers cannot be installed.
    """
    if missing := [name for name in ("gcc", "g++") if shutil.which(name) is None]:
        raise UnavailableError(f"simulated GPUs are built with gcc and g++, and there is no {' and no '.join(missing)}")
    version = _cuda_13_torch()
    folder = _cache() / _key(version)
    if not (folder / "operators.so").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as place:
            _build(Path(place))
            _move(Path(place) / "out", folder)
    return folder


def _cuda_13_torch() -> str:
    """Return the version of the installed torch, read from its metadata, so that no GPU is touched."""
    version = metadata.version("torch")
    try:
        runtime = metadata.version("nvidia-cuda-runtime")  # which is CUDA 13's; older ones have a suffix, as in -cu12
    except metadata.PackageNotFoundError:
        runtime = "none"
    if not runtime.startswith("13."):
        raise UnavailableError(f"simulated GPUs stand in for CUDA 13, and torch {version} here is no build for it")
    return version


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampmeter-simgpu"


def _key(version: str) -> str:
    found = hashlib.sha256(version.encode())
    for path in sorted([*SOURCES.glob("native/*"), *SOURCES.glob("preload/*.py"), Path(__file__)]):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _move(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:  # another process has built the same meanwhile
        if not (folder / "operators.so").exists():
            raise


def _build(place: Path) -> None:
    out, native = place / "out", SOURCES / "native"
    out.mkdir()
    shutil.copytree(SOURCES / "preload", out / "preload", ignore=shutil.ignore_patterns("__pycache__"))
    site = Path(metadata.distribution("torch").locate_file(""))
    torch, cuda = site / "torch", [f"-I{site}/nvidia/cu13/include", f"-I{_headers(place)}/nvidia/cu13/include"]
    here = [f"-L{out}", "-l:libcudart.so.13"]

    for rest in ("driver", "nccl"):
        _run("gcc", "-O1", "-fPIC", "-c", native / f"unsupported_{rest}.c", "-o", place / f"{rest}.o")

    def library(name: str, source: str, *arguments: object) -> None:
        _run(
            "g++", "-O1", "-w", "-fPIC", "-shared", native / source, *arguments, "-o", out / name, f"-Wl,-soname,{name}"
        )

    library("libcudart.so.13", "runtime.cpp", "-std=c++17", *cuda, place / "driver.o", "-lpthread")
    # The driver's functions are in the runtime's library; this one has nothing but its name.
    (place / "empty.cpp").touch()
    library("libcuda.so.1", str(place / "empty.cpp"), "-Wl,--no-as-needed", *here)
    library("libnvidia-ml.so.1", "nvml.cpp", "-std=c++17")
    library("libnccl.so.2", "nccl.cpp", "-std=c++17", *cuda, f"-I{site}/nvidia/nccl/include", place / "nccl.o", *here)
    includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", *cuda]
    linked = [f"-L{torch}/lib", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", *here]
    library("operators.so", "operators.cpp", "-std=c++20", *includes, *linked)


def _headers(place: Path) -> Path:
    """Return a folder with CUDA's remaining headers, of the runtime's version, from the package index."""
    release = ".".join(metadata.version("nvidia-cuda-runtime").split(".")[:2])
    packages = [f"{name}=={release}.*" for name in HEADERS]
    _run(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target",
         place / "headers", *packages)  # fmt: skip
    return place / "headers"


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"simulated GPUs cannot be built: {' '.join(words)} failed: {done.stderr.strip()[-2000:]}")
