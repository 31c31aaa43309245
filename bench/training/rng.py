"""The global random generators of a training: torch's, Python's ``random`` and NumPy's.

A user's suite may draw from any of them, in its weights, its dropout or its loss. All are seeded alike for every
precision. Their states are kept as tensors, so that a checkpoint can be loaded without running code.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.devices.backend import backend_of

KINDS = ("cpu", "cuda", "python", "numpy")
"""Names of the generators' states; the first two are torch's."""


def seed_all(seed: int) -> None:
    """Seed every global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the global generators and of the device's own, by name, as bytes."""
    version, words, spare = random.getstate()
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    host = {
        "python": _packed([version, words, spare]),
        "numpy": _packed({**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tolist()}}),
    }
    return host | {each.type: backend_of(each).rng_state() for each in (torch.device("cpu"), device)}


def restore(kept: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states that ``states`` returned, those of generators that exist here."""
    for each in {torch.device("cpu"), device}:
        if each.type in kept:
            backend_of(each).set_rng_state(kept[each.type])
    if "python" in kept:
        version, words, spare = _unpacked(kept["python"])
        random.setstate((version, tuple(words), spare))
    if "numpy" in kept:
        legacy = _unpacked(kept["numpy"])
        legacy["state"]["key"] = np.array(legacy["state"]["key"], dtype=np.uint32)
        np.random.set_state(legacy)


def _packed(value: Any) -> Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(state: Tensor) -> Any:
    return json.loads(bytes(state.tolist()))
