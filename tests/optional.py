"""The optional folders of bench/: those with a command or a launcher, and of phases that the core
does not need.
"""

from pathlib import Path

from bench.spec.optional import packages_with

ROOT = Path(__file__).resolve().parents[1]
CORE = {"memory", "floor", "speed", "train"}
OF_PHASES = [
    path.parent
    for path in sorted(ROOT.glob("bench/phases/*/__init__.py"))
    if path.parent.name not in CORE
]
WITH_COMMANDS = [
    ROOT.joinpath("bench", *name.split("."))
    for name in (*packages_with("command"), *packages_with("launcher"))
]
OPTIONAL = list(dict.fromkeys([*WITH_COMMANDS, *OF_PHASES]))
