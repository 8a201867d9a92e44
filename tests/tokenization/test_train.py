from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer, BertTokenizerFast

from runtime.command import ConfigError
from tokenization.documents import open_sources
from tokenization.survey import survey
from tokenization.train import Sample, main
from tokenization.wordpiece import SPECIAL_TOKENS, Casing, count_words, learn_vocabulary, load_tokenizer

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
    assert (vocabulary.dropped_characters, round(vocabulary.dropped_share, 4)) == (2, round(2 / 13, 4))


def test_words_too_long_for_wordpiece_are_not_learned() -> None:
    assert set(count_words(["x" * 101 + " " + "y" * 100], Casing())) == {"y" * 100}


def test_the_sample_keeps_to_its_budget_and_is_spread_over_all_files(tmp_path: Path) -> None:
    for file in range(4):
        lines = (f"file{file} line{line} " + "é" * 50 for line in range(500))
        (tmp_path / f"{file}.txt").write_text("\n".join(lines), encoding="utf-8")
    found = survey(open_sources([tmp_path], "text", "auto"))
    samples = [Sample(found, 20_000, seed) for seed in (1, 1, 2)]
    texts = [list(sample) for sample in samples]
    assert texts[0] == texts[1] != texts[2]
    assert 15_000 < samples[0].used_bytes <= 20_000
    assert sum(len(text.encode("utf-8")) for text in texts[0]) <= samples[0].used_bytes
    counts = [sum(text.startswith(f"file{file} ") for text in texts[0]) for file in range(4)]
    assert min(counts) > 20
    everything = Sample(found, found.text_bytes, 1)
    assert len(list(everything)) == everything.used_documents == 2000
    assert everything.used_bytes == found.text_bytes


def test_a_document_longer_than_the_budget_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("word é " * 10_000, encoding="utf-8")
    found = survey(open_sources([tmp_path / "a.txt"], "text", "auto"))
    assert [len(text.encode("utf-8")) for text in Sample(found, 1006, 0)] == [1005]  # no half of an é
    run(tmp_path / "a.txt", tmp_path / "out", "--sample-bytes", "1000")
    assert "1,000 bytes in 1 documents used, of 79,999 bytes in 1" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--vocab-size", "--min-frequency", "--limit-alphabet", "--sample-bytes"])
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
    (output / "stale").write_text("")
    run(five_lines, output, "--force")
    assert sorted(path.name for path in output.iterdir()) == [
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
    assert done.stderr.splitlines()[-1].startswith("zerobert tokenizer: error: a.txt: byte 3 (line 1) is not UTF-8")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
