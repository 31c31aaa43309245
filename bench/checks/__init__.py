"""The instrument's self-tests: what each measures, in a process of its own, and how that is judged."""
