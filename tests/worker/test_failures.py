"""The kind and the text of an error in the row of its trial."""

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from bench.spec.errors import UnsupportedError, UsageError
from bench.training.techniques import refused
from bench.worker.failures import exit_cause, failure, last_words, place


class Broken(Dataset):
    """Samples of which none can be read."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise OSError("cannot identify image file 'cat: 1.jpg'")


def test_an_error_of_a_loaders_process_is_reported_as_its_own():
    batches = iter(DataLoader(Broken(), num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(OSError, match="Caught") as raised:
        next(batches)
    assert not list(batches)  # which ends its process
    assert failure(raised.value).text == "OSError: cannot identify image file 'cat: 1.jpg'"


ERRORS = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB", 0.5, "oom"),
    ("CUDA driver error: out of memory", 0.5, "oom"),
    ("Triton Error [CUDA]: out of memory", 0.5, "oom"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 0.5, "oom"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", 0.5, "oom"),
    ("FIND was unable to find an engine to execute this computation", 0.01, "oom"),
    ("FIND was unable to find an engine to execute this computation", 0.5, "error"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", 0.01, "oom"),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", 0.5, "error"),
    ("mat1 and mat2 shapes cannot be multiplied", 0.01, "error"),
]


@pytest.mark.parametrize(("text", "free", "kind"), ERRORS)
def test_what_libraries_raise_where_memory_is_short_is_out_of_memory(text, free, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 1.0))
    assert failure(RuntimeError(text)).kind == kind
    assert failure(ValueError(text)).kind == "error"


@pytest.mark.parametrize("module", ["torch._dynamo.exc", "torch._inductor.exc"])
def test_what_torch_compile_cannot_compile_is_unsupported_unless_memory_is_short(module):
    class InductorError(RuntimeError):
        """Of one of torch.compile's modules."""

    class DerivedError(InductorError):
        """Of a library's."""

    InductorError.__module__ = module
    text = "LoweringException: no rule for aten.foo"
    short_of_memory = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    for kind in (InductorError, DerivedError):
        error = kind(text)
        assert failure(error).kind == "unsupported"
        assert refused(error) == f"compile: {kind.__name__}: {text}"
        error = kind(short_of_memory)
        assert failure(error).kind == "oom"
        # So that a ladder ends as out of memory, and its steps are measured apart.
        assert refused(error) is None


def test_after_a_sticky_error_the_failures_own_cause_is_kept(monkeypatch):
    def gone(*_device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", gone)
    failed = failure(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"))
    assert failed.kind == "error"
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in failed.text


UNUSED = "Expected to have finished reduction in the prior iteration"
COMPLEX = "\"_amp_non_finite_check_and_unscale_cuda\" not implemented for 'ComplexFloat'"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnsupportedError("RMSprop has no kernel"), "unsupported", "RMSprop has no kernel"),
        (UsageError("no data"), "usage", "no data"),
        (RuntimeError(UNUSED), "unsupported", "some of the model"),
        (RuntimeError(COMPLEX), "unsupported", "the loss is scaled, and torch's GradScaler cannot"),
        (ValueError("Attempting to unscale FP16 gradients."), "unsupported", "the loss is scaled"),
        (ValueError("one.\ntwo"), "error", "ValueError: one"),
        (ValueError(" \n"), "error", "ValueError: no message"),
    ],
)
def test_an_error_is_reported_by_its_type_and_first_line_or_in_words_of_its_own(error, kind, text):
    failed = failure(error)
    assert failed.kind == kind
    assert failed.text.startswith(text)
    assert not failed.text.endswith(".")


def test_what_torch_advises_instead_of_a_loss_is_said_whole():
    error = RuntimeError("BCELoss is unsafe to autocast.\nUse\nanother.")
    assert failure(error).text == "RuntimeError: BCELoss is unsafe to autocast. Use another"


DUMP = """my last words
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/home/me/my.py", line 9 in waiting

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/ctypes.py", line 3 in inner
  File "/home/me/my.py", line 21 in forward
  File "/home/me/my.py", line 40 in model

Extension modules: numpy, torch (total: 2)
"""


def test_the_innermost_line_of_a_file_is_found_in_a_dump_of_threads():
    file = Path("/home/me/my.py")
    assert place(DUMP, file) == f"{os.path.relpath(file)}:21"
    assert place(DUMP, Path("/home/me/other.py")) == ""
    assert last_words(DUMP) == "my last words"


def test_a_signal_without_a_name_is_called_by_its_number():
    assert exit_cause(-40, 0) == ("died", "by signal 40")
