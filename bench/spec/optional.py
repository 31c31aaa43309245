"""Optional folders of bench/: each says what it adds in files that are looked for, and nothing else imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.spec.own_modules import ROOT


def optional_folders(*modules: str) -> list[str]:
    """Return the packages of bench/ that have any of these modules, such as ``phases.explain``, by the alphabet."""
    places = (f"bench/{folder}/{module}.py" for module in modules for folder in ("*", "phases/*"))
    folders = (
        path.parent.relative_to(ROOT / "bench") for place in places for path in ROOT.glob(place)
    )
    return sorted({".".join(folder.parts) for folder in folders})


def definitions(module: str, name: str) -> list[Any]:
    """Return what a module such as ``command`` defines as ``name``, in each optional folder that has this module."""
    return [
        getattr(import_module(f"bench.{folder}.{module}"), name)
        for folder in optional_folders(module)
    ]
