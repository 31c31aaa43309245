"""The process of one trial."""
