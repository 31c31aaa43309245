"""The CSVs of runs, read and validated."""
