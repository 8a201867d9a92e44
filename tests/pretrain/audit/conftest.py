"""A workshop of tiny shards for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pretrain.audit.workshop import Workshop, write_tokenizer


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path, write_tokenizer(tmp_path / "tokenizer"))
