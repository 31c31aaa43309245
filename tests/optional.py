"""The optional folders of bench/: those in which a command or a launcher is looked for."""

from pathlib import Path

from bench.spec.optional import optional_folders

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = [ROOT / "bench" / name for name in optional_folders("command", "launcher")]
