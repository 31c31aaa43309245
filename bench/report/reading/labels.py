"""Names that tell subjects apart, as long as needed and no longer."""

from __future__ import annotations

import re
from collections import Counter

import pandas as pd

from bench.report.format import titled
from bench.report.reading.load import SUBJECT, WORKLOAD
from bench.results.columns import LIST

# Left out of a device's short name: what follows tells devices apart.
VENDOR = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|Intel\(R\)) ")
# The parts of a name that say how a board is built: left out where no other board has the rest of
# the name.
BUILD = re.compile(r"(?:[- ](?:PCIe|SXM\d?|HBM\d\w?|\d+GB))+(?![\w-])", re.IGNORECASE)
# The columns that the names of a subject are made of.
IDENTITY = ["parameters_json", "members", "device_kind"]


def subjects(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the subjects of ``trials`` in their order, each with its names.

    ``workload`` names the recipe, ``where`` the device, and ``label`` is the shortest form that no
    other device has; ``slug`` is a file name, unique among them. The columns of ``IDENTITY`` come
    with them.
    """
    named = trials[[*SUBJECT, *IDENTITY]].drop_duplicates(SUBJECT, ignore_index=True)
    data = named["data"].where(_has_several("data", named, ["suite"]), "")
    recipes = zip(named["suite"], named["parameters"], named["techniques"], data, strict=True)
    named["workload"] = [titled(*words) for words in recipes]
    alike = [
        name for name in WORKLOAD if name != "techniques"
    ]  # one device may go without some that several have
    is_told = _has_several("placement", named, [*alike, "run", "device"])
    is_told |= named["members"].str.contains(LIST, regex=False) & (named["device_kind"] == "cpu")
    places = (
        named["placement"].map(placement).where(is_told, "")
    )  # GPUs are counted in the device's name
    runs = ("run " + named["run"]).where(_has_several("run", named, ["workload", "device"]), "")
    named["where"] = [titled(*words) for words in zip(named["device"], places, runs, strict=True)]
    named["label"] = _labels(named["where"].tolist())
    named["slug"] = slugs([f"{row.workload}-{row.where}" for row in named.itertuples()])
    return named


def _has_several(name: str, rows: pd.DataFrame, groups: list[str]) -> pd.Series:
    """Return for each row whether its group has several values of a column."""
    return rows.groupby(groups)[name].transform("nunique") > 1


def placement(name: str) -> str:
    """Name a placement: cpu, GPU 0, GPUs 0+1, or a cluster's own word for it."""
    if not name[0].isdigit():
        return name
    return f"GPU {name}" if name.isdigit() else f"GPUs {name}"


def short(where: str) -> str:
    """Return a device's name without its vendor's."""
    return VENDOR.sub("", where)


def _labels(names: list[str]) -> list[str]:
    """Shorten names of devices, as far as different ones stay different."""
    brief = {name: BUILD.sub("", short(name)) for name in names}
    alike = Counter(brief[name] for name in dict.fromkeys(names))
    return [brief[name] if alike[brief[name]] == 1 else short(name) for name in names]


def slug(name: str) -> str:
    """Turn a name into one of lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def slugs(names: list[str]) -> list[str]:
    """Turn names into those of files, no two alike."""
    unique: list[str] = []
    for name in names:
        first = each = slug(name)[:80] or "figure"
        number = 0
        while each in unique:
            number += 1
            each = f"{first}-{number}"
        unique.append(each)
    return unique
