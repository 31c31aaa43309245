"""The command line's options and their help, and nothing of what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

import bench
from bench.spec import PRECISIONS, UsageError
from bench.technique_names import TECHNIQUES
from bench.trial import PHASES

EXAMPLES = """
examples:
  run_bench.py --suite resnet50 --gpus 0,1        compare the precisions on each of two GPUs
  run_bench.py --suite mlp --gpus cpu             no GPU needed
  run_bench.py --suite my_model.py --quick        a model of your own (docs/adding-a-suite.md)
  run_bench.py --suite resnet20 --data folder:DIR real images: DIR/train/CLASS/*, DIR/test/CLASS/*
  run_bench.py --resume results/NAME              go on with a run that was stopped

other commands:
  run_bench.py list [--gpus]                      suites, their parameters, and precisions; what is here to run on
  run_bench.py report RUN [RUN ...]               one report over runs, also of different machines
  run_bench.py compare OLD NEW                    two runs of the same questions: what became faster or slower
  run_bench.py doctor [--gpus cpu]                test the instrument itself on this machine
"""
GPUS_HELP = "CUDA indices such as 0,1, or cpu; 0+1 and cpu+cpu train together (default: every GPU, else cpu)"


class Parser(argparse.ArgumentParser):
    """argparse, with errors as this program tells them."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing the usage and leaving."""
        raise UsageError(f"{message[0].upper()}{message[1:]}. See run_bench.py --help.")


def list_parser() -> Parser:
    """Return the parser of ``list``."""
    parser = Parser(prog="run_bench.py list", description="List suites and precisions.")
    parser.add_argument("--gpus", action="store_true", help="list what is here to run on, and what it can do, instead")
    return parser


def compare_parser() -> Parser:
    """Return the parser of ``compare``."""
    parser = Parser(prog="run_bench.py compare", description="Hold a run against an earlier one of the same questions.")
    for name in ("old", "new"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help=f"folder of the {name} run")
    return parser


def report_parser() -> Parser:
    """Return the parser of ``report``."""
    parser = Parser(prog="run_bench.py report", description="Write the report of one run, or of several in one.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as results/NAME")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: reports/NAME)")
    parser.add_argument("--published", action="store_true", help="set published figures of the same recipes beside")
    parser.add_argument("--layers", action="store_true", help="draw the gradients' magnitudes layer by layer, too")
    parser.add_argument(
        "--figures",
        choices=("overview", "all", "none"),
        default="overview",
        help="overview (default): of many devices one figure a recipe; all: every device's own; none",
    )
    return parser


def doctor_parser() -> Parser:
    """Return the parser of ``doctor``."""
    parser = Parser(prog="run_bench.py doctor", description="Test the instrument itself on this machine.")
    parser.add_argument("--gpus", metavar="LIST", help=GPUS_HELP)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the table there, as doctor.md and doctor.json")
    return parser


def run_parser() -> Parser:
    """Return the parser of a run, which is what is done without the name of a command."""
    parser = Parser(
        prog="run_bench.py",
        description="Does mixed precision pay here: how much faster, how much less memory, at what cost in accuracy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ampmeter {bench.__version__}", help="show it and stop")
    what = parser.add_argument_group("what to compare")
    what.add_argument("--suite", metavar="NAMES", help="suites by name or .py file, with commas between")
    what.add_argument(
        "--precisions",
        metavar="NAMES",
        help=f"of {', '.join(PRECISIONS)} (default: by device), with options as in amp-fp16:init_scale=1024,cache=off",
    )
    what.add_argument(
        "--batch-sizes",
        metavar="SIZES",
        help="such as 64,128,256, and max for the largest that fits (default: the suite's)",
    )
    what.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a suite's parameter; repeatable"
    )
    what.add_argument(
        "--sweep",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="compare with each of a suite's parameter's values, such as width=4096,4097; repeatable: all combinations",
    )
    what.add_argument(
        "--weights",
        metavar="PATH",
        help="initial weights: a state dict's path, imagenet or none (default: the suite's)",
    )
    what.add_argument(
        "--techniques",
        metavar="LIST",
        help=f"of {', '.join(TECHNIQUES)} (as in grad-accumulation=4), for all precisions alike: docs/techniques.md",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--gpus", metavar="LIST", help=GPUS_HELP)
    where.add_argument("--nnodes", metavar="N", help="nodes that train together, each started with this command")
    where.add_argument("--node-rank", "--node_rank", metavar="R", help="which of them this is; node 0 reports")
    where.add_argument(
        "--rdzv-endpoint", "--rdzv_endpoint", metavar="HOST:PORT", help="an address of node 0 that all nodes reach"
    )
    where.add_argument("--rdzv-id", "--rdzv_id", metavar="WORD", help="what the nodes of one job have in common")
    where.add_argument("--rdzv-backend", "--rdzv_backend", metavar="NAME", help="c10d, as torchrun's")
    where.add_argument(
        "--rdzv-conf", "--rdzv_conf", metavar="join_timeout=S", help="how long to wait for each other (default: 600 s)"
    )
    where.add_argument("--on", metavar="ray[://HOST:PORT]", help="run on a Ray cluster (docs/clusters.md)")
    where.add_argument(
        "--accelerators",
        metavar="LIST",
        help="types on the cluster, as V100,A100; V100+V100 train together (default: one of each type)",
    )
    where.add_argument("--sync-bn", action="store_true", help="batch norm over all devices that train together")
    where.add_argument("--exclusive", action="store_true", help="refuse to start when a GPU is in use by others")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--phases",
        metavar="LIST",
        help=f"of {', '.join(PHASES)} (default: memory,speed,energy,train; --quick: memory,speed; "
        "--rigorous: floor, too)",
    )
    how.add_argument(
        "--ladder",
        action="store_true",
        help="climb from fp32 over AMP, set-to-none, non-blocking and the prefetcher to what --techniques names, "
        "with a real loader, each on top of the one before that works; --precisions fp32 leaves AMP out",
    )
    how.add_argument("--epochs", metavar="N", help="epochs to train (default: the suite's short form)")
    how.add_argument("--seeds", metavar="LIST", help="seeds to train with (default: 0)")
    how.add_argument("--target-accuracy", metavar="PCT", help="tell how long training took to this test accuracy")
    how.add_argument("--clip-grad", metavar="MAXNORM", help="clip gradients to this norm when training")
    depth = how.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="one process, 3 s an arm, no training unless one of its options is given"
    )
    depth.add_argument(
        "--rigorous",
        action="store_true",
        help="ten processes instead of three, and fp32 timed against itself where speed is timed",
    )
    how.add_argument("--target-ci", metavar="SHARE", help="stop at this half-width of the 95%% interval (default: 1%%)")
    how.add_argument(
        "--time-budget", metavar="TIME", help="most time to spend timing one arm in one process (default: 10s)"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="SOURCE", help="cifar10, synthetic or folder:PATH (default: the suite's)")
    data.add_argument(
        "--data-dir", metavar="DIR", default="data", help="for downloads and decoded images (default: data)"
    )
    result = parser.add_argument_group("results")
    result.add_argument("--out", metavar="DIR", type=Path, help="a new folder (default: results/SUITE-DEVICE-TIME)")
    result.add_argument(
        "--resume",
        metavar="DIR",
        type=Path,
        help="go on with this run; finished trials are kept, and --seeds may add to the run's own",
    )
    result.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    return parser
