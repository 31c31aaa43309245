"""The checklist for a machine with a GPU: its commands parse."""

from pathlib import Path

from bench.cli.parser import parse
from perf import gpu_checklist, peers

ROOT = Path(__file__).resolve().parents[2]


def parts_of(*words):
    options = gpu_checklist.parse(["out", *words])
    parts = {}
    for part in gpu_checklist.parts_of(options, "h100"):
        _, program, *rest = part.command
        parts[part.name] = program, rest
    return parts


def test_every_command_parses(tmp_path):
    images = tmp_path / "train" / "cat"
    images.mkdir(parents=True)
    parts = parts_of("--data", f"folder:{tmp_path}")
    runs = 0
    for name, (program, words) in parts.items():
        if program == str(ROOT / "run_bench.py"):
            runs += 1
            request = parse(words)
            assert request.resume == Path("results") / f"h100-{name}"
        elif program == "run_bench.py":
            options = parse(words)
            assert options.command in ("list", "doctor")
        elif program.startswith("perf/"):
            assert (ROOT / program).is_file()
    assert runs == 7
    _, words = parts["epochs"]
    epochs = peers.parse(words)
    assert epochs.folder == tmp_path
    _, words = parts["peers"]
    steps = peers.parse(words)
    assert steps.only == "steps"


def test_epochs_are_trained_where_there_are_images():
    assert "epochs" not in parts_of()
