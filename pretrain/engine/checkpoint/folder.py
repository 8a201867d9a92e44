"""A checkpoint's folder: what it holds, where a run stands in it, and how it is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.command import ConfigError
from runtime.files import read_json, sha256_of

CHECKPOINTS_DIR = "checkpoints"
CHECKPOINT_FILE = "checkpoint.json"
LATEST_FILE = "latest"
CLIENT_STATE_KEY = "zerobert"
FORMAT_VERSION = 2
"""1 had the files' sizes alone; it is still read."""
BROKEN_PREFIX = "broken_"
UNFINISHED_FILE = "unfinished"
"""In a folder from when it is made until its list is written: what a save that was cut short leaves can be told."""


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands: all that resuming needs besides the engine. Plain types alone."""

    step: int = 0
    """Optimizer updates done."""
    epoch: int = 0
    consumed: int = 0
    """Pairs consumed of this epoch, all ranks."""
    pairs_seen: int = 0
    tokens_seen: int = 0
    """Global, padding excluded."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: TrainingState
    world_size: int
    recipe: dict[str, Any]
    ds_config: dict[str, Any]
    fingerprints: dict[str, str] = field(default_factory=dict)
    """sha256 of the tokenizer and of the shards' manifest."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: bytes, and sha256 from version 2 on."""

    @property
    def tag(self) -> str:
        """DeepSpeed's word for the folder's name."""
        return self.path.name

    def fingerprint(self) -> str:
        """Return the sha256 of checkpoint.json, which stands for the whole."""
        return sha256_of(self.path / CHECKPOINT_FILE)


def tag_of(step: int) -> str:
    """Return the tag of a step, as in step_00012000."""
    return f"step_{step:08d}"


def whole_tags(root: Path) -> list[str]:
    """Return the tags of the whole checkpoints, oldest step first."""
    return sorted(path.parent.name for path in root.glob(f"step_{'[0-9]' * 8}/{CHECKPOINT_FILE}"))


class DamagedError(ConfigError):
    """A checkpoint is not as it was saved."""


def find_checkpoint(run_dir: Path, step: int | None = None) -> Checkpoint | None:
    """Find the checkpoint of a run to go on from, by its list and the sizes of its files.

    Args:
        run_dir: a run's folder, or one checkpoint's.
        step: which; None takes `latest`.

    Returns:
        None where the run has none (no step asked for).

    Raises:
        ConfigError: the step is not there.
        DamagedError: the checkpoint is not whole.
    """
    if (run_dir / CHECKPOINT_FILE).is_file():
        if step not in (None, int(run_dir.name[5:])):
            raise ConfigError(f"{run_dir} is the checkpoint of one step; name the run dir to choose step {step}")
        return read_checkpoint(run_dir)
    root = run_dir / CHECKPOINTS_DIR
    if step is not None:
        if tag_of(step) not in whole_tags(root):
            there = ", ".join(str(int(tag[5:])) for tag in whole_tags(root)) or "none"
            raise ConfigError(f"{run_dir}: no checkpoint of step {step}; there are: {there}")
        return read_checkpoint(root / tag_of(step))
    tags = candidates(run_dir)
    return read_checkpoint(root / tags[0]) if tags else None


def candidates(run_dir: Path) -> list[str]:
    """Return the tags that a run can go on from, the newest first: `latest`, and those of earlier steps."""
    root = run_dir / CHECKPOINTS_DIR
    tags = whole_tags(root)[::-1]
    try:
        latest = (root / LATEST_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return tags  # a first save that was cut short just before `latest`, or `latest` is lost
    return [latest, *(tag for tag in tags if tag < latest)] if (root / latest).is_dir() and latest else tags


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's list and hold it against the files there.

    Raises:
        DamagedError: no list (the save was cut short), another format, a file missing or of another size.
    """
    listing = path / CHECKPOINT_FILE
    if not listing.is_file():
        raise DamagedError(f"{path}: not a whole checkpoint: {CHECKPOINT_FILE} is missing, its save was cut short")
    try:
        content = read_json(listing)
    except ConfigError as error:
        raise DamagedError(str(error)) from None
    if (
        not isinstance(content, dict)
        or content.get("format") != "zerobert-checkpoint"
        or content.get("version") not in (1, FORMAT_VERSION)
    ):
        raise DamagedError(f"{listing}: not a checkpoint list of version 1 or {FORMAT_VERSION}")
    files = {
        name: {"bytes": entry} if isinstance(entry, int) else dict(entry) for name, entry in content["files"].items()
    }
    for name, entry in files.items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else None
        if actual != entry["bytes"]:
            found = "missing" if actual is None else f"{actual} bytes long"
            raise DamagedError(
                f"{file}: {found}, {CHECKPOINT_FILE} says {entry['bytes']} bytes: the checkpoint is damaged; "
                "name an older one: --resume PATH, or --step of export"
            )
    return Checkpoint(
        path=path,
        state=TrainingState(**content["state"]),
        world_size=content["world_size"],
        recipe=content["recipe"],
        ds_config=content["ds_config"],
        fingerprints=content["fingerprints"],
        files=files,
    )


def damage(checkpoint: Checkpoint, part: int = 0, num_parts: int = 1) -> list[str]:
    """Read files of a checkpoint in full and hold them against their sha256.

    Args:
        checkpoint: whole by its sizes.
        part: which share of the files, from 0.
        num_parts: how many shares there are.

    Returns:
        File and reason of each that is not as it was saved.
    """
    faults = []
    for name, entry in sorted(checkpoint.files.items())[part::num_parts]:
        file = checkpoint.path / name
        try:
            if "sha256" in entry and sha256_of(file) != entry["sha256"]:
                faults.append(f"{file}: its sha256 is not that of {CHECKPOINT_FILE}: the checkpoint is damaged")
        except OSError as error:
            faults.append(f"{file}: {error.strerror}")
    return faults
