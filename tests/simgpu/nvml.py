"""``python -m tests.simgpu.nvml [WORDS...]`` runs tests with each of NVML's features off in turn, as older drivers are.

The words are pytest's, as in ``-n 2 --dist loadgroup -m 'gpu or simgpu' tests/gpu tests/simgpu``. A test that needs the
very feature that is off has the mark ``needs_nvml`` and is skipped. Exits with 1 if any test failed.
"""

import subprocess
import sys
from pathlib import Path

from tests.simgpu.machine import NVML_FEATURES, environment

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str]) -> int:
    """Run the tests without each feature."""
    failed = False
    for feature in NVML_FEATURES:
        print(f"Without {feature}:", flush=True)
        command, variables = [sys.executable, "-m", "pytest", "-q", *words], environment(SIM_NVML_OFF=feature)
        failed |= subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
