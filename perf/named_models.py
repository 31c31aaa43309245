#!/usr/bin/env python3
"""Measure models of libraries by their names, in fp32 and amp-bf16, and print a table of what came of them.

    python perf/named_models.py [--out DIR] [--gpus LIST] [LIBRARY ...]

The list is fixed: 20 models of timm of different families, 10 of torchvision, 10 types of transformers by name. The
three runs are those of a user: ``run_bench.py --suite NAMES --quick``, with sizes that two cores of a CPU can do. A
timing of a second each says whether a model can be measured, and little about how fast it is.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "timm": (  # noqa: SIM905 - a list of words is read more easily
        "resnet18 vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 swin_tiny_patch4_window7_224 convnext_atto "
        "convnextv2_atto efficientnet_lite0 mobilenetv3_small_100 regnety_002 densenet121 mixer_s32_224 "
        "gmlp_ti16_224 xcit_nano_12_p16_224 levit_128s poolformer_s12 ghostnet_100 mobilevit_xxs edgenext_xx_small "
        "fastvit_t8 hardcorenas_a"
    ).split(),
    "torchvision": (  # noqa: SIM905
        "resnet18 efficientnet_b0 mobilenet_v3_small vit_b_16 swin_t convnext_tiny regnet_y_400mf squeezenet1_1 "
        "shufflenet_v2_x0_5 lraspp_mobilenet_v3_large"
    ).split(),
    "hf": "bert distilbert gpt2 t5 electra vit resnet mobilebert wav2vec2 clip".split(),  # noqa: SIM905
}
SIZES = {
    "timm": ("--set", "image_size=96"),
    "torchvision": ("--set", "image_size=96"),
    "hf": ("--set", "sequence_length=32", "--set", "image_size=96"),
}
PRECISIONS = ("fp32", "amp-bf16")
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("named-models"), help="a new folder for the runs")
    parser.add_argument("--gpus", default="cpu", help="as of run_bench.py")
    parser.add_argument(
        "--batch-size", default="2", help="as --batch-sizes of run_bench.py; auto leaves it to planning"
    )
    options = parser.parse_args()
    fine = True
    for library in options.libraries or MODELS:
        folder, names = options.out / library, [f"{library}:{name}" for name in MODELS[library]]
        words = ["--suite", ",".join(names), "--quick", "--time-budget", "1", "--gpus", options.gpus]
        words += ["--precisions", ",".join(PRECISIONS), *SIZES[library], "--out", str(folder)]
        words += [] if options.batch_size == "auto" else ["--batch-sizes", options.batch_size]
        subprocess.run([sys.executable, ROOT / "run_bench.py", *words], check=False)
        fine &= tell(folder, names)
    return 0 if fine else 1


def tell(folder: Path, names: list[str]) -> bool:
    """Print a row for each model; return whether at most one in ten was not measured in both precisions."""
    rows: dict[str, dict[tuple[str, str], dict[str, str]]] = defaultdict(dict)
    with (folder / "trials.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows[row["suite"]][row["phase"], row["precision"]] = row
    print("| model | status | fp32 ms | amp-bf16 speedup | memory MiB fp32 | amp-bf16 | reason |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    measured = 0
    for name in names:
        parts = [rows[name].get((phase, precision), {}) for phase in ("memory", "speed") for precision in PRECISIONS]
        statuses = [part.get("status", "none") for part in parts]
        measured += all(status in ("ok", "unconverged") for status in statuses)
        step_ms, speedup = parts[2].get("step_ms"), parts[3].get("speedup")
        memory = [part.get("peak_allocated_bytes") or part.get("peak_resident_bytes") for part in parts[:2]]
        sizes = [f"{float(size) / MIB:.0f}" if size else "" for size in memory]
        reason = next((part["detail"] for part in parts if part.get("status") not in ("ok", "unconverged", None)), "")
        status = "/".join(dict.fromkeys(statuses))
        times = [f"{float(step_ms):.0f}" if step_ms else "", f"{float(speedup):.2f}" if speedup else ""]
        print(f"| {name} | {status} | {times[0]} | {times[1]} | {sizes[0]} | {sizes[1]} | {reason[:100]} |")
    print(f"{measured} of {len(names)} are measured in both precisions.\n", flush=True)
    return measured >= 0.9 * len(names)


if __name__ == "__main__":
    sys.exit(main())
