"""Tables of circumstances: the machines, the switches, and everything that needs a note."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.summary import IEEE_ERROR
from bench.report.reading.labels import subjects
from bench.report.reading.load import SUBJECT, Run
from bench.report.tables.format import GIB, UNKNOWN, known, number, records
from bench.report.tables.tables import Table
from bench.results.records import MEASURED
from bench.spec.ablation import parse_step
from bench.spec.phases import LADDER
from bench.spec.precisions import precision_rank

CROWDED_PCT = 10.0
"""Share of a machine's cores taken by others from which a reader is told."""
SHOWN = 400
"""Characters of a detail that a note shows; the CSV has all of it."""


def hosts(runs: list[Run]) -> dict[str, str]:
    """Return how tables name each run: its label, and the host where it is known."""
    return {
        run.label: f"{run.label} ({host})" if (host := run.part("environment").get("host")) else run.label
        for run in runs
    }


def machines(runs: list[Run]) -> list[Table]:
    """Return the hosts and their software, and the devices, as run.json has them."""
    headers = ["run", "host", "system", "Python", "torch", "CUDA", "cuDNN", "driver", "overrides removed", "started"]
    hosts_of, devices = [], []
    for run in runs:
        machine = run.part("environment")
        names = ("host", "os", "python", "torch", "cuda", "cudnn", "driver")
        removed = machine.get("removed_variables") or []
        told = [_text(machine.get(name)) for name in names]
        hosts_of.append([run.label, *told, ", ".join(map(str, removed)) or UNKNOWN, _text(run.info.get("started"))])
        devices += [_device(run.label, device) for device in machine.get("devices") or [] if isinstance(device, dict)]
    tables = [Table(headers=headers, rows=hosts_of)]
    if devices:
        headers = [
            "run",
            "placement",
            "device",
            "architecture",
            "capability",
            "cannot do",
            "memory (GiB)",
            "power limit (W)",
        ]
        headers += ["cores", "threads"]
        tables.append(Table(headers=headers, rows=devices))
    return tables


def _device(run: str, device: dict[str, object]) -> list[str]:
    memory, unsupported = device.get("memory_total_bytes"), device.get("unsupported")
    cannot = ", ".join(unsupported) if isinstance(unsupported, dict) else ""
    names = ("placement", "name", "architecture", "compute_capability")
    return [
        run,
        *(_text(device.get(name)) for name in names),
        cannot or UNKNOWN,
        f"{memory / GIB:.1f}" if isinstance(memory, int | float) else UNKNOWN,
        *(_text(device.get(name)) for name in ("power_limit_w", "cores", "threads")),
    ]


def _text(value: object) -> str:
    return UNKNOWN if value is None or value == "" else str(value)


def switches(trials: pd.DataFrame) -> Table | None:
    """Return what the switches of each precision were read back as; two rows of one precision disagree."""
    names = ["fp32_matmul", "fp32_conv", "autocast", "loss_scaling"]
    read = trials[(trials[names] != "").any(axis=1) | trials["matmul_error"].notna()]
    if read.empty:
        return None
    key = ["run", "device", "precision", *names]
    found = read.groupby(key, sort=False)["matmul_error"].max().reset_index()
    found["rank"] = found["precision"].map({name: precision_rank(name) for name in found["precision"].unique()})
    found = found.sort_values(["run", "device", "rank"], kind="stable")
    rows = [
        [
            *(row[name] for name in ("run", "device", "precision")),
            *(row[name] or UNKNOWN for name in names),
            number(row["matmul_error"], 2),
            _arithmetic(row["matmul_error"]),
        ]
        for row in records(found)
    ]
    headers = ["run", "device", "precision", "fp32 matmul", "fp32 conv", "autocast", "loss scaling"]
    headers += ["fp32 matmul error", "so fp32 products are"]
    about = (
        "Read back in the measuring process. The error is that of an fp32 matrix product against float64, "
        "outside autocast: about 1e-6 or less is IEEE fp32, about 3e-4 is TF32."
    )
    return Table(headers=headers, rows=rows, about=about)


def _arithmetic(error: float) -> str:
    if not known(error):
        return UNKNOWN
    return "IEEE fp32" if error <= IEEE_ERROR else "rounded (TF32 or less)"


def notes(trials: pd.DataFrame) -> Table | None:
    """Return every trial that was not simply ``ok``, was not steady, or was crowded, or whose training began anew.

    Alike ones are counted, and the rungs of a ladder of which the same is said stand in one row.
    """
    measured = trials["status"].isin(MEASURED)
    unsteady = trials[trials["steady"].eq("no") & measured]
    odd = [
        trials[(trials["status"] != "ok") | ((trials["phase"] == "train") & (trials["detail"] != ""))],
        unsteady.assign(status="not steady", detail="step times had not settled when warm-up ended"),
    ]
    rows = pd.concat([*odd, trials[(trials["foreign_load_pct"] > CROWDED_PCT) & measured].assign(status="crowded")])
    if rows.empty:
        return None
    rung = rows["phase"].isin(LADDER)
    rows = rows.assign(
        arm=rows["precision"].astype(str).mask(rung, ""),
        shown=[
            parse_step(name).added if on else name for name, on in zip(rows["precision"].astype(str), rung, strict=True)
        ],
    )
    key = [*SUBJECT, "phase", "arm", "status"]
    most = rows.groupby(key, sort=False)["foreign_load_pct"].transform("max")
    told = [f"other programs took up to {share:.0f} % of the machine's cores while timing" for share in most]
    rows["detail"] = rows["detail"].where(rows["status"] != "crowded", told)
    key.append("detail")
    alike = rows.sort_values("batch_size", kind="stable").groupby(key, sort=False)
    counted = alike.agg(
        sizes=("batch_size", "unique"), shown=("shown", "unique"), trials=("trial", "nunique")
    ).reset_index()
    counted = counted.merge(subjects(trials), on=SUBJECT, how="left")
    body = [
        [
            *(row[name] for name in ("workload", "where")),
            ", ".join(f"{size:.0f}" for size in row["sizes"]),
            row["phase"],
            ", ".join(row["shown"]),
            row["status"],
            str(row["trials"]),
            _short(row["detail"]) or UNKNOWN,
        ]
        for row in records(counted)
    ]
    headers = ["suite", "device", "batch sizes", "phase", "precision", "status", "trials", "detail"]
    return Table(headers=headers, rows=body)


def warnings(runs: list[Run]) -> list[str]:
    """Return the warnings that the runs were given, named by run where there are several."""
    several = len(runs) > 1
    return [f"{run.label}: {text}" if several else str(text) for run in runs for text in run.list("warnings")]


def _short(detail: str) -> str:
    """Keep of a long detail its cause, which names the device, and its end, where an error says what it is."""
    text = " ".join(detail.split())
    if len(text) <= SHOWN:
        return text
    head = min(len(text.partition(" | ")[0]), SHOWN // 2)
    return f"{text[:head]} … {text[head - SHOWN :]}"
