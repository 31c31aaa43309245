"""report/tables."""
