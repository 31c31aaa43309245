"""One file a suite: adding a model to the benchmark is adding one file here (docs/adding-a-suite.md)."""
