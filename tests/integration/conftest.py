"""The launcher as a fixture."""

from __future__ import annotations

import pytest

from tests.integration.launching import Launcher


@pytest.fixture
def launcher(recipe_path, tmp_path) -> Launcher:
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    return Launcher(recipe_path, log_dir)
