"""The model that training starts with: fresh weights, a Hugging Face BERT, or the run of the phase before."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForPreTraining

from pretrain.engine.checkpoint import CHECKPOINTS_DIR, find_checkpoint, load_fp32_weights
from pretrain.model.bert import StreamBert, grow_vocabulary, padded_vocab_size
from pretrain.recipe import Recipe
from pretrain.tokenizer import TokenizerInfo
from runtime.command import ConfigError

logger = logging.getLogger(__name__)


def bert_config(recipe: Recipe, tokenizer: TokenizerInfo) -> BertConfig:
    """Return the stock config of a recipe's model; vocab_size counts the padding."""
    model = recipe.model
    return BertConfig(
        vocab_size=padded_vocab_size(max(model.vocab_size or 0, tokenizer.size)),
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=model.max_position_embeddings,
        hidden_act=model.hidden_act,
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
        initializer_range=model.initializer_range,
        layer_norm_eps=model.layer_norm_eps,
        pad_token_id=tokenizer.vocabulary.pad_id,
    )


def build_model(recipe: Recipe, tokenizer: TokenizerInfo) -> StreamBert:
    """Build the model with the weights that training starts from, in fp32 on the CPU; the same on every rank.

    Raises:
        ConfigError: init_from is not there, has another vocabulary, or another shape.
    """
    torch.manual_seed(recipe.training.seed)
    model = StreamBert(bert_config(recipe, tokenizer), tokenizer.size, nsp=recipe.data.nsp)
    if recipe.training.init_from is not None:
        _take_weights(model, Path(recipe.training.init_from), tokenizer)
    if recipe.model.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _take_weights(model: StreamBert, source: Path, tokenizer: TokenizerInfo) -> None:
    if (source / CHECKPOINTS_DIR).is_dir():
        state = _from_run(model, source, tokenizer)
    elif (source / "config.json").is_file():
        state = _from_hugging_face(source, tokenizer)
    else:
        raise ConfigError(
            f"training.init_from = {str(source)!r}: neither a run ({CHECKPOINTS_DIR}/) nor a Hugging Face directory "
            "(config.json)"
        )
    state = grow_vocabulary(state, model.config.vocab_size)
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in state:
            raise ConfigError(f"training.init_from = {str(source)!r}: {name} is missing there")
        if state[name].shape != tensor.shape:
            raise ConfigError(
                f"training.init_from = {str(source)!r}: {name} has shape {tuple(state[name].shape)}, "
                f"the recipe's model needs {tuple(tensor.shape)}"
            )
    surplus = sorted(set(state) - set(wanted))
    if surplus:
        raise ConfigError(f"training.init_from = {str(source)!r}: {surplus[0]} has no place in the recipe's model")
    model.load_state_dict(state)


def _from_run(model: StreamBert, source: Path, tokenizer: TokenizerInfo) -> dict[str, Tensor]:
    checkpoint = find_checkpoint(source)
    if checkpoint is None:
        raise ConfigError(f"training.init_from = {str(source)!r}: this run has no checkpoint yet")
    if checkpoint.fingerprints["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError(f"training.init_from = {str(source)!r}: this run was made with another tokenizer")
    return load_fp32_weights(checkpoint, model)


def _from_hugging_face(source: Path, tokenizer: TokenizerInfo) -> dict[str, Tensor]:
    theirs = AutoTokenizer.from_pretrained(source).get_vocab()
    if theirs != tokenizer.token_ids:
        raise ConfigError(
            f"training.init_from = {str(source)!r}: its vocabulary ({len(theirs)} tokens) differs from the recipe's "
            f"tokenizer ({tokenizer.size} tokens): train with the tokenizer of that directory"
        )
    stock, report = BertForPreTraining.from_pretrained(source, output_loading_info=True, dtype=torch.float32)
    new = sorted(report["missing_keys"])
    if new:
        logger.warning("training.init_from = %r: not there, fresh weights: %s", str(source), ", ".join(new))
    return dict(stock.state_dict())
