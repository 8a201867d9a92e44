"""The size and the shape of the tree: files that can be read at a sitting, names that say what is inside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES_OF_A_FILE = 350
MOST_LINES_OF_A_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {"utils.py", "common.py", "helpers.py"}


def _python_files(root: Path) -> list[Path]:
    """Every Python file but those of hidden folders (.venv) and of builds."""
    files = [path for path in root.rglob("*.py") if not any(p.startswith(".") for p in path.relative_to(root).parts)]
    return sorted(path for path in files if path.relative_to(root).parts[0] not in ("build", "runs", "tests"))


def _tests(root: Path) -> list[Path]:
    return sorted((root / "tests").rglob("*.py"))


def _long_files(root: Path) -> list[str]:
    sizes = [(path, len(path.read_text(encoding="utf-8").splitlines())) for path in _python_files(root)]
    return [f"{path.relative_to(root)}: {lines} lines" for path, lines in sizes if lines > MOST_LINES_OF_A_FILE]


def _long_functions(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{node.lineno}: {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in _python_files(root)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]


def _bare_excepts(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in (*_python_files(root), *_tests(root))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def _empty_names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in _python_files(root) if path.name in NAMES_THAT_SAY_NOTHING]


def test_there_is_something_to_check():
    names = {str(path.relative_to(ROOT)) for path in _python_files(ROOT)}
    assert {"pretrain/train.py", "runtime/files.py", "tokenization/shard.py", "zerobert.py"} <= names
    assert not any(name.startswith((".venv", "tests")) for name in names)


def test_no_file_is_too_long():
    assert _long_files(ROOT) == []


def test_no_function_is_too_long():
    assert _long_functions(ROOT) == []


def test_no_file_has_a_name_that_says_nothing():
    assert _empty_names(ROOT) == []


def test_no_bare_except():
    assert _bare_excepts(ROOT) == []


@pytest.fixture
def bad_tree(tmp_path: Path) -> Path:
    body = "    x = 1\n"
    sources = {
        "pretrain/long.py": "x = 1\n" * 351,
        "pretrain/fits.py": "x = 1\n" * 350,
        "runtime/utils.py": "",
        "runtime/f.py": f"def fits():\n{body * 59}\n\nclass A:\n    async def grows(self):\n{('    ' + body) * 60}",
        "runtime/g.py": "try:\n    pass\nexcept:\n    pass\n",
        "tests/long.py": "x = 1\n" * 351,
        "tests/utils.py": "",
        "tests/h.py": "try:\n    pass\nexcept:\n    pass\n",
        ".venv/utils.py": "x = 1\n" * 351,
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_what_breaks_a_rule_is_found(bad_tree: Path):
    assert _long_files(bad_tree) == ["pretrain/long.py: 351 lines"]
    assert _long_functions(bad_tree) == ["runtime/f.py:64: grows: 61 lines"]
    assert _empty_names(bad_tree) == ["runtime/utils.py"]
    assert _bare_excepts(bad_tree) == ["runtime/g.py:3", "tests/h.py:3"]
