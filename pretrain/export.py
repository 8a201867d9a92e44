"""Turn a checkpoint into a stock Hugging Face BERT, with proof that it is the trained model.

    zerobert export runs/demo --to models/demo

Runs on one process without a GPU, from the fp32 master weights of any ZeRO stage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer, BertForPreTraining
from transformers.utils.logging import disable_progress_bar

from pretrain.engine.checkpoint import Checkpoint, damage, find_checkpoint, load_fp32_weights
from pretrain.initial import bert_config
from pretrain.model.bert import StreamBert, grow_vocabulary
from pretrain.model_card import model_card
from pretrain.recipe import parse_recipe
from pretrain.tokenizer import TokenizerInfo, load_tokenizer_info
from runtime.command import EXIT_DONE, EXIT_FAILED, ConfigError, run_command
from runtime.files import write_json, write_text

LARGEST_DIFFERENCE = 1e-5
"""Between the logits of the training model and of the reloaded stock model, in fp32."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
PROBE_TEXTS = ("The state of the union is strong.", "naïve café — 1,234.5 [MASK] 日本語 \u0000x", "")


class ExportError(RuntimeError):
    """The exported model is not the trained one; nothing is left behind."""


@dataclass(frozen=True)
class Proof:
    """What was compared and found."""

    largest_logit_difference: float
    """Over all MLM and NSP logits of the probe pairs, fp32."""
    num_pairs: int
    num_tokens: int
    num_tensors: int
    """In model.safetensors; tied tensors are stored once."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Raises:
        ConfigError: no such run or step, another tokenizer, a folder in the way.
    """
    parser = argparse.ArgumentParser(prog="zerobert export", description="Checkpoint -> Hugging Face BERT.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run dir, or one checkpoint of it")
    parser.add_argument("--step", type=int, help="default: the newest checkpoint")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="must not exist, or be empty")
    parser.add_argument("--tokenizer", type=Path, help="where the tokenizer is now; default: where the run read it")
    arguments = parser.parse_args(argv)
    disable_progress_bar()
    try:
        proof = export(arguments.run, arguments.to, step=arguments.step, tokenizer_dir=arguments.tokenizer)
    except ExportError as error:
        sys.stderr.write(f"zerobert export: failed: {error}; no {arguments.to} was left behind\n")
        return EXIT_FAILED
    sys.stdout.write(
        f"exported {arguments.to}: {proof.num_tensors} tensors; largest logit difference to the training model "
        f"{proof.largest_logit_difference:.2e} over {proof.num_pairs} pairs\n"
    )
    return EXIT_DONE


def export(run: Path, to: Path, *, step: int | None = None, tokenizer_dir: Path | None = None) -> Proof:
    """Export a checkpoint.

    Args:
        run: a run dir, or one checkpoint of it.
        to: the model dir to make; appears whole or not at all.
        step: which checkpoint; None is the newest.
        tokenizer_dir: where the tokenizer is now; None is where the run read it.

    Raises:
        ConfigError: bad input, nothing written.
        ExportError: a key missing or unexpected, other logits, other ids; nothing left behind.
    """
    to = to.resolve()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to}: exists already; give a new folder")
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run dir")
    checkpoint = find_checkpoint(run, step)
    if checkpoint is None:
        raise ConfigError(f"{run}: there is no checkpoint in it")
    recipe = parse_recipe(checkpoint.recipe, str(checkpoint.path))
    tokenizer_dir = tokenizer_dir or Path(recipe.tokenizer)
    tokenizer = load_tokenizer_info(tokenizer_dir)
    if tokenizer.fingerprint != checkpoint.fingerprints["tokenizer"]:
        raise ConfigError(
            f"{tokenizer_dir}/tokenizer.json is not the tokenizer that {checkpoint.path} was trained with"
        )

    trained = _trained_model(checkpoint, tokenizer)
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f".{to.name}.partial-{os.getpid()}")
    try:
        _write_stock_model(trained, tokenizer, partial)
        for name in TOKENIZER_FILES:
            if (tokenizer_dir / name).is_file():
                shutil.copyfile(tokenizer_dir / name, partial / name)
        _check_tokenizer(tokenizer_dir, partial)
        proof = _prove(trained, tokenizer, partial, recipe.data.seq_len)
        write_json(partial / "export.json", _report(checkpoint, proof))
        write_text(partial / "README.md", model_card(checkpoint, tokenizer.size, proof.largest_logit_difference))
        if to.exists():
            to.rmdir()
        partial.rename(to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return proof


def _trained_model(checkpoint: Checkpoint, tokenizer: TokenizerInfo) -> StreamBert:
    recipe = parse_recipe(checkpoint.recipe, str(checkpoint.path))
    model = StreamBert(bert_config(recipe, tokenizer), tokenizer.size)
    model.eval()
    faults = damage(checkpoint)
    if faults:
        raise ConfigError("\n".join([*faults, "--step takes an older one"]))
    state = load_fp32_weights(checkpoint, model)
    _check_keys(set(state), set(model.state_dict()), str(checkpoint.path))
    model.load_state_dict(state)
    return model


def _check_keys(actual: set[str], expected: set[str], where: str) -> None:
    missing, unexpected = sorted(expected - actual), sorted(actual - expected)
    if missing or unexpected:
        raise ExportError(f"{where}: missing keys: {missing or 'none'}; unexpected keys: {unexpected or 'none'}")


def _write_stock_model(trained: StreamBert, tokenizer: TokenizerInfo, to: Path) -> None:
    """Write config.json and model.safetensors, without the rows that pad the vocabulary."""
    config = type(trained.config)(**{**trained.config.to_diff_dict(), "vocab_size": tokenizer.size})
    stock = BertForPreTraining(config)
    stock.load_state_dict(grow_vocabulary(dict(trained.state_dict()), tokenizer.size))
    stock.save_pretrained(to)
    # safetensors makes its file readable for its owner alone.
    (to / "model.safetensors").chmod((to / "config.json").stat().st_mode)


def _check_tokenizer(source: Path, to: Path) -> None:
    reference = Tokenizer.from_file(str(source / "tokenizer.json"))
    exported = AutoTokenizer.from_pretrained(to)
    for text in PROBE_TEXTS:
        if exported(text)["input_ids"] != reference.encode(text).ids:
            raise ExportError(f"the exported tokenizer gives other ids for {text!r}")


def _probe_pairs(vocab_size: int, seq_len: int) -> list[tuple[Tensor, Tensor]]:
    """Draw pairs of several lengths over the whole vocabulary: input_ids and token_type_ids, int64 (length,) each."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for length in sorted({seq_len, seq_len // 2 + 1, 5}, reverse=True):
        first = int(torch.randint(1, length, (), generator=generator))
        input_ids = torch.randint(0, vocab_size, (length,), generator=generator)
        pairs.append((input_ids, (torch.arange(length) >= first).long()))
    return pairs


@torch.no_grad()
def _prove(trained: StreamBert, tokenizer: TokenizerInfo, model_dir: Path, seq_len: int) -> Proof:
    """Hold the model reloaded from its folder against the trained one, logit by logit."""
    stock, report = BertForPreTraining.from_pretrained(model_dir, output_loading_info=True, dtype=torch.float32)
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if report.get(fault):
            raise ExportError(f"{fault.replace('_', ' ')} on reload: {sorted(map(str, report[fault]))}")
    # In float64, where a right export differs by nothing: rounding of large logits in float32 would look like a fault.
    stock, trained = stock.eval().double(), trained.double()
    pairs = _probe_pairs(tokenizer.size, seq_len)
    differences = []
    for input_ids, token_type_ids in pairs:
        length = len(input_ids)
        ours = trained(
            input_ids=input_ids[None],
            token_type_ids=token_type_ids[None],
            position_ids=torch.arange(length)[None],
            cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
            masked_positions=torch.arange(length),
            pair_lengths=[length],
        )
        theirs = stock(input_ids=input_ids[None], token_type_ids=token_type_ids[None])
        differences.append((ours.mlm_logits - theirs.prediction_logits[0]).abs().max())
        differences.append((ours.nsp_logits - theirs.seq_relationship_logits).abs().max())
    largest = float(torch.stack(differences).max())  # NaN if any is, and NaN must fail
    if not largest <= LARGEST_DIFFERENCE:
        raise ExportError(f"largest logit difference {largest:.2e} is above {LARGEST_DIFFERENCE:.0e}")
    num_tensors = len({tensor.data_ptr() for tensor in stock.state_dict().values()})
    return Proof(largest, len(pairs), sum(len(input_ids) for input_ids, _ in pairs), num_tensors)


def _report(checkpoint: Checkpoint, proof: Proof) -> dict[str, object]:
    return {
        "checkpoint": {"tag": checkpoint.tag, "fingerprint": checkpoint.fingerprint()},
        "fingerprints": checkpoint.fingerprints,
        "largest_logit_difference": proof.largest_logit_difference,
        "probe": {"pairs": proof.num_pairs, "tokens": proof.num_tokens},
        "tensors": proof.num_tensors,
    }


if __name__ == "__main__":
    run_command(main, "export")
