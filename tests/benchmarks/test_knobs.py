"""The changes of the JSON that the benchmark makes are the ones it names, and each is a JSON that is accepted."""

from __future__ import annotations

import pytest

from benchmarks.knobs import KNOBS, changed, main
from demo.run import DS_CONFIG
from pretrain.engine.ds_config import resolve_ds_config
from runtime.command import ConfigError
from runtime.files import read_json


def test_a_change_touches_its_place_alone():
    before = {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    assert changed(before, {"b.d.e": 4, "a": None, "f.g": {}}) == {"b": {"c": 2, "d": {"e": 4}}, "f": {"g": {}}}
    assert before == {"a": 1, "b": {"c": 2, "d": {"e": 3}}}


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_every_change_is_accepted_and_changes_what_is_run(knob):
    def resolved(config):
        return resolve_ds_config(config, path="ds.json", world_size=2, total_steps=100, warmup_steps=10, on_cuda=False)

    assert (resolved(changed(read_json(DS_CONFIG), knob.config)) == resolved(read_json(DS_CONFIG))) == (not knob.config)


def test_a_name_that_is_none():
    with pytest.raises(ConfigError, match=r"lr-lo: no such change \(did you mean 'lr-low'\?\)"):
        main(["lr-lo"])
