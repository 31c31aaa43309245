"""A run that each test fills."""

import pytest

from tests.report.builders import RunBuilder


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")
