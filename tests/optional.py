"""The optional folders of bench/: those that a command or a launcher is looked for in."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = sorted({path.parent for name in ("command", "launcher") for path in ROOT.glob(f"bench/*/{name}.py")})
