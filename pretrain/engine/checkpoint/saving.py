"""Save a run: DeepSpeed's files by all ranks, the list of them when all are there, and then the name of the newest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine

from pretrain.engine.checkpoint.folder import (
    CHECKPOINT_FILE,
    CHECKPOINTS_DIR,
    CLIENT_STATE_KEY,
    FORMAT_VERSION,
    LATEST_FILE,
    UNFINISHED_FILE,
    TrainingState,
    tag_of,
    whole_tags,
)
from pretrain.engine.checkpoint.pickles import CheckpointFiles, Written
from runtime.dist import on_rank_zero
from runtime.files import write_json, write_text


class SaveError(RuntimeError):
    """A checkpoint could not be written; the one before it is as it was. Raised on every rank."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay.

    Args:
        keep_last: the newest so many.
        milestone_steps: those of every so many steps stay for good; 0: none.
    """

    keep_last: int
    milestone_steps: int = 0

    def removed(self, tags: list[str]) -> list[str]:
        """Return what goes of tags that are sorted by step."""
        older = tags[: -self.keep_last]
        return [tag for tag in older if not (self.milestone_steps and int(tag[5:]) % self.milestone_steps == 0)]


@dataclass
class PendingSave:
    """A save whose files are being written; the run goes on meanwhile."""

    path: Path
    state: TrainingState
    files: CheckpointFiles
    content: Mapping[str, Any]
    retention: Retention

    def is_done(self) -> bool:
        """Say whether every rank has written its files; every rank must call."""
        done: list[bool] = [False] * dist.get_world_size()
        dist.all_gather_object(done, self.files.is_done())
        return all(done)

    def finish(self) -> Path:
        """Wait for the files, list them, and make this checkpoint the newest; every rank must call.

        Returns:
            The checkpoint's folder.

        Raises:
            SaveError: a file could not be written; nothing is left of this checkpoint.
        """
        parts = _gathered(self.files.wait())
        faults = [fault for part in parts for fault in part.faults]
        if not faults:
            refusal = on_rank_zero(lambda: self._list([part.files for part in parts]))
            faults = [refusal] if refusal else []
        if faults:
            on_rank_zero(lambda: shutil.rmtree(self.path, ignore_errors=True))
            raise SaveError(f"step {self.state.step}: the checkpoint could not be written: {'; '.join(faults)}")
        return self.path

    def _list(self, parts: list[dict[str, dict[str, Any]]]) -> None:
        listed = {name: entry for part in parts for name, entry in part.items()}
        for file in self.path.iterdir():  # DeepSpeed's script for its users
            if file.name not in (*listed, UNFINISHED_FILE):
                self.files.note(file)
                listed[file.name] = self.files.written.files[file.name]
        write_json(self.path / CHECKPOINT_FILE, {**self.content, "files": dict(sorted(listed.items()))})
        (self.path / UNFINISHED_FILE).unlink()
        write_text(self.path.parent / LATEST_FILE, self.path.name)
        remove_older(self.path.parent, self.path.name, self.retention)


def begin_save(
    engine: DeepSpeedEngine,
    run_dir: Path,
    state: TrainingState,
    *,
    world_size: int,
    recipe: Mapping[str, Any],
    ds_config: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    retention: Retention,
    in_background: bool = False,
) -> PendingSave:
    """Hand the engine and where the run stands to the disk; every rank must call.

    Args:
        engine: at the end of a step.
        run_dir: the run's folder, the same on every rank.
        state: after that step.
        world_size: ranks.
        recipe: resolved.
        ds_config: resolved.
        fingerprints: of what the run reads.
        retention: what is removed once this one is whole.
        in_background: copy everything to memory, and let a thread write it.

    Returns:
        The save, to be finished.

    Raises:
        SaveError: the folder could not be made.
    """
    path = run_dir / CHECKPOINTS_DIR / tag_of(state.step)
    refusal = on_rank_zero(lambda: _make_folder(path))
    if refusal:
        raise SaveError(f"step {state.step}: the checkpoint could not be written: {refusal}")
    files = CheckpointFiles(in_background)
    engine.checkpoint_engine = files
    copy_script = type(engine)._copy_recovery_script

    def copy_if_possible(save_path: str) -> None:
        with files.keeping_faults(Path(save_path)):
            copy_script(engine, save_path)

    engine._copy_recovery_script = copy_if_possible
    client_state = {CLIENT_STATE_KEY: asdict(state)}
    engine.save_checkpoint(str(path.parent), tag=path.name, client_state=client_state, save_latest=False)
    if in_background:
        files.start()
    content = {
        "format": "zerobert-checkpoint",
        "version": FORMAT_VERSION,
        "state": asdict(state),
        "world_size": world_size,
        "fingerprints": dict(fingerprints),
        "recipe": dict(recipe),
        "ds_config": dict(ds_config),
    }
    return PendingSave(path, state, files, content, retention)


def remove_older(root: Path, saved: str, retention: Retention) -> list[str]:
    """Remove what need not stay of the checkpoints up to a saved one; return their tags.

    Args:
        root: the folder of the checkpoints.
        saved: tag of the newest that counts.
        retention: what stays.
    """
    removed = retention.removed([tag for tag in whole_tags(root) if tag <= saved])
    for path in (root / tag for tag in removed):
        # The list goes first: a removal that is cut short leaves a folder that nobody takes for a checkpoint.
        (path / CHECKPOINT_FILE).unlink()
        shutil.rmtree(path)
    return removed


def _make_folder(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)  # left by a start that died while saving, or remade after a resume
    path.mkdir(parents=True)
    (path / UNFINISHED_FILE).touch()


def _gathered(written: Written) -> list[Written]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, written)
    return parts
