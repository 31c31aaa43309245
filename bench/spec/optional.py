"""Optional folders of bench/: each says what it adds in files that are looked for, and nothing else imports it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1]


def definitions(module: str, name: str) -> list[Any]:
    """Return what ``bench/FOLDER/MODULE.py`` defines as ``name``, of each folder that has this module, by the alphabet.

    Args:
        module: the module's name, such as ``command``.
        name: the name of the definition, such as ``COMMAND``.
    """
    folders = sorted(path.parent.name for path in BENCH.glob(f"*/{module}.py"))
    return [getattr(import_module(f"bench.{folder}.{module}"), name) for folder in folders]
