from __future__ import annotations

import pytest

from pretrain.plan.hosts import count_slots
from runtime.command import ConfigError


def test_slots_are_counted_as_the_launcher_does(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("# two hosts\nnode01 slots=8\n\n  node02   slots=4  # the small one\n")
    assert count_slots(path) == {"node01": 8, "node02": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node01 slots=8\nnode02\n", r"line 2: 'node02': must be NAME slots=N"),
        ("node01 slots=8\nnode02 slots=x\n", r"line 2"),
        ("node01 slots=8\n\nnode01 slots=8\n", r"line 3: node01 stands in an earlier line"),
        ("node01 slots=0\n", r"line 1: slots=0: must be at least 1"),
        ("# nothing\n", r"names no host"),
    ],
)
def test_a_bad_line_is_named(text, message, tmp_path):
    path = tmp_path / "hostfile"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        count_slots(path)


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        count_slots(tmp_path / "nothing")
