"""How a command starts and ends: one kind of error for bad input, one exit code for each ending."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_SAVED = 75
"""Saved before the last step, to be started again; sysexits.h's EX_TEMPFAIL, on which schedulers requeue."""
EXIT_INTERRUPTED = 130


class ConfigError(ValueError):
    """Bad input of the user's: the message names the file, the field, the value and the rule."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known word nearest to an unknown one.

    Args:
        word: what was written.
        known: what could have been meant.

    Returns:
        " (did you mean 'x'?)", or "" where nothing is near.
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def rank_prefix() -> str:
    """Return "[rank 3] " in a process of a distributed job, else ""."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"[rank {os.environ.get('RANK', '?')}] "
    return ""


def run_command(main: Callable[[Sequence[str] | None], int], name: str) -> NoReturn:
    """Run a command's main and end the process with its exit code.

    A `ConfigError`, a missing file or a refused permission is a message of one or a few lines and exit code 2.
    Anything else is a fault of ours and keeps its traceback (exit code 1).

    Args:
        main: takes the arguments after the command's name (None: those of the process), returns an exit code.
        name: what the command is called, for the message.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        code = main(None)
    except ConfigError as error:
        code = _refuse(name, str(error))
    except OSError as error:
        if error.filename is None:
            raise
        code = _refuse(name, f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.stderr.write(f"{rank_prefix()}zerobert {name}: interrupted\n")
        code = EXIT_INTERRUPTED
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _refuse(name: str, message: str) -> int:
    sys.stderr.write(f"{rank_prefix()}zerobert {name}: error: {message}\n")
    return EXIT_BAD_INPUT
