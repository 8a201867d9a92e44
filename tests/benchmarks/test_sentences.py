"""Brown's words to running text, and the scores of a splitter on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import sentences
from benchmarks.harness import UnequalError
from benchmarks.sentences import Score, find_ends, join_words, run_together, score, split_naively


@pytest.mark.parametrize(
    ("tagged", "printed"),
    [
        ("The/at jury/nn said/vbd ,/, yes/rb ./.", "The jury said, yes."),
        ("``/`` No/at ''/'' ,/, she/pps said/vbd ./.", '"No," she said.'),
        ("He/pps called/vbd it/ppo ``/`` art/nn ''/'' ./.", 'He called it "art."'),
        ("``/`` Why/wrb ?/. ''/'' ./.", '"Why?"'),
        ("It/pps was/bedz Ivan/np Allen/np Jr./np ./.", "It was Ivan Allen Jr."),
        ("Who/wps ?/. ?/.", "Who?"),
        ("one/cd (/( or/cc two/cd )/) ;/. ;/.", "one (or two);"),
        ("1/2/cd of/in it/ppo --/-- gone/vbn ./.", "1/2 of it -- gone."),
        ("``/`` `/` Go/vb '/' ,/, he/pps said/vbd ''/'' ./.", "\"'Go', he said.\""),
    ],
)
def test_words_are_printed(tagged: str, printed: str):
    assert join_words(tagged) == printed


def test_paragraphs_are_parted_by_blank_lines(tmp_path: Path):
    path = tmp_path / "ca01"
    path.write_text("\n\n\tA/at ./.\nB/nn ./.\n\n\n\tC/nn ./.\n", encoding="utf-8")
    assert sentences.read_tagged(path) == [["A/at ./.", "B/nn ./."], ["C/nn ./."]]


def test_ends_at_a_mark_inside_a_paragraph_count():
    running = run_together([["A/at b/nn ./.", "Head/nn-hl", "C/nn !/.", "D/nn ;/.", "E/nn ./."], ["F/nn ./."]])
    assert running.text == "A b. Head C! D; E.\n\nF."
    assert running.ends == {4, 12}  # of "A b." and "C!"
    assert running.uncounted == {9, 15, 18, 22}


def test_a_score_counts_ends_missed_and_invented():
    running = run_together([["A/at b/nn ./.", "Mr./np C/nn ./.", "D/nn ./.", "E/nn ./."]])
    assert running.text == "A b. Mr. C. D. E."
    perfect = score(running, lambda text: ["A b.", "Mr. C.", "D.", "E."])
    assert perfect == Score(gold=3, found=3, hits=3)
    poor = score(running, lambda text: ["A b. Mr.", "C.", "D. E."])
    assert poor == Score(gold=3, found=2, hits=1)
    assert (poor.precision, poor.recall, poor.f1) == (0.5, pytest.approx(1 / 3), 0.4)
    assert poor.errors_per_1000 == 1000  # two missed and one invented, of three


def test_scores_add_up():
    assert Score(3, 2, 1) + Score(1, 1, 1) == Score(4, 3, 2)


def test_the_naive_splitter_knows_no_abbreviations():
    assert split_naively('Mr. A said "no!" Then\nhe left.\n\nTitle\n\nB.') == [
        "Mr.",
        'A said "no!"',
        "Then\nhe left.",
        "Title",
        "B.",
    ]


def test_a_splitter_that_changes_text_is_refused():
    assert find_ends("A b. C.", ["A b.", "C."]) == {4, 7}
    for changed in (["A b."], ["A b.", "D."], ["C."]):
        with pytest.raises(UnequalError):
            find_ends("A b. C.", changed)


def test_a_table_of_genres(tmp_path: Path):
    (tmp_path / "ca01").write_text("\tIt/pps was/bedz late/jj ./.\nWe/ppss left/vbd ./.\n", encoding="utf-8")
    (tmp_path / "cr09").write_text("\tIt/pps was/bedz Mr./np Fox/np ./.\nWe/ppss left/vbd ./.\n", encoding="utf-8")
    scores = sentences.score_folder(tmp_path)
    assert list(scores) == ["press: reportage", "humor", "all"]
    assert scores["humor"][2] == Score(gold=1, found=2, hits=1)
    last = sentences.table(scores).splitlines()[-1]
    assert last == "| all | 2 | 1.0000 / 1.0000 / 0.0 | 1.0000 / 1.0000 / 0.0 | 0.6667 / 1.0000 / 500.0 |"
