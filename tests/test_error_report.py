"""What an error is told as, in the row of its trial."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, Dataset

from bench.error_report import failure


class Broken(Dataset):
    """Samples of which none can be read."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise OSError("cannot identify image file 'cat: 1.jpg'")


def test_what_a_loaders_process_raised_is_told_and_not_that_it_was_caught():
    with pytest.raises(OSError, match="Caught") as raised:
        next(iter(DataLoader(Broken(), num_workers=1, multiprocessing_context="fork")))
    assert failure(raised.value).text == "OSError: cannot identify image file 'cat: 1.jpg'"


@pytest.mark.parametrize(("text", "told"), [("one\ntwo", "one"), ("", "no message"), (" \n", "no message")])
def test_an_error_is_told_by_its_type_and_its_first_line(text, told):
    assert failure(ValueError(text)).text == f"ValueError: {told}"
