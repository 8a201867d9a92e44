from __future__ import annotations

import functools
import http.server
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, names, read_pieces, texts, write
from tokenization.documents import ReadSettings, open_sources, remote

LINES = [f"line {number} \u2019" for number in range(3000)]


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and parts of them, as servers of data do."""

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        self.wfile.write(data[start : end + 1])

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp, which is not installed")
    handler = functools.partial(_RangeHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_http(tmp_path: Path, server: str, name: str) -> None:
    content = "\n".join(LINES).encode()
    write(tmp_path / name, COMPRESS[".gz"](content) if name.endswith("gz") else content)
    source = open_sources([f"{server}/{name}?download=1"], ReadSettings())[0]
    assert source.path == f"{server}/{name}?download=1"
    for count in {1, min(3, source.num_pieces)}:
        assert [document.text for document in read_pieces(source, count)[0]] == LINES


def test_http_errors(server: str) -> None:
    with pytest.raises(ConfigError, match=rf"{server}/none\.txt: .*no such file|cannot be read"):
        texts(f"{server}/none.txt")
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:1/a\.txt: cannot be"):
        texts("http://127.0.0.1:1/a.txt")


def test_file_urls(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"a\nb\n")
    assert texts(f"file://{tmp_path}/a.txt") == ["a", "b"]
    assert texts(f"file://{tmp_path}") == ["a", "b"]
    assert texts(f"local://{tmp_path}/*.txt") == ["a", "b"]
    with pytest.raises(ConfigError, match="the same file is there already"):
        texts(f"file://{tmp_path}/a.txt", tmp_path / "a.txt")


def test_folders_and_patterns_of_a_file_system() -> None:
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    memory = fsspec.filesystem("memory")
    for name, content in (("b.txt", b"b"), ("a/c.jsonl", b'{"text": "c"}'), ("a/d.md", b"")):
        memory.pipe(f"/corpus/{name}", content)
    with memory.open("/corpus/e.parquet", "wb") as file:
        pq.write_table(pa.table({"text": ["e", "f"]}), file)
    with (
        memory.open("/corpus/g.arrow", "wb") as file,
        pa.ipc.new_stream(file, pa.schema([("text", pa.string())])) as writer,
    ):
        writer.write_table(pa.table({"text": ["g"]}))
    try:
        assert sorted(texts("memory://corpus")) == ["b", "c", "e", "f", "g"]
        assert names(open_sources(["memory://corpus/**/*.jsonl"], ReadSettings())) == ["c.jsonl"]
        assert texts("memory://corpus/b.txt") == ["b"]
        with pytest.raises(ConfigError, match=r"memory://corpus/\*\.csv: no file fits this pattern"):
            texts("memory://corpus/*.csv")
        with pytest.raises(ConfigError, match=r"memory://corpus/none\.txt: no such file or folder"):
            texts("memory://corpus/none.txt")
        with pytest.raises(ConfigError, match="the same file is there already"):
            texts("memory://corpus/b.txt", "memory://corpus/b.txt")
    finally:
        memory.rm("/corpus", recursive=True)


def test_what_is_missing_for_a_url_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"--input htps://x/a\.txt: htps:// cannot be read \(did you mean 'https'\?\)"
    ):
        texts("htps://x/a.txt")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"s3://x/a\.txt: a package is missing for s3://: .*s3fs"):
            texts("s3://x/a.txt")


def test_a_dataset_name_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"--input dataset:a b: write it as dataset:NAME\[/CONFIG\]\[:SPLIT\]"):
        texts("dataset:a b")


class _Hub:
    """Stands for the hub's file system: folders are the ends of names."""

    def __init__(self, *files: str) -> None:
        self.files = [f"datasets/{file}" for file in files]

    def exists(self, path: str) -> bool:
        return any(file.startswith(path + "/") for file in self.files)

    def ls(self, path: str, detail: bool) -> list[dict[str, str]]:
        ends = {file[len(path) + 1 :].split("/")[0] for file in self.files if file.startswith(path + "/")}
        return [{"name": f"{path}/{end}", "type": "directory"} for end in ends]

    def glob(self, pattern: str, detail: bool) -> dict[str, dict[str, object]]:
        folder = pattern.removesuffix("/*.parquet")
        return {file: {"size": 7, "blob_id": "x"} for file in self.files if file.rpartition("/")[0] == folder}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("dataset:org/one", "org/one@refs%2Fconvert%2Fparquet/only/train/0000.parquet"),
        ("dataset:org/one:test", "org/one@refs%2Fconvert%2Fparquet/only/test/0000.parquet"),
        ("dataset:org/two/de", "org/two@refs%2Fconvert%2Fparquet/de/train/0000.parquet"),
        ("dataset:org/two", "org/two@refs%2Fconvert%2Fparquet/default/train/0000.parquet"),
        ("dataset:old/plain", "old@refs%2Fconvert%2Fparquet/plain/train/0000.parquet"),
        ("dataset:org/two/fr", r"has no config 'fr'; it has de, default"),
        ("dataset:org/one:tset", r"has no split 'tset' \(did you mean 'test'\?\); it has test, train"),
        ("dataset:org/none", "has no such dataset"),
    ],
)
def test_datasets_by_name(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = "@refs%2Fconvert%2Fparquet"
    files = [f"org/one{at}/only/train/0000", f"org/one{at}/only/test/0000", f"org/two{at}/de/train/0000"]
    files += [f"org/two{at}/default/train/0000", f"old{at}/plain/train/0000", f"old{at}/other/train/0000"]
    hub = _Hub(*(file + ".parquet" for file in files))
    monkeypatch.setattr(remote, "_connect", lambda url: (hub, url))
    if expected.endswith(".parquet"):
        assert [file.path for file in remote.find_dataset(given)] == [f"hf://datasets/{expected}"]
    else:
        with pytest.raises(ConfigError, match=rf"--input {given}: .*{expected}"):
            remote.find_dataset(given)


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(remote, "_connect", lambda url: time.sleep(5))
    with pytest.raises(ConfigError, match="did not answer within 0 s; is there network"):
        texts("dataset:org/one")
