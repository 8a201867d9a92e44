"""The import direction holds; and a planted violation is found."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("import_rules.py")
ROOT = SCRIPT.parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_rules", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


rules = _load()


def _tree(root: Path, **sources: str) -> Path:
    """Write modules; `pretrain__data__a="…"` is pretrain/data/a.py."""
    for name, source in sources.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder == root:
                break
            (folder / "__init__.py").touch()
        path.write_text(source)
    return root


def test_the_tree_keeps_the_rules():
    assert rules.find_faults(ROOT) == []


def test_the_script_says_so():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_exits_1_and_names_the_import(tmp_path: Path):
    _tree(tmp_path, runtime__a="import pretrain.b\n", pretrain__b="")
    script = tmp_path / "tests" / "repo" / "import_rules.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.read_text())
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "runtime/a.py:1: runtime.a -> pretrain.b: runtime may not import it\n"


@pytest.mark.parametrize(
    ("importer", "imported", "source"),
    [
        ("runtime__a", "tokenization.b", "import tokenization.b\n"),
        ("runtime__a", "pretrain.b", "from pretrain import b\n"),
        ("tokenization__a", "pretrain.b", "from pretrain.b import c\n"),
        ("pretrain__a", "tokenization.b", "from tokenization.b import c\n"),
        ("pretrain__data__a", "pretrain.model.b", "from pretrain.model import b\n"),
        ("pretrain__data__a", "pretrain.engine.b", "def f():\n    from pretrain.engine import b\n"),
        ("pretrain__data__a", "pretrain.b", "import pretrain.b\n"),
        ("pretrain__model__a", "pretrain.data.b", "from ..data import b\n"),
        ("pretrain__model__a", "pretrain.engine.b", "from pretrain.engine.b import *\n"),
        ("pretrain__model__a", "tokenization.manifest", "import tokenization.manifest\n"),
        (
            "pretrain__engine__a",
            "pretrain.model.b",
            "try:\n    import pretrain.model.b\nexcept ImportError:\n    pass\n",
        ),
        ("pretrain__engine__a", "pretrain.b", "from pretrain import b\n"),
        ("finetune__a", "pretrain.b", "import pretrain.b\n"),
        ("finetune__a", "tokenization.manifest", "import tokenization.manifest\n"),
        ("launch__a", "tokenization.b", "import tokenization.b\n"),
        ("pretrain__a", "finetune.b", "import finetune.b\n"),
    ],
)
def test_an_import_the_wrong_way_is_found(tmp_path: Path, importer: str, imported: str, source: str):
    root = _tree(tmp_path, **{importer: source, imported.replace(".", "__"): ""})
    (fault,) = rules.find_faults(root)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "import" in text)
    path = importer.replace("__", "/")
    assert fault.startswith(f"{path}.py:{line}: {importer.replace('__', '.')} -> {imported}: ")


def test_imports_the_right_way_are_none(tmp_path: Path):
    root = _tree(
        tmp_path,
        runtime__a="import os\nimport torch\n",
        tokenization__manifest="from runtime.b import x\n",
        runtime__b="",
        pretrain__data__a="from tokenization.manifest import x\nfrom pretrain.data.b import y\n",
        pretrain__data__b="import runtime.a\n",
        pretrain__model__a="import torch\n",
        pretrain__train="from pretrain.data import a\nfrom pretrain.model.a import m\nimport runtime.a\n",
        launch__a="import pretrain.train\nimport runtime.a\n",
        zerobert="from runtime import a\nimport tokenization.manifest\n",
    )
    assert rules.find_faults(root) == []


@pytest.mark.parametrize("guard", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_for_type_checkers_alone_do_not_count(tmp_path: Path, guard: str):
    guarded = f"if {guard}:\n    import pretrain.b\nelse:\n    import runtime.c\n"
    root = _tree(tmp_path, runtime__a=guarded, pretrain__b="", runtime__c="")
    assert rules.find_faults(root) == []
    assert [edge.imported for edge in rules.read_edges(root)] == ["runtime.c"]


def test_circles_are_found_also_inside_a_folder_and_through_late_imports(tmp_path: Path):
    root = _tree(
        tmp_path,
        pretrain__data__a="from pretrain.data import b\n",
        pretrain__data__b="from .c import x\n",
        pretrain__data__c="def f():\n    import pretrain.data.a\n",
        pretrain__d="from pretrain.data import a\n",
    )
    assert rules.find_faults(root) == [
        "circle: pretrain.data.a -> pretrain.data.b -> pretrain.data.c -> pretrain.data.a"
    ]


def test_a_module_that_imports_itself_is_a_circle(tmp_path: Path):
    assert rules.find_faults(_tree(tmp_path, runtime__a="import runtime.a\n")) == ["circle: runtime.a -> runtime.a"]


@pytest.mark.parametrize(
    ("importer", "library"),
    [
        ("tokenization__a", "torch"),
        ("tokenization__a", "torch.nn"),
        ("pretrain__data__a", "deepspeed.comm"),
        ("pretrain__model__a", "deepspeed"),
    ],
)
def test_a_library_in_the_wrong_part_is_found(tmp_path: Path, importer: str, library: str):
    (fault,) = rules.find_faults(_tree(tmp_path, **{importer: f"\nimport {library}\n"}))
    assert f"a.py:2: {importer.replace('__', '.')} -> {library}: " in fault
    assert f"may not load {library.split('.', maxsplit=1)[0]}" in fault


def test_a_library_is_found_through_another_module(tmp_path: Path):
    root = _tree(tmp_path, tokenization__a="import runtime.b\n", runtime__b="import torch\n")
    assert rules.find_faults(root) == [
        "runtime/b.py:1: runtime.b -> torch: tokenization may not load torch (through tokenization.a)"
    ]


def test_a_new_package_cannot_slip_by():
    """A folder of Python at the root is known to the rules, or has no part in them."""
    outside = {"tests", "demo", "benchmarks", "docs", "build", "recipes", "ds_configs"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert folders - outside <= set(rules.PACKAGES)
