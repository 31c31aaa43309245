"""A Ray cluster on this machine: nodes that declare accelerators they have not, and CPUs that stand
in for them.
"""

import tempfile
import threading
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest

from tests.conftest import TINY, call
from tests.rows import trial_rows

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Loopback addresses; Ray takes 127.0.0.1 for the machine's own address on its network."""
STORE_BYTES = 80 * 2**20
QUICK = (
    "--batch-sizes",
    "4",
    "--precisions",
    "fp32,amp-fp16-noscale",
    "--data",
    "synthetic",
    "--time-budget",
    "0.2",
)


class Nodes:
    """A head without accelerators, and nodes that come and go."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**head, "node_ip_address": HEAD}
        )
        self.address = self.cluster.address
        self.there = {}
        self.folders = ExitStack()

    def add(self, accelerator, address=OTHER):
        # A folder of its own, as on a machine of its own: a node that joins would remove the code
        # that others run.
        folder = self.folders.enter_context(
            tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        )
        with mock.patch(
            "ray._private.utils.set_sigterm_handler"
        ):  # which only a main thread may set
            added = self.there[accelerator] = self.cluster.add_node(
                num_cpus=1,
                resources={f"accelerator_type:{accelerator}": 1},
                object_store_memory=STORE_BYTES,
                node_ip_address=address,
                temp_dir=folder,
            )
        return added

    def need(self, *accelerators):
        for accelerator in accelerators:
            if accelerator not in self.there:
                self.add(accelerator)

    def lose(self, accelerator):
        self.cluster.remove_node(self.there.pop(accelerator), allow_graceful=False)

    def close(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()
        self.folders.close()


@pytest.fixture
def suite(tmp_path):
    """The tiny suite, of which a part comes from another file of its folder."""
    (tmp_path / "width.py").write_text("WIDTH = 16\n")
    path = tmp_path / "tiny.py"
    path.write_text(
        TINY.replace("width: int = 16", "width: int = WIDTH").replace(
            "from bench", "from width import WIDTH\nfrom bench", 1
        )
    )
    return path


def run(nodes, suite, *words):
    folder = suite.parent / "run"
    done = call(
        "--suite",
        suite,
        "--on",
        f"ray://{nodes.address}",
        "--out",
        folder,
        *QUICK,
        *words,
        cwd=suite.parent,
    )
    return folder, done


def assert_resumed(folder, count):
    """Go on with a run, and see that each of its trials is measured."""
    done = call("--resume", folder, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in trial_rows(folder)] == ["ok"] * count


@contextmanager
def after_first_row_of(place, folder, action):
    """Do something in a thread when a trial of ``place`` has been stored."""
    over = threading.Event()

    def watch():
        while not over.wait(0.05):
            if any(row["placement"] == place for row in trial_rows(folder)):
                action()
                over.wait()  # a node ends with the thread that started it
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def slow(suite, seconds=1.0):
    suite.write_text(
        suite.read_text().replace(
            "        if fail ==",
            f"        import time; time.sleep({seconds})\n        if fail ==",
            1,
        )
    )
    return suite
