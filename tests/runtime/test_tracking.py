"""metrics.jsonl is always whole; W&B and TensorBoard never stop a run and never ask."""

from __future__ import annotations

import builtins
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime import tracking
from runtime.tracking import METRICS_FILE, STEP_KEY, TRACKING_FILE, Tracker


def _tracker(run_dir: Path, **changes: Any) -> Tracker:
    settings = {
        "is_rank_zero": True,
        "config": {"recipe": {"name": "demo"}},
        "first_step": 1,
        "project": "zerobert-tests",
        "name": "demo",
        "wandb_mode": "off",
        "tensorboard": False,
    }
    return Tracker(run_dir, **{**settings, **changes})


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / METRICS_FILE).read_text().splitlines()]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def no_wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's: no key, no settings, no folder; and nobody to answer a question."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_ID", "WANDB_DISABLED", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(home))

    def ask(*_: object) -> str:
        raise AssertionError("asked a question")

    monkeypatch.setattr(builtins, "input", ask)
    return home


class FakeWandb:
    """Stands in for the module: keeps what it is told."""

    def __init__(self) -> None:
        self.init_arguments: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.finished = 0
        self.failing = False
        self.metrics: list[tuple[Any, ...]] = []

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 - wandb's name
        return settings

    def init(self, **arguments: Any) -> FakeWandb:
        self.init_arguments.append(arguments)
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        if self.failing:
            raise ConnectionError("network is gone")
        self.logged.append(values)

    def finish(self) -> None:
        if self.failing:
            raise ConnectionError("network is gone")
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, no_wandb_home: Path) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_json_lines_always(tmp_path: Path):
    with _tracker(tmp_path) as tracker:
        tracker.log(10, {"train/loss": 11.5, "train/lr": 1e-4})
        assert _lines(tmp_path) == [{"step": 10, "train/loss": 11.5, "train/lr": 1e-4}]  # flushed at once
        tracker.log(20, {"train/loss": 9.25})
        tracker.log(20, {"eval/loss": 9.5})
    assert _lines(tmp_path)[1:] == [{"step": 20, "train/loss": 9.25}, {"step": 20, "eval/loss": 9.5}]
    assert (tmp_path / METRICS_FILE).read_text().startswith('{"step": 10, ')
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]


def test_steps_that_are_made_again_are_dropped_on_resume(tmp_path: Path):
    with _tracker(tmp_path) as tracker:
        for step in (10, 20, 30, 40):
            tracker.log(step, {"loss": float(step)})
    with (tmp_path / METRICS_FILE).open("a") as stream:
        stream.write('{"step": 50, "lo')  # killed while writing
    with _tracker(tmp_path, first_step=21) as tracker:  # goes on from the checkpoint of step 20
        tracker.log(30, {"loss": 31.0})
    assert _lines(tmp_path) == [{"step": 10, "loss": 10.0}, {"step": 20, "loss": 20.0}, {"step": 30, "loss": 31.0}]


def test_lines_that_are_no_numbers_of_ours_are_dropped_on_resume(tmp_path: Path):
    (tmp_path / METRICS_FILE).write_text('{"step": 1}\n[]\n{"loss": 2}\n{"step": null}\nnull\n{"step": 2}\n')
    with _tracker(tmp_path, first_step=3):
        pass
    assert _lines(tmp_path) == [{"step": 1}, {"step": 2}]


def test_other_ranks_write_nothing(tmp_path: Path, wandb: FakeWandb):
    with _tracker(tmp_path, is_rank_zero=False, wandb_mode="online", tensorboard=True) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
    assert wandb.init_arguments == []


def test_steps_are_the_x_axis_in_wandb(tmp_path: Path, wandb: FakeWandb):
    with _tracker(tmp_path, wandb_mode="offline") as tracker:
        tracker.log(20, {"train/loss": 2.5, "pairs_seen": 640})
    (arguments,) = wandb.init_arguments
    assert arguments["project"] == "zerobert-tests"
    assert arguments["name"] == "demo"
    assert arguments["config"] == {"recipe": {"name": "demo"}}
    assert (STEP_KEY, None) in wandb.metrics
    assert ("*", STEP_KEY) in wandb.metrics
    assert wandb.logged == [{STEP_KEY: 20, "train/loss": 2.5, "pairs_seen": 640}]
    assert wandb.finished == 1


@pytest.mark.parametrize(("mode", "warned"), [("online", 1), ("auto", 0), ("offline", 0)])
def test_no_key_means_offline_and_a_word_only_if_online_was_asked(
    tmp_path: Path, wandb: FakeWandb, caplog: pytest.LogCaptureFixture, mode: str, warned: int
):
    with _tracker(tmp_path, wandb_mode=mode) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert wandb.init_arguments[0]["mode"] == "offline"
    messages = _warnings(caplog)
    assert len(messages) == warned
    assert all("no key" in message and "offline" in message for message in messages)
    assert _lines(tmp_path) == [{"step": 1, "loss": 1.0}]


@pytest.mark.parametrize("mode", ["online", "auto"])
@pytest.mark.parametrize("home_of_key", ["environment", "netrc", "named netrc"])
def test_with_a_key_it_is_online(
    tmp_path: Path,
    wandb: FakeWandb,
    no_wandb_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    home_of_key: str,
):
    netrc = "machine api.wandb.ai\n  login user\n  password 0123\n"
    if home_of_key == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    elif home_of_key == "netrc":
        (no_wandb_home / ".netrc").write_text(netrc)
    else:
        (no_wandb_home / "keys").write_text(netrc)
        monkeypatch.setenv("NETRC", str(no_wandb_home / "keys"))
    with _tracker(tmp_path, wandb_mode=mode):
        pass
    assert wandb.init_arguments[0]["mode"] == "online"


def test_a_key_does_not_override_offline(tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with _tracker(tmp_path, wandb_mode="offline"):
        pass
    assert wandb.init_arguments[0]["mode"] == "offline"


def test_off_does_not_touch_wandb(tmp_path: Path, wandb: FakeWandb):
    with _tracker(tmp_path, wandb_mode="off"):
        pass
    assert wandb.init_arguments == []
    assert not (tmp_path / TRACKING_FILE).exists()


@pytest.mark.parametrize("fault", [ImportError("no module named wandb"), RuntimeError("broken install")])
def test_wandb_that_cannot_be_imported_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
):
    plain_import = builtins.__import__

    def no_wandb(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "wandb":
            raise fault
        return plain_import(name, *rest)

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_wandb)
    with _tracker(tmp_path, wandb_mode="auto") as tracker:
        for step in range(1, 4):
            tracker.log(step, {"loss": 1.0})
    (message,) = _warnings(caplog)
    assert "wandb" in message
    assert str(fault) in message
    assert METRICS_FILE in message
    assert [line["step"] for line in _lines(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_sink_that_fails_later_costs_one_warning(
    tmp_path: Path,
    wandb: FakeWandb,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tensorboard: bool,
):
    others: list[int] = []

    class _Quiet:
        def __init__(self, run_dir: Path) -> None: ...

        def log(self, step: int, values: Any) -> None:
            others.append(step)

        def close(self) -> None:
            others.append(-1)

    monkeypatch.setattr(tracking, "_TensorBoard", _Quiet)
    with _tracker(tmp_path, wandb_mode="offline", tensorboard=tensorboard) as tracker:
        tracker.log(1, {"loss": 1.0})
        wandb.failing = True
        tracker.log(2, {"loss": 2.0})
        tracker.log(3, {"loss": 3.0})
    assert _warnings(caplog) == ["wandb: network is gone: no longer tracked there"]
    assert [values[STEP_KEY] for values in wandb.logged] == [1]
    assert [line["step"] for line in _lines(tmp_path)] == [1, 2, 3]
    assert others == ([1, 2, 3, -1] if tensorboard else [])  # the next sink is not skipped


def test_a_sink_that_fails_at_the_end_costs_one_warning(
    tmp_path: Path, wandb: FakeWandb, caplog: pytest.LogCaptureFixture
):
    with _tracker(tmp_path, wandb_mode="offline") as tracker:
        tracker.log(1, {"loss": 1.0})
        wandb.failing = True
    assert _warnings(caplog) == ["wandb: network is gone: may be incomplete"]
    assert _lines(tmp_path) == [{"step": 1, "loss": 1.0}]


def test_the_run_s_own_error_goes_through_and_closes_the_sinks(tmp_path: Path, wandb: FakeWandb):
    def train() -> None:
        with _tracker(tmp_path, wandb_mode="offline") as tracker:
            tracker.log(1, {"loss": 1.0})
            raise KeyError("training failed")

    with pytest.raises(KeyError, match="training failed"):
        train()
    assert wandb.finished == 1


def test_a_second_start_goes_on_with_the_same_wandb_run(tmp_path: Path, wandb: FakeWandb):
    for _ in range(2):
        with _tracker(tmp_path, wandb_mode="offline"):
            pass
    first, second = (arguments["id"] for arguments in wandb.init_arguments)
    assert first == second == json.loads((tmp_path / TRACKING_FILE).read_text())["wandb_id"]
    assert all(arguments["resume"] == "allow" for arguments in wandb.init_arguments)


def test_two_runs_have_two_ids(tmp_path: Path, wandb: FakeWandb):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with _tracker(tmp_path / name, wandb_mode="offline"):
            pass
    first, second = (arguments["id"] for arguments in wandb.init_arguments)
    assert first != second


@pytest.mark.timeout(120)
def test_wandb_offline_for_real(tmp_path: Path, no_wandb_home: Path, monkeypatch: pytest.MonkeyPatch):
    """No key, no terminal: one run folder, and its id is the one that is kept."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with _tracker(run_dir, wandb_mode="auto") as tracker:
        tracker.log(1, {"loss": 1.0})
    (folder,) = tmp_path.rglob("offline-run-*-*")
    run_id = json.loads((run_dir / TRACKING_FILE).read_text())["wandb_id"]
    assert folder.name.endswith(f"-{run_id}")
    (binary,) = folder.glob("*.wandb")
    assert binary.stat().st_size > 0
    assert _lines(run_dir) == [{"step": 1, "loss": 1.0}]

    with _tracker(run_dir, wandb_mode="auto", first_step=2) as tracker:
        tracker.log(2, {"loss": 0.5})
    assert json.loads((run_dir / TRACKING_FILE).read_text())["wandb_id"] == run_id
    assert {path.name.rsplit("-", 1)[1] for path in tmp_path.rglob("offline-run-*-*")} == {run_id}
    assert [line["step"] for line in _lines(run_dir)] == [1, 2]


def test_one_tensorboard_event_file_with_the_scalars(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with _tracker(tmp_path, tensorboard=True) as tracker:
        tracker.log(10, {"train/loss": 2.5})
        tracker.log(20, {"train/loss": 1.5})
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert "tfevents" in events.name
    reader = EventAccumulator(str(events))
    reader.Reload()
    assert [(event.step, event.value) for event in reader.Scalars("train/loss")] == [(10, 2.5), (20, 1.5)]


def test_tensorboard_that_is_not_there_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with _tracker(tmp_path, tensorboard=True) as tracker:
        tracker.log(1, {"loss": 1.0})
    (message,) = _warnings(caplog)
    assert message.startswith("tensorboard: ")
    assert _lines(tmp_path) == [{"step": 1, "loss": 1.0}]


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        ("auto", "disabled", "disabled"),
        ("auto", "offline", "offline"),
        ("auto", "", "online"),
        ("offline", "online", "offline"),
    ],
)
def test_wandb_mode_of_the_environment_counts_where_the_recipe_leaves_it_open(
    asked, environment, expected, tmp_path, monkeypatch
):
    modes = []
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_MODE", environment)

    def init(**settings):
        modes.append(settings["mode"])
        raise RuntimeError("not for real")

    monkeypatch.setattr("wandb.init", init)
    with Tracker(
        tmp_path,
        is_rank_zero=True,
        config={},
        first_step=1,
        project="p",
        name="n",
        wandb_mode=asked,
        tensorboard=False,
    ):
        pass
    assert modes == [expected]
