from __future__ import annotations

import gzip
import json
import logging
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer, BertTokenizerFast

from runtime.command import ConfigError
from tokenization.documents import ReadSettings, open_sources
from tokenization.train import main
from tokenization.vocabulary import count_task, sample
from tokenization.vocabulary.counting import count_sample
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS, learn_vocabulary, load_tokenizer
from tokenization.vocabulary.words import MODELS, Casing, WordSplitter, count_words

REPOSITORY = Path(__file__).resolve().parents[2]
FIVE_LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "A Red FOX met another red fox at the café.",
    "Dogs and foxes: who is quicker, and who is lazier?",
    "The dog was not amused; the fox jumped again.",
    "Quickly, quickly, said the fox, and jumped.",
]


@pytest.fixture
def five_lines(tmp_path: Path) -> Path:
    path = tmp_path / "five.txt"
    path.write_text("\n".join(FIVE_LINES), encoding="utf-8")
    return path


def run(path: Path, output: Path, *flags: str) -> Path:
    assert main(["--input", str(path), "--output", str(output), *flags]) == 0
    return output


def tied_words(seed: int) -> list[str]:
    """Sixty words over few letters, all about as frequent: full of ties."""
    draw = random.Random(seed)
    letters = "abcdefgh"[: draw.randint(3, 8)]
    words = ["".join(draw.choices(letters, k=draw.randint(3, 8))) for _ in range(60)]
    return [" ".join(draw.sample(words, 10)) for _ in range(20)]


def test_thirty_trainings_give_the_same_vocabulary() -> None:
    for seed in (4, 8, 11):  # corpora on which Hugging Face's trainer alone gave 6 and more different sets
        texts = tied_words(seed)
        for size in (50, 200):
            found = {learn_vocabulary(count_words(texts, Casing()), size, 1).tokens for _ in range(30)}
            assert len(found) == 1


@pytest.mark.slow
def test_other_processes_give_the_same_bytes(five_lines: Path, tmp_path: Path) -> None:
    contents = set()
    for index in range(3):
        output = tmp_path / f"out{index}"
        command = [
            sys.executable,
            "-m",
            "tokenization.train",
            "--input",
            str(five_lines),
            "--output",
            str(output),
        ]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
        contents.add(tuple((path.name, path.read_bytes()) for path in sorted(output.iterdir())))
    assert len(contents) == 1
    assert [name for name, _ in next(iter(contents))] == [
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_the_order_of_documents_does_not_matter() -> None:
    texts = tied_words(3)
    learned = [learn_vocabulary(count_words(order, Casing()), 60, 1) for order in (texts, texts[::-1])]
    assert learned[0] == learned[1]


def test_ids_are_in_canonical_order(five_lines: Path, tmp_path: Path) -> None:
    tokens = (run(five_lines, tmp_path / "out") / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    plain = [token for token in tokens[5:] if len(token) == 1]
    continuing = [token for token in tokens if len(token) == 3 and token.startswith("##")]
    rest = [token for token in tokens[5:] if token not in {*plain, *continuing}]
    assert tokens[5:] == sorted(plain) + sorted(continuing) + sorted(rest, key=lambda token: (len(token), token))
    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).get_vocab() == {
        token: index for index, token in enumerate(tokens)
    }


def test_saved_tokenizer_adds_special_tokens_and_type_ids(five_lines: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(run(five_lines, tmp_path / "out") / "tokenizer.json"))
    single = tokenizer.encode("the fox")
    assert (single.tokens[0], single.tokens[-1], set(single.type_ids)) == ("[CLS]", "[SEP]", {0})
    pair = tokenizer.encode("the fox", "the dog")
    middle = pair.tokens.index("[SEP]")
    assert pair.tokens[0] == "[CLS]"
    assert pair.tokens.count("[SEP]") == 2
    assert pair.tokens[-1] == "[SEP]"
    assert pair.type_ids == [0] * (middle + 1) + [1] * (len(pair.tokens) - middle - 1)


@pytest.mark.parametrize("missing", SPECIAL_TOKENS)
def test_all_five_special_tokens_are_needed(tokenizer_dir: Path, tmp_path: Path, missing: str) -> None:
    value = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = value["model"]["vocab"]
    vocabulary["other"] = vocabulary.pop(missing)
    value["added_tokens"] = [token for token in value["added_tokens"] if token["content"] != missing]
    value["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"tokenizer.json: (the vocabulary lacks \{missing[:-1]}|not a tokenizer)"):
        load_tokenizer(tmp_path)


def test_special_tokens_are_found_by_name(tokenizer_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id] == [0, 1, 2]
    assert [tokenizer.sep_token_id, tokenizer.mask_token_id] == [3, 4]


def test_requested_and_actual_size_are_said(
    five_lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(run(five_lines, tmp_path / "out", "--vocab-size", "30000"))
    size = tokenizer.get_vocab_size()
    assert size < 200
    assert f"{size} tokens of 30,000 requested: no more pairs of count 2" in capsys.readouterr().out


def test_a_size_below_specials_and_alphabet_is_refused(five_lines: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--vocab-size 10: too small: 5 special tokens and an alphabet of \d+ take"):
        run(five_lines, tmp_path / "out", "--vocab-size", "10")
    least = len(learn_vocabulary(count_words(FIVE_LINES, Casing()), 1000, 1000).tokens)
    assert load_tokenizer(run(five_lines, tmp_path / "a", "--vocab-size", str(least))).get_vocab_size() == least
    with pytest.raises(ConfigError, match=f"take {least}"):
        run(five_lines, tmp_path / "b", "--vocab-size", str(least - 1))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "red fox cafe"),
        (["--cased"], "Red FOX café"),
        (["--no-strip-accents"], "red fox café"),
        (["--cased", "--strip-accents"], "Red FOX cafe"),
    ],
)
def test_casing_and_accents_survive_a_reload(five_lines: Path, tmp_path: Path, flags: list[str], expected: str) -> None:
    output = run(five_lines, tmp_path / "out", "--min-frequency", "1", *flags)
    text = "Red FOX café"
    tokens = Tokenizer.from_file(str(output / "tokenizer.json")).encode(text).tokens
    assert tokens == ["[CLS]", *expected.split(), "[SEP]"]
    for kind in (AutoTokenizer, BertTokenizer, BertTokenizerFast):
        reloaded = kind.from_pretrained(output)
        assert type(reloaded).__name__.startswith("Bert")
        assert reloaded.convert_ids_to_tokens(reloaded(text)["input_ids"]) == tokens
        assert reloaded.model_max_length == 512


def test_vocabulary_alone_gives_the_same_ids(tokenizer_dir: Path) -> None:
    text = "The fox\u2019s dog follows number 5 2."
    alone = BertTokenizer(vocab=str(tokenizer_dir / "vocab.txt"))
    assert alone(text)["input_ids"] == AutoTokenizer.from_pretrained(tokenizer_dir)(text)["input_ids"]


def test_rare_characters_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    vocabulary = learn_vocabulary(count_words(["aaa bbb aaa cc d e"], Casing()), 100, 2, alphabet_limit=3)
    assert {"a", "b", "c"} <= set(vocabulary.tokens)
    assert not {"d", "e", "##d"} & set(vocabulary.tokens)
    assert vocabulary.alphabet.num_dropped == 2
    assert vocabulary.alphabet.dropped_share == pytest.approx(2 / 13)


def write_files(folder: Path, num_files: int = 4, num_lines: int = 500) -> Path:
    """Files of lines that each hold a word of their own."""
    folder.mkdir(exist_ok=True)
    for file in range(num_files):
        lines = (f"file{file} line{file}x{line} " + "é" * 50 for line in range(num_lines))
        (folder / f"{file}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_sample_keeps_to_its_budget_and_is_spread_over_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_UNIT_BYTES", 2_000)
    corpus = write_files(tmp_path / "corpus")  # 4 x 500 lines of about 120 bytes
    found = {}
    for seed in ("1", "2"):
        run(corpus, tmp_path / seed, "--sample-bytes", "60000", "--seed", seed, "--min-frequency", "1")
        text = capsys.readouterr().out
        used = int(text.split("text")[1].split()[0].replace(",", ""))
        assert 54_000 <= used <= 60_000
        assert "documents used, of about " in text
        found[seed] = (tmp_path / seed / "report.json").read_bytes()
        vocabulary = (tmp_path / seed / "vocab.txt").read_text(encoding="utf-8").split("\n")
        assert {f"file{file}" for file in range(4)} <= set(vocabulary)
    assert found["1"] != found["2"]


def test_a_budget_above_the_text_takes_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_files(tmp_path / "corpus")
    num_bytes = sum(len(line) for path in corpus.iterdir() for line in path.read_bytes().split(b"\n"))
    run(corpus, tmp_path / "out")
    expected = f"{num_bytes:,} bytes in 2,000 documents used, of {num_bytes:,} bytes in 2,000\n"
    assert expected in capsys.readouterr().out


def test_a_document_longer_than_the_budget_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("word é " * 10_000, encoding="utf-8")
    run(tmp_path / "a.txt", tmp_path / "out", "--sample-bytes", "1006")  # byte 1006 is half of an é
    assert "1,005 bytes in 1 documents used, of about 80,000 bytes in about 80\n" in capsys.readouterr().out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.timeout(120)
def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_UNIT_BYTES", 2_000)
    monkeypatch.setattr(sample, "_TASK_BYTES", 20_000)
    corpus = write_files(tmp_path / "corpus")
    flags = ("--model", model, "--vocab-size", "400", "--sample-bytes", "100000")
    one, two = (run(corpus, tmp_path / workers, *flags, "--workers", workers) for workers in ("1", "2"))
    assert contents(one) == contents(two)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "corpus"]


def test_a_second_call_counts_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_TASK_BYTES", 50_000)
    corpus = write_files(tmp_path / "corpus")
    expected = contents(run(corpus, tmp_path / "whole"))
    counted: list[int] = []
    original = count_task.CountTask.run

    def fail_at_the_third(self: count_task.CountTask, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        if rank == 2 and len(counted) == 2:
            raise KeyboardInterrupt
        counted.append(rank)
        original(self, data, rank, world_size)

    monkeypatch.setattr(count_task.CountTask, "run", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out.partial" / "counting" / "counts-00001.tsv").unlink()
    assert counted == [0, 1]
    counted.append(-1)
    assert contents(run(corpus, tmp_path / "out")) == expected
    assert counted == [0, 1, -1, 1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "out", "whole"]


def test_counts_of_other_text_or_settings_are_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_files(tmp_path / "corpus")
    with monkeypatch.context() as patch:
        patch.setattr("tokenization.train.learn", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        for flags in ((), ("--cased",)):
            with pytest.raises(KeyboardInterrupt):
                run(corpus, tmp_path / "out", *flags)
    assert (tmp_path / "out.partial").is_dir()
    (corpus / "3.txt").write_text("other words\n" * 500)
    vocabulary = (run(corpus, tmp_path / "out") / "vocab.txt").read_text(encoding="utf-8").split()
    assert "other" in vocabulary
    assert "file3" not in vocabulary


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"line{line % 500} {'word ' * 20}\n" for line in range(200_000)))  # 22 MB: 3 tasks
    command = [sys.executable, "-m", "tokenization.train", "--input", str(corpus), "--output", str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--workers", "2"], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out.partial/logs/counting/completions/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    if (tmp_path / "out").exists():
        pytest.skip("the command was done before it was killed")
    assert list(tmp_path.glob("out.partial/counting/counts-*.tsv"))
    run(corpus, tmp_path / "out", "--vocab-size", "500")
    run(corpus, tmp_path / "whole", "--vocab-size", "500")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_compressed_file_is_sampled_by_document(tmp_path: Path) -> None:
    lines = "\n".join(f"line{line} {'word' * 10}" for line in range(5_000))
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write(lines)
    sources = open_sources([str(tmp_path / "a.txt.gz")], ReadSettings())
    found = count_sample(sources, WordSplitter("wordpiece", Casing()), 50_000, 0, 1, tmp_path)
    assert 45_000 <= found.used_bytes <= 50_000
    lines = sorted(int(word.removeprefix("line")) for word in found.counted.words if word.startswith("line"))
    assert len(lines) == found.used_documents
    assert [sum(start <= line < start + 1000 for line in lines) > 100 for start in range(0, 5000, 1000)] == [True] * 5


def test_left_out_characters_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("aaaa bbbb cccc я 字 字\n" * 10, encoding="utf-8")
    with caplog.at_level(logging.INFO):
        run(tmp_path / "a.txt", tmp_path / "out", "--limit-alphabet", "3")
    record = next(record for record in caplog.records if "--limit-alphabet" in record.message)
    assert record.levelno == logging.WARNING
    assert record.message.startswith("2 rare characters (20.0000 % of the text) are not in the alphabet")
    assert record.message.endswith("1 Cjk, 1 Cyrillic such as 字 я")


def test_the_report_stands_in_the_folder_and_on_the_screen(
    five_lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(five_lines, tmp_path / "out")
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    assert report["tokens"] == load_tokenizer(output).get_vocab_size()
    assert report["words"]["occurrences"] == count_words(FIVE_LINES, Casing()).total()
    assert report["lines"]["lines"] == 5
    assert f"{report['words']['tokens_a_word']:.3f} tokens a word" in capsys.readouterr().out


@pytest.mark.parametrize("model", MODELS)
def test_every_model_through_the_command(five_lines: Path, tmp_path: Path, model: str) -> None:
    output = run(five_lines, tmp_path / "out", "--model", model, "--cased", "--min-frequency", "1")
    tokenizer = load_tokenizer(output)
    assert tokenizer.decode(tokenizer.encode("Red FOX café").ids) == "Red FOX café"
    names = ["report.json", "tokenizer.json", "tokenizer_config.json"] + ["vocab.txt"] * (model == "wordpiece")
    assert sorted(path.name for path in output.iterdir()) == names


def test_bytes_have_no_alphabet_to_limit(five_lines: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--limit-alphabet: the alphabet of --model bpe is the 256 bytes"):
        run(five_lines, tmp_path / "out", "--model", "bpe", "--limit-alphabet", "5")


def test_repaired_text_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\xff two\nthree four\n" * 3)
    run(tmp_path / "a.txt", tmp_path / "out", "--errors", "replace")
    assert "repaired    3 bytes that are not in the encoding\n" in capsys.readouterr().out
    run(tmp_path / "a.txt", tmp_path / "b", "--errors", "skip")
    assert "left out    3 documents with bytes that are not in the encoding\n" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--vocab-size", "--min-frequency", "--limit-alphabet", "--sample-bytes", "--workers"])
def test_numbers_must_be_positive(five_lines: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} 0: must be 1 or more"):
        run(five_lines, tmp_path / "out", flag, "0")


def test_text_without_a_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\x01\x02\n")
    with pytest.raises(ConfigError, match="holds no word to learn from"):
        run(tmp_path / "a.txt", tmp_path / "out")


def test_output_is_only_replaced_when_asked(five_lines: Path, tmp_path: Path) -> None:
    output = run(five_lines, tmp_path / "out")
    with pytest.raises(ConfigError, match="the folder is not empty"):
        run(five_lines, output)
    (output / "model.safetensors").write_text("weights")
    with pytest.raises(ConfigError, match=r"--force would delete model\.safetensors"):
        run(five_lines, output, "--force")
    (output / "model.safetensors").unlink()
    run(five_lines, output, "--force")
    assert sorted(path.name for path in output.iterdir()) == [
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["five.txt", "out"]


def test_bad_input_ends_with_code_2_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    command = [sys.executable, "-m", "tokenization.train", "--input", "a.txt", "--output", "deep/out"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("zerobert tokenizer: error: a.txt: byte 3 (line 1): is not UTF-8")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
