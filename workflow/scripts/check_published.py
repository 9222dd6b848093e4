"""Audit the published numbers: recompute each that follows from others, and hold the findings to the recorded ones."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import fail, run
from dosematch.published.report import KNOWN, build_check, check_markdown
from dosematch.records import write_json, write_text

SHOWN = 3  # differences in the error line; check.json has all


def main(
    published: Annotated[Path, Option(help="folder of the published tables, statements and known inconsistencies")],
    out_dir: Annotated[Path, Option(help="folder for check.json and check.md")],
) -> None:
    """Write check.json and check.md; fail unless exactly the recorded inconsistencies are found."""
    report = build_check(published)
    write_json(out_dir / "check.json", report)
    write_text(out_dir / "check.md", check_markdown(report))
    counts = report["checks"]
    print(f"{counts['passed'] + counts['failed']} checks, {counts['failed']} inconsistencies")
    if not report["as_recorded"]:
        difference = [f"not recorded: {line}" for line in report["unexpected"]]
        difference += [f"not found: {line}" for line in report["missing"]]
        more = f"; {len(difference) - SHOWN} more in check.json" if len(difference) > SHOWN else ""
        fail(f"{published / KNOWN}: the audit finds otherwise: {'; '.join(difference[:SHOWN])}{more}")


if __name__ == "__main__":
    run(main)
