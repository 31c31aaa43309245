"""report/analysis."""
