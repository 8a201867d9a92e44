"""What is left of `zerobert shard` when it is stopped, and what a second call makes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.command import ConfigError
from runtime.files import sha256_of
from tests.tokenization.corpora import make_documents, write_jsonl
from tests.tokenization.test_shard import REPOSITORY, contents, run
from tokenization.manifest import MANIFEST_NAME

TASKS = 6
FLAGS = ("--tasks", str(TASKS), "--validation-share", "0.2")


def finished(output: Path) -> dict[str, int]:
    """When the marker of each finished task of OUTPUT.partial was written."""
    markers = output.with_name(f"{output.name}.partial").glob("logs/shards/completions/*")
    return {marker.name: marker.stat().st_mtime_ns for marker in markers}


def results(output: Path) -> dict[str, int]:
    found = output.with_name(f"{output.name}.partial").glob("results/*.json")
    return {path.name: path.stat().st_mtime_ns for path in found}


def spoil(source: Path) -> Path:
    """Put a byte that is not UTF-8 into the last document but one."""
    lines = source.read_bytes().splitlines(keepends=True)
    lines[-2] = lines[-2].replace(b"The", b"Th\xff", 1)
    source.write_bytes(b"".join(lines))
    return source


def test_a_fault_keeps_the_finished_tasks_and_names_the_place(tokenizer_dir: Path, tmp_path: Path) -> None:
    source = spoil(write_jsonl(tmp_path / "a.jsonl", make_documents()))
    with pytest.raises(ConfigError, match=r"a\.jsonl: byte \d+ \(line 59\).*--errors"):
        run(source, tokenizer_dir, tmp_path / "out", *FLAGS)
    before = results(tmp_path / "out")
    assert len(before) == len(finished(tmp_path / "out")) == TASKS - 1
    assert not (tmp_path / "out").exists()

    kept = {name: (tmp_path / "out.partial" / "results" / name).read_bytes() for name in before}
    # another policy makes no difference to tasks without a fault: they are not done again
    seen: dict[str, int] = {}

    def watch(stages: object, work_dir: Path, workers: int) -> None:
        from tokenization.tasks.executors import run_local

        seen.update(finished(tmp_path / "out"))
        run_local(stages, work_dir, workers)  # type: ignore[arg-type]
        assert {name: results(tmp_path / "out")[name] for name in before} == before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.shard.run_local", watch)
        resumed = contents(run(source, tokenizer_dir, tmp_path / "out", *FLAGS, "--errors", "skip"))
    assert len(seen) == len(kept) == TASKS - 1
    assert contents(run(source, tokenizer_dir, tmp_path / "other", *FLAGS, "--errors", "skip")) == resumed
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.jsonl", "other", "out"]


def test_a_changed_input_is_read_again(tokenizer_dir: Path, tmp_path: Path) -> None:
    source = spoil(write_jsonl(tmp_path / "a.jsonl", make_documents()))
    with pytest.raises(ConfigError, match="byte"):
        run(source, tokenizer_dir, tmp_path / "out", *FLAGS)
    other = write_jsonl(tmp_path / "a.jsonl", make_documents(seed=1))
    expected = contents(run(other, tokenizer_dir, tmp_path / "clean", *FLAGS))
    assert contents(run(other, tokenizer_dir, tmp_path / "out", *FLAGS)) == expected


def test_other_settings_start_anew(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    source = spoil(write_jsonl(tmp_path / "a.jsonl", make_documents()))
    with pytest.raises(ConfigError, match="byte"):
        run(source, tokenizer_dir, tmp_path / "out", *FLAGS)
    flags = ("--tasks", "2", "--sentences", "line", "--errors", "replace")
    expected = contents(run(source, tokenizer_dir, tmp_path / "clean", *flags))
    assert contents(run(source, tokenizer_dir, tmp_path / "out", *flags)) == expected


def write_txt(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("".join(" ".join(sentences) + "\n" for sentences in documents), encoding="utf-8")
    return path


def test_a_new_file_before_the_others_leaves_every_count_with_its_file(tokenizer_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    spoil(write_txt(folder / "b.txt", make_documents(70)))
    write_txt(folder / "c.txt", make_documents(65, seed=1))
    flags = ("--tasks", "2", "--txt-layout", "line")
    with pytest.raises(ConfigError, match=r"b\.txt: byte"):  # two workers: the task of c.txt is at work as well
        run(folder, tokenizer_dir, tmp_path / "out", *flags, "--workers", "2")
    kept = results(tmp_path / "out")
    assert list(kept) == ["result-00001.json"]

    write_txt(folder / "a.txt", make_documents(5, seed=2))
    with_results: list[dict[str, int]] = []

    def watch(stages: object, work_dir: Path, workers: int) -> None:
        from tokenization.tasks.executors import run_local

        assert list(finished(tmp_path / "out")) == ["00001"]
        run_local(stages, work_dir, workers)  # type: ignore[arg-type]
        with_results.append(results(tmp_path / "out"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.shard.run_local", watch)
        resumed = contents(run(folder, tokenizer_dir, tmp_path / "out", *flags, "--errors", "skip"))
    assert with_results[0].items() >= kept.items()
    clean = run(folder, tokenizer_dir, tmp_path / "clean", *flags, "--errors", "skip")
    sources = json.loads((clean / MANIFEST_NAME).read_text())["sources"]
    assert [(Path(source["path"]).name, source["documents"]) for source in sources] == [
        ("a.txt", 5),
        ("b.txt", 69),
        ("c.txt", 65),
    ]
    assert [source["sha256"] for source in sources] == [sha256_of(source["path"]) for source in sources]
    assert resumed == contents(clean)


def start(source: Path, tokenizer_dir: Path, output: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tokenization.shard", "--input", str(source), "--tokenizer", str(tokenizer_dir)]
    return subprocess.Popen(
        [*command, "--output", str(output), *flags],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        cwd=output.parent,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_with_the_same_bytes(tokenizer_dir: Path, tmp_path: Path, blow: signal.Signals) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(6_000))
    flags = ("--tasks", "20", "--validation-share", "0.2", "--workers", "2")
    output = tmp_path / "out"
    process = start(source, tokenizer_dir, output, *flags)
    deadline = time.monotonic() + 120
    while len(finished(output)) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(blow)
    _, said = process.communicate(timeout=30)
    done = finished(output)
    assert 3 <= len(done) < 20
    if blow == signal.SIGINT:
        assert process.returncode == 130
        assert said.strip().splitlines()[-1].startswith("zerobert shard: interrupted")
        assert "Traceback" not in said
    time.sleep(1.0)
    assert finished(output) == done  # nobody works on
    again = start(source, tokenizer_dir, output, *flags)
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    expected = contents(run(source, tokenizer_dir, tmp_path / "clean", *flags[:-2]))
    assert contents(output) == expected


def test_two_at_once_are_refused(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    from tokenization.folder import work_folder

    with work_folder(tmp_path / "out"), pytest.raises(ConfigError, match="another process is at work in"):
        run(corpus, tokenizer_dir, tmp_path / "out")
    assert not list(tmp_path.iterdir())
