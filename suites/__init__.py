"""Suites, one file each: to add a model to the benchmark, add a file here (docs/adding-a-suite.md)."""
