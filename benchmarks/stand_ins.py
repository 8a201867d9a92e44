"""Stand-ins for libraries that a peer imports and hardly uses, such as TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def stand_ins_imported(modules: Mapping[str, ModuleType], folder: Path) -> Iterator[None]:
    """Let a peer import stand-ins, and take them away again: other libraries ask what is installed.

    Args:
        modules: stand-in of each name.
        folder: where the peer's own modules are.
    """
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
