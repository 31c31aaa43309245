"""The instrument: everything between a command line and a report."""

__version__ = "0.1.0"
