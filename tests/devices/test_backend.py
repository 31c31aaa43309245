"""Only bench/devices knows kinds of devices."""

from __future__ import annotations

import re
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
REACHES_CUDA = re.compile(
    r"""torch\.cuda(?!\.amp|\.is_bf16)|import cuda\b|torch, "cuda"|[!=]= "cuda"|"cuda" [!=]="""
)
"""torch.cuda in code, or a question of what kind a device is; not two names in texts."""


def test_only_bench_devices_uses_torch_cuda_or_asks_what_kind_a_device_is():
    modules = [path for path in BENCH.rglob("*.py") if REACHES_CUDA.search(path.read_text())]
    # These run in a script's process, and import nothing of ours.
    inside_a_script = ("hook.py", "observe.py")
    folders = {path.parent.name for path in modules if path.name not in inside_a_script}
    assert folders == {"devices"}, modules
