"""Recipes: every field is typed, bounded and read; every fault is named, with its file, its key and its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pretrain.recipe import OTHER_HOMES, Recipe, known_keys, load_recipe, parse_recipe
from runtime.command import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {"name": "x", "tokenizer": "t", "shards": "s", "training": {"steps": 10}}

VALUES = [key for key, table in known_keys().items() if table is None]


def _with(**values: Any) -> dict[str, Any]:
    """Return the smallest recipe with more values, by dotted keys written with two underscores."""
    recipe = deepcopy(SMALLEST)
    for key, value in values.items():
        *tables, leaf = key.split("__")
        table = recipe
        for name in tables:
            table = table.setdefault(name, {})
        table[leaf] = value
    return recipe


def _toml(values: Mapping[str, Any]) -> str:
    def lines(table: Mapping[str, Any]) -> Iterator[str]:
        for key, value in table.items():
            if not isinstance(value, Mapping):
                yield f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in table.items():
            if isinstance(value, Mapping):
                yield from (f"[{key}]", *lines(value))

    return "\n".join(lines(values)) + "\n"


def _file(tmp_path: Path, text: str | None = None) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(_toml(SMALLEST) if text is None else text)
    return path


def _refused(values: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError, match=r"^r\.toml: ") as refusal:
        parse_recipe(dict(values), "r.toml")
    return str(refusal.value)


def test_the_defaults_are_bert_base(tmp_path: Path):
    recipe = load_recipe(_file(tmp_path))
    model = recipe.model
    assert (model.hidden_size, model.num_hidden_layers, model.num_attention_heads) == (768, 12, 12)
    assert (model.intermediate_size, model.max_position_embeddings) == (3072, 512)
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (recipe.data.seq_len, recipe.data.mlm_probability, recipe.data.short_seq_prob) == (128, 0.15, 0.1)
    assert recipe.data.nsp is True
    assert recipe.training.warmup_steps is None


# One value of a wrong type for every field, and the values just outside and just inside of its range.
WRONG_TYPE = {
    "name": 5,
    "tokenizer": 5,
    "shards": ["s"],
    "run_dir": 5,
    "model.hidden_size": "768",
    "model.num_hidden_layers": 12.0,
    "model.num_attention_heads": True,
    "model.intermediate_size": "3072",
    "model.max_position_embeddings": 512.5,
    "model.vocab_size": "30522",
    "model.hidden_act": 5,
    "model.compile": True,
    "model.hidden_dropout_prob": "0.1",
    "model.attention_probs_dropout_prob": True,
    "model.initializer_range": "0.02",
    "model.layer_norm_eps": "1e-12",
    "model.activation_checkpointing": "true",
    "data.seq_len": 128.0,
    "data.short_seq_prob": "0.1",
    "data.nsp": "true",
    "data.mlm_probability": "0.15",
    "training.steps": "100",
    "training.warmup_steps": 1.5,
    "training.seed": "42",
    "training.init_from": 5,
    "training.log_interval_steps": False,
    "training.lr_scaling": True,
    "training.lr_reference_batch": 256.0,
    "training.hang_seconds": "600",
    "evaluation.interval_steps": "1000",
    "evaluation.max_pairs": 1e4,
    "checkpoint.interval_steps": True,
    "checkpoint.keep_last": "3",
    "checkpoint.milestone_interval_steps": 1.5,
    "checkpoint.asynchronous": "false",
    "checkpoint.on_error": True,
    "health.on_nan": True,
    "health.max_skipped_steps": "50",
    "health.on_spike": 1,
    "health.spike_factor": "2",
    "tracking.wandb": True,
    "tracking.project": 5,
    "tracking.name": 5,
    "tracking.tensorboard": "false",
    "tracking.peak_tflops": "989",
    "tracking.trust_ratios": "true",
}
OUT_OF_RANGE = {
    "name": [""],
    "model.hidden_size": [0, -768],
    "model.num_hidden_layers": [0],
    "model.num_attention_heads": [0],
    "model.intermediate_size": [0],
    "model.max_position_embeddings": [3],
    "model.vocab_size": [5],
    "model.hidden_act": ["tanh", "GELU"],
    "model.compile": ["on", "layer"],
    "model.hidden_dropout_prob": [-0.1, 1.0, 1, float("nan")],
    "model.attention_probs_dropout_prob": [-0.1, 1.0],
    "model.initializer_range": [0, -0.02, float("inf")],
    "model.layer_norm_eps": [0.0],
    "data.seq_len": [7, 0],
    "data.short_seq_prob": [-0.01, 1.01, float("nan")],
    "data.mlm_probability": [0, 1, 1.5],
    "training.steps": [0, -1],
    "training.warmup_steps": [-1],
    "training.seed": [-1, 2**31],
    "training.log_interval_steps": [0],
    "training.lr_scaling": ["cubic"],
    "training.lr_reference_batch": [0],
    "training.hang_seconds": [0, -1.0],
    "evaluation.interval_steps": [-1],
    "evaluation.max_pairs": [0],
    "checkpoint.interval_steps": [0],
    "checkpoint.keep_last": [0],
    "checkpoint.milestone_interval_steps": [-1],
    "checkpoint.on_error": ["skip"],
    "health.on_nan": ["continue"],
    "health.max_skipped_steps": [0],
    "health.on_spike": ["skip"],
    "health.spike_factor": [1, 0.5],
    "tracking.wandb": ["on", "false"],
    "tracking.peak_tflops": [0, -989.0, float("inf")],
}
JUST_INSIDE = {
    "model.max_position_embeddings": [128],
    "model.vocab_size": [6],
    "model.hidden_dropout_prob": [0, 0.0, 0.99],
    "data.seq_len": [8, 512],
    "data.short_seq_prob": [0, 1, 0.0, 1.0],
    "training.steps": [1],
    "training.warmup_steps": [0, 10],
    "training.seed": [0, 2**31 - 1],
    "training.log_interval_steps": [1],
    "evaluation.interval_steps": [0],
    "checkpoint.keep_last": [1],
    "tracking.wandb": ["auto", "online", "offline", "off"],
    "tracking.peak_tflops": [0.1, 989],
}


def test_the_tables_of_this_file_name_every_field():
    assert sorted(WRONG_TYPE) == sorted(VALUES)


@pytest.mark.parametrize("key", VALUES)
def test_a_wrong_type_is_refused(key: str):
    message = _refused(_with(**{key.replace(".", "__"): WRONG_TYPE[key]}))
    assert message.startswith(f"r.toml: {key} = {WRONG_TYPE[key]!r}: ")


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in OUT_OF_RANGE.items() for value in values])
def test_a_value_out_of_range_is_refused(key: str, value: Any):
    message = _refused(_with(**{key.replace(".", "__"): value}))
    assert message.startswith(f"r.toml: {key} = {value!r}: ")
    assert "\n" not in message


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in JUST_INSIDE.items() for value in values])
def test_the_ends_of_a_range_belong_to_it(key: str, value: Any):
    recipe = parse_recipe(_with(**{key.replace(".", "__"): value}), "r.toml")
    for part in key.split("."):
        recipe = getattr(recipe, part)
    assert recipe == value


@pytest.mark.parametrize("text", ["true", "True", "yes", "1", "on"])
@pytest.mark.parametrize("key", ["data.nsp", "model.activation_checkpointing", "tracking.tensorboard"])
def test_text_is_no_truth(key: str, text: str):
    assert "valid boolean" in _refused(_with(**{key.replace(".", "__"): text}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"traning": {}}, "traning: there is no such key in a recipe (did you mean 'training'?)"),
        (
            {"training__step": 3},
            "training.step: there is no such key in a recipe (did you mean 'training.steps'?)",
        ),
        ({"seq_len": 128}, "seq_len: there is no such key in a recipe (did you mean 'data.seq_len'?)"),
        (
            {"model__mlm_probability": 0.1},
            "model.mlm_probability: there is no such key in a recipe (did you mean 'data.mlm_probability'?)",
        ),
        ({"zzzzzz": 1}, "zzzzzz: there is no such key in a recipe"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(values: dict[str, Any], message: str):
    assert _refused(_with(**values)) == f"r.toml: {message}"


@pytest.mark.parametrize("word", sorted(OTHER_HOMES))
@pytest.mark.parametrize("table", ["", "training__"])
def test_a_setting_of_the_deepspeed_json_names_its_home(word: str, table: str):
    message = _refused(_with(**{f"{table}{word}": 1}))
    key = f"{table}{word}".replace("__", ".")
    assert message == f"r.toml: {key} has its home in the DeepSpeed JSON ({OTHER_HOMES[word]}), not in the recipe"


def test_lr_names_its_home():
    assert "(optimizer.params.lr)" in _refused(_with(training__lr=1e-4))


def test_no_key_has_two_homes():
    assert not {key.rsplit(".", 1)[-1] for key in known_keys()} & set(OTHER_HOMES)


@pytest.mark.parametrize("key", ["name", "tokenizer", "shards", "training"])
def test_what_has_no_default_must_be_there(key: str):
    values = {name: value for name, value in SMALLEST.items() if name != key}
    assert _refused(values) == f"r.toml: {key} is missing; it has no default"


def test_steps_must_be_there():
    assert _refused({**SMALLEST, "training": {}}) == "r.toml: training.steps is missing; it has no default"


def test_a_value_in_place_of_a_table_is_refused():
    assert re.match(r"r\.toml: model = 3: input should be a valid dictionary", _refused(_with(model=3)))


def test_seq_len_above_the_position_table_is_refused():
    message = _refused(_with(data__seq_len=513))
    assert message == "r.toml: data.seq_len = 513 is above model.max_position_embeddings = 512"


def test_heads_that_do_not_divide_the_width_are_refused():
    message = _refused(_with(model__hidden_size=100))
    assert message == "r.toml: hidden_size = 100 is not a multiple of num_attention_heads = 12"


def test_a_warmup_longer_than_the_run_is_refused():
    message = _refused(_with(training__warmup_steps=11))
    assert message == "r.toml: training.warmup_steps = 11 is above training.steps = 10"


@pytest.mark.parametrize("half", [{"training__lr_scaling": "sqrt"}, {"training__lr_reference_batch": 256}])
def test_lr_scaling_needs_its_reference(half: dict[str, Any]):
    assert "give both" in _refused(_with(**half))
    both = parse_recipe(_with(training__lr_scaling="linear", training__lr_reference_batch=256), "r.toml")
    assert both.training.lr_reference_batch == 256


def test_every_fault_is_named_at_once():
    values = _with(data__nsp="true", training__lr=1e-4, training__seed=-1, modle={}, model__hidden_size=0)
    del values["shards"]
    lines = _refused(values).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("r.toml: ") for line in lines)
    faults = ("shards is missing", "data.nsp", "training.lr", "training.seed", "modle: ", "model.hidden_size")
    assert all(sum(fault in line for line in lines) == 1 for fault in faults)


def test_settings_cannot_be_changed():
    recipe = parse_recipe(dict(SMALLEST), "r.toml")
    with pytest.raises(ValidationError, match="frozen"):
        recipe.data.seq_len = 64


def test_a_recipe_comes_back_from_a_checkpoint_the_same():
    recipe = parse_recipe(_with(model__vocab_size=100, training__warmup_steps=3), "r.toml")
    assert parse_recipe(recipe.model_dump(mode="json"), "checkpoint.json") == recipe


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.steps=25", "training.steps", 25),
        ("data.nsp=false", "data.nsp", False),
        ("data.mlm_probability=0.2", "data.mlm_probability", 0.2),
        ("name=another", "name", "another"),  # a bare word is text
        ('name="quoted"', "name", "quoted"),
        ("tokenizer=/data/a b/t", "tokenizer", "/data/a b/t"),
        ("training.init_from=runs/a=b", "training.init_from", "runs/a=b"),  # the first = counts
        (" training.seed = 7 ", "training.seed", 7),
        ("tracking.wandb=off", "tracking.wandb", "off"),
        ("model.layer_norm_eps=1e-6", "model.layer_norm_eps", 1e-6),
        ("training.steps=1_000", "training.steps", 1000),
    ],
)
def test_set(tmp_path: Path, override: str, key: str, value: Any):
    recipe = load_recipe(_file(tmp_path), [override])
    for part in key.split("."):
        recipe = getattr(recipe, part)
    assert recipe == value
    assert type(recipe) is type(value)


def test_set_makes_a_missing_table_and_the_last_one_counts(tmp_path: Path):
    recipe = load_recipe(_file(tmp_path), ["checkpoint.keep_last=1", "training.steps=3", "training.steps=4"])
    assert recipe.checkpoint.keep_last == 1
    assert recipe.training.steps == 4


def test_set_fills_what_the_file_lacks(tmp_path: Path):
    path = _file(tmp_path, 'name = "x"\ntokenizer = "t"\n')
    assert load_recipe(path, ["shards=s", "training.steps=1"]).shards == "s"


@pytest.mark.parametrize("key", VALUES)
def test_every_value_can_be_set(tmp_path: Path, key: str):
    with pytest.raises(ConfigError, match=re.escape(f"recipe.toml: {key} = ")):
        load_recipe(_file(tmp_path), [f"{key}=[1979-05-27]"])  # right for no field: it arrives, and is refused there


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "--set training.steps: write KEY=VALUE, as in --set training.steps=100"),
        ("=3", "--set =3: write KEY=VALUE"),
        ("training.step=3", "--set training.step=3: training.step: there is no such key in a recipe (did you mean"),
        ("training.lr=1", "--set training.lr=1: training.lr has its home in the DeepSpeed JSON (optimizer.params.lr)"),
        ("model=3", "--set model=3: model is a table; set one of its keys, as in model.NAME=VALUE"),
        ("training.steps=many", "recipe.toml: training.steps = 'many': input should be a valid integer"),
        ("training.steps=", "recipe.toml: training.steps = '': input should be a valid integer"),
        ("data.nsp=True", "recipe.toml: data.nsp = 'True': input should be a valid boolean"),
    ],
)
def test_a_set_that_is_wrong_is_refused(tmp_path: Path, override: str, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_recipe(_file(tmp_path), [override])


def test_set_into_what_is_no_table_is_refused(tmp_path: Path):
    path = _file(tmp_path, 'name = "x"\ntokenizer = "t"\nshards = "s"\ntraining = 3\n')
    with pytest.raises(ConfigError, match=r"--set training\.steps=3: training is not a table in the recipe file"):
        load_recipe(path, ["training.steps=3"])


def test_a_file_that_is_not_there_or_not_toml_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"gone\.toml: no such file"):
        load_recipe(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"recipe\.toml: not TOML"):
        load_recipe(_file(tmp_path, "name: x\n"))


SHIPPED = sorted((ROOT / "recipes").glob("*.toml"))


def test_recipes_are_shipped():
    assert len(SHIPPED) >= 5


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.run_dir


def test_known_keys_are_those_of_the_classes():
    keys = known_keys()
    assert keys["training.steps"] is None
    assert keys["model"] is Recipe.model_fields["model"].annotation
    assert len(keys) == len(set(keys))


def _attributes_read(paths: Sequence[Path]) -> set[str]:
    return {
        node.attr for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    }


def _fields(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in settings.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation)


def test_every_field_is_read_somewhere():
    """A setting that nothing reads is a promise that is not kept."""
    sources = [path for path in (ROOT / "pretrain").rglob("*.py") if path.name != "recipe.py"]
    read = _attributes_read(sources)
    assert sorted(set(_fields(Recipe)) - read) == []


def test_a_field_that_nothing_reads_would_be_found(tmp_path: Path):
    source = tmp_path / "a.py"
    source.write_text("x = recipe.data.seq_len\nmlm_probability = 'data.mlm_probability'\n")
    assert _attributes_read([source]) == {"data", "seq_len"}


def test_every_field_is_in_the_docs():
    docs = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text(encoding="utf-8")
    values = [key for key, table in known_keys().items() if table is None]
    assert [key for key in values if f"| `{key}` |" not in docs] == []
    assert docs.count("\n| `") == len(values)
