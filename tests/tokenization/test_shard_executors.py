"""`zerobert shard` on Ray and on Slurm writes the bytes that it writes here."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from runtime.command import ConfigError
from tests.tokenization.corpora import make_documents, write_jsonl
from tests.tokenization.tasks.test_executors import SBATCH, SCONTROL, SRUN
from tests.tokenization.test_shard import contents, run

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = ("--tasks", "4", "--validation-share", "0.2", "--dedup", "documents", "lines")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", make_documents(60) + make_documents(20))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ray(source: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    expected = contents(run(source, tokenizer_dir, tmp_path / "local", *FLAGS))
    ray = run(source, tokenizer_dir, tmp_path / "ray", *FLAGS, "--executor", "ray", "--workers", "2")
    assert contents(ray) == expected


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_slurm(
    source: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With stand-ins that run what they are given; the last job writes the manifest."""
    expected = contents(run(source, tokenizer_dir, tmp_path / "local", *FLAGS))
    programs, submitted = tmp_path / "bin", tmp_path / "submitted"
    for folder in (programs, submitted):
        folder.mkdir()
    for name, text in {"sbatch": SBATCH.format(python=sys.executable), "srun": SRUN, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("STUB_DIR", str(submitted))
    monkeypatch.setenv("STUB_PYTHONPATH", str(REPOSITORY))
    capsys.readouterr()
    flags = (*FLAGS, "--workers", "2", "--executor", "slurm", "--slurm", "partition=cpu")
    output = tmp_path / "slurm"
    run(source, tokenizer_dir, output, *flags)
    assert capsys.readouterr().out == f"submitted   jobs 100, 101, 102, 103; the last one makes {output}\n"
    logs = {path.name: path.read_text() for path in submitted.glob("*.out")}
    assert output.exists(), logs
    assert contents(output) == expected


def test_flags_of_another_executor_are_refused(source: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--slurm: is for --executor slurm, this is --executor local"):
        run(source, tokenizer_dir, tmp_path / "out", "--slurm", "partition=cpu")
    with pytest.raises(ConfigError, match="--slurm: partition is missing"):
        run(source, tokenizer_dir, tmp_path / "out", "--executor", "slurm")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    with pytest.raises(ConfigError, match="--ray-address: is for --executor ray, this is --executor local"):
        run(source, tokenizer_dir, tmp_path / "out", "--ray-address", "auto")
    with pytest.raises(ConfigError, match=r"--input a\.jsonl: must be absolute with --ray-address"):
        run(Path("a.jsonl"), tokenizer_dir, tmp_path / "out", "--executor", "ray", "--ray-address", "auto")
