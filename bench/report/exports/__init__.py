"""Exports for other programs: typed frames and JSON."""
