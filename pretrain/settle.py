"""The first things that all ranks do together: one run in the run dir, and one checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pretrain.engine.checkpoint import settle_on_newest, verify_together
from pretrain.launch_check import Launch, check_checkpoint
from runtime.command import ConfigError
from runtime.dist import on_rank_zero
from runtime.lock import only_one


@contextmanager
def run_dir_of_this_run(run_dir: Path) -> Iterator[None]:
    """Make the run dir and hold it for this run; every rank must enter.

    Raises:
        ConfigError: on every rank, where another run has it or it cannot be made.
    """
    with ExitStack() as stack:

        def take() -> None:
            run_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_one(run_dir))

        refusal = on_rank_zero(take)
        if refusal is not None:
            raise ConfigError(refusal)
        yield


def settle(launch: Launch, resume: str) -> Launch:
    """Return the launch with the checkpoint that all ranks found whole; every rank must call.

    Args:
        launch: checked by each rank for itself.
        resume: as on the command line.

    Raises:
        ConfigError: on every rank: no checkpoint is whole, or the one that was named is not.
    """
    if resume not in ("auto", "none"):
        if launch.checkpoint is not None:
            verify_together(launch.checkpoint)
        return launch
    settled = replace(launch, checkpoint=settle_on_newest(launch.run_dir))
    check_checkpoint(settled)
    return settled
