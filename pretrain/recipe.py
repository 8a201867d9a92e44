"""The recipe: what to train. A TOML file turned into frozen settings that are right or refused.

How to run it (batch sizes, optimizer, schedule, precision, ZeRO) has its home in the DeepSpeed JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, model_validator

from runtime.command import ConfigError, did_you_mean
from runtime.files import parse_toml, read_toml

OTHER_HOMES = {
    "train_batch_size": "train_batch_size",
    "batch_size": "train_batch_size",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "lr": "optimizer.params.lr",
    "learning_rate": "optimizer.params.lr",
    "weight_decay": "optimizer.params.weight_decay",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "gradient_clipping": "gradient_clipping",
    "max_grad_norm": "gradient_clipping",
    "fp16": "fp16",
    "bf16": "bf16",
}
"""Words that people write into a recipe, and where the DeepSpeed JSON has them."""


class _Settings(BaseModel):
    # strict: "true" is not true, 1.0 is not 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSettings(_Settings):
    """The encoder's shape, in transformers' BertConfig names; the defaults are BERT-base's."""

    hidden_size: int = Field(768, ge=1, description="H, width of the encoder")
    num_hidden_layers: int = Field(12, ge=1, description="encoder layers")
    num_attention_heads: int = Field(12, ge=1, description="N; hidden_size is a multiple of it")
    intermediate_size: int = Field(3072, ge=1, description="width of the feed-forward layer")
    max_position_embeddings: int = Field(512, ge=4, description="rows of the position table")
    vocab_size: int | None = Field(None, ge=6, description="rows of the table inside, at least the tokenizer's")
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"] = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    initializer_range: float = Field(0.02, gt=0, description="standard deviation of the initial weights")
    layer_norm_eps: float = Field(1e-12, gt=0)
    activation_checkpointing: bool = Field(False, description="recompute each layer in the backward pass")
    compile: Literal["auto", "off", "layers", "layers-cudagraphs"] = Field(
        "auto", description="torch.compile of the layers; auto: on CUDA below ZeRO 3"
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelSettings:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size = {self.hidden_size} is not a multiple of "
                f"num_attention_heads = {self.num_attention_heads}"
            )
        return self


class DataSettings(_Settings):
    """What a pair is and how it is masked (Devlin et al. 2018, appendix A)."""

    seq_len: int = Field(128, ge=8, description="most tokens of a pair, specials counted")
    short_seq_prob: float = Field(0.1, ge=0, le=1, description="chance of a shorter target length")
    nsp: bool = Field(True, description="next sentence prediction; false: one segment, MLM alone")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="share of a pair's tokens that is predicted")


class TrainingSettings(_Settings):
    """How long, and from where."""

    steps: int = Field(ge=1, description="optimizer updates of the whole run")
    warmup_steps: int | None = Field(None, ge=0, description='fills warmup_num_steps = "auto" of the JSON')
    seed: int = Field(42, ge=0, lt=2**31)
    init_from: str | None = Field(None, description="a Hugging Face BERT directory, or a run of the phase before")
    log_interval_steps: int = Field(10, ge=1)
    hang_seconds: float = Field(
        1800.0, gt=0, description="a run that has made no step for so long is ended, and the rank behind it named"
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="how the JSON's lr follows train_batch_size / lr_reference_batch"
    )
    lr_reference_batch: int | None = Field(None, ge=1, description="train_batch_size that the JSON's lr is for, pairs")

    @model_validator(mode="after")
    def _scaling_has_both(self) -> TrainingSettings:
        if (self.lr_scaling == "none") != (self.lr_reference_batch is None):
            raise ValueError(
                f"training.lr_scaling = {self.lr_scaling!r} with training.lr_reference_batch = "
                f'{self.lr_reference_batch}: give both ("linear" or "sqrt", and pairs) or neither'
            )
        return self


class EvaluationSettings(_Settings):
    """Held-out MLM and NSP on the validation split."""

    interval_steps: int = Field(1000, ge=0, description="0: never; else every so many steps and at the end")
    max_pairs: int = Field(10_000, ge=1, description="most pairs of the validation plan to evaluate")


class CheckpointSettings(_Settings):
    """When to save and what to keep."""

    interval_steps: int = Field(1000, ge=1, description="save every so many steps; the last step is always saved")
    keep_last: int = Field(3, ge=1, description="newest checkpoints kept")
    milestone_interval_steps: int = Field(0, ge=0, description="those of every so many steps stay for good; 0: none")
    asynchronous: bool = Field(
        False, description="write checkpoints while training goes on; takes host memory for a copy of what a rank saves"
    )
    on_error: Literal["stop", "continue"] = Field(
        "stop", description="a checkpoint that cannot be written, as on a full disk: stop, or try again at the next"
    )


class HealthSettings(_Settings):
    """What is done when training goes wrong."""

    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="NaN or Inf in the gradient: stop, or skip the update where DeepSpeed can"
    )
    max_skipped_steps: int = Field(50, ge=1, description="updates skipped in a row that stop the run")
    on_spike: Literal["off", "warn", "stop"] = Field("warn", description="a log line's loss far above the usual")
    spike_factor: float = Field(2.0, gt=1, description="times the median loss of the last 20 log lines")


class TrackingSettings(_Settings):
    """Where the numbers go besides metrics.jsonl."""

    wandb: Literal["auto", "online", "offline", "off"] = Field(
        "auto", description="auto: online with a key, else offline"
    )
    project: str = "zerobert"
    name: str | None = Field(None, description="name of the run; default: the recipe's")
    tensorboard: bool = False
    trust_ratios: bool = Field(False, description="with Lamb: the trust ratios of its last update at every log line")
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="peak of one device in the run's precision, TFLOP/s without sparsity, for speed/mfu; "
        "default: the maker's figure where the device is known",
    )


class Recipe(_Settings):
    """What to train."""

    name: str = Field(min_length=1)
    tokenizer: str = Field(description="tokenizer dir, relative to the working directory")
    shards: str = Field(description="shard dir")
    run_dir: str | None = Field(None, description="default of --run-dir")
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    training: TrainingSettings
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    health: HealthSettings = HealthSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _lengths_fit(self) -> Recipe:
        if self.data.seq_len > self.model.max_position_embeddings:
            raise ValueError(
                f"data.seq_len = {self.data.seq_len} is above "
                f"model.max_position_embeddings = {self.model.max_position_embeddings}"
            )
        warmup = self.training.warmup_steps
        if warmup is not None and warmup > self.training.steps:
            raise ValueError(f"training.warmup_steps = {warmup} is above training.steps = {self.training.steps}")
        return self


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: a TOML file.
        overrides: "key=value" each, as in `--set training.steps=100`; the value is TOML, a bare word is text.

    Returns:
        The validated settings.

    Raises:
        ConfigError: no such file, not TOML, unknown key, wrong type, value out of range; every fault is named.
    """
    values = read_toml(path)
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, str(path))


def parse_recipe(values: dict[str, Any], source: str) -> Recipe:
    """Validate a recipe's values.

    Args:
        values: nested dict, as TOML or JSON gives it.
        source: the file they came from, for messages.

    Raises:
        ConfigError: as `load_recipe`.
    """
    try:
        return Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        faults = [_fault(fault) for fault in error.errors()]
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def known_keys() -> dict[str, type[BaseModel] | None]:
    """Return every dotted key of a recipe; tables map to their class, values to None."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, field in Recipe.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys[name] = kind
            keys.update({f"{name}.{inner}": None for inner in kind.model_fields})
        else:
            keys[name] = None
    return keys


def _fault(error: Any) -> str:
    """Turn one of pydantic's errors into a line: field, value, rule."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(key)
    if error["type"] == "missing":
        return f"{key} is missing; it has no default"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{key} = {error['input']!r}: {message}"


def _unknown(key: str) -> str:
    leaf = key.rsplit(".", 1)[-1]
    if leaf in OTHER_HOMES:
        return f"{key} has its home in the DeepSpeed JSON ({OTHER_HOMES[leaf]}), not in the recipe"
    known = known_keys()
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    hint = f" (did you mean {same_leaf[0]!r}?)" if same_leaf else did_you_mean(key, known)
    return f"{key}: there is no such key in a recipe{hint}"


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--set {override}: write KEY=VALUE, as in --set training.steps=100")
    known = known_keys()
    if key not in known:
        raise ConfigError(f"--set {override}: {_unknown(key)}")
    if known[key] is not None:
        raise ConfigError(f"--set {override}: {key} is a table; set one of its keys, as in {key}.NAME=VALUE")
    *tables, leaf = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {table} is not a table in the recipe file")
    values[leaf] = _parse_value(text)


def _parse_value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text.strip()
