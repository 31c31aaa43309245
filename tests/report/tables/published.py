"""Published rows, made up."""

from typing import Any

from bench.report.tables.published import FIGURES, WORDS


def figure(**given: Any) -> dict[str, Any]:
    """A row of the literature in which only these fields are given."""
    plain = dict.fromkeys(WORDS, "") | dict.fromkeys(FIGURES, float("nan"))
    usual = {"source": "a post", "model": "mlp", "gpu": "V100", "precision": "fp32", "batch_size": 128.0}
    return plain | usual | given
