"""How commands end: one line for bad input, a traceback for our own faults, one exit code each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.command import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    ConfigError,
    did_you_mean,
    rank_prefix,
    run_command,
)


def _ending_with(outcome: int | BaseException):
    def main(argv: Sequence[str] | None) -> int:
        assert argv is None  # the command reads the process's own arguments
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return main


def _exit_code(outcome: int | BaseException) -> object:
    with pytest.raises(SystemExit) as ending:
        run_command(_ending_with(outcome), "shard")
    return ending.value.code


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_the_exit_codes_are_those_of_the_design():
    assert (EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED) == (0, 1, 2, 130)


@pytest.mark.parametrize("code", [EXIT_DONE, EXIT_FAILED])
def test_main_s_code_is_the_process_s(code: int, capsys: pytest.CaptureFixture[str]):
    assert _exit_code(code) == code
    assert capsys.readouterr().err == ""


def test_a_config_error_is_one_line_and_2(capsys: pytest.CaptureFixture[str]):
    assert _exit_code(ConfigError("recipe.toml: training.steps = 0: must be at least 1")) == 2
    assert capsys.readouterr().err == ("zerobert shard: error: recipe.toml: training.steps = 0: must be at least 1\n")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "corpus.txt"), "No such file or directory"),
        (PermissionError(13, "Permission denied", "corpus.txt"), "Permission denied"),
    ],
)
def test_a_file_fault_names_the_file(error: OSError, reason: str, capsys: pytest.CaptureFixture[str]):
    assert _exit_code(error) == 2
    assert capsys.readouterr().err == f"zerobert shard: error: corpus.txt: {reason}\n"


def test_an_os_error_without_a_file_is_our_fault():
    with pytest.raises(OSError, match="connection reset"):
        run_command(_ending_with(OSError("connection reset")), "shard")


def test_any_other_error_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError, match="by zero"):
        run_command(_ending_with(ZeroDivisionError("by zero")), "shard")


def test_a_plain_value_error_is_our_fault_too():
    # ConfigError is a ValueError; the reverse must not be taken for bad input.
    with pytest.raises(ValueError, match="internal"):
        run_command(_ending_with(ValueError("internal")), "shard")


def test_ctrl_c_says_so(capsys: pytest.CaptureFixture[str]):
    assert _exit_code(KeyboardInterrupt()) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "zerobert shard: interrupted\n"


def test_the_rank_stands_in_front_in_a_distributed_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert rank_prefix() == ""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert rank_prefix() == ""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert rank_prefix() == "[rank 3] "
    assert _exit_code(ConfigError("bad")) == 2
    assert capsys.readouterr().err == "[rank 3] zerobert shard: error: bad\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("zero_optimisation", " (did you mean 'zero_optimization'?)"),
        ("gradient_clipp1ng", " (did you mean 'gradient_clipping'?)"),
        ("banana", ""),
    ],
)
def test_did_you_mean_names_the_nearest_or_nothing(word: str, hint: str):
    assert did_you_mean(word, iter(["zero_optimization", "gradient_clipping", "fp16"])) == hint
