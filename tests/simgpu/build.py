"""Builds the simulated libraries against the installed torch, into a cache outside the checkout."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
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


class UnavailableError(Exception):
    """Simulated GPUs cannot be built here; the message says why."""


@cache
def built() -> Path:
    """Return the folder of the libraries for this torch, built before if need be.

    Raises:
        UnavailableError: there is no compiler, or torch is no build for CUDA 12 or 13.
        RuntimeError: they do not compile, or CUDA's headers cannot be installed.
    """
    if missing := [name for name in ("gcc", "g++", "nm") if shutil.which(name) is None]:
        raise UnavailableError(
            "simulated GPUs are built with gcc, g++ and nm, and there is no "
            f"{' and no '.join(missing)}"
        )
    major, _ = _cuda()
    folder = _cache() / _key(metadata.version("torch"))
    if not (folder / "operators.so").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as place:
            _build(Path(place), major)
            _move(Path(place) / "out", folder)
    return folder


def preloaded() -> tuple[str, ...]:
    """Return the names of libraries that torch would find elsewhere, as ``libcudart.so.13``.

    Raises:
        UnavailableError: torch is no build for CUDA 12 or 13.
    """
    major = _cuda()[0]
    return f"libcudart.so.{major}", "libnccl.so.2", f"libcupti.so.{major}"


def _cuda() -> tuple[str, str]:
    """Return CUDA's major and full version, from the metadata of packages: no GPU is touched."""
    for major, package in RUNTIMES.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if version.startswith(f"{major}."):
            return major, version
    torch = metadata.version("torch")
    raise UnavailableError(
        f"simulated GPUs stand in for CUDA 12 and 13, and torch {torch} here is no build for them"
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampmeter-simgpu"


def _key(version: str) -> str:
    digest = hashlib.blake2b(f"{version} {sys.version_info[:2]}".encode())
    paths = [*SOURCES.glob("native/*"), *SOURCES.glob("preload/*.py")]
    for path in sorted([*paths, Path(stubs.__file__), Path(__file__)]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _move(fresh: Path, folder: Path) -> None:
    try:
        fresh.rename(folder)
    except OSError:  # another process has built the same meanwhile
        if not (folder / "operators.so").exists():
            raise


def _build(place: Path, major: str) -> None:
    out, native = place / "out", SOURCES / "native"
    out.mkdir()
    shutil.copytree(
        SOURCES / "preload", out / "preload", ignore=shutil.ignore_patterns("__pycache__")
    )
    site = Path(metadata.distribution("torch").locate_file(""))
    torch = site / "torch"
    cuda = [f"-I{folder}" for folder in (*_includes(site), *_includes(_headers(place, major)))]
    runtime = f"libcudart.so.{major}"
    linked = ["-Wl,--no-as-needed", f"-L{out}", f"-l:{runtime}"]
    installed = installed_libraries(site)

    def library(
        name: str, source: Path, compiled: list[str], linked: list[str], *kinds: stubs.Library
    ) -> None:
        """Compile and link a library that stands in for some kinds, with stubs of the rest."""
        objects = [place / f"{source.stem}.o"]
        _run("g++", "-O1", "-w", "-fPIC", "-c", source, *compiled, "-o", objects[0])
        written = stubs.symbols(objects, "--defined-only")
        for kind in kinds:
            code = place / f"{kind.stem}.c"
            code.write_text(stubs.source(kind, stubs.wanted(installed, kind) - written))
            objects.append(code.with_suffix(".o"))
            _run("gcc", "-O1", "-w", "-fPIC", "-c", code, "-o", objects[-1])
        _run("g++", "-shared", *objects, *linked, "-o", out / name, f"-Wl,-soname,{name}")

    # The driver's functions are in the runtime's library; the driver's has nothing but its name.
    runtime_source = native / "runtime.cpp"
    library(
        runtime, runtime_source, ["-std=c++17", *cuda], ["-lpthread"], stubs.RUNTIME, stubs.DRIVER
    )
    (place / "empty.cpp").touch()
    library("libcuda.so.1", place / "empty.cpp", [], linked)
    library("libnvidia-ml.so.1", native / "nvml.cpp", ["-std=c++17"], linked, stubs.NVML)
    library("libnccl.so.2", native / "nccl.cpp", ["-std=c++17", *cuda], linked, stubs.NCCL)
    functions = stubs.symbols([torch / "lib/libc10.so"], "--dynamic", "--defined-only")
    abi = any(name.startswith("_ZN3c10") and "cxx11" in name for name in functions)
    strings = f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}"  # std::string as torch was compiled with it
    library(f"libcupti.so.{major}", native / "cupti.cpp", [], linked, stubs.CUPTI)
    includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", *cuda, strings]
    with_torch = [f"-L{torch}/lib", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", *linked]
    library("operators.so", native / "operators.cpp", ["-std=c++20", *includes], with_torch)


def installed_libraries(site: Path) -> list[Path]:
    """Return the libraries of torch, torchvision and NVIDIA's packages below a folder."""
    folders = [site / "torch", site / "torchvision", *site.glob("torch*.libs"), site / "nvidia"]
    return sorted(path for folder in folders for path in folder.rglob("*.so*") if path.is_file())


def _includes(site: Path) -> list[Path]:
    return sorted(site.glob("nvidia/*/include"))


def _headers(place: Path, major: str) -> Path:
    """Return a folder with CUDA's remaining headers, from the package index."""
    folder = place / "headers"
    release = ".".join(_cuda()[1].split(".")[:2])  # the runtime's
    packages = [f"{name}=={release}.*" for name in HEADERS[major]]
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
