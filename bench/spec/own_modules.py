"""Processes that import this project's modules, whatever lies where they are started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The folder that holds this project's packages.
ROOT = Path(__file__).resolve().parents[2]
# The variable that keeps Python from looking for modules in the working folder first.
SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def own_modules_first() -> Iterator[None]:
    """Let the processes that multiprocessing starts meanwhile find this project's modules first.

    They look in the working folder, and then along this process's ``sys.path``, on which a suite's
    folder comes first: a ``bench.py`` or ``suites`` of the user's would be executed in the place of
    this project's.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT))
        if not before:
            del os.environ[SAFE_PATH]
