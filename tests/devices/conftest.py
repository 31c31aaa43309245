from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.torch_version import TorchVersion

from bench.devices import capabilities


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install every package that a precision may need, of some version, or none, beside a torch of some version."""

    def install(*, packages: bool = True, version: str = "2.14.1", package: str | None = "999") -> None:
        def metadata(name: str) -> str:
            if package is None:
                raise capabilities.importlib.metadata.PackageNotFoundError(name)
            return package

        monkeypatch.setattr(capabilities.importlib.util, "find_spec", lambda _name: object() if packages else None)
        monkeypatch.setattr(capabilities.importlib.metadata, "version", metadata)
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))

    return install
