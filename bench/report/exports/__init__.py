"""Exports for other programs: typed frames, JSON, and the formats of other tools."""
