"""Optional folders of bench/: each says what it adds in files that are looked for, and nothing else imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.spec.own_modules import ROOT


def optional_folders(*modules: str) -> list[str]:
    """Return the names of the folders of bench/ that have any of these modules, by the alphabet."""
    return sorted({path.parent.name for module in modules for path in ROOT.glob(f"bench/*/{module}.py")})


def definitions(module: str, name: str) -> list[Any]:
    """Return what a module such as ``command`` defines as ``name``, in each optional folder that has this module."""
    return [getattr(import_module(f"bench.{folder}.{module}"), name) for folder in optional_folders(module)]
