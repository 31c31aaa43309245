"""The records of a run, their columns, and the CSV store."""
