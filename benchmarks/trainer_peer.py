"""transformers.Trainer on BertForPreTraining, as its documentation has it: the peer of `time_to_loss`.

    python -m benchmarks.trainer_peer FOLDER

A process of its own, since transformers must find accelerate, which the Trainer needs, when it is imported first.
Reads FOLDER/setup.json, trains, and writes FOLDER/curve.json: [CPU seconds, validation MLM loss] of each evaluation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoTokenizer,
    BertForPreTraining,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.curve import Curve
from benchmarks.time_to_loss import CPU, CURVE_FILE, ONE, Setup
from pretrain.data.stream import MicroBatch
from pretrain.evaluate import evaluate
from pretrain.model.bert import StreamBert, grow_vocabulary
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import process_group
from runtime.files import write_json


def rows_of(micro_batch: MicroBatch) -> list[dict[str, Any]]:
    """Return the pairs of a stream as they were before the masks, one feature dict each."""
    ids = micro_batch.input_ids[0].copy()
    ids[micro_batch.masked_positions] = micro_batch.labels
    ends = micro_batch.cu_seqlens[1:-1]
    return [
        {"input_ids": pair.tolist(), "token_type_ids": types.tolist(), "next_sentence_label": int(label)}
        for pair, types, label in zip(
            np.split(ids, ends),
            np.split(micro_batch.token_type_ids[0], ends),
            micro_batch.next_sentence_label,
            strict=True,
        )
    ]


def stock_model(ours: StreamBert) -> BertForPreTraining:
    """Return the stock class with our weights, its vocabulary not padded."""
    config = type(ours.config)(**ours.config.to_diff_dict() | {"vocab_size": ours.real_vocab_size})
    stock = BertForPreTraining._from_config(config, attn_implementation="sdpa")
    stock.load_state_dict(grow_vocabulary(ours.state_dict(), ours.real_vocab_size))
    return stock


class _Evaluation(TrainerCallback):  # type: ignore[misc]
    """Evaluates as our loop does, with the clock stopped."""

    def __init__(self, setup: Setup, judge: StreamBert) -> None:
        self.curve = Curve()
        self._setup = setup
        self._judge = judge
        self._reader = setup.reader("validation")

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.curve.begin()

    def on_step_end(self, _: Any, state: Any, *__: Any, model: BertForPreTraining, **___: Any) -> None:
        if state.global_step % self._setup.evaluate_every and state.global_step < self._setup.steps:
            return
        self.curve.pause()
        self._judge.load_state_dict(grow_vocabulary(model.state_dict(), self._judge.config.vocab_size))
        values = evaluate(self._judge, self._setup.validation(self._reader), CPU)
        self.curve.go_on(values["eval/mlm_loss"])


def train(setup: Setup) -> Curve:
    """Train with the Trainer; inside a process group, as `evaluate` sums over ranks."""
    tokenizer = AutoTokenizer.from_pretrained(setup.folder / "tokenizer")
    ours = setup.model()
    assert ours.real_vocab_size == load_tokenizer_info(setup.folder / "tokenizer").size == len(tokenizer)
    evaluation = _Evaluation(setup, ours)
    arguments = TrainingArguments(
        output_dir=str(setup.folder / "trainer"),
        use_cpu=True,
        max_steps=setup.steps,
        per_device_train_batch_size=setup.pairs,
        train_sampling_strategy="sequential",
        learning_rate=setup.lr,
        warmup_steps=setup.warmup_steps,
        lr_scheduler_type="linear",
        weight_decay=0.01,
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        model=stock_model(ours),
        args=arguments,
        train_dataset=[row for micro_batch in setup.batches() for row in rows_of(micro_batch)],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        callbacks=[evaluation],
    )
    trainer.train()
    return evaluation.curve


def main(folder: Path) -> None:
    """Train and write the curve."""
    setup = Setup.load(folder)
    with process_group(ONE):
        curve = train(setup)
    write_json(folder / CURVE_FILE, curve.points)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
