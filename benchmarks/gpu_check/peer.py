"""Stages against stock transformers: the same samples padded, logits at every position; and from there to ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertForPreTraining

from benchmarks.gpu_check.ours import best_mode, measure
from benchmarks.gpu_check.stage import Results
from benchmarks.gpu_check.training import MasterAdamW, Timing, bare_step, figures, loss_of, our_model, time_steps
from benchmarks.gpu_check.workload import FULL_128, FULL_512, WIKIPEDIA_512, Scale, Shape, micro_batches, seq_len_of
from benchmarks.samples import padded
from pretrain.data.stream import MicroBatch
from pretrain.model.compiling import LAYERS, LAYERS_CUDA_GRAPHS, OFF
from pretrain.model.loss import IGNORE_INDEX, loss_sums

MOST_ROWS = 64
"""Padded rows of one forward of the peer: logits at every position take memory."""
COMPARED_PAIRS = 16
Rows = dict[str, Tensor]
RowsLoss = Callable[[nn.Module, Rows], Tensor]


def stock_model(scale: Scale, shape: Shape, device: torch.device) -> BertForPreTraining:
    """Return transformers' own class with our seeded weights, in bf16, without dropout."""
    with device:
        model = BertForPreTraining._from_config(shape.config(scale.vocab_size, 0.0), attn_implementation="sdpa")
    model.load_state_dict(our_model(scale, shape, device).state_dict())
    return model.to(device, torch.bfloat16).train()


def rows_of(micro_batch: MicroBatch, seq_len: int, device: torch.device) -> list[Rows]:
    """Return a micro-batch as padded rows on the device, no more than `MOST_ROWS` together."""
    rows = padded(_without_padding(micro_batch), seq_len)
    parts = zip(*(torch.split(tensor.to(device), MOST_ROWS) for tensor in rows.values()), strict=True)
    return [dict(zip(rows, part, strict=True)) for part in parts]


def _without_padding(micro_batch: MicroBatch) -> MicroBatch:
    num_pairs, num_tokens = micro_batch.num_pairs, micro_batch.num_tokens
    real = micro_batch.labels != IGNORE_INDEX
    return replace(
        micro_batch,
        input_ids=micro_batch.input_ids[:, :num_tokens],
        cu_seqlens=micro_batch.cu_seqlens[: num_pairs + 1],
        token_type_ids=micro_batch.token_type_ids[:, :num_tokens],
        position_ids=micro_batch.position_ids[:, :num_tokens],
        masked_positions=micro_batch.masked_positions[real],
        labels=micro_batch.labels[real],
        page_locked=None,
    )


def whole_rows(model: nn.Module, rows: Rows) -> Tensor:
    """Return the stock loss of rows: logits at every position."""
    loss: Tensor = model(**rows).loss
    return loss


def masked_rows(model: Any, rows: Rows) -> Tensor:
    """Return the loss of the stock encoder on padded rows, with the head at masked positions alone."""
    encoded = model.bert(
        input_ids=rows["input_ids"], token_type_ids=rows["token_type_ids"], attention_mask=rows["attention_mask"]
    )
    hidden = encoded.last_hidden_state.flatten(0, 1).index_select(0, rows["masked_positions"])
    nsp_logits = model.cls.seq_relationship(encoded.pooler_output)
    sums = loss_sums(model.cls.predictions(hidden), rows["masked_labels"], nsp_logits, rows["next_sentence_label"])
    return sums.mlm_loss / rows["masked_labels"].numel() + sums.nsp_loss / len(rows["input_ids"])


def with_places(rows: Rows) -> Rows:
    """Add where the predictions stand, found before anything is timed: finding them waits for the device."""
    labels = rows["labels"].flatten()
    places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    return {**rows, "masked_positions": places, "masked_labels": labels[places]}


def rows_step(
    model: nn.Module, loss_of_rows: RowsLoss, batches: list[list[Rows]], *, fused: bool
) -> Callable[[int], Tensor]:
    """Return a function that makes update number i of the peer and returns its loss."""
    optimizer = MasterAdamW(model, fused=fused)

    def step(number: int) -> Tensor:
        parts = batches[number % len(batches)]
        total = torch.zeros((), device=parts[0]["input_ids"].device)
        for rows in parts:
            loss = loss_of_rows(model, rows) / len(parts)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


def time_rows(results: Results, kind: str, loss_of_rows: RowsLoss = whole_rows, *, fused: bool = True) -> Timing:
    """Time the stock class on the samples of `ours`."""
    scale, device = results.scale, results.device
    model = stock_model(scale, scale.large, device)
    batches = [rows_of(one, seq_len_of(kind), device) for one in micro_batches(scale, kind)]
    if loss_of_rows is masked_rows:
        batches = [[with_places(rows) for rows in parts] for parts in batches]
    step = rows_step(model, loss_of_rows, batches, fused=fused)
    return time_steps(step, device, warm=max(1, scale.warm // 3), timed=max(2, scale.timed // 3))


def _against_stock(results: Results, kind: str) -> None:
    scale, device = results.scale, results.device
    if results.attempt("gradient errors", partial(compare_gradients, results, kind)) is None:
        return  # no ratio of what is not the same
    batches = micro_batches(scale, kind)
    theirs = results.attempt("transformers", lambda: figures(time_rows(results, kind), scale, scale.large, batches))
    ours = results.attempt("zerobert", partial(measure, results, scale.large, kind))
    if theirs and ours:
        ratio = theirs["step_ms"] / ours["step_ms"]
        results.record("ratio", round(ratio, 3))
        results.headline(f"{kind}: {ratio:.2f}x transformers on {device.type}, the same samples")


def compare_gradients(results: Results, kind: str) -> dict[str, float]:
    """Hold our bf16 gradient, and stock's, against stock's in fp32; ours may not be much farther from it.

    Returns:
        The norm of each difference, as a share of the fp32 gradient's norm, over all parameters together.
    """
    scale, device = results.scale, results.device
    few = replace(scale, pairs={kind: min(COMPARED_PAIRS, scale.pairs[kind])})
    (micro_batch,) = micro_batches(few, kind, number=1)
    (rows,) = rows_of(micro_batch, seq_len_of(kind), device)
    ours, stock, exact = (make(scale, scale.large, device) for make in (our_model, stock_model, stock_model))
    exact.float()
    loss_of(ours, micro_batch, device).backward()
    for model in (stock, exact):
        whole_rows(model, rows).backward()
    wanted = {name: parameter.grad for name, parameter in exact.named_parameters()}
    norm = _norm(wanted.values())
    errors = {
        name: _norm(parameter.grad.float() - wanted[key] for key, parameter in model.named_parameters()) / norm
        for name, model in (("zerobert", ours), ("transformers", stock))
    }
    if not errors["zerobert"] < 1.5 * errors["transformers"] + 1e-3:
        raise AssertionError(f"gradients in bf16 against fp32: {errors}")
    return {name: round(error, 5) for name, error in errors.items()}


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())


def against_wikipedia(results: Results) -> None:
    """Stock BERT-large on Wikipedia's lengths, padded to 512."""
    _against_stock(results, WIKIPEDIA_512)


def against_128(results: Results) -> None:
    """Stock BERT-large on full pairs of 128."""
    _against_stock(results, FULL_128)


def against_512(results: Results) -> None:
    """Stock BERT-large on full pairs of 512."""
    _against_stock(results, FULL_512)


@dataclass(frozen=True)
class Rung:
    """One technique more than the rung before."""

    name: str
    time: Callable[[Results], Timing]


def _stream(mode: str, *, fused: bool, dropout: float = 0.0) -> Callable[[Results], Timing]:
    def time(results: Results) -> Timing:
        scale, device = results.scale, results.device
        model = our_model(scale, scale.large, device, dropout=dropout, compiled=mode)
        batches = micro_batches(scale, WIKIPEDIA_512, is_static=mode == LAYERS_CUDA_GRAPHS)
        step = bare_step(model, batches, device, fused=fused)
        return time_steps(step, device, warm=max(1, scale.warm // 3), timed=max(2, scale.timed // 3))

    return time


def _climb(rung: Rung, results: Results, batches: list[MicroBatch]) -> dict[str, Any]:
    return figures(rung.time(results), results.scale, results.scale.large, batches)


def ladder(results: Results) -> None:
    """Add our techniques one by one to stock BERT-large on Wikipedia's lengths."""
    mode = best_mode(results.device)
    graphs = LAYERS_CUDA_GRAPHS if mode == LAYERS else OFF
    rungs = (
        Rung("stock", lambda results: time_rows(results, WIKIPEDIA_512, fused=False)),
        Rung("+ masked-only head", lambda results: time_rows(results, WIKIPEDIA_512, masked_rows, fused=False)),
        Rung("+ token stream", _stream(OFF, fused=False)),
        Rung(f"+ compile ({mode})", _stream(mode, fused=False)),
        Rung("+ fused AdamW", _stream(mode, fused=True)),
        Rung("with dropout 0.1", _stream(mode, fused=True, dropout=0.1)),
        Rung(f"+ CUDA graphs ({graphs})", _stream(graphs, fused=True)),
    )
    batches = micro_batches(results.scale, WIKIPEDIA_512)
    said = []
    for rung in rungs:
        timing = results.attempt(rung.name, partial(_climb, rung, results, batches))
        said.append(f"{rung.name} {timing['step_ms']:.1f} ms" if timing else f"{rung.name} failed")
        results.headline(", ".join(said))
