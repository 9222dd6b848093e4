"""The schemas in config/schemas are those of the models that read the configuration."""

from pathlib import Path


def test_schemas_have_not_drifted(fresh, tmp_path: Path) -> None:
    done = fresh.run("python", "workflow/scripts/write_schemas.py", "--out-dir", tmp_path / "schemas")
    assert done.returncode == 0, done.stderr
    generated = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "schemas").iterdir()}
    shipped = {path.name: path.read_text(encoding="utf-8") for path in (fresh.root / "config/schemas").iterdir()}
    assert generated == shipped, "run `make schemas`"
