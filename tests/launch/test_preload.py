"""What a fresh process need not import, for the fork server that it is a fork of has."""

from __future__ import annotations

import sys

import pytest

from bench.launch.local import LocalLauncher


def imported_before(module, _send):
    """Return the modules that this process had imported before another."""
    names = list(sys.modules)
    return names[: names.index(module)]


@pytest.mark.parametrize("name", ["torch", "torchvision", "bench.worker.worker"])
def test_the_fork_server_has_imported_what_trials_take_long_to_before_the_first_of_them(name):
    """A process's first import of its own is that of the module whose function it was started with."""
    assert name in LocalLauncher().call("tests.launch.test_preload:imported_before", "bench.launch.local")
