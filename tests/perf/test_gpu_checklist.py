"""The checklist for a machine with a GPU: its commands parse."""

from pathlib import Path

from bench.cli.parser import parse
from perf import gpu_checklist, peers

ROOT = Path(__file__).resolve().parents[2]


def parts_of(*words):
    options = gpu_checklist.parse(["out", *words])
    return {part.name: part for part in gpu_checklist.parts_of(options, "h100")}


def test_every_command_parses(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    parts = parts_of("--data", f"folder:{tmp_path}")
    runs = [part for part in parts.values() if str(ROOT / "run_bench.py") in part.command]
    for part in runs:
        request = parse(part.command[2:])
        assert request.resume == Path("results") / f"h100-{part.name}"
    assert len(runs) == 7
    for part in parts.values():
        if part.command[1] == "run_bench.py":
            assert parse(part.command[2:]).command in ("list", "doctor")
        if part.command[1].startswith("perf/"):
            assert (ROOT / part.command[1]).is_file()
    assert peers.parse(parts["epochs"].command[2:]).folder == tmp_path
    assert peers.parse(parts["peers"].command[2:]).only == "steps"
    assert "epochs" not in parts_of()  # for which images in a folder are needed
