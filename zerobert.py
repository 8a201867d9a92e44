"""The console script: a table of subcommands, each imported when it is called."""

from __future__ import annotations

import importlib
import sys

from runtime.command import EXIT_BAD_INPUT, EXIT_DONE, did_you_mean, run_command

COMMANDS = {
    "tokenizer": ("tokenization.train", "text -> tokenizer: WordPiece, BPE or Unigram"),
    "shard": ("tokenization.shard", "text -> token shards with a manifest"),
    "audit": ("pretrain.audit.command", "what is in shards, and what is wrong with them"),
    "plan": ("pretrain.plan.command", "what a launch would do: sizes, memory, traffic, time, and its faults"),
    "bench": ("pretrain.bench.command", "what this machine does with a setting, in a minute"),
    "checkpoint": ("pretrain.checkpoint_command", "list, verify, remove and convert the checkpoints of a run"),
    "export": ("pretrain.export", "checkpoint -> stock Hugging Face BERT, with proof"),
}
PRETRAIN = "deepspeed --num_gpus 2 --module pretrain.train --recipe recipes/demo.toml --deepspeed_config JSON"


def usage() -> str:
    """Return what the commands are, one a line."""
    lines = [f"  zerobert {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "ZeroBERT: pretrain BERT from raw text.",
            "",
            *lines,
            "",
            "Pretraining itself is started by DeepSpeed's launcher:",
            f"  {PRETRAIN}",
            "",
            "Each command explains its options with --help.",
            "",
        ]
    )


def main() -> None:
    """Hand over to the command that is named first."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(usage())
        sys.exit(EXIT_DONE)
    if name not in COMMANDS:
        sys.stderr.write(f"zerobert: error: {name}: no such command{did_you_mean(name, COMMANDS)}\n\n{usage()}")
        sys.exit(EXIT_BAD_INPUT)
    del sys.argv[1]
    run_command(lambda argv: importlib.import_module(COMMANDS[name][0]).main(argv), name)


if __name__ == "__main__":
    main()
