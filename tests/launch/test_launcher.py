import threading

import pytest

from bench.launch.launcher import run_concurrently


def test_jobs_run_at_the_same_time():
    together = threading.Barrier(2, timeout=10)
    run_concurrently([together.wait, together.wait], lambda: None)  # one after the other, the first would wait in vain


def test_the_first_failure_cancels_the_others_and_is_raised():
    cancelled, ended = threading.Event(), []

    def fail():
        raise RuntimeError("why")

    def other():
        ended.append(cancelled.wait(10))

    with pytest.raises(RuntimeError, match="why"):
        run_concurrently([other, fail], cancelled.set)
    assert ended == [True]
