"""Rows of a frame as dicts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_object_dtype


def records(frame: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return what ``frame.to_dict("records")`` does, sooner: of frames with a hundred columns, taken hundreds of times.

    Values are Python's own, also where numpy's lie in a column of objects. Frames here have no dates and no nullable
    types, which pandas would turn into others.
    """
    names, rows = list(frame.columns), frame.to_numpy(dtype=object).tolist()  # block by block, not column by column
    words = [at for at, dtype in enumerate(frame.dtypes) if is_object_dtype(dtype)]
    for row in rows:
        for at in words:
            if isinstance(row[at], np.generic):
                row[at] = row[at].item()
    return [dict(zip(names, row, strict=True)) for row in rows]
