"""report/reading."""
