"""Builds the simulated libraries against the installed torch, into a cache outside the checkout."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.simgpu import stubs

SOURCES = Path(__file__).parent
RUNTIMES = {"13": "nvidia-cuda-runtime", "12": "nvidia-cuda-runtime-cu12"}
"""By CUDA's major version: the package of its runtime that torch depends on."""
HEADERS = {
    "13": ("nvidia-cuda-crt", "nvidia-cuda-cccl"),
    "12": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"),
}
"""The packages with the headers of CUDA that torch's own dependencies lack."""
OBJECT = ("-O1", "-w", "-fPIC", "-c")


class UnavailableError(Exception):
    """Simulated GPUs cannot be built here; the message says why."""


@cache
def built() -> Path:
    """Return the folder of the libraries for this torch, built before if need be.

    Raises:
        UnavailableError: there is no compiler, or torch is no build for CUDA 12 or 13.
        RuntimeError: they do not compile, or CUDA's headers cannot be installed.
    """
    for tool in ("gcc", "g++", "nm"):
        if shutil.which(tool) is None:
            raise UnavailableError(
                f"simulated GPUs are built with gcc, g++ and nm, and there is no {tool}"
            )
    _cuda()
    folder = _cache() / _key()
    if not (folder / "operators.so").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as temporary:
            place = Path(temporary)
            _build(place)
            _move(place / "out", folder)
    return folder


def preloaded() -> tuple[str, ...]:
    """Return the names of libraries that torch would find elsewhere, as ``libcudart.so.13``.

    Raises:
        UnavailableError: torch is no build for CUDA 12 or 13.
    """
    major, _ = _cuda()
    return f"libcudart.so.{major}", "libnccl.so.2", f"libcupti.so.{major}"


def _cuda() -> tuple[str, str]:
    """Return CUDA's major and minor version, from the metadata of packages: no GPU is touched."""
    for major, package in RUNTIMES.items():
        with suppress(metadata.PackageNotFoundError):
            installed, minor, *_ = metadata.version(package).split(".")
            if installed == major:
                return major, minor
    torch = metadata.version("torch")
    raise UnavailableError(
        f"simulated GPUs stand in for CUDA 12 and 13, and torch {torch} here is no build for them"
    )


def _cache() -> Path:
    usual = Path.home() / ".cache"
    cache = os.environ.get("XDG_CACHE_HOME") or usual
    return Path(cache, "ampmeter-simgpu")


def _key() -> str:
    version = f"{metadata.version('torch')} {sys.version_info[:2]}"
    digest = hashlib.blake2b(version.encode())
    for pattern in ("native/*", "preload/*.py", "build.py", "stubs.py"):
        for path in sorted(SOURCES.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _move(fresh: Path, folder: Path) -> None:
    try:
        fresh.rename(folder)
    except OSError:  # another process has built the same meanwhile
        if not (folder / "operators.so").exists():
            raise


def _site() -> Path:
    """Return the folder that torch is installed in."""
    return Path(metadata.distribution("torch").locate_file(""))


def _build(place: Path) -> None:
    major, _ = _cuda()
    out = place / "out"
    preload = out / "preload"
    preload.mkdir(parents=True)
    shutil.copy(SOURCES / "preload" / "sitecustomize.py", preload)
    torch = _site() / "torch"
    headers = [
        torch / "include",
        torch / "include/torch/csrc/api/include",
        *_site().glob("nvidia/*/include"),
        *_headers(place).glob("nvidia/*/include"),
    ]
    includes = [f"-I{folder}" for folder in headers]
    installed = installed_libraries()

    def library(name: str, stem: str, linked: list[str], *kinds: stubs.Library) -> None:
        """Compile and link a library that stands in for some kinds, with stubs of the rest."""
        objects = [place / f"{stem}.o"]
        source = SOURCES / "native" / f"{stem}.cpp"
        options = ["-std=c++20", _strings(torch), *includes]
        _run("g++", *OBJECT, source, "-o", *objects, *options)
        written = stubs.symbols(objects, "--defined-only")
        for kind in kinds:
            code = place / f"{kind.stem}.c"
            compiled = code.with_suffix(".o")
            missing = stubs.wanted(installed, kind) - written
            code.write_text(stubs.source(kind, missing))
            _run("gcc", *OBJECT, code, "-o", compiled)
            objects.append(compiled)
        _run("g++", "-shared", *objects, *linked, "-o", out / name, f"-Wl,-soname,{name}")

    runtime = f"libcudart.so.{major}"
    library(runtime, "runtime", ["-lpthread"], stubs.RUNTIME, stubs.DRIVER)
    linked = ["-Wl,--no-as-needed", f"-L{out}", f"-l:{runtime}"]
    library("libcuda.so.1", "driver", linked)
    library("libnvidia-ml.so.1", "nvml", linked, stubs.NVML)
    library("libnccl.so.2", "nccl", linked, stubs.NCCL)
    library(f"libcupti.so.{major}", "cupti", linked, stubs.CUPTI)
    of_torch = ["-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"]
    library("operators.so", "operators", [f"-L{torch}/lib", *of_torch, *linked])


def _strings(torch: Path) -> str:
    """Return the option that makes std::string what torch was compiled with."""
    for name in stubs.symbols([torch / "lib" / "libc10.so"], "--dynamic", "--defined-only"):
        if name.startswith("_ZN3c10") and "cxx11" in name:
            return "-D_GLIBCXX_USE_CXX11_ABI=1"
    return "-D_GLIBCXX_USE_CXX11_ABI=0"


def installed_libraries() -> list[Path]:
    """Return the libraries of torch, torchvision and NVIDIA's packages."""
    paths: set[Path] = set()
    for pattern in (
        "torch/**/*.so*",
        "torchvision/**/*.so*",
        "torch*.libs/*.so*",
        "nvidia/**/*.so*",
    ):
        paths.update(_site().glob(pattern))
    return sorted(filter(Path.is_file, paths))


def _headers(place: Path) -> Path:
    """Return a folder with CUDA's remaining headers, from the package index."""
    folder = place / "headers"
    major, minor = _cuda()  # the runtime's
    packages = [f"{name}=={major}.{minor}.*" for name in HEADERS[major]]
    pip = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, "--no-deps", "--target", folder, *packages)
    return folder


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"simulated GPUs cannot be built: {' '.join(words)} failed: "
            f"{done.stderr.strip()[-2000:]}"
        )
