"""datatrove's filters by name: the syntax, the checks, what they say of a text."""

from __future__ import annotations

import importlib.util
import pickle
import urllib.request
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from datatrove.pipeline.filters import C4QualityFilter
from datatrove.utils import word_tokenizers

from runtime.command import ConfigError
from tokenization.quality.filters import FilterSpec, filter_names

PROSE = "The ship is in the harbour, and with the tide it will have to leave for the open sea to be there in time."


class PlainWords:
    """Stands for the word tokenizers, which need packages of their own."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


@pytest.fixture
def plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_tokenizers, "load_word_tokenizer", lambda language: PlainWords())


@pytest.fixture
def no_spacy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(step: str, packages: list[Any]) -> NoReturn:
        raise ImportError(f"Please install `spacy` to use {step} (`pip install spacy`).")

    word_tokenizers.load_word_tokenizer.cache_clear()
    monkeypatch.setattr(word_tokenizers, "check_required_dependencies", refuse)
    yield
    word_tokenizers.load_word_tokenizer.cache_clear()


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("C4ParagraphFilter", {}),
        (" C4ParagraphFilter ", {}),
        ("GopherQualityFilter:min_doc_words=20,max_doc_words=1000", {"min_doc_words": 20, "max_doc_words": 1000}),
        ("GopherQualityFilter: min_doc_words = 20 , max_doc_words = 9", {"min_doc_words": 20, "max_doc_words": 9}),
        (
            'GopherQualityFilter:stop_words=["a","b"],min_stop_words=null',
            {"stop_words": ["a", "b"], "min_stop_words": None},
        ),
        ("GopherQualityFilter:max_symbol_word_ratio=1", {"max_symbol_word_ratio": 1.0}),
        ("C4QualityFilter:split_paragraph=false", {"split_paragraph": False}),
        ("SamplerFilter:rate=0.25,seed=7", {"rate": 0.25, "seed": 7}),
        ("RegexFilter:regex_exp=a{2,3}|b,c (x|y): z", {"regex_exp": "a{2,3}|b,c (x|y): z"}),
        ('RegexFilter:regex_exp="a,b=c"', {"regex_exp": "a,b=c"}),
        ("RegexFilter:regex_exp=1999", {"regex_exp": "1999"}),
        ("RegexFilter:regex_exp=[0-9]+", {"regex_exp": "[0-9]+"}),
        ("RegexFilter:regex_exp=[0-9]", {"regex_exp": "[0-9]"}),
        ("RegexFilter:regex_exp=[0]", {"regex_exp": "[0]"}),
        ("LanguageFilter:languages=en,backend=glotlid", {"languages": "en", "backend": "glotlid"}),
        ("GopherRepetitionFilter:top_n_grams=[[2,0.5],[3,1]]", {"top_n_grams": [[2, 0.5], [3, 1]]}),
        (
            'FastTextClassifierFilter:model_url=/m.bin,keep_labels=["x",1]',
            {"model_url": "/m.bin", "keep_labels": ("x", 1)},
        ),
    ],
)
def test_specs_are_read_and_written(text: str, parameters: dict[str, Any]) -> None:
    spec = FilterSpec.parse(text)
    assert spec.parameters == parameters
    assert FilterSpec.parse(str(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"write NAME or NAME:key=value,key=value"),
        ("GopherQualityFilter min_doc_words=3", r"write NAME or NAME:key=value,key=value"),
        ("GopherQalityFilter", r"no such filter \(did you mean 'GopherQualityFilter'\?\); known: C4Bad"),
        ("BaseFilter", r"no such filter"),
        ("LambdaFilter", r"LambdaFilter: takes Python code, which a flag cannot hold"),
        ("URLFilter", r"URLFilter: judges URLs; text alone is read here"),
        ("GopherQualityFilter:min_docwords=2", r"'min_docwords' \(did you mean 'min_doc_words'\?\); it has min_doc"),
        ("C4ParagraphFilter:size=1", r"no parameter 'size'; it has none"),
        ("GopherQualityFilter:exclusion_writer=x", r"no parameter 'exclusion_writer'; it has min_doc_words=50"),
        ("GopherQualityFilter:language=de", r"language=de: follows the documents' language \(--language\)"),
        ("RegexFilter", r"parameter 'regex_exp' is missing; it has regex_exp"),
        ("RegexFilter:lorem", r"'lorem' is not key=value"),
        ("SamplerFilter:rate=0.5,rate=0.6", r"rate stands twice"),
        ("GopherQualityFilter:min_doc_words=2.5", r"min_doc_words=2.5: takes int \| None \(default 50\)"),
        ("GopherQualityFilter:min_doc_words=few", r"min_doc_words=few: takes int \| None"),
        ("SamplerFilter:rate=NaN", r"rate=NaN: takes float \| None \(default 0.5\)"),
        ("SamplerFilter:seed=x", r"seed=x: takes int \(default null\)"),
        ("C4QualityFilter:split_paragraph=no", r"split_paragraph=no: takes bool \(default true\)"),
        ("C4QualityFilter:split_paragraph=1", r"split_paragraph=1: takes bool"),
        ("LanguageFilter:backend=ft177", r"backend=ft177: takes Literal\['ft176', 'glotlid'\]"),
        ("GopherRepetitionFilter:top_n_grams=[[2,0.2],[3]]", r"top_n_grams=\[\[2,0.2\],\[3\]\]: takes tuple"),
        ("GopherRepetitionFilter:top_n_grams=7", r"top_n_grams=7: takes tuple"),
        ('GopherRepetitionFilter:top_n_grams=[["2",true]]', r"top_n_grams=.*: takes tuple"),
    ],
)  # fmt: skip
def test_wrong_specs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^--filter .*" + message):
        FilterSpec.parse(text)


def test_every_filter_that_can_be_asked_for_is_known() -> None:
    names = filter_names()
    assert {"C4QualityFilter", "GopherQualityFilter", "GopherRepetitionFilter", "FineWebQualityFilter"} <= set(names)
    assert {"RegexFilter", "SamplerFilter", "LanguageFilter", "FastTextClassifierFilter"} <= set(names)
    assert not {"LambdaFilter", "URLFilter", "BaseFilter"} & set(names)


def test_a_filter_says_why_it_drops() -> None:
    short = FilterSpec.parse("C4ParagraphFilter").open("en")
    assert short.judge("one\ntwo") == ("one\ntwo", "filter C4ParagraphFilter: < 3 paragraphs")
    assert short.judge("\n".join(["x" * 200] * 3))[1] is None
    without_reason = FilterSpec.parse("RegexFilter:regex_exp=lorem (ipsum|dolor)").open("en")
    assert without_reason.judge("a lorem dolor b") == ("a lorem dolor b", "filter RegexFilter")
    assert without_reason.judge("lorem") == ("lorem", None)


@pytest.mark.usefixtures("plain_words")
def test_parameters_reach_the_filter() -> None:
    strict = FilterSpec.parse("GopherQualityFilter").open("en")
    assert strict.judge(PROSE) == (PROSE, "filter GopherQualityFilter: gopher_short_doc")
    assert FilterSpec.parse("GopherQualityFilter:min_doc_words=20").open("en").judge(PROSE) == (PROSE, None)


@pytest.mark.usefixtures("plain_words")
def test_a_filter_may_shorten_the_text() -> None:
    lines = FilterSpec.parse("C4QualityFilter:min_num_sentences=-1").open("en")
    assert lines.judge("Home\nThis line has words.\nContact us") == ("This line has words.", None)
    assert lines.judge("Home\nContact us") == ("Home\nContact us", "filter C4QualityFilter: nothing left")


def test_a_sampling_filter_draws_the_same_again() -> None:
    def draw(spec: str) -> list[bool]:
        opened = FilterSpec.parse(spec).open("en")
        return [opened.judge("text")[1] is None for _ in range(200)]

    assert draw("SamplerFilter:rate=0.5") == draw("SamplerFilter:rate=0.5") != draw("SamplerFilter:rate=0.5,seed=1")
    assert draw("SamplerFilter:seed=null") == draw("SamplerFilter")
    assert 60 < sum(draw("SamplerFilter:rate=0.5")) < 140


@pytest.mark.usefixtures("no_spacy")
@pytest.mark.parametrize("name", ["GopherQualityFilter", "FineWebQualityFilter", "C4QualityFilter"])
def test_a_missing_package_is_named_before_any_work(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--filter {name}: cannot be used: .*pip install spacy"):
        FilterSpec.parse(name).open("en")


def test_words_are_tried_though_the_sample_is_refused_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking(PlainWords):
        def word_tokenize(self, text: str) -> list[str]:
            raise ImportError("no words: pip install this")

    monkeypatch.setattr(word_tokenizers, "load_word_tokenizer", lambda language: Lacking())
    with pytest.raises(ConfigError, match=r"--filter FineWebQualityFilter: cannot be used: no words: pip install this"):
        FilterSpec.parse("FineWebQualityFilter").open("en")


@pytest.mark.skipif(importlib.util.find_spec("fasttext") is not None, reason="fasttext is installed")
def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--filter LanguageFilter: cannot be used: .*pip install .*fasttext"):
        FilterSpec.parse("LanguageFilter").open("en")


def test_a_file_that_cannot_be_fetched_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def refuse(*arguments: Any) -> NoReturn:
        raise OSError("no route to host")

    monkeypatch.setattr(urllib.request, "urlretrieve", refuse)
    monkeypatch.setattr("datatrove.pipeline.filters.unigram_log_probs.cached_assets_path", lambda **_: tmp_path)
    with pytest.raises(
        ConfigError, match=r"UnigramLogProbFilter: cannot be used: OSError: no route to host; it needs a f"
    ):
        FilterSpec.parse("UnigramLogProbFilter").open("en")


def test_a_value_that_the_filter_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match=r'RegexFilter:regex_exp="\(": cannot be used .*unterminated subpattern'):
        FilterSpec.parse("RegexFilter:regex_exp=(").open("en")


def test_a_language_without_word_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"GopherQualityFilter: cannot be used \(language 'qqq'\).*Language 'qqq'"):
        FilterSpec.parse("GopherQualityFilter").open("qqq")


@pytest.mark.usefixtures("plain_words")
def test_a_filter_that_fails_on_a_document_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FilterSpec.parse("C4QualityFilter").open("en")
    monkeypatch.setattr(C4QualityFilter, "filter", lambda self, document: 1 / 0)
    with pytest.raises(ConfigError, match=r"fails on the document that begins 'Some text': ZeroDivisionError"):
        opened.judge("Some text")


def test_real_words_where_spacy_is_installed() -> None:
    pytest.importorskip("spacy", reason="the word filters need spaCy")
    opened = FilterSpec.parse("GopherQualityFilter:min_doc_words=20").open("en")
    assert opened.judge(PROSE) == (PROSE, None)
    assert opened.judge("Too short.")[1] == "filter GopherQualityFilter: gopher_short_doc"
