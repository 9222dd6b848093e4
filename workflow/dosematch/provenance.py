"""Which code made a result: a digest of a script and of every project module it imports, directly or not."""

import ast
import hashlib
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).parent


@cache
def source_digest(script: str) -> str:
    """12-character SHA-256 over the sources that `workflow/scripts/<script>.py` runs.

    The digest stands in every rule's params, so that editing a module reruns the stages that use it and no others.
    """
    hasher = hashlib.sha256()
    for path in sorted(sources(LIBRARY.parent / "scripts" / f"{script}.py")):
        hasher.update(path.relative_to(LIBRARY.parent).as_posix().encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:12]


def sources(path: Path) -> set[Path]:
    """The transitive closure of a file's imports inside the library, with itself and the templates that they name."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        for name in _imports(current.read_text(encoding="utf-8")):
            waiting += _files(name)
    templates = ((path, template) for path in found for template in path.parent.glob("*.j2"))
    return found | {template for path, template in templates if template.name in path.read_text(encoding="utf-8")}


def _imports(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == LIBRARY.name}


def _files(module: str) -> list[Path]:
    """The files that importing a dotted name runs: packages on the way, then the module itself."""
    parts = module.split(".")[1:]
    packages = [LIBRARY.joinpath(*parts[:i], "__init__.py") for i in range(len(parts) + 1)]
    return [path for path in [*packages, LIBRARY.joinpath(*parts).with_suffix(".py")] if parts and path.is_file()]
