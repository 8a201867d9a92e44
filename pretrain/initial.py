"""The model that training starts with: fresh weights, a Hugging Face BERT, or the run of the phase before."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForPreTraining

from pretrain.engine.checkpoint import CHECKPOINTS_DIR, find_checkpoint, load_fp32_weights
from pretrain.model.bert import StreamBert, grow_vocabulary, padded_vocab_size
from pretrain.recipe import Recipe
from pretrain.tokenizer import TokenizerInfo
from runtime.command import ConfigError
from runtime.files import read_json

logger = logging.getLogger(__name__)

ARCHITECTURE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "hidden_act",
    "layer_norm_eps",
)
"""What init_from must agree on: the recipe's names are BertConfig's."""


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


def build_model(recipe: Recipe, tokenizer: TokenizerInfo, *, is_resumed: bool = False) -> StreamBert:
    """Build the model with the weights that training starts from, in fp32 on the CPU; the same on every rank.

    Args:
        recipe: of the run.
        tokenizer: of the run.
        is_resumed: whether a checkpoint's weights will take the place of these; init_from is not read then.

    Raises:
        ConfigError: init_from is not there, has another vocabulary, or another shape.
    """
    torch.manual_seed(recipe.training.seed)
    model = StreamBert(bert_config(recipe, tokenizer), tokenizer.size, nsp=recipe.data.nsp)
    if recipe.training.init_from is not None and not is_resumed:
        _take_weights(model, recipe, tokenizer)
    if recipe.model.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _take_weights(model: StreamBert, recipe: Recipe, tokenizer: TokenizerInfo) -> None:
    source = Path(str(recipe.training.init_from))
    try:
        if (source / CHECKPOINTS_DIR).is_dir():
            state = _from_run(model, recipe, source, tokenizer)
        elif (source / "config.json").is_file():
            state = _from_hugging_face(recipe, source, tokenizer)
        else:
            raise ConfigError(f"neither a run ({CHECKPOINTS_DIR}/) nor a Hugging Face directory (config.json)")
    except ConfigError as error:
        raise ConfigError(f"training.init_from = {str(source)!r}: {error}") from None
    model.load_state_dict(grow_vocabulary(state, model.config.vocab_size))


def _check_shape(recipe: Recipe, theirs: Mapping[str, object]) -> None:
    """Refuse weights of another architecture; heads and activations do not show in the tensors' shapes."""
    ours = recipe.model.model_dump()
    for key in ARCHITECTURE:
        if theirs.get(key) != ours[key]:
            raise ConfigError(f"{key} is {theirs.get(key)!r} there, the recipe has model.{key} = {ours[key]!r}")


def _from_run(model: StreamBert, recipe: Recipe, source: Path, tokenizer: TokenizerInfo) -> dict[str, Tensor]:
    checkpoint = find_checkpoint(source)
    if checkpoint is None:
        raise ConfigError("this run has no checkpoint yet")
    if checkpoint.fingerprints["tokenizer"] != tokenizer.fingerprint:
        raise ConfigError("this run was made with another tokenizer")
    _check_shape(recipe, checkpoint.recipe["model"])
    return load_fp32_weights(checkpoint, model)


def _from_hugging_face(recipe: Recipe, source: Path, tokenizer: TokenizerInfo) -> dict[str, Tensor]:
    if not any((source / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise ConfigError("no tokenizer.json or vocab.txt there: its vocabulary cannot be compared with the recipe's")
    theirs = AutoTokenizer.from_pretrained(source).get_vocab()
    if theirs != tokenizer.token_ids:
        raise ConfigError(
            f"its vocabulary ({len(theirs)} tokens) differs from the recipe's tokenizer ({tokenizer.size} tokens): "
            "train with the tokenizer of that directory"
        )
    _check_shape(recipe, read_json(source / "config.json"))
    try:
        stock, report = BertForPreTraining.from_pretrained(source, output_loading_info=True, dtype=torch.float32)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(f"its weights cannot be read: {error}") from None
    new = sorted(report["missing_keys"])
    # A model fine-tuned or pretrained without NSP lacks heads. An encoder that lacks weights is another model's.
    broken = [key for key in new if not key.startswith(("cls.", "bert.pooler."))]
    broken += sorted(map(str, {*report["mismatched_keys"]}))
    if broken:
        raise ConfigError(f"{len(broken)} tensors of the encoder are missing or of another shape, first {broken[0]}")
    if new:
        logger.warning("training.init_from = %r: not there, fresh weights: %s", str(source), ", ".join(new))
    return dict(stock.state_dict())
