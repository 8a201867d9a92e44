"""The README.md of an exported model: what it was made from, and how well it did."""

from __future__ import annotations

import json
from typing import Any

from pretrain.engine.checkpoint import CHECKPOINTS_DIR, Checkpoint
from pretrain.engine.ds_config import precision, zero_stage
from runtime.tracking import read_metrics

CARD = """---
library_name: transformers
pipeline_tag: fill-mask
tags: [bert, zerobert]
---

# {name}

A BERT encoder pretrained {start} with ZeroBERT on {objective}.

```python
from transformers import pipeline
pipeline("fill-mask", model="PATH/OF/THIS/FOLDER")("A sentence with a [MASK] in it.")
```

| | |
|---|---|
| shape | {layers} layers x {hidden}, {heads} heads, {vocab_size:,} tokens of vocabulary |
| trained | {step:,} steps, {pairs_seen:,} pairs of up to {seq_len} tokens, {tokens_seen:,} tokens |
| run on | {world_size} process(es), ZeRO stage {stage}, {precision} |
| {loss_row} |
| largest logit difference to the training model | {difference:.2e} (fp32) |

## Where it comes from (sha256)

| | |
|---|---|
| tokenizer.json | `{tokenizer}` |
| manifest.json of the shards | `{shards}` |
| checkpoint.json of {tag} | `{checkpoint}` |

## Recipe

```json
{recipe}
```

## DeepSpeed JSON

```json
{ds_config}
```
"""


def model_card(checkpoint: Checkpoint, vocab_size: int, difference: float) -> str:
    """Write the card of a checkpoint's export.

    Args:
        checkpoint: that was exported.
        vocab_size: tokens of the exported model.
        difference: largest logit difference found.

    Returns:
        Markdown with the front matter that the hub reads.
    """
    recipe, state = checkpoint.recipe, checkpoint.state
    return CARD.format(
        name=recipe["name"],
        start=f"from the weights of `{source}`" if (source := recipe["training"]["init_from"]) else "from scratch",
        objective="masked language modelling" + (" and next sentence prediction" if recipe["data"]["nsp"] else ""),
        layers=recipe["model"]["num_hidden_layers"],
        hidden=recipe["model"]["hidden_size"],
        heads=recipe["model"]["num_attention_heads"],
        vocab_size=vocab_size,
        step=state.step,
        pairs_seen=state.pairs_seen,
        tokens_seen=state.tokens_seen,
        seq_len=recipe["data"]["seq_len"],
        world_size=checkpoint.world_size,
        stage=zero_stage(checkpoint.ds_config),
        precision=precision(checkpoint.ds_config),
        loss_row=_losses(checkpoint),
        difference=difference,
        tokenizer=checkpoint.fingerprints["tokenizer"],
        shards=checkpoint.fingerprints["shards"],
        tag=checkpoint.tag,
        checkpoint=checkpoint.fingerprint(),
        recipe=json.dumps(recipe, indent=2),
        ds_config=json.dumps(checkpoint.ds_config, indent=2),
    )


def _losses(checkpoint: Checkpoint) -> str:
    values = metrics_at(checkpoint)
    parts = [
        f"{label} {values[key]:.4f}"
        for key, label in (
            ("train/loss", "training loss"),
            ("eval/mlm_loss", "validation MLM loss"),
            ("eval/nsp_accuracy", "validation NSP accuracy"),
        )
        if key in values
    ]
    return "losses | " + (", ".join(parts) or "not recorded")


def metrics_at(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the latest value of each metric at or before a checkpoint's step; empty without metrics.jsonl."""
    values: dict[str, Any] = {}
    if checkpoint.path.parent.name == CHECKPOINTS_DIR:
        for entry in read_metrics(checkpoint.path.parent.parent):
            if entry["step"] <= checkpoint.state.step:
                values.update(entry)
    return values
