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
# Characters of a slug: figures add their kind and an end to it, and file systems take 255 bytes.
LONGEST_SLUG = 80
# The columns that the names of a subject are made of.
IDENTITY = ["parameters_json", "members", "device_kind"]


def subjects(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the subjects of ``trials`` in their order, each with its names.

    ``workload`` names the recipe, ``where`` the device, and ``label`` is the shortest form that no
    other device has; ``slug`` is a file name, unique among them. The columns of ``IDENTITY`` come
    with them.
    """
    named = trials[[*SUBJECT, *IDENTITY]].drop_duplicates(SUBJECT, ignore_index=True)
    has_data = _has_several("data", named, ["suite"])
    named["shown_data"] = named["data"].where(has_data, "")
    recipe = ["suite", "parameters", "techniques", "shown_data"]
    named["workload"] = _titles(named, recipe)
    # One device may go without some techniques that several have.
    alike = [name for name in WORKLOAD if name != "techniques"]
    has_placements = _has_several("placement", named, [*alike, "run", "device"])
    # The name of a device counts GPUs, and not CPUs.
    has_members = named["members"].str.contains(LIST, regex=False)
    is_group_of_cpus = has_members & (named["device_kind"] == "cpu")
    places = named["placement"].map(placement)
    named["place"] = places.where(has_placements | is_group_of_cpus, "")
    runs = "run " + named["run"]
    has_runs = _has_several("run", named, ["workload", "device"])
    named["shown_run"] = runs.where(has_runs, "")
    named["where"] = _titles(named, ["device", "place", "shown_run"])
    named["label"] = _short_names(named["where"].tolist())
    # No sum of columns: they have no type where there are no rows.
    titles = []
    for workload, where in zip(named["workload"], named["where"], strict=True):
        titles.append(f"{workload}-{where}")
    named["slug"] = slugs(titles)
    return named.drop(columns=["shown_data", "place", "shown_run"])


def _titles(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Write each row's title from columns: a name, and what tells it from others."""
    titles = []
    for words in rows[names].itertuples(index=False, name=None):
        titles.append(titled(*words))
    return titles


def _has_several(name: str, rows: pd.DataFrame, groups: list[str]) -> pd.Series:
    """Return for each row whether its group has several values of a column."""
    counts = rows.groupby(groups)[name].transform("nunique")
    return counts > 1


def placement(name: str) -> str:
    """Name a placement: cpu, GPU 0, GPUs 0+1, or a cluster's own word for it."""
    if not name[0].isdigit():
        return name
    if name.isdigit():
        return f"GPU {name}"
    return f"GPUs {name}"


def short(where: str) -> str:
    """Return a device's name without its vendor's."""
    return VENDOR.sub("", where)


def _short_names(names: list[str]) -> list[str]:
    """Shorten names of devices, as far as different ones stay different."""
    shortest = {}
    for name in names:
        shortest[name] = BUILD.sub("", short(name))
    uses = Counter(shortest.values())
    shortened = []
    for name in names:
        brief = shortest[name]
        if uses[brief] > 1:
            brief = short(name)
        shortened.append(brief)
    return shortened


def slugs(names: list[str]) -> list[str]:
    """Turn names into those of files, of lower-case letters, digits and hyphens, no two alike."""
    unique = []
    for name in names:
        # A name without a Latin letter or a digit, as of a suite in Chinese, leaves nothing.
        words = re.sub(r"[^a-z0-9]+", "-", name.lower())
        words = words.strip("-")
        base = words[:LONGEST_SLUG] or "figure"
        candidate = base
        number = 0
        while candidate in unique:
            number += 1
            candidate = f"{base}-{number}"
        unique.append(candidate)
    return unique
