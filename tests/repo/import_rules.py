"""Check who imports whom: `python tests/repo/import_rules.py` names each import that breaks a rule and exits 1.

The rules are the design's: runtime <- tokenization <- pretrain; inside pretrain, data, model and engine know nothing of
each other; no circles. Imports for type checkers alone (`if TYPE_CHECKING:`) are not counted, late imports inside a
function are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("runtime", "tokenization", "pretrain", "finetune", "launch")
SCRIPTS = ("zerobert",)

PARTS = ("pretrain.data", "pretrain.model", "pretrain.engine")

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "runtime": (),
    "tokenization": ("runtime",),
    "pretrain": ("runtime", "tokenization.manifest", "tokenization.indexed"),
    "pretrain.data": ("runtime", "tokenization.manifest", "tokenization.indexed"),
    "pretrain.model": ("runtime",),
    "pretrain.engine": ("runtime",),
    "pretrain.audit": (
        "runtime",
        "tokenization.manifest",
        "tokenization.indexed",
        "pretrain.data",
        "pretrain.tokenizer",
    ),
    "finetune": ("runtime",),
    "launch": ("runtime", "pretrain"),
    "zerobert": PACKAGES,
}
"""What of this project a part may import besides itself; a module belongs to the part with the longest name."""

MAY_NOT_REACH: Mapping[str, tuple[str, ...]] = {
    "tokenization": ("torch", "deepspeed"),
    "pretrain.data": ("deepspeed", "transformers"),
    "pretrain.model": ("deepspeed",),
    "pretrain.audit": ("torch", "deepspeed", "transformers"),
}
"""Libraries that a part must not load, not even through another module of ours."""


@dataclass(frozen=True)
class Edge:
    """One import."""

    importer: str
    imported: str
    """Dotted: a module of ours, or a library's name as it is written."""
    line: int


def module_paths(root: Path) -> dict[str, Path]:
    """Return every module of the project: dotted name -> file."""
    files = [root / f"{name}.py" for name in SCRIPTS if (root / f"{name}.py").is_file()]
    for package in PACKAGES:
        files += sorted((root / package).rglob("*.py"))
    modules = {}
    for file in files:
        parts = file.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def read_edges(root: Path) -> list[Edge]:
    """Return every import of every module, those under TYPE_CHECKING left out."""
    modules = module_paths(root)
    edges = []
    for name, file in modules.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in _run_time_nodes(ast.parse(file.read_text(encoding="utf-8"), str(file))):
            edges += [Edge(name, target, node.lineno) for target in _targets(node, package, modules)]
    return edges


def _run_time_nodes(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _run_time_nodes(child)


def _targets(node: ast.Import | ast.ImportFrom, package: str, modules: Mapping[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = node.module or ""
    if node.level:
        base = package.split(".")[: len(package.split(".")) - node.level + 1]
        source = ".".join([*base, source] if source else base)
    # `from a import b` is an import of a.b where that is a module, else of a.
    return [f"{source}.{alias.name}" if f"{source}.{alias.name}" in modules else source for alias in node.names]


def _is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def _part_of(module: str) -> str:
    return max((part for part in MAY_IMPORT if _is_in(module, part)), key=len)


def _is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in (*PACKAGES, *SCRIPTS)


def _is_allowed(importer: str, imported: str) -> bool:
    part = _part_of(importer)
    if any(_is_in(imported, allowed) for allowed in MAY_IMPORT[part]):
        return True
    # A part may import itself; pretrain's own files join its parts. The parts import none of pretrain's own files.
    return _is_in(imported, part)


def find_faults(root: Path) -> list[str]:
    """Return a line for every import that breaks a rule."""
    edges = read_edges(root)
    ours = [edge for edge in edges if _is_ours(edge.imported)]
    files = module_paths(root)

    def place(edge: Edge) -> str:
        return f"{files[edge.importer].relative_to(root)}:{edge.line}: {edge.importer} -> {edge.imported}"

    faults = [
        f"{place(edge)}: {_part_of(edge.importer)} may not import it"
        for edge in ours
        if not _is_allowed(edge.importer, edge.imported)
    ]
    graph: dict[str, list[Edge]] = {}
    for edge in ours:
        graph.setdefault(edge.importer, []).append(edge)
    faults += [f"circle: {' -> '.join(circle)}" for circle in _circles(graph)]
    faults += _reached_libraries(edges, graph, place)
    return faults


def _circles(graph: Mapping[str, list[Edge]]) -> list[list[str]]:
    """Return each circle that a walk over the graph meets, from its first module back to it."""
    circles: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            circles.append([*path[path.index(module) :], module])
        elif module not in done:
            for edge in graph.get(module, []):
                walk(edge.imported, [*path, module])
            done.add(module)

    for module in sorted(graph):
        walk(module, [])
    return circles


def _reached_libraries(edges: list[Edge], graph: Mapping[str, list[Edge]], place: Callable[[Edge], str]) -> list[str]:
    faults = []
    for part, libraries in MAY_NOT_REACH.items():
        reached: dict[str, str] = {}  # module -> the one that imports it
        open_modules = sorted({edge.importer for edge in edges if _is_in(edge.importer, part)})
        reached.update(dict.fromkeys(open_modules, ""))
        while open_modules:
            module = open_modules.pop()
            for edge in graph.get(module, []):
                if edge.imported not in reached:
                    reached[edge.imported] = module
                    open_modules.append(edge.imported)
        for edge in edges:
            if edge.importer in reached and edge.imported.split(".")[0] in libraries:
                through = f" (through {reached[edge.importer]})" if reached[edge.importer] else ""
                faults.append(f"{place(edge)}: {part} may not load {edge.imported.split('.')[0]}{through}")
    return faults


def main() -> int:
    """Check the tree that this file is in."""
    faults = find_faults(Path(__file__).resolve().parents[2])
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
