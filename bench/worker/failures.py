"""The end of a process: the error that it reported, or its exit code.

torch is imported only by calls.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from bench.results.endings import Ending, EndingKind
from bench.spec.errors import UnsupportedError, UsageError

# What some errors of torch mean, which make a trial unsupported.
MEANINGS = (
    # DistributedDataParallel's error in the second step if the first left some parameters without a
    # gradient.
    (
        re.compile("Expected to have finished reduction in the prior iteration"),
        "some of the model's parameters take no part in a step's loss, which goes on one device "
        "and not on several: they wait for each other's gradient of every parameter",
    ),
    # GradScaler's errors where a gradient is complex, or has 16 bits.
    (
        re.compile(r"_amp_\w+unscale\w*\" not implemented|Attempting to unscale FP16"),
        "the loss is scaled, and torch's GradScaler cannot unscale the gradients of complex "
        "weights, or of weights that the model itself keeps in 16 bits: amp-bf16 scales no loss",
    ),
)
# In the first line of torch's error of a loss such as BCELoss.
UNSAFE = "unsafe to autocast"
# In the first line of an error of a loader's process; the error itself is in the last line.
FROM_LOADER = "in DataLoader worker process"
DUMP = re.compile(r"^(Current thread|Stack) .*\(most recent call first\):$", re.MULTILINE)
# How faulthandler begins.
FATAL = re.compile(r"^Fatal Python error:", re.MULTILINE)
LONGEST_LINE = 300
# Most that is kept of a process's output: its end.
LOG_BYTES = 2**20
# Lets a worker or rank print its stack, even while it hangs in C code.
STACK_SIGNAL = signal.SIGUSR2
# In gloo's errors, plain RuntimeErrors, when another process is gone.
LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")


def failure(error: BaseException) -> Ending:
    """Return an error as a record for the launcher."""
    if isinstance(error, UsageError):
        kind: EndingKind = "usage"
        if isinstance(error, UnsupportedError):
            kind = "unsupported"
        return Ending(kind=kind, text=str(error))
    for pattern, meaning in MEANINGS:
        if pattern.search(str(error)):
            return Ending(kind="unsupported", text=meaning)
    return Ending(kind=_kind(error), text=_described(error), secondary=_is_secondary(error))


def import_failure(error: Exception) -> Ending:
    """Return an error of importing torch, or what comes with it, as a record of every process."""
    text = f"torch, or a library beside it, cannot be imported: {_described(error)}"
    return Ending(kind="import", text=text)


def _described(error: BaseException) -> str:
    """Return an error's type and first line; of an ImportError those of its first cause, too."""
    text = f"{type(error).__name__}: {_first_line(error)}"
    first = error
    while isinstance(error, ImportError) and first.__context__ is not None:
        first = first.__context__
    if first is error:
        return text
    return f"{text} (because of {type(first).__name__}: {_first_line(first)})"


def _is_secondary(error: BaseException) -> bool:
    """Return whether an error follows from another rank's: that is gone, or does not answer."""
    from torch import distributed

    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)


def _kind(error: BaseException) -> EndingKind:
    from bench.devices.backend import is_out_of_memory
    from bench.training.techniques import refused

    if is_out_of_memory(error):
        return "oom"
    return "unsupported" if refused(error) else "error"


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, without its full stop: a sentence goes on after it.

    Of ``UNSAFE`` all lines are returned: they say what to use instead.
    """
    lines = str(error).strip().splitlines() or ["no message"]
    line = " ".join(lines) if UNSAFE in lines[0] else lines[0]
    if FROM_LOADER in line:
        line = lines[-1].partition(": ")[2]
    return line.rstrip(".")


def print_stacks() -> None:
    """Let this process print its Python stack when a signal ends it, and at ``STACK_SIGNAL``."""
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)


def place(output: str, file: Path) -> str:
    """Return the innermost line of a file that a traceback names, such as ``my.py:12``, or "".

    A dump by faulthandler, whose first line is the innermost, comes before a traceback, whose last
    line is.

    Args:
        output: what the process printed.
        file: its absolute path.
    """
    line = re.compile(rf'File "{re.escape(str(file))}", line (\d+)')
    dump = DUMP.search(output)
    numbers = line.findall(output, dump.start()) if dump else line.findall(output)[::-1]
    return f"{os.path.relpath(file)}:{numbers[0]}" if numbers else ""


def last_words(output: str) -> str:
    """Return the last line of a process's output before faulthandler's dump; empty if none."""
    dump = FATAL.search(output) or DUMP.search(output)
    words = output[: dump.start()] if dump else output
    for line in reversed(words.strip().splitlines()):
        if not line.startswith("USDT:"):  # of torch's profiler, as it ends
            return line.strip()[-LONGEST_LINE:]
    return ""


def reason(text: str, output: str, doing: str | None, source: Path | None) -> str:
    """Return why a process failed, and where; and its last words, or its last activity.

    Args:
        text: the error, or how the process ended.
        output: what the process printed.
        doing: the process's last message of progress; None of an error, which is its last word.
        source: the user's file, of which the line is named.
    """
    where = place(output, source) if source is not None else ""
    if where:
        text += f" ({where})"
    if doing is None:
        return text
    if doing and not where:
        text += f", after it had said: {doing}"
    last = last_words(output)
    return f"{text}; it printed last: {last}" if last else text


def printed(log: Path) -> str:
    """Return a process's output so far; of a long one the end."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        left_out = max(0, file.seek(0, os.SEEK_END) - LOG_BYTES)
        file.seek(left_out)
        text = file.read().decode(errors="replace")
    return f"({left_out:,} bytes left out) …\n{text}" if left_out else text


def exit_cause(exit_code: int | None, kills_before: int) -> tuple[EndingKind, str]:
    """Return the kind of ending of a process that sent no report, and how it ended.

    Args:
        exit_code: the process's; negative is the number of the signal that ended it.
        kills_before: of ``oom_kills``, before it was started.

    Returns:
        ``oom`` or ``died``, and the end of a sentence.
    """
    if exit_code is None or exit_code >= 0:
        return "died", f"by exit code {exit_code}"
    if exit_code == -signal.SIGKILL and oom_kills() > kills_before:
        return "oom", "by the system's out-of-memory killer"
    name = f"signal {-exit_code}"
    with suppress(ValueError):  # real-time signals have no name
        name = signal.Signals(-exit_code).name
    return "died", f"by {name}"


def oom_kills() -> int:
    """Return how many processes the system's out-of-memory killer has ended; 0 if unknown."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, count = line.split()
            if name == "oom_kill":
                return int(count)
    return 0
