"""Suites, one file each; to add one, add a file (docs/adding-a-suite.md)."""
