"""A process on simulated GPUs that has imported all that a run imports; each run is a fork of it.

A run as a user starts it takes five seconds to import that twice: in its own process and in its
fork server. Here both are forks. All else is as there: the command line's words, environment,
session and exit code, but that both of its streams are one.
"""

import gc
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from threading import Timer
from typing import NoReturn

from tests.simgpu.machine import environment

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "run_bench.py"
REQUEST_BYTES = 2**16
KEPT_SIGNALS = {signal.SIGKILL, signal.SIGSTOP}
"""Signals that have no handler."""
execute = util.spawnv_passfds


class Prefork:
    """The process, as a test sees it."""

    def __init__(self) -> None:
        """Start it; it imports while the test goes on."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.simgpu.prefork", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def run(
        self, words: list[str], folder: Path, variables: dict[str, str], limit_s: float
    ) -> tuple[int, int, str]:
        """Run the command line, and wait for all that holds its streams.

        Args:
            words: the command line's.
            folder: in which it runs.
            variables: its whole environment.
            limit_s: after which it hangs, and is killed.

        Returns:
            Its session, its exit code, and what it printed to both streams.
        """
        ours, theirs = os.pipe()
        request = pickle.dumps((words, folder, variables))
        socket.send_fds(self._socket, [request], [theirs])
        os.close(theirs)
        session = self._answer()
        killer = Timer(limit_s, os.killpg, (session, signal.SIGKILL))
        killer.start()
        with os.fdopen(ours, encoding="utf-8", errors="replace") as file:
            printed = file.read()
        killer.cancel()
        return session, self._answer(), printed

    def _answer(self) -> int:
        return int(self._socket.recv(REQUEST_BYTES))

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()


def main() -> None:
    """Fork for each request, until nobody can make one any more."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    import bench.report
    import bench.run.execute
    import bench.run.reporting
    import bench.worker.worker

    with tempfile.TemporaryDirectory() as folder:  # a first report imports and compiles much
        bench.report.report([ROOT / "results" / "resnet20-cpu-epyc-parity"], Path(folder))
    tempfile.tempdir = None  # each run has its own
    gc.collect()
    gc.freeze()
    while True:
        request, streams, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become_run(*pickle.loads(request), *streams)
        os.close(*streams)
        requests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become_run(words: list[str], folder: Path, variables: dict[str, str], stream: int) -> None:
    """Be what ``python run_bench.py WORDS`` is when it begins."""
    os.setsid()
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [str(COMMAND), *words]
    sys.path[0] = str(ROOT)
    util.spawnv_passfds = _fork_or_execute  # which starts multiprocessing's fork server
    runpy.run_path(str(COMMAND), run_name="__main__")


def _fork_or_execute(path: str, arguments: Sequence[object], passed: Sequence[int]) -> int:
    """Start Python as multiprocessing does, but its fork server as a fork of this process.

    A new one would import torch.
    """
    code = str(arguments[-1])
    if "multiprocessing.forkserver" not in code:
        return execute(path, arguments, passed)
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork() or _become_fork_server(code, passed)


def _become_fork_server(code: str, passed: Sequence[int]) -> NoReturn:
    """Be what ``python -c CODE`` is when it begins, but for what has been imported."""
    begin = 3
    for number in sorted(passed):
        os.closerange(begin, number)
        begin = number + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))
    for number in signal.valid_signals() - KEPT_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # Python's own default is another
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit:  # its usual end
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    main()
