"""Compiled layers: the same losses and gradients, the same names, and few compilations over many stream sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from pretrain.model import cuda_attention
from pretrain.model.bert import StreamBert
from pretrain.model.compiling import AUTO, LAYERS, LAYERS_CUDA_GRAPHS, OFF, as_they_are, compile_layers, resolve_compile
from pretrain.model.loss import loss_sums, micro_batch_loss
from runtime.command import ConfigError

STREAMS = ([9, 9, 5], [14, 7, 7], [12, 12, 12], [16, 5, 5], [16, 16, 8], [9, 9, 5])


def _attend_as_on_cuda(module, query, key, value, attention_mask, *, layout, dropout=0.0, **_):
    """One call for all pairs, as on CUDA, that a CPU can make as well."""
    return cuda_attention.attend("padded", query, key, value, layout, dropout), None


@pytest.fixture
def model_of(bench) -> Iterator[Callable[..., StreamBert]]:
    """Maker of seeded models of three layers that attend as on CUDA, with a compiler that has seen nothing."""
    AttentionInterface.register("as_on_cuda", _attend_as_on_cuda)

    def make() -> StreamBert:
        # Not "gelu", for which a CPU has kernels of its own and does not call the layers.
        model = bench.model(num_hidden_layers=3, hidden_act="gelu_new").train()
        model.config._attn_implementation = "as_on_cuda"
        return model

    torch._dynamo.reset()
    counters.clear()
    yield make
    torch._dynamo.reset()


def _step(bench, model, lengths: list[int], seed: int) -> tuple[float, dict[str, torch.Tensor]]:
    pairs = bench.pairs(lengths, seed=seed)
    output = bench.run(model, pairs)
    sums = loss_sums(output.mlm_logits, pairs.masked_labels, output.nsp_logits, pairs.next_sentence_label)
    loss = micro_batch_loss(
        sums, global_masked_tokens=len(pairs.masked_labels), global_pairs=len(pairs), world_size=1, accumulation=1
    )
    model.zero_grad()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def _check_steps(bench, eager, compiled) -> None:
    for seed, lengths in enumerate(STREAMS):
        wanted, wanted_gradients = _step(bench, eager, lengths, seed)
        loss, gradients = _step(bench, compiled, lengths, seed)
        assert loss == pytest.approx(wanted, abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, wanted_gradients[name], atol=1e-5, rtol=1e-4)


def test_losses_and_gradients_are_equal_and_all_layers_share_two_graphs(bench, model_of):
    compiled = model_of()
    assert compile_layers(compiled, LAYERS, backend="eager") == 3
    _check_steps(bench, model_of(), compiled)
    # The first T, and any T: for three layers and streams of five sizes.
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_names_are_stock(bench, model_of):
    plain, compiled = model_of(), model_of()
    compile_layers(compiled, LAYERS, backend="eager")
    _step(bench, compiled, [9, 5], 0)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in plain.named_parameters()]
    plain.load_state_dict(compiled.state_dict())


def test_off_compiles_nothing(bench, model_of):
    model = model_of()
    assert compile_layers(model, OFF) == 0
    _step(bench, model, [9, 5], 0)
    assert counters["stats"]["unique_graphs"] == 0


@pytest.mark.slow
def test_inductor_gives_the_same(bench, model_of, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled = model_of()
    compile_layers(compiled, LAYERS)
    _check_steps(bench, model_of(), compiled)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", [LAYERS, LAYERS_CUDA_GRAPHS])
def test_on_a_gpu_training_goes_the_same_way(bench, model_of, mode: str):
    def losses(compile_mode: str) -> list[float]:
        model = model_of().cuda()
        compile_layers(model, compile_mode)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        pairs = bench.pairs([14, 7, 7])
        found = []
        for _ in range(6):
            stream = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in pairs.stream().items()}
            output = model(**stream)
            sums = loss_sums(
                output.mlm_logits, pairs.masked_labels.cuda(), output.nsp_logits, pairs.next_sentence_label.cuda()
            )
            loss = sums.mlm_loss + sums.nsp_loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            found.append(loss.item())
        return found

    assert losses(mode) == pytest.approx(losses(OFF), rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "on_cuda", "zero_stage", "wanted"),
    [
        (AUTO, True, 0, LAYERS),
        (AUTO, True, 2, LAYERS),
        (AUTO, True, 3, OFF),
        (AUTO, False, 1, OFF),
        (OFF, True, 3, OFF),
        (LAYERS, True, 2, LAYERS),
        (LAYERS_CUDA_GRAPHS, True, 1, LAYERS_CUDA_GRAPHS),
    ],
)
def test_what_a_setting_comes_to(setting: str, on_cuda: bool, zero_stage: int, wanted: str):
    assert resolve_compile(setting, on_cuda=on_cuda, zero_stage=zero_stage) == wanted


def test_compiling_under_zero_3_is_refused():
    with pytest.raises(ConfigError, match=r"model\.compile = 'layers' with zero_optimization\.stage = 3"):
        resolve_compile(LAYERS, on_cuda=True, zero_stage=3)


def test_graphs_whose_gradients_would_be_overwritten_are_refused():
    with pytest.raises(ConfigError, match=r"'layers-cudagraphs' with gradient_accumulation_steps = 2 and no ZeRO"):
        resolve_compile(LAYERS_CUDA_GRAPHS, on_cuda=True, zero_stage=0, accumulation=2)
    assert resolve_compile(LAYERS_CUDA_GRAPHS, on_cuda=True, zero_stage=0) == LAYERS_CUDA_GRAPHS
    assert resolve_compile(LAYERS_CUDA_GRAPHS, on_cuda=True, zero_stage=2, accumulation=2) == LAYERS_CUDA_GRAPHS


@pytest.mark.parametrize("setting", [LAYERS, LAYERS_CUDA_GRAPHS])
def test_compiling_without_cuda_is_refused(setting: str):
    with pytest.raises(ConfigError, match=rf"model\.compile = '{setting}': needs CUDA"):
        resolve_compile(setting, on_cuda=False, zero_stage=1)


def test_evaluation_runs_compiled_layers_as_they_are(bench, model_of):
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model = model_of()
    model.config.hidden_act = "gelu_new"  # the stock layers, which alone are compiled
    compile_layers(model, LAYERS, backend=backend)
    stream = bench.pairs([14, 7]).stream()
    with torch.no_grad(), as_they_are(model):
        model(**stream)
    assert not compiled
    model(**stream)
    assert compiled


def test_without_compiled_layers_nothing_changes(model_of):
    assert isinstance(as_they_are(model_of()), nullcontext)
