"""Names that tell subjects apart, as long as needed and no longer."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pandas as pd

from bench.report.format import records, titled
from bench.report.reading.load import SUBJECT, WORKLOAD
from bench.results.columns import listed

VENDOR = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|Intel\(R\)) ")
"""Left out of a device's short name: what follows tells devices apart."""
BUILD = re.compile(r"(?:[- ](?:PCIe|SXM\d?|HBM\d\w?|\d+GB))+(?![\w-])", re.IGNORECASE)
"""The parts of a name that say how a board is built: left out where no other board has the rest of the name."""
IDENTITY = ["parameters_json", "members", "device_names", "device_kind"]
"""The columns that the names of a subject are made of."""


def subjects(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the subjects of ``trials`` in their order, each with its names.

    ``workload`` names the recipe, ``where`` the device, and ``label`` is the shortest form that no other device has;
    ``slug`` is a file name, unique among them. The columns of ``IDENTITY`` come with them.
    """
    named = trials[[*SUBJECT, *IDENTITY]].drop_duplicates(SUBJECT, ignore_index=True)
    several_data = named.groupby("suite")["data"].transform("nunique") > 1
    alike = [name for name in WORKLOAD if name != "techniques"]  # one device may go without some that several have
    on_device = named.groupby([*alike, "run", "device"])["placement"].transform("nunique")
    together = named["members"].map(lambda cell: len(listed(cell)) > 1).astype(bool)
    cpus_together = together & (named["device_kind"] == "cpu")  # GPUs are counted in the device's name
    rows = named.assign(several_data=several_data, several_placements=(on_device > 1) | cpus_together)
    named["workload"] = [
        titled(row["suite"], row["parameters"], row["techniques"], row["data"] if row["several_data"] else "")
        for row in records(rows)
    ]
    recipe = [named["workload"], named["device"]]
    rows["several_runs"] = rows.groupby(recipe)["run"].transform("nunique") > 1
    named["where"] = [
        titled(
            row["device"],
            placement(str(row["placement"])) if row["several_placements"] else "",
            f"run {row['run']}" if row["several_runs"] else "",
        )
        for row in records(rows)
    ]
    named["label"] = _labels(named["where"].tolist())
    return named.assign(slug=slugs([f"{row.workload}-{row.where}" for row in named.itertuples()]))


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
        short_name = slug(name)[:80] or "figure"
        numbered = (f"{short_name}-{number}" for number in itertools.count(1))
        unique.append(next(each for each in itertools.chain([short_name], numbered) if each not in unique))
    return unique
