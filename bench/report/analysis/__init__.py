"""From rows to estimates: speedups, verdicts, bottlenecks, comparability."""
