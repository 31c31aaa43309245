"""A run from its folder to its report: prepare, execute, resume."""
