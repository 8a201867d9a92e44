from __future__ import annotations

import time

import pytest

from tokenization.documents.wikitext import Namespaces, to_plain_text


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("'''Bonn''' is ''a'' city.", "Bonn is a city."),
        ("It is l''''amour'''.", "It is l'amour."),
        ("[[town]] [[city|cities]] [[:Category:X]] [[a#b]] [[w:en:x|label]]", "town cities Category:X a label"),
        ("A.[[File:a.jpg|thumb|A [[nested|b]] caption]] B. [[Category:C]][[de:Bonn]]", "A. B."),
        ("[[Star Trek: X]] ran.", "Star Trek: X ran."),
        ("A{{x|y={{z|[[b]]}}|q}} B.", "A B."),
        ("{{lang|de|Wort}} {{convert|5|km|mi}} 1{{ndash}}2 {{lang-la|Bonna}}", "Wort 5 km 1\u20132 Bonna"),
        ("Paris ({{ipa|x}}; {{y}}) is ({{z}}, born 1) it.", "Paris is (born 1) it."),
        ('A<ref>x {{y}}</ref> b<ref name="c" /> c<ref name=d>z</ref>.', "A b c."),
        ("A <!-- b\n\nc --> d.", "A d."),
        ("A <!-- never ends", "A <!-- never ends"),
        ("A <ref> never ends.", "A never ends."),
        ("A {{never ends [[b|c]].", "A never ends c."),
        ("A }} ]] b.", "A b."),
        ("Text.\n\n== Head ==\n* item\n# item\n: indented\nMore\ntext.\n----\n", "Text.\n\nMore\ntext."),
        ("A.\n{| class=x\n|-\n! h\n| a || b\n{|\n| inner\n|}\n|}\nB.", "A.\n\nB."),
        ("{{a|}}B.", "B."),
        ("See [http://a.b/c the site] and [https://x] end [//y z].", "See the site and end z."),
        ("a&nbsp;b &ndash; &lt;ref&gt; H<sub>2</sub>O<br />x", "a b \u2013 <ref> H2O\nx"),
        ("__NOTOC__A<math>x<y</math> b<gallery>\nFile:a\n</gallery> -{zh-hans:x;zh-hant:y}-", "A b x"),
        ("", ""),
    ],
)
def test_running_text_is_kept(wikitext: str, expected: str) -> None:
    assert to_plain_text(wikitext) == expected


def test_namespaces_of_the_wiki() -> None:
    assert to_plain_text("[[Slika:x|y]]Z", Namespaces(frozenset(["slika"]))) == "Z"
    assert to_plain_text("[[Slika:x|y]]Z") == "yZ"


@pytest.mark.parametrize(
    "part",
    [
        "{{",
        "[[",
        "{{[[",
        "}}",
        "]]",
        "<ref>",
        "<!--",
        "[http://",
        "'",
        "<",
        "<a ",
        "=",
        "(",
        "(,",
        "\n{|",
        "-{",
        "&",
        " \n",
        "&#",
        "[[a|",
    ],
)
def test_time_is_linear_in_hostile_text(part: str) -> None:
    def seconds(count: int) -> float:
        text = part * count
        started = time.process_time()
        to_plain_text(text)
        return time.process_time() - started

    assert seconds(200_000 // len(part)) < 3  # quadratic: minutes


def test_nesting_that_closes_is_bounded_too() -> None:
    started = time.process_time()
    to_plain_text("[[a" * 100_000 + "]]" * 100_000)
    to_plain_text("{{a|" * 100_000 + "}}" * 100_000)
    assert time.process_time() - started < 6
