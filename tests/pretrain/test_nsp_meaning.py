"""Case N3: from the shards to the stock class's argmax, 0 means that B follows A."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForPreTraining

from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import PairReader
from pretrain.data.stream import validation_batches
from pretrain.forward import forward_sums
from pretrain.initial import build_model
from pretrain.model.bert import grow_vocabulary
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from tokenization import shard
from tokenization.manifest import load_manifest


@pytest.fixture
def two_documents(tokenizer_dir, tmp_path) -> Path:
    """Two documents without a word in common: whether B follows A can be read off the words."""
    texts = ["the war of the army. " * 12, "a tax on trade is law. " * 12]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = ["--input", str(tmp_path / "text.jsonl"), "--tokenizer", str(tokenizer_dir)]
    shard.main([*arguments, "--output", str(tmp_path / "shards"), "--validation-share", "0"])
    return tmp_path / "shards"


def test_zero_means_that_b_follows_a(two_documents, recipe_path):
    recipe = load_recipe(recipe_path, ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"])
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    reader = PairReader(
        manifest=load_manifest(two_documents),
        split="train",
        pairing=PairingSettings(seed=0, seq_len=24, short_seq_prob=0.0, nsp=True),
        mlm_probability=0.15,
        vocabulary=tokenizer.vocabulary,
    )
    (batch,) = validation_batches(reader, micro_batch=1000, rank=0, world_size=1)
    assert set(batch.next_sentence_label.tolist()) == {0, 1}

    model = build_model(recipe, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        sums = forward_sums(model, batch, torch.device("cpu"))
        loss = sums.nsp_loss / len(batch.next_sentence_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
    assert loss.item() < 0.01

    stock = BertForPreTraining(type(model.config)(**model.config.to_diff_dict() | {"vocab_size": tokenizer.size}))
    stock.load_state_dict(grow_vocabulary(dict(model.state_dict()), tokenizer.size))
    stock.eval()
    words = {token_id: token for token, token_id in tokenizer.token_ids.items()}
    for start, stop in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        ids, types = (torch.from_numpy(row[:, start:stop]) for row in (batch.input_ids, batch.token_type_ids))
        with torch.no_grad():
            guess = int(stock(input_ids=ids, token_type_ids=types).seq_relationship_logits.argmax())
        segments = [" ".join(words[int(i)] for i in ids[0][types[0] == segment]) for segment in (0, 1)]
        about_war = ["war" in segment or "army" in segment for segment in segments]
        about_tax = ["tax" in segment or "trade" in segment for segment in segments]
        if any(about_war) and any(about_tax):
            assert guess == 1, segments  # the two documents: random
        elif all(about_war) or all(about_tax):
            assert guess == 0, segments  # one document: it follows
    assert np.mean(batch.next_sentence_label) == pytest.approx(0.5, abs=0.3)
