"""The table of telemetry: clocks, power, temperature and memory of each GPU while the steps of an arm ran."""

from __future__ import annotations

from bench.report.analysis.telemetry import telemetry
from bench.report.figures.telemetry import SECTION
from bench.report.format import MIB, records
from bench.report.reading.labels import subjects
from bench.report.reading.load import SUBJECT, Runs
from bench.report.tables.table import ARM, Entry, Table, figures, optional, table, whole, words

ABOUT = (
    "Readings of the driver's library (telemetry.csv), one every 0.2 s, while steps ran: from a trial's first timed "
    "block to its last, in its window of energy, in its epochs without their evaluation. Means, unless a column says "
    "otherwise. Precisions that take turns in one process share a row. Utilisation is the share of the driver's last "
    "sample period, up to a second, in which a kernel ran. Held down: the share of readings in which the driver named "
    "a reason for lower clocks, and each reason's share; sw_power_cap is the power limit. nvidia-smi: the most memory "
    "that was in use on the whole GPU."
)


def of_gpus(runs: Runs) -> Table | None:
    """Return what was read of each GPU, by arm; None where nothing was."""
    rows = telemetry(runs)
    trials = runs.tried()
    named = rows.merge(subjects(trials)[[*SUBJECT, "workload", "where"]], on=SUBJECT)
    columns = [
        words("suite", "workload"),
        *ARM,
        words("phase", "phase"),
        words("GPU", "gpu"),
        figures("readings", "samples", whole),
        figures("utilisation (%)", "utilization_pct", whole),
        figures("power (W)", "power_w", 3),
        figures("temperature (°C)", "temperature_c", whole),
        figures("SM clock (MHz)", "sm_clock_mhz", whole),
        figures("nvidia-smi (MiB)", "memory_used_bytes", whole, per=MIB),
        figures("held down (%)", "throttled_pct", whole),
        *optional(words("by", "throttle_reasons")),
    ]
    return table("Clocks, power and temperature", records(named), columns, ABOUT)


TABLES = (Entry(85, SECTION, lambda material: [of_gpus(material.runs)]),)
