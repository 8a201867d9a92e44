"""BERT on a token stream gives what the stock model gives, pair by pair."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining

from pretrain.model.bert import StreamBert, grow_vocabulary, padded_vocab_size
from pretrain.model.cpu import encoder
from pretrain.model.loss import loss_sums

LENGTHS = [
    pytest.param([7], id="one pair"),
    pytest.param([5, 5, 5], id="equal neighbours of length 5"),
    pytest.param([9, 9, 5, 12, 12, 12, 9], id="equal neighbours, and the same length again later"),
    pytest.param([64, 33, 6, 5], id="to the position table's end, all different"),
]


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(
            gradient, theirs[name], atol=1e-5, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("lengths", LENGTHS)
def test_logits_and_gradients_equal_every_pair_run_alone(bench, lengths: list[int]):
    model, pairs = bench.model(), bench.pairs(lengths)
    stock = bench.stock(model)
    output = bench.run(model, pairs)
    mlm, nsp = [], []
    for ids, types, labels in zip(pairs.input_ids, pairs.token_type_ids, pairs.labels, strict=True):
        alone = stock(input_ids=ids[None], token_type_ids=types[None])
        mlm.append(alone.prediction_logits[0, labels != -100, : bench.real_vocab])
        nsp.append(alone.seq_relationship_logits)
    torch.testing.assert_close(output.mlm_logits, torch.cat(mlm), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.nsp_logits, torch.cat(nsp), atol=1e-5, rtol=1e-5)

    for mlm_logits, nsp_logits in ((output.mlm_logits, output.nsp_logits), (torch.cat(mlm), torch.cat(nsp))):
        loss = cross_entropy(mlm_logits, pairs.masked_labels) + cross_entropy(nsp_logits, pairs.next_sentence_label)
        loss.backward()
    ours = _gradients(model)
    assert len(ours) == len(list(model.parameters()))
    _assert_same_gradients(ours, _gradients(stock))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_logits_and_gradients_equal_the_stock_model_on_padded_rows(bench, lengths: list[int]):
    model, pairs = bench.model(), bench.pairs(lengths)
    stock = bench.stock(model)
    output, padded = bench.run(model, pairs), stock(**pairs.padded())
    mlm = torch.cat(
        [row[: len(labels)][labels != -100] for row, labels in zip(padded.prediction_logits, pairs.labels, strict=True)]
    )
    mlm = mlm[:, : bench.real_vocab]
    torch.testing.assert_close(output.mlm_logits, mlm, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.nsp_logits, padded.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    direction = torch.randn(mlm.shape, generator=torch.Generator().manual_seed(1)) / len(mlm)
    for mlm_logits, nsp_logits in ((output.mlm_logits, output.nsp_logits), (mlm, padded.seq_relationship_logits)):
        ((mlm_logits * direction).sum() + nsp_logits.square().mean()).backward()
    _assert_same_gradients(_gradients(model), _gradients(stock))


def test_the_masked_only_head_equals_full_logits_at_these_positions(bench):
    model, pairs = bench.model(), bench.pairs([9, 12, 5])
    stream = pairs.stream()
    full = model(**{**stream, "masked_positions": torch.arange(sum(pairs.lengths))}).mlm_logits
    few = model(**stream).mlm_logits
    assert few.shape == (6, bench.real_vocab)
    torch.testing.assert_close(few, full[stream["masked_positions"]], atol=1e-6, rtol=1e-5)


def test_masked_positions_keep_their_order(bench):
    model, stream = bench.model(), bench.pairs([9, 12, 5]).stream()
    backwards = model(**{**stream, "masked_positions": stream["masked_positions"].flip(0)}).mlm_logits
    torch.testing.assert_close(backwards, model(**stream).mlm_logits.flip(0), atol=1e-6, rtol=1e-5)


def test_a_pair_does_not_feel_its_neighbours(bench):
    model, pairs = bench.model(), bench.pairs([9, 9, 7])
    before = bench.run(model, pairs)
    pairs.input_ids[1] = pairs.input_ids[1].flip(0)
    after = bench.run(model, pairs)
    assert torch.equal(before.nsp_logits[[0, 2]], after.nsp_logits[[0, 2]])
    assert torch.equal(before.mlm_logits[[0, 1, 4, 5]], after.mlm_logits[[0, 1, 4, 5]])
    assert not torch.equal(before.nsp_logits[1], after.nsp_logits[1])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradient_checkpointing_changes_neither_loss_nor_gradients(bench, dropout: float):
    """Case O2."""
    results = []
    for checkpointing in (False, True):
        model = bench.model(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert model.is_gradient_checkpointing
        pairs = bench.pairs([9, 9, 7, 12])
        torch.manual_seed(5)
        output = bench.run(model, pairs)
        loss = cross_entropy(output.mlm_logits, pairs.masked_labels) + output.nsp_logits.square().mean()
        loss.backward()
        results.append((loss.item(), _gradients(model)))
    (loss, gradients), (checkpointed_loss, checkpointed) = results
    assert checkpointed_loss == pytest.approx(loss, abs=1e-6)
    _assert_same_gradients(checkpointed, gradients)


def test_gradient_checkpointing_runs_each_layer_again(bench, monkeypatch):
    calls = []
    model = bench.model().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    run_layer = encoder._run_layer
    monkeypatch.setattr(encoder, "_run_layer", lambda *given: calls.append(1) or run_layer(*given))
    output = bench.run(model, bench.pairs([9, 7]))
    assert len(calls) == 2
    output.mlm_logits.sum().backward()
    assert len(calls) == 4


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("padding", [0, 5])
def test_padding_behind_the_pairs_changes_nothing(bench, monkeypatch, padding: int, is_fused: bool):
    monkeypatch.setattr(encoder, "is_supported", lambda _: is_fused)
    model, pairs = bench.model().train(), bench.pairs([9, 9, 7])
    stream = pairs.stream()
    tail = torch.zeros((1, padding), dtype=torch.long)
    padded = {name: torch.cat([stream[name], tail], 1) for name in ("input_ids", "token_type_ids")}
    padded["position_ids"] = torch.cat([stream["position_ids"], torch.arange(padding)[None]], 1)
    padded["cu_seqlens"] = torch.cat([stream["cu_seqlens"], torch.tensor([25 + padding], dtype=torch.int32)])
    padded["pair_lengths"] = [9, 9, 7, padding] if padding else [9, 9, 7]
    results = []
    for batch in (stream, {**stream, **padded, "num_pairs": 3}):
        model.zero_grad()
        output = model(**batch)
        (output.mlm_logits.square().mean() + output.nsp_logits.square().mean()).backward()
        results.append((output, _gradients(model)))
    torch.testing.assert_close(results[1][0].nsp_logits, results[0][0].nsp_logits, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(results[1][0].mlm_logits, results[0][0].mlm_logits, atol=1e-6, rtol=1e-5)
    _assert_same_gradients(results[1][1], results[0][1])


def test_the_layers_called_one_by_one_give_the_same(bench, monkeypatch):
    """As under ZeRO 3, where a layer's weights are there only while it is called."""
    results = []
    for is_fused in (True, False):
        monkeypatch.setattr(encoder, "is_supported", lambda _, is_fused=is_fused: is_fused)
        model = bench.model().train()
        output = bench.run(model, bench.pairs([9, 9, 7, 12]))
        (output.mlm_logits.square().mean() + output.nsp_logits.square().mean()).backward()
        results.append((output, _gradients(model)))
    (fused, gradients), (called, expected) = results
    torch.testing.assert_close(fused.mlm_logits, called.mlm_logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fused.nsp_logits, called.nsp_logits, atol=1e-5, rtol=1e-5)
    _assert_same_gradients(gradients, expected)


@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_seeded_and_right_on_average(bench, kind: str):
    # One layer with small weights is nearly linear in what is dropped: the mean of many draws comes close to the output
    # without dropout, far closer than a draw.
    model = bench.model(num_hidden_layers=1, initializer_range=0.05, **{kind: 0.1})
    pairs = bench.pairs([12, 12, 9])

    @torch.no_grad()
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return bench.run(model, pairs).mlm_logits

    model.train()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2))
    draws = torch.stack([drawn(seed) for seed in range(200)])
    model.eval()
    assert torch.equal(drawn(1), drawn(2))
    off = (draws.mean(0) - drawn(0)).norm() / drawn(0).norm()
    spread = (draws - drawn(0)).norm(dim=(1, 2)).mean() / drawn(0).norm()
    assert off < 0.06
    assert off < 0.3 * spread


def test_without_nsp_there_are_no_nsp_logits_but_the_weights_are_stock(bench):
    model = bench.model(nsp=False)
    output = bench.run(model, bench.pairs([9, 7]))
    assert output.nsp_logits is None
    with_nsp = bench.model()
    assert model.state_dict().keys() == with_nsp.state_dict().keys()
    torch.testing.assert_close(output.mlm_logits, bench.run(with_nsp, bench.pairs([9, 7])).mlm_logits)


@pytest.mark.parametrize(
    ("vocab_size", "padded"), [(1, 64), (64, 64), (65, 128), (30_522, 30_528), (30_528, 30_528), (28_996, 29_056)]
)
def test_padded_vocabulary(vocab_size: int, padded: int):
    assert padded_vocab_size(vocab_size) == padded


def test_padding_is_never_predicted_and_takes_no_gradient(bench):
    """Case H3 and M5: 90 tokens in a table of 128."""
    model, pairs = bench.model(), bench.pairs([9, 12])
    with torch.no_grad():
        model.cls.predictions.bias[bench.real_vocab :] = 1e4  # were they there, they would win
    output = bench.run(model, pairs)
    assert output.mlm_logits.shape[1] == bench.real_vocab
    assert output.mlm_logits.argmax(-1).max() < bench.real_vocab
    cross_entropy(output.mlm_logits, pairs.masked_labels).backward()
    table = model.bert.embeddings.word_embeddings.weight
    assert table.shape == (bench.padded_vocab, 32)
    assert model.cls.predictions.decoder.weight is table
    assert torch.count_nonzero(table.grad[bench.real_vocab :]) == 0
    assert torch.count_nonzero(model.cls.predictions.bias.grad[bench.real_vocab :]) == 0


def test_without_a_tokenizer_size_the_whole_table_is_predicted(bench):
    assert bench.run(bench.model(vocab_size=None), bench.pairs([9])).mlm_logits.shape[1] == bench.padded_vocab


def test_more_tokens_than_rows_are_refused(bench):
    with pytest.raises(ValueError, match=r"vocab_size = 129 is above the model's 128"):
        StreamBert(bench.config(), 129)


@pytest.mark.parametrize("size", [90, 128, 192])
def test_grow_vocabulary_pads_with_zeros_or_trims(bench, size: int):
    state = bench.model().state_dict()
    grown = grow_vocabulary(state, size)
    assert grown.keys() == state.keys()
    kept = min(size, bench.padded_vocab)
    tables = {
        "bert.embeddings.word_embeddings.weight": (size, 32),
        "cls.predictions.decoder.weight": (size, 32),
        "cls.predictions.decoder.bias": (size,),
        "cls.predictions.bias": (size,),
    }
    for name, tensor in grown.items():
        if name not in tables:
            assert tensor is state[name]
            continue
        assert tensor.shape == tables[name]
        assert torch.equal(tensor[:kept], state[name][:kept])
        assert torch.count_nonzero(tensor[kept:]) == 0
    assert state["cls.predictions.bias"].shape == (bench.padded_vocab,)  # the argument is as it was
    stock = BertForPreTraining(bench.config(vocab_size=size))
    stock.load_state_dict(grown)


def test_grow_vocabulary_there_and_back_is_the_same(bench):
    state = bench.model(vocab_size=None).state_dict()
    back = grow_vocabulary(grow_vocabulary(state, 192), 128)
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_grow_vocabulary_takes_a_state_without_a_head(bench):
    state = {"bert.embeddings.word_embeddings.weight": torch.ones(4, 2), "other": torch.ones(3)}
    grown = grow_vocabulary(state, 6)
    assert grown.keys() == state.keys()
    assert grown["bert.embeddings.word_embeddings.weight"].sum() == 8


def test_the_first_loss_of_a_fresh_model_is_ln_v_plus_ln_2(bench):
    torch.manual_seed(0)
    model = StreamBert(bench.config(vocab_size=1024, initializer_range=0.02), 1000).eval()
    pairs = bench.pairs([40] * 16, masked=6)
    pairs.next_sentence_label = torch.arange(16) % 2
    output = bench.run(model, pairs)
    sums = loss_sums(output.mlm_logits, pairs.masked_labels, output.nsp_logits, pairs.next_sentence_label)
    loss = sums.mlm_loss / sums.mlm_tokens + sums.nsp_loss / sums.nsp_pairs
    assert loss.item() == pytest.approx(math.log(1000) + math.log(2), abs=0.1)


def test_the_initial_weights_are_those_of_the_stock_class(bench):
    torch.manual_seed(3)
    ours = StreamBert(bench.config())
    torch.manual_seed(3)
    theirs = BertForPreTraining(bench.config())
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_saving_gives_a_stock_directory(bench, tmp_path: Path):
    """Cases H1, H2, H4: 32 keys of the state dict, 30 tensors in the file."""
    from safetensors.torch import load_file

    model = bench.model(vocab_size=None).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "zerobert" not in (tmp_path / "config.json").read_text()
    assert config["model_type"] == "bert"
    stock, report = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    stored = load_file(tmp_path / "model.safetensors")
    assert len(model.state_dict()) - len(stored) == 2  # the decoder's weight and bias are tied
    assert not any("position_ids" in name or "gamma" in name for name in stored)
    pairs = bench.pairs([9])
    theirs = stock.eval()(**pairs.padded())
    torch.testing.assert_close(bench.run(model, pairs).nsp_logits, theirs.seq_relationship_logits, atol=1e-5, rtol=1e-5)
