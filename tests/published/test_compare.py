"""Our contrasts beside the published ones: matching, signs, labels, directional claims."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dosematch.errors import UserError
from dosematch.published.cells import Published, read_published
from dosematch.published.compare import (
    check_directions,
    compare_contrasts,
    contrast_table,
    direction_table,
    read_directions,
)
from dosematch.records import write_json

from .planting import PUBLISHED

ROOT = Path(__file__).parents[2]
ALL6 = ("fork_thinker", "std_stabilized_g8", "all6")
Record = dict[str, Any]


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published(PUBLISHED)


def contrast(a: str, b: str, suite: str, net: int, ci: tuple[float, float], n: int = 1000) -> Record:
    return {"a": a, "b": b, "suite": suite, "net": net, "n": n, "pp": 100 * net / n, "ci": list(ci), "p_exact": 0.5}


def summary(*contrasts: Record, **more: Any) -> Record:
    return {"scale": "micro", "contrasts": list(contrasts), "arms": {}, "training_diagnostics": {}, **more}


def find(records: list[Record], key: tuple[str, str, str]) -> Record:
    [record] = [r for r in records if (r["arm_a"], r["arm_b"], r["suite"]) == key]
    return record


def test_both_sides_of_a_matched_contrast(published: Published) -> None:
    ours = summary(contrast(*ALL6, net=-20, ci=(-4.0, -1.0)))
    record = find(compare_contrasts(ours, published, "micro"), ALL6)
    assert record == {
        "arm_a": "fork_thinker",
        "arm_b": "std_stabilized_g8",
        "suite": "all6",
        "scale": "micro",
        "status": "both",
        "published_n": 5180,
        "published_net": 18,
        "published_pp": 0.35,
        "published_ci_lo": -0.46,
        "published_ci_hi": 1.18,
        "published_p": "0.4240",
        "ours_n": 1000,
        "ours_net": -20,
        "ours_pp": -2.0,
        "ours_ci_lo": -4.0,
        "ours_ci_hi": -1.0,
        "ours_p": 0.5,
        "same_sign": "no",
        "intervals_overlap": "no",
    }


def test_the_published_numbers_agree_with_themselves(published: Published) -> None:
    rows = [
        contrast(
            row["arm_a"].text,
            row["arm_b"].text,
            row["suite"].text,
            int(row["net"].number),
            (float(row["ci_lo"].number), float(row["ci_hi"].number)),
        )
        for row in published.rows("table2").values()
    ]
    records = compare_contrasts(summary(*rows), published, "micro")
    assert len(records) == 30
    assert {(r["status"], r["same_sign"], r["intervals_overlap"]) for r in records} == {("both", "yes", "yes")}


def test_contrasts_of_one_side_are_listed_as_such(published: Published) -> None:
    swapped = (ALL6[1], ALL6[0], ALL6[2])  # the opposite order is another contrast
    records = compare_contrasts(summary(contrast(*swapped, net=1, ci=(0.0, 1.0))), published, "micro")
    assert len(records) == 31
    assert find(records, swapped)["status"] == "ours only"
    assert find(records, swapped)["published_pp"] == ""
    assert find(records, ALL6)["status"] == "published only"
    assert find(records, ALL6)["ours_pp"] == find(records, ALL6)["same_sign"] == ""


def test_zero_has_no_sign(published: Published) -> None:
    records = compare_contrasts(summary(contrast(*ALL6, net=0, ci=(0.0, 0.0))), published, "micro")
    assert find(records, ALL6)["same_sign"] == "zero"
    assert find(records, ALL6)["intervals_overlap"] == "yes"


def test_another_scale_is_refused(published: Published) -> None:
    with pytest.raises(UserError, match=r"scale is micro, but --scale says qwen3-0\.6b"):
        compare_contrasts(summary(), published, "qwen3-0.6b")


def test_the_table_says_whose_numbers_are_whose(published: Published) -> None:
    records = compare_contrasts(summary(contrast(*ALL6, net=20, ci=(1.0, 3.0))), published, "micro")
    text = contrast_table(records, "micro", "Qwen3-0.6B-Base").markdown()
    assert "Published (Qwen3-0.6B-Base) | Ours (micro scale)" in text
    assert "+0.35 pp [-0.46, +1.18]<br>p 0.4240 | +2.00 pp [+1.00, +3.00]<br>p 0.5000 | yes | yes |" in text
    assert "1 contrasts on both sides, 1 with the same sign; 29 published only, 0 ours only" in text
    assert "no count and no item" in text


def direction(quantity: str, low: str, high: str, suite: str = "all6") -> dict[str, str]:
    row = {"id": "D", "claim": "c", "quantity": quantity, "arm": "x", "against": "y", "suite": suite}
    return {**row, "low": low, "high": high}


def runs(*tokens: int) -> Record:
    return {str(seed): {"tokens": {"gen_tokens": {"total": total}}} for seed, total in enumerate(tokens)}


def measured() -> Record:
    slow = {"trig": [5, 45], "n": 100, "correct": 40}
    return summary(
        contrast("x", "y", "all6", net=8, ci=(0.2, 1.4)),
        contrast("x", "y", "within", net=0, ci=(-1.0, 1.0)),
        contrast("x", "y", "math500", net=-9, ci=(-2.0, -0.1)),
        arms={
            "x": {"all6": {"pooled": 47, "n": 100}, "val_slow": slow},
            "y": {"all6": {"pooled": 45, "n": 100}, "val_slow": None},
        },
        training_diagnostics={"x": runs(800, 900), "y": runs(1000, 1000)},
    )


@pytest.mark.parametrize(
    ("row", "ours", "outcome"),
    [
        (direction("interval_sign", "1", "1"), 1, "holds"),
        (direction("interval_sign", "0", "0", "within"), 0, "holds"),
        (direction("interval_sign", "0", "", "math500"), -1, "does not hold"),
        (direction("interval_sign", "1", "1", "ext240"), None, "not available"),
        (direction("difference_pp", "-1", "1"), 2.0, "does not hold"),
        (direction("generated_change_percent", "-20", "-5"), -15.0, "holds"),
        (direction("largest_trigger_percent", "", "15"), 90.0, "does not hold"),
        (direction("trigger_spread_percent", "20", ""), 80.0, "holds"),
        ({**direction("largest_trigger_percent", "", "15"), "arm": "y"}, None, "not available"),
        ({**direction("difference_pp", "", ""), "arm": "z"}, None, "not available"),
        ({**direction("generated_change_percent", "", ""), "arm": "z"}, None, "not available"),
    ],
)
def test_directional_claims(row: dict[str, str], ours: float | None, outcome: str) -> None:
    [result] = check_directions(measured(), [row])
    assert result["ours"] == (None if ours is None else pytest.approx(ours))
    assert result["outcome"] == outcome


def test_an_unknown_quantity_is_refused() -> None:
    with pytest.raises(UserError, match="direction D: quantity charm is not known"):
        check_directions(measured(), [direction("charm", "", "")])


def test_the_recorded_claims_hold_for_the_published_study(published: Published) -> None:
    def cell(*address: str) -> float:
        return float(published.need(*address).number)

    arms = {}
    for (arm,), row in published.rows("table1").items():
        slow = {"trig": [int(row[f"trig_s{seed}"].number) for seed in (102, 42)], "n": 700}
        arms[arm] = {"all6": {"pooled": int(row["all6"].number), "n": 5180}, "val_slow": slow}
    contrasts = [
        contrast(r["arm_a"].text, r["arm_b"].text, s, 1, (cell("table2", c, s, "ci_lo"), cell("table2", c, s, "ci_hi")))
        for (c, s), r in published.rows("table2").items()
    ]
    tokens = {
        arm: runs(*(int(cell("table3b", arm, seed, "gen_tokens")) for seed in ("102", "42")))
        for arm in ("std_stabilized_g8", "fork_unweighted_nomask", "fork_thinker_rep2")
    }
    study = summary(*contrasts, arms=arms, training_diagnostics=tokens)
    results = check_directions(study, read_directions(PUBLISHED / "directions.csv"))
    assert len(results) == 17
    assert [r["id"] for r in results if r["outcome"] == "not available"] == ["D08"]  # Run 1 logged no tokens
    assert [r["id"] for r in results if r["outcome"] == "does not hold"] == []
    assert len(direction_table(results, "micro").rows) == 17


def test_the_script_writes_both_files(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {**measured(), "contrasts": [contrast(*ALL6, net=20, ci=(1.0, 3.0))]})
    script = ROOT / "workflow/scripts/compare_published.py"
    options = ["--summary", str(tmp_path / "summary.json"), "--published", str(PUBLISHED), "--scale", "micro"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    command = [sys.executable, str(script), *options, "--out-dir", str(tmp_path)]
    subprocess.run(command, check=True, env=environment)
    with (tmp_path / "compare_published.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 30
    assert {row["scale"] for row in rows} == {"micro"}
    assert [row["ours_pp"] for row in rows if row["status"] == "both"] == ["2.0"]
    text = (tmp_path / "compare_published.md").read_text()
    assert "Directional claims" in text
    assert "micro scale" in text
