"""Planned memory against the tensors of two real ranks, a small model, every stage and both precisions."""

from __future__ import annotations

import pytest

from benchmarks.memory import measure_cells, planned_parameters
from pretrain.plan.memory import model_states


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_planned_states_are_what_two_ranks_hold():
    parameters = planned_parameters(layers=2, hidden=128)
    cells = measure_cells(2, layers=2, hidden=128, accumulation=3)
    assert [(cell["stage"], cell["precision"]) for cell in cells] == [
        (stage, precision) for precision in ("bf16", "fp32") for stage in (0, 1, 2, 3)
    ]
    for cell in cells:
        planned = model_states(parameters, cell["ds_config"], 2).total
        assert planned == pytest.approx(cell["bytes"], rel=0.01), cell
