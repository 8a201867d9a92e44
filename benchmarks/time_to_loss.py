"""CPU time to a fixed validation loss: this project's training loop against transformers.Trainer.

    python -m benchmarks.time_to_loss

BERT-mini (4 x 256, BERT's vocabulary of 30,522) on the State of the Union addresses, cut into documents whose pairs at
seq_len 512 are about as long as Wikipedia's. Both arms start from the same weights and see the same pairs in the same
order, with the same batch size, schedule, AdamW, clipping and dropout 0.1, in fp32 on one thread; both draw the masks
anew. The peer is `BertForPreTraining` with `DataCollatorForLanguageModeling`, rows padded to the longest of their
batch, in a process of its own (`trainer_peer.py`). The validation loss of both is computed by the same function on the
same masked pairs, and its time counts for neither. Both curves must be the same, but for chance, at every evaluation.
The time to the target is interpolated between two evaluations.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import lzma
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks import fetch, harness, prepare
from benchmarks.curve import Curve, check_equal
from pretrain.data.order import Cursor
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import MicroBatch, PairStream, validation_batches
from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import TrainingState
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.initial import build_model
from pretrain.loop import Run, train
from pretrain.model.bert import StreamBert
from pretrain.recipe import Recipe, parse_recipe
from pretrain.saver import Saver
from pretrain.stopping import Stopper
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import World, process_group
from runtime.files import read_json, write_json
from runtime.tracking import Tracker
from runtime.watchdog import Watchdog
from tokenization import shard
from tokenization.manifest import load_manifest

GOAL = 3.0
TARGET = 7.2
"""Nats a masked token; the loss of 30,522 equal chances is 10.3."""
CORPUS = Path(__file__).parent.parent / "demo" / "corpus" / "state_of_the_union.jsonl.xz"
ONE = World(rank=0, local_rank=0, size=1)
CPU = torch.device("cpu")
CURVE_FILE = "curve.json"
SETUP_FILE = "setup.json"
_SEED = 1
_MEDIAN_SENTENCES = 10
_SPREAD = 0.9
_PEER_MINUTES = 30


@dataclass(frozen=True)
class Setup:
    """What both arms have in common.

    Args:
        folder: holds tokenizer/ and shards/.
        layers: encoder layers.
        hidden: width.
        seq_len: most tokens of a pair.
        steps: optimizer updates; the schedule's length.
        warmup_steps: of these.
        pairs: of a step.
        lr: at the end of the warmup; falls to 0 at the last step.
        evaluate_every: steps between two evaluations.
        validation_pairs: pairs of an evaluation.
    """

    folder: Path
    layers: int = 4
    hidden: int = 256
    seq_len: int = 512
    steps: int = 36
    warmup_steps: int = 4
    pairs: int = 8
    lr: float = 1e-3
    evaluate_every: int = 4
    validation_pairs: int = 24

    def recipe(self) -> Recipe:
        """Return our recipe."""
        values = {
            "name": "time-to-loss",
            "tokenizer": str(self.folder / "tokenizer"),
            "shards": str(self.folder / "shards"),
            "model": {
                "hidden_size": self.hidden,
                "num_hidden_layers": self.layers,
                "num_attention_heads": max(1, self.hidden // 64),
                "intermediate_size": 4 * self.hidden,
                "max_position_embeddings": self.seq_len,
            },
            "data": {"seq_len": self.seq_len},
            "training": {"steps": self.steps, "warmup_steps": self.warmup_steps, "seed": _SEED},
            "evaluation": {"interval_steps": self.evaluate_every, "max_pairs": self.validation_pairs},
            "checkpoint": {"interval_steps": self.steps},
            "tracking": {"wandb": "off"},
        }
        return parse_recipe(values, "time_to_loss.toml")

    def ds_config(self) -> dict[str, Any]:
        """Return our resolved DeepSpeed JSON: the Trainer's own AdamW, schedule and clipping."""
        config = {
            "train_batch_size": self.pairs,
            "optimizer": {"type": "AdamW", "params": {"lr": self.lr, "eps": 1e-8, "weight_decay": 0.01}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}},
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 1},
        }
        return resolve_ds_config(
            config,
            path="time_to_loss.json",
            world_size=1,
            total_steps=self.steps,
            warmup_steps=self.warmup_steps,
            on_cuda=False,
        )

    def model(self) -> StreamBert:
        """Return the model with the weights that both arms start from."""
        return build_model(self.recipe(), load_tokenizer_info(self.folder / "tokenizer"))

    def reader(self, split: str) -> PairReader:
        """Return the reader of a split."""
        data = self.recipe().data
        return PairReader(
            manifest=load_manifest(self.folder / "shards"),
            split=split,
            pairing=PairingSettings(seed=_SEED, seq_len=data.seq_len, short_seq_prob=data.short_seq_prob, nsp=data.nsp),
            mlm_probability=data.mlm_probability,
            vocabulary=load_tokenizer_info(self.folder / "tokenizer").vocabulary,
        )

    def stream(self) -> PairStream:
        """Return the training pairs, a micro-batch a step."""
        return PairStream(
            reader=self.reader(TRAIN_SPLIT),
            train_batch_size=self.pairs,
            train_micro_batch_size_per_gpu=self.pairs,
            gradient_accumulation_steps=1,
            rank=0,
            world_size=1,
        )

    def batches(self) -> Iterator[MicroBatch]:
        """Yield the pairs of each step, as our arm sees them."""
        for micro_batches, _ in itertools.islice(self.stream().batches(Cursor()), self.steps):
            yield from micro_batches

    def validation(self, reader: PairReader) -> Iterator[MicroBatch]:
        """Yield the held-out pairs, masked the same each time."""
        return validation_batches(reader, micro_batch=8, rank=0, world_size=1, max_pairs=self.validation_pairs)

    def save(self) -> None:
        """Write the settings into the folder, for the peer's process."""
        write_json(self.folder / SETUP_FILE, asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def load(cls, folder: Path) -> Setup:
        """Read what `save` wrote."""
        return cls(**(read_json(folder / SETUP_FILE) | {"folder": folder}))


class _Clocked:
    """Stands where the loop has its tracker: an evaluation's numbers end the pause that the evaluation began."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if "eval/mlm_loss" in values:
            self._curve.go_on(values["eval/mlm_loss"])


def train_ours(setup: Setup) -> Curve:
    """Train with this project's loop; inside a process group. Returns the validation losses over CPU time."""
    config, held_out, curve = setup.ds_config(), setup.reader("validation"), Curve()

    def validation() -> Iterator[MicroBatch]:
        curve.pause()
        return setup.validation(held_out)

    stream = setup.stream()
    stream.batch(Cursor())  # compiled code and the plan are ready, as they are for the peer
    recipe, engine = setup.recipe(), build_engine(setup.model(), config)
    run = Run(
        recipe=recipe,
        world=ONE,
        device=CPU,
        engine=engine,
        stream=stream,
        validation=validation,
        tracker=cast(Tracker, _Clocked(curve)),
        saver=Saver(engine, setup.folder / "run", recipe, config, {}, ONE.size, is_rank_zero=True),
        stopper=Stopper(),
        watchdog=Watchdog(ONE.rank, ONE.size, recipe.training.hang_seconds),
    )
    curve.begin()
    train(run, TrainingState())
    return curve


def train_peer(setup: Setup) -> Curve:
    """Train with transformers.Trainer, in a process that has accelerate; returns as `train_ours`.

    Raises:
        UnreachableError: accelerate cannot be fetched.
        RuntimeError: the process failed.
    """
    setup.save()
    root = Path(__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_PORT"}  # a group of its own
    environment["PYTHONPATH"] = os.pathsep.join([str(root), str(fetch.peer("accelerate"))])
    command = [sys.executable, "-m", "benchmarks.trainer_peer", str(setup.folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60 * _PEER_MINUTES, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}:\n{done.stderr[-4000:]}")
    return Curve([(seconds, loss) for seconds, loss in read_json(setup.folder / CURVE_FILE)])


def read_documents(corpus: Path) -> prepare.Documents:
    """Read the addresses as documents about as long as an encyclopedia's: lengths drawn from a log-normal.

    Args:
        corpus: .jsonl.xz, {"text": ...} a line.
    """
    draw = random.Random(_SEED)
    documents: prepare.Documents = []
    with lzma.open(corpus, "rt", encoding="utf-8") as lines:
        for line in lines:
            sentences = fetch.split_english(" ".join(json.loads(line)["text"].split())).split("\n")
            first = 0
            while first < len(sentences):
                wanted = 2 + round(_MEDIAN_SENTENCES * draw.lognormvariate(0.0, _SPREAD))
                documents.append(sentences[first : first + wanted])
                first += wanted
    return documents


def prepare_folder(folder: Path) -> None:
    """Make tokenizer/ and shards/ in a folder; nothing of it is timed."""
    text = folder / "text.txt"
    prepare.write_text(read_documents(CORPUS), text)
    tokenizer = prepare.write_tokenizer(fetch.bert_vocabulary(), folder / "tokenizer")
    arguments = ["--input", str(text), "--tokenizer", str(tokenizer), "--output", str(folder / "shards")]
    arguments += ["--workers", "1", "--txt-layout", "blank", "--sentences", "line", "--validation-share", "0.05"]
    with contextlib.redirect_stdout(io.StringIO()):
        shard.main(arguments)


def compare(report: harness.Report, setup: Setup, target: float) -> None:
    """Train both arms and report; inside a process group.

    Args:
        report: where the figures go.
        setup: of both.
        target: validation loss in nats.
    """
    lengths = [length for batch in setup.batches() for length in batch.pair_lengths]
    curves = {"zerobert": train_ours(setup), "transformers.Trainer": train_peer(setup)}
    largest = check_equal(*curves.values())
    seconds = {}
    for name, curve in curves.items():
        seconds[name] = curve.seconds_to(target)
        losses = f"from {curve.points[0][1]:.3f} to {curve.points[-1][1]:.3f}"
        report.figure(f"{name}, CPU time to a validation MLM loss of {target} ({losses})", seconds[name], "s")
    ours, theirs = seconds.values()
    report.figure(
        f"transformers.Trainer / zerobert, CPU time to a validation MLM loss of {target}; {setup.steps} steps of "
        f"{setup.pairs} pairs, {sum(lengths) / len(lengths):.0f} tokens on average; losses within {largest:.3f} "
        "of each other at every evaluation",
        theirs / ours,
        "times",
        least=GOAL if report.options.goal is None else report.options.goal,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the goal is met."""
    parser = harness.parser("time_to_loss", __doc__)
    parser.add_argument("--target", type=float, default=TARGET, metavar="LOSS", help="default: %(default)s nats")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the arms, among the figures
    report = harness.Report("time_to_loss", options)
    with tempfile.TemporaryDirectory() as folder, process_group(ONE):
        prepare_folder(Path(folder))
        compare(report, Setup(Path(folder)), options.target)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
