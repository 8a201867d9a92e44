"""Files that are whole or not there; JSON and TOML whose faults are named with file and line."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from runtime import files
from runtime.command import ConfigError
from runtime.files import parse_toml, read_json, read_toml, sha256_of, write_bytes, write_json, write_text


def test_sha256_is_that_of_the_bytes_over_block_edges(tmp_path: Path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    assert sha256_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    large = os.urandom((1 << 20) + 7)
    path.write_bytes(large)
    assert sha256_of(str(path)) == hashlib.sha256(large).hexdigest()


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path):
    path = tmp_path / "file.json"
    write_bytes(path, b"old")
    write_text(path, "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    assert os.listdir(tmp_path) == ["file.json"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_crash_while_writing_keeps_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str):
    path = tmp_path / "latest"
    write_text(path, "step_00000001")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, broken, fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "step_00000002")
    assert path.read_text() == "step_00000001"
    assert os.listdir(tmp_path) == ["latest"]


def test_the_new_bytes_are_on_disk_before_the_name_points_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda number: (calls.append("fsync"), fsync(number)))
    monkeypatch.setattr(files.os, "replace", lambda old, new: (calls.append("replace"), replace(old, new)))
    write_text(tmp_path / "latest", "x")
    assert calls == ["fsync", "replace"]


def test_json_goes_out_and_in_again_in_order(tmp_path: Path):
    value = {"b": [1, 2.5, None, True], "a": {"é": "日本"}}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text.index('"b"') < text.index('"a"')
    assert "日本" in text
    assert text.endswith("}\n")
    assert read_json(tmp_path / "x.json") == value


def test_a_byte_order_mark_is_dropped(tmp_path: Path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_json(tmp_path / "x.json") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{\n  "stage": 1, // the best\n}',
            r"x\.json:2:15: not plain JSON: a comment \(//\).*: '\"stage\": 1, // the best'",
        ),
        ('{\n  # the best\n  "stage": 1}', r"x\.json:2:3: not plain JSON: a comment \(#\)"),
        ('{"stage": /* the best */ 1}', r"x\.json:1:11: not plain JSON: a comment \(/\*\)"),
        ('{"a": [1,\n 2, ]}', r"x\.json:2:3: not plain JSON: a trailing comma before '\]'"),
        ("{'a': 1}", r"x\.json:1:2: not plain JSON: single quotes; write"),
        ("{\"a\": 'b'}", r"x\.json:1:7: not plain JSON: single quotes; write"),
        ('{\n  "a": 1,\n}\n', r"x\.json:2:9: not plain JSON: a trailing comma before '}'; take it out: '\"a\": 1,'"),
        ('{"a": 1,\n', r"x\.json:2:1: not plain JSON"),  # cut short behind a line's end
        ("", r"x\.json:1:1: not plain JSON"),
        ("\n\n", r"x\.json:3:1: not plain JSON"),
        ('{"a": "\u2028",\n"b": }', r"x\.json:2:6: not plain JSON: .*'\"b\": }'"),  # U+2028 ends no line of JSON
        ('{"a": {"lr": 1, "lr": 2}}', r"x\.json: key 'lr' stands twice in one object; keep one"),
        ('{"lr": NaN}', r"x\.json: NaN is not JSON; write a number"),
        ('{"lr": -Infinity}', r"x\.json: -Infinity is not JSON; write a number"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_json(path)


@pytest.mark.parametrize("read", [read_json, read_toml])
def test_what_is_no_file_is_refused(tmp_path: Path, read):
    with pytest.raises(ConfigError, match=r"missing: no such file"):
        read(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"is a directory, not a file"):
        read(tmp_path)
    (tmp_path / "latin").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"latin: not UTF-8 text \(byte 2\)"):
        read(tmp_path / "latin")


def test_toml(tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\n[training]\nsteps = 3\n')
    assert read_toml(path) == {"name": "x", "training": {"steps": 3}}
    path.write_text("name = \n")
    with pytest.raises(ConfigError, match=r"x\.toml: not TOML: .*line 1"):
        read_toml(path)
    with pytest.raises(ValueError, match="line 1"):
        parse_toml("a b")
