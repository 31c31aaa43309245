"""How NVML is called: every call ends in a value, in None with a reason, or in ``NvmlFailure``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

# Codes after which no later call can succeed.
_GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# Members of nvmlValue_t in the order of nvmlValueType_t.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

TOO_OLD = "this nvidia-ml-py does not offer it"


class NvmlFailure(Exception):  # noqa: N818 - NVML's own errors are called NVMLError; this is what they come to.
    """The GPU or its driver does not answer any more, or there is no such GPU; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a UUID stands for."""

    handle: Any
    board: Any
    """Handle of the whole board; the same as ``handle`` unless this is a MIG slice."""
    is_slice: bool


class Calls:
    """Calls of an initialised pynvml module, which it is given: this file does not import it."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.reasons: dict[tuple[str, str], str] = {}
        """Why a reading is None: (uuid, NVML function) to NVML's words for it; the UUID is empty for the driver."""
        self._targets: dict[str, Target] = {}
        self._gone = {getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _GONE}

    def target(self, uuid: str) -> Target:
        """Find a GPU or MIG slice by its UUID, with or without NVML's prefix.

        Raises:
            NvmlFailure: there is none, or it is lost.
        """
        if uuid not in self._targets:
            # CUDA's libraries print UUIDs without the prefix that NVML wants.
            for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
                handle = self.call(uuid, "nvmlDeviceGetHandleByUUID", name)
                if handle is not None:
                    break
            else:
                raise NvmlFailure(f"NVML knows no GPU {uuid}: {self.reasons[uuid, 'nvmlDeviceGetHandleByUUID']}.")
            is_slice = name.startswith("MIG-")
            board = self.call(uuid, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_slice else handle
            self._targets[uuid] = Target(handle, handle if board is None else board, is_slice)
        return self._targets[uuid]

    def call(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call the function of that name; None where this nvidia-ml-py is too old to have it."""
        function = getattr(self.pynvml, name, None)
        if function is None:
            self.reasons[uuid, name] = TOO_OLD
            return None
        return self._try(uuid, name, function, *arguments)

    def memory(self, uuid: str) -> Any:
        """Return memory information, version 2 (the driver's reserve apart) where there is one, else version 1."""
        # gpustat, once imported, has replaced this function by one without the version argument.
        function = inspect.unwrap(self.pynvml.nvmlDeviceGetMemoryInfo)
        handle, name = self.target(uuid).handle, "nvmlDeviceGetMemoryInfo"
        memory = self._try(uuid, f"{name}_v2", function, handle, self.pynvml.nvmlMemory_v2)
        return self._try(uuid, name, function, handle) if memory is None else memory

    def field(self, uuid: str, name: str) -> Any:
        """Return the value of the board's field of that name."""
        return self.fields(uuid, (name,)).get(name)

    def fields(self, uuid: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of the board's fields of those names, read in one call; those without one are left out."""
        known = [name for name in names if hasattr(self.pynvml, name)]
        self.reasons |= {(uuid, name): TOO_OLD for name in names if name not in known}
        numbers = [getattr(self.pynvml, name) for name in known]
        values = self.call(uuid, "nvmlDeviceGetFieldValues", self.target(uuid).board, numbers) if known else None
        found = {}
        for name, value in zip(known, values or (), strict=False):
            code = value.nvmlReturn  # Each field has a return code of its own.
            if code in self._gone:
                raise NvmlFailure(f"{name} of {uuid}: {self.pynvml.NVMLError(code)}")
            if code == self.pynvml.NVML_SUCCESS:
                found[name] = getattr(value.value, _MEMBERS[value.valueType])
                self.reasons.pop((uuid, name), None)
            else:
                self.reasons[uuid, name] = str(self.pynvml.NVMLError(code))
        return found

    def listing(self, uuid: str, name: str, *arguments: Any) -> list[Any] | None:
        """Call a function that lists something: empty where NVML says that there is nothing, None as in ``call``."""
        function = getattr(self.pynvml, name, None)
        if function is None:
            self.reasons[uuid, name] = TOO_OLD
            return None
        # nvidia-ml-py raises "success" where the driver answers at once that the list has no entries.
        nothing = (self.pynvml.NVML_ERROR_NOT_FOUND, self.pynvml.NVML_SUCCESS)

        def found() -> list[Any]:
            try:
                return list(function(*arguments))
            except self.pynvml.NVMLError as error:
                if error.value in nothing:
                    return []
                raise

        listed: list[Any] | None = self._try(uuid, name, found)
        return listed

    def _try(self, uuid: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            value = function(*arguments)
        except self.pynvml.NVMLError as error:
            if error.value in self._gone:
                raise NvmlFailure(f"{name} of {uuid or 'the driver'}: {error}") from error
            self.reasons[uuid, name] = str(error)
            return None
        self.reasons.pop((uuid, name), None)
        return value


def is_child(pid: int, parents: Collection[int]) -> bool:
    """Say whether a process was started by one of some others, as those that train together are by their worker."""
    try:
        return psutil.Process(pid).ppid() in parents
    except psutil.Error:  # it has just ended, or hides from us
        return False
