"""What a task's identity depends on, and what comes of finished tasks when it changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.command import ConfigError
from tests.tokenization.corpora import make_documents, write_jsonl
from tests.tokenization.test_shard import contents, run
from tests.tokenization.test_shard_resume import finished, spoil
from tokenization import job as job_module
from tokenization.documents import Piece, ReadSettings, Source, open_sources
from tokenization.job import Job
from tokenization.quality.filters import FilterSpec
from tokenization.quality.screen import Quality
from tokenization.train import main as train

TASKS = 3


def make_job(**changes: Any) -> Job:
    """A job of a.jsonl and b.jsonl; a is in tasks 0 and 1, b in tasks 1 and 2."""
    job = Job(
        sources=[Source(f"/in/{name}.jsonl", "jsonl", 1000, 1000, "1", num_pieces=2) for name in "ab"],
        tasks=[(Piece(0, 0, 2),), (Piece(0, 1, 2), Piece(1, 0, 2)), (Piece(1, 1, 2),)],
        settings=ReadSettings(),
        tokenizer_dir=Path("/tokenizer"),
        tokenizer_name="tokenizer",
        tokenizer_fingerprint="f",
        sentence_mode="auto",
        language="en",
        validation_share=0.01,
        quality=Quality(),
        work_dir=Path("/out.partial"),
    )
    return replace(job, **changes)


def with_source(job: Job, index: int, **changes: Any) -> Job:
    sources = list(job.sources)
    sources[index] = replace(sources[index], **changes)
    return replace(job, sources=sources)


def changed(before: Job, after: Job) -> set[int]:
    """Tasks whose shards depend on what differs between two jobs."""
    pairs = zip(before.shard_identities(), after.shard_identities(), strict=True)
    return {rank for rank, (one, other) in enumerate(pairs) if one != other}


ALL = set(range(TASKS))
DEDUP = Quality(dedup=("documents",))
OF_SHARDS: list[dict[str, Any]] = [
    {"tokenizer_fingerprint": "g"},
    {"sentence_mode": "line"},
    {"language": "de"},
    {"validation_share": 0.02},
    {"quality": Quality(min_chars=1)},
    {"quality": Quality(filters=(FilterSpec.parse("RegexFilter:regex_exp=x"),))},
    {"quality": DEDUP},
]
OF_READING = [
    ReadSettings(text_field="body"),
    ReadSettings(layout="blank"),
    ReadSettings(format="jsonl"),
    ReadSettings(encoding="latin-1"),
    ReadSettings(language_field="language"),
]


def test_tasks_of_other_pieces_have_other_identities_and_the_same_job_the_same() -> None:
    assert len(set(make_job().shard_identities())) == len(set(make_job().reading_identities())) == TASKS
    assert make_job().shard_identities() == make_job().shard_identities()


@pytest.mark.parametrize("change", OF_SHARDS, ids=str)
def test_a_setting_of_the_shards_changes_all_of_them(change: dict[str, Any]) -> None:
    before, after = make_job(), make_job(**change)
    assert changed(before, after) == ALL
    assert before.reading_identities() == after.reading_identities()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Quality(dedup=("documents",)), Quality(dedup=("lines",))),
        (Quality(min_chars=1), Quality(min_chars=2)),
        (
            Quality(filters=(FilterSpec.parse("RegexFilter:regex_exp=x"),)),
            Quality(filters=(FilterSpec.parse("RegexFilter:regex_exp=y"),)),
        ),
    ],
    ids=["dedup", "min_chars", "filters"],
)
def test_the_value_of_a_quality_setting_counts(one: Quality, other: Quality) -> None:
    assert changed(make_job(quality=one), make_job(quality=other)) == ALL


@pytest.mark.parametrize("settings", OF_READING, ids=str)
def test_a_setting_of_reading_changes_all_tasks(settings: ReadSettings) -> None:
    before, after = make_job(), make_job(settings=settings)
    assert changed(before, after) == ALL
    assert not set(before.reading_identities()) & set(after.reading_identities())


@pytest.mark.parametrize("library", ["tokenizers", "sentencex", "datatrove"])
def test_another_version_of_a_library_changes_all_tasks(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_job().shard_identities()
    real = job_module.version
    monkeypatch.setattr(job_module, "version", lambda name: "0" if name == library else real(name))
    assert not set(before) & set(make_job().shard_identities())


def test_another_format_version_changes_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_job()
    old = {*before.shard_identities(), *before.reading_identities()}
    monkeypatch.setattr(job_module, "_FORMAT_VERSION", job_module._FORMAT_VERSION + 1)
    assert not old & {*before.shard_identities(), *before.reading_identities()}


@pytest.mark.parametrize(("index", "concerned"), [(0, {0, 1}), (1, {1, 2})])
@pytest.mark.parametrize(
    "change", [{"num_bytes": 1001}, {"version": "2"}, {"kind": "line"}, {"path": "/in/c.jsonl"}], ids=str
)
def test_a_changed_file_changes_its_own_tasks(change: dict[str, Any], index: int, concerned: set[int]) -> None:
    assert changed(make_job(), with_source(make_job(), index, **change)) == concerned


@pytest.mark.parametrize("piece", [Piece(0, 1, 2), Piece(0, 0, 3), Piece(1, 0, 2)], ids=str)
def test_another_piece_changes_its_own_task(piece: Piece) -> None:
    job = make_job()
    assert changed(job, replace(job, tasks=[(piece,), *job.tasks[1:]])) == {0}


def test_the_place_of_a_file_among_the_others_changes_nothing() -> None:
    job = make_job()
    new = Source("/in/0.jsonl", "jsonl", 10, 10, "1")
    tasks = [tuple(piece._replace(source=piece.source + 1) for piece in pieces) for pieces in job.tasks]
    assert changed(job, replace(job, sources=[new, *job.sources], tasks=tasks)) == set()


def test_where_the_work_stands_changes_nothing() -> None:
    moved = make_job(tokenizer_dir=Path("/other"), tokenizer_name="../other", work_dir=Path("/else.partial"))
    assert changed(make_job(), moved) == set()


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_the_error_policy_counts_with_dedup_alone(policy: str) -> None:
    settings = ReadSettings(errors=policy)
    assert changed(make_job(), make_job(settings=settings)) == set()
    assert changed(make_job(quality=DEDUP), make_job(quality=DEDUP, settings=settings)) == ALL
    assert make_job().reading_identities() == make_job(settings=settings).reading_identities()


@pytest.mark.parametrize("kinds", [("documents",), ("lines",), ("documents", "lines")])
@pytest.mark.parametrize("index", [0, 1])
def test_with_dedup_every_task_depends_on_every_file(kinds: tuple[str, ...], index: int) -> None:
    job = make_job(quality=Quality(dedup=kinds))
    assert changed(job, with_source(job, index, version="2")) == ALL
    assert changed(job, with_source(job, index, num_bytes=1001)) == ALL


def longer(path: Path) -> None:
    stat = path.stat()
    path.write_text(path.read_text() + "\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def touched(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [longer, touched])
def test_size_and_time_of_a_file_are_looked_at(change: Callable[[Path], None], tmp_path: Path) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", make_documents(4))
    before = make_job(sources=open_sources([tmp_path], ReadSettings()))
    change(tmp_path / "b.jsonl")
    assert changed(before, make_job(sources=open_sources([tmp_path], ReadSettings()))) == {1, 2}


FLAGS = {"--tasks": str(TASKS), "--errors": "skip", "--validation-share": "0.2"}


@pytest.fixture(scope="module")
def failed(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a.jsonl and what a run left that failed in its last task: out.partial."""
    folder = tmp_path_factory.mktemp("failed")
    texts = [
        # German rules keep "3. Mai" together; lines of their own; every third document is short
        " ".join(sentences[:1] if number % 3 == 0 else [*sentences, "It came\non the 3. Mai and stayed."])
        for number, sentences in enumerate(make_documents(30))
    ]
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    spoil(source)
    flags = ("--tasks", str(TASKS), "--validation-share", "0.2")
    with pytest.raises(ConfigError, match=r"a\.jsonl: byte"):
        run(source, tokenizer_dir, folder / "out", *flags)
    assert len(finished(folder / "out")) == TASKS - 1
    return folder


@pytest.fixture(scope="module")
def unchanged(failed: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the same settings make of it, but for the policy that lets the run end."""
    output = tmp_path_factory.mktemp("unchanged") / "out"
    return contents(run(failed / "a.jsonl", tokenizer_dir, output, *(word for pair in FLAGS.items() for word in pair)))


@pytest.fixture(scope="module")
def other_tokenizer(failed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("other") / "tokenizer"
    arguments = ["--input", str(failed / "a.jsonl"), "--errors", "skip", "--output", str(output)]
    assert train([*arguments, "--vocab-size", "120"]) == 0
    return output


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--tokenizer", None),
        ("--language", "de"),
        ("--sentences", "line"),
        ("--min-chars", "60"),
        ("--filter", "RegexFilter:regex_exp=whale"),
        ("--validation-share", "0.6"),
    ],
)
def test_finished_tasks_of_other_settings_are_not_taken_up(
    flag: str,
    value: str | None,
    failed: Path,
    unchanged: dict[str, bytes],
    tokenizer_dir: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    chosen = value or str(request.getfixturevalue("other_tokenizer"))
    words = [word for pair in {**FLAGS, "--tokenizer": str(tokenizer_dir), flag: chosen}.items() for word in pair]
    clean = contents(run(failed / "a.jsonl", tokenizer_dir, tmp_path / "clean", *words))
    for rank in range(TASKS - 1):  # or the test would pass whatever was taken up
        names = [f"{split}-{rank:05d}{suffix}" for split in ("train", "validation") for suffix in (".bin", ".idx")]
        assert [clean.get(name) for name in names] != [unchanged.get(name) for name in names]
    shutil.copytree(failed / "out.partial", tmp_path / "out.partial")
    assert contents(run(failed / "a.jsonl", tokenizer_dir, tmp_path / "out", *words)) == clean
