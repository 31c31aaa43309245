"""report/figures."""
