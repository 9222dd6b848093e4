"""The HTML report: one self-contained file, the same bytes for the same records (thinker-spec 17)."""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dosematch.grading import EXTRACTIONS, OUTCOMES
from dosematch.near_duplicates import DETECTORS
from dosematch.reporting.checks import checks
from dosematch.reporting.configuration import as_text, flatten
from dosematch.reporting.findings import alarms, exposure_by_arm, headlines, noise_floor
from dosematch.reporting.tables import all_tables
from dosematch.statistics.settings import StudySettings

MIME_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
VERSION_KEYS = ("code_version", "torch", "transformers", "device", "dtype")
SCALE_NOTE = (
    "The numbers below describe the model, budgets and questions of this scale. A small scale tests the mechanisms of "
    "the study (data flow, matched budgets, statistics); it does not estimate the effect sizes of the paper."
)
CAVEAT = (
    "Intervals and p-values are conditional on the trained checkpoints: they cover which questions were asked, not how "
    "much a second training run of the same arm would differ."
)
Records = Sequence[Mapping[str, Any]]


def render_report(
    summary: Mapping[str, Any],
    evals: Records,
    ancestry: Mapping[str, Any],
    metas: Records,
    settings: StudySettings,
    figures: Mapping[str, Path],
    regraded: Mapping[str, Any] | None = None,
) -> str:
    """The report as HTML text that opens without a network.

    `metas` are the records of train_meta.json, `figures` maps a caption to an .svg or .png file, which is inlined;
    `regraded` is what rebuilding everything from the supplement found (`supplement.regrade`).
    Nothing in the result depends on the clock or the machine; all text from records is escaped.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lines"] = lambda text: Markup("<br>").join(str(text).split("\n"))
    results = checks(summary, evals)
    return environment.get_template("report.html.j2").render(
        summary=summary,
        settings=settings,
        scale_note=SCALE_NOTE,
        caveat=CAVEAT,
        headlines=headlines(summary),
        noise_floor=noise_floor(summary),
        alarms=alarms(summary),
        tables={table.name: table for table in all_tables(summary) if table.rows},
        figures={caption: data_uri(path) for caption, path in figures.items()},
        switches=differing_switches(settings),
        common=common_switches(settings),
        audit=_audit(summary, ancestry),
        near_duplicates=ancestry.get("near_duplicates", {}).get("panels", {}),
        detectors=DETECTORS,
        exposure_by_arm=exposure_by_arm(summary),
        checks=results,
        failed=[check for check in results if not check["ok"]],
        grading=grading(evals),
        provenance=provenance(evals, metas),
        regraded=regraded,
        checkpoints=checkpoints(evals, metas, settings),
        settings_json=json.dumps(settings.model_dump(), indent=1, ensure_ascii=False),
    )


def data_uri(path: Path) -> str:
    """The file as a `data:` URI, so that the report needs no second file and no two figures share ids."""
    return f"data:{MIME_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def flat_switches(settings: StudySettings) -> dict[str, dict[str, str]]:
    """Switches of each arm as text, nested keys joined by dots: `{arm: {key: value}}`."""
    arms = {arm.name: dict(flatten(arm.switches)) for arm in settings.arms if arm.switches}
    return {name: {key: as_text(value) for key, value in switches.items()} for name, switches in arms.items()}


def differing_switches(settings: StudySettings) -> dict[str, dict[str, str]]:
    """Switches that are not the same in all arms: `{key: {arm: value}}`; an absent switch is a dash."""
    arms = flat_switches(settings)
    rows = {key: {arm: switches.get(key, "-") for arm, switches in arms.items()} for key in _keys(arms)}
    return {key: row for key, row in rows.items() if len(set(row.values())) > 1}


def common_switches(settings: StudySettings) -> dict[str, str]:
    """Switches that all arms share, with their value."""
    arms = flat_switches(settings)
    rows = {key: {switches.get(key, "-") for switches in arms.values()} for key in _keys(arms)}
    return {key: values.pop() for key, values in rows.items() if len(values) == 1}


def _keys(arms: Mapping[str, Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for switches in arms.values() for key in switches))


def _audit(summary: Mapping[str, Any], ancestry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Overlap of every panel with the parent's questions and with each seed's stream."""
    panels = ancestry.get("panels", {})
    return [{"panel": name, **panels[name]} for name in summary["panels"] if name in panels]


def grading(evals: Records) -> list[dict[str, Any]]:
    """One line per evaluation, by arm and seed: items of all panels, counts of outcomes, and of where answers stood."""
    lines = []
    for record in sorted(evals, key=lambda record: (record["arm"], record["seed"])):
        panels = list(record["panels"].values())
        outcomes = Counter(outcome for panel in panels for outcome in panel["per_item_outcome"])
        where = Counter(
            "none" if answer is None else "boxed" if box else "fallback"
            for panel in panels
            for answer, box in zip(panel["per_item_extracted"], panel["per_item_has_box"], strict=True)
        )
        counts = {name: outcomes[name] for name in OUTCOMES} | {name: where[name] for name in EXTRACTIONS}
        lines.append({"arm": record["arm"], "seed": record["seed"], "n": outcomes.total(), "counts": counts})
    return lines


def provenance(evals: Records, metas: Records) -> dict[str, list[str]]:
    """What made the results, by name: every distinct value of the versions, prompts, grader and decoding."""
    values = {key: [meta.get(key) for meta in metas] for key in (*VERSION_KEYS, "prompt_sha1", "base_lr")}
    values |= {key: [record[key] for record in evals] for key in ("grader", "eval")}
    return {key: sorted({as_text(v) for v in found if v is not None}) for key, found in values.items()}


def checkpoints(evals: Records, metas: Records, settings: StudySettings) -> list[dict[str, Any]]:
    """One line per evaluated checkpoint in the order of the arms: `{arm, seed, run, sha256, parent_sha256}`."""
    parents = {(meta["arm"], meta["seed"]): meta["parent_sha256"] for meta in metas}
    order = [arm.name for arm in settings.arms]
    ranked = sorted(evals, key=lambda record: (order.index(record["arm"]), settings.seeds.index(record["seed"])))
    return [
        {
            **{key: record[key] for key in ("arm", "seed", "run")},
            "sha256": record["checkpoint_sha256"],
            "parent_sha256": parents.get((record["arm"], record["seed"])),
        }
        for record in ranked
    ]
