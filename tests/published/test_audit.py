"""The audit of the published numbers: the ten known inconsistencies, planted ones, and every rule by itself."""

import json
import os
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from dosematch.errors import UserError
from dosematch.published.audit import (
    audit,
    audit_published,
    compare_with_known,
    counts_by_rule,
    coverage,
    failures,
    read_known,
)
from dosematch.published.cells import Cell, Published, Row, read_published
from dosematch.published.checks import Check, between, equal, member, rounded
from dosematch.published.contrasts import p_value
from dosematch.published.pvalues import interval_disagreements, printed_p_values, reproduced
from dosematch.published.report import KNOWN, build_check
from dosematch.published.statements import check_statements

from .planting import PUBLISHED, copied, found, other_digit, plant

ROOT = Path(__file__).parents[2]
SOURCE = Path(os.environ.get("PUBLISHED_DIR", ROOT.parent / "shared" / "published"))
EXPECTED = {  # thinker-spec 20, items 1-10: file, row, column
    ("table1", "fork_thinker_rep2", "within_decontam_pct"),
    ("table2", "bcv2_vs_sumsft/math500", "p"),
    ("table3a", "parent_step100/42", "trig"),
    ("table3a", "std_stabilized_g8/42", "trig"),
    ("table3a", "fork_unweighted_nomask/102", "trig"),
    ("table3a", "fork_unweighted_nomask/42", "trig"),
    ("table3a", "fork_thinker_rep2/102", "trig"),
    ("table3b", "thinker_unweighted_sumsft_rep2/102", "pg_bwd"),
    ("statements", "S58", "printed"),
    ("statements", "S13", "printed"),
}


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published(PUBLISHED)


@pytest.fixture(scope="module")
def checks(published: Published) -> list[Check]:
    return audit_published(published)


def test_finds_exactly_the_ten_known_inconsistencies(checks: list[Check]) -> None:
    known = read_known(PUBLISHED / KNOWN)
    places = [(check.cell.file, check.cell.row, check.cell.column) for check in failures(checks)]
    assert len(places) == 10
    assert set(places) == EXPECTED
    assert compare_with_known(checks, known) == ([], [])
    assert [row["item"] for row in known] == [str(item) for item in range(1, 11)]
    assert len(checks) > 1400


def test_rules_know_no_arm_and_no_inconsistent_number(published: Published) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "workflow/dosematch/published").glob("*.py"))
    code = re.sub(r'"""[\s\S]*?"""|#.*', "", sources)
    arms = [arm for (arm,) in published.rows("arms")]
    assert [arm for arm in arms if arm in code] == []
    assert [cell for cell in ("45.42", "1.0x10", "98934", "S58", "S13") if cell in code] == []


@pytest.mark.skipif(not SOURCE.is_dir(), reason="the published values outside the project are not there")
@pytest.mark.parametrize("name", ["table1", "table2", "table3a", "table3b", "exposed_items"])
def test_the_tables_are_the_published_ones(name: str) -> None:
    assert (PUBLISHED / f"{name}.csv").read_bytes() == (SOURCE / f"{name}.csv").read_bytes()


def test_planted_digits_are_found(published: Published, checks: list[Check], tmp_path: Path) -> None:
    rng = random.Random(0)
    before = found(PUBLISHED)
    pinned = [cell for cell in coverage(published, checks).pinned if re.search(r"\d", cell.text)]
    missed = []
    for number, cell in enumerate(rng.sample(pinned, 30)):
        folder = copied(tmp_path / str(number))
        text = other_digit(cell.text, rng)
        plant(folder, cell, text)
        if found(folder) == before:
            missed.append((cell.where, cell.text, text))
    assert missed == []


def test_planted_leading_digits_of_intervals_and_norms_are_found(
    published: Published, checks: list[Check], tmp_path: Path
) -> None:
    rng = random.Random(1)
    before = found(PUBLISHED)
    columns = ("ci_lo", "ci_hi", "mean_all", "mean_active")
    bounded = [cell for cell in coverage(published, checks).bounded if cell.column in columns]
    missed = []
    for number, cell in enumerate(rng.sample(bounded, 10)):
        folder = copied(tmp_path / str(number))
        first = next(place for place, letter in enumerate(cell.text) if letter.isdigit())
        text = other_digit(cell.text, rng, [first])
        plant(folder, cell, text)
        if found(folder) == before:
            missed.append((cell.where, cell.text, text))
    assert missed == []


@pytest.mark.parametrize(
    ("address", "text", "rule"),
    [
        (("table1", "bc_thinker", "sec500"), "457", "panel_sum"),
        (("table1", "bc_thinker", "trig_s42"), "39", "seed_sum"),
        (("table1", "bc_thinker", "val_slow"), "318", "verify_slow"),
        (("table1", "bc_thinker", "all6_pct"), "47.65", "percentage"),
        (("table1", "bc_thinker", "fresh500_decontam"), "518", "decontaminated_loss"),
        (("table1", "bc_thinker", "within_n"), "3701", "number_of_answers"),
        (("table1", "bc_thinker", "config"), "accum=2", "config_text"),
        (("table2", "l1_vs_l0", "all6", "net"), "+4", "net_of_counts"),
        (("table2", "l1_vs_l0", "all6", "wins"), "218", "net"),
        (("table2", "l1_vs_l0", "all6", "pp"), "+0.07", "percentage_points"),
        (("table2", "l1_vs_l0", "all6", "p"), "0.9234", "exact_p"),
        (("table2", "l1_vs_l0", "math500", "ci_hi"), "+0.45", "interval_lattice"),
        (("table2", "l1_vs_l0", "all6", "ci_lo"), "+0.10", "interval_contains_pp"),
        (("table2", "l1_vs_l0", "all6", "ci_hi"), "+1.89", "interval_width"),
        (("table2", "l1_vs_l0", "all6", "suite"), "all5", "known_suite"),
        (("table3a", "parent_step100", "102", "c_yes"), "114", "confusion_row"),
        (("table3a", "parent_step100", "102", "fast_wrong"), "192", "confusion_total"),
        (("table3a", "parent_step100", "102", "w_no_pct"), "0.6", "percentage"),
        (("table3a", "parent_step100", "102", "trig"), "17", "trigger_union"),
        (("table3a", "parent_step100", "102", "trig_nobox"), "19", "trigger_cause"),
        (("table3a", "std_stabilized_g8", "42", "tot_yes"), "218", "verdict_total"),
        (("table3a", "thinker_baseline", "42", "slow_loss"), "1", "table1_table3a"),
        (("table3b", "std_rlvr_cont", "102", "active"), "15", "active_is_mixed"),
        (("table3b", "std_stabilized_g8", "42", "active"), "7", "active_steps"),
        (("table3b", "bc_thinker", "42", "mixed"), "17", "step_classes"),
        (("table3b", "bc_thinker", "42", "mean_all"), "2.6140", "mean_norm"),
        (("table3b", "bc_thinker", "42", "max"), "3.6763", "largest_norm"),
        (("table3b", "std_stabilized_g8", "42", "gen_tokens"), "902167", "tokens_within_cap"),
        (("statements", "S01", "printed"), "18", "statement"),
        (("protocol", "N", "decontam_conf"), "995", "number_of_answers"),
        (("protocol", "nominal_cap", "level1"), "5121", "nominal_cap"),
        (("protocol", "tail_average_count", ""), "16", "tail_steps"),
        (("protocol", "extra_contrasts", "0.p"), "0.0287", "exact_p"),
        (("arms", "fork_thinker", "fork.max_tokens"), "769", "protocol_switch"),
        (("arms", "bc_thinker", "wd"), "0.06", "config_text"),
        (("exposed_items", "102", "15", "panel"), "fresh501", "known_panel"),
        (("exposed_items", "102", "15", "index"), "500", "place_in_panel"),
        (("exposed_items", "102", "15", "sha1_12"), "4b62363e395", "sha1_form"),
    ],
)
def test_each_rule_finds_its_error(
    published: Published, checks: list[Check], tmp_path: Path, address: tuple[str, ...], text: str, rule: str
) -> None:
    folder = copied(tmp_path)
    plant(folder, published.need(*address), text)
    before = {check.identity for check in failures(checks)}
    new = {check.rule for check in failures(audit(folder)) if check.identity not in before}
    assert rule in new


def test_counts_by_rule(checks: list[Check]) -> None:
    counts = counts_by_rule(checks)
    assert {rule: count["failed"] for rule, count in counts.items() if count["failed"]} == {
        "percentage": 1,
        "exact_p": 1,
        "trigger_sum": 5,
        "backward_within_generated": 1,
        "statement": 2,
    }
    assert counts["trigger_sum"]["passed"] == 4  # thinker-spec 19, point 23: the plain sum fits 4 of 9 rows
    assert counts["trigger_union"] == {"passed": 9, "failed": 0}  # the union all 9
    assert counts["interval_lattice"] == {"passed": 60, "failed": 0}
    assert sum(sum(count.values()) for count in counts.values()) == len(checks)


def test_coverage_lists_every_cell_once(published: Published, checks: list[Check]) -> None:
    reach = coverage(published, checks)
    listed = [*reach.pinned, *reach.bounded, *reach.unchecked]
    assert len(listed) == len(set(listed))
    printed = [cell for cell in published.cells() if cell.file != "statements" or cell.column == "printed"]
    assert set(listed) == set(printed)
    numbers = {c.where for c in reach.unchecked if re.fullmatch(r"[+-]?[\d.]+", c.text) and c.file.startswith("table")}
    assert numbers == {
        "table3b thinker_unweighted_sumsft_rep2/102 mean_all",  # printed once, in the text, without an active count
        "table3b thinker_unweighted_sumsft_rep2/102 dist_bwd",
    }


def test_a_number_that_no_rule_knows_is_listed_as_unchecked(
    published: Published, checks: list[Check], tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    path = folder / "table3b.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},seconds", f"{lines[1]},12", *(f"{line}," for line in lines[2:])]) + "\n")
    changed = read_published(folder)
    new = coverage(changed, audit_published(changed)).unchecked
    assert [cell.where for cell in new if cell.column == "seconds"] == ["table3b std_rlvr_cont/102 seconds"]
    assert len(new) == len(coverage(published, checks).unchecked) + 1


def test_percentages_round_ties_to_even() -> None:
    tie = Fraction(100 * 291, 480)  # 60.625
    assert rounded("r", Cell("f", "r", "c", "60.62"), tie).ok
    assert not rounded("r", Cell("f", "r", "c", "60.63"), tie).ok
    assert rounded("r", Cell("f", "r", "c", "45.43"), Fraction(100 * 1678, 3694)).ok


def test_forms_of_checks() -> None:
    cell = Cell("f", "r", "c", "-7")
    assert equal("r", cell, -7).ok
    assert not equal("r", cell, 7).ok
    assert between("r", cell, -7, None).ok
    assert not between("r", cell, -6, None).ok
    assert not between("r", cell, None, -8).ok
    assert between("r", cell, -7, -7).recomputed == "-7 <= value <= -7"
    assert not member("r", cell, ["7", "-"]).ok


@pytest.mark.parametrize(
    ("printed", "wins", "losses", "ok"),
    [
        ("0.0288", 25, 11, True),
        ("0.0287", 25, 11, False),
        ("1.0x10^-6", 129, 61, False),
        ("9.1x10^-7", 129, 61, True),
        ("9.05x10^-7", 129, 61, True),
        ("<10^-6", 129, 61, True),
        ("<10^-7", 129, 61, False),
        ("1.0000", 0, 0, True),
    ],
)
def test_printed_forms_of_p(printed: str, wins: int, losses: int, ok: bool) -> None:
    cells = [Cell("t", "r", name, str(count)) for name, count in (("wins", wins), ("losses", losses))]
    assert p_value(Cell("t", "r", "p", printed), *cells).ok is ok


def test_only_the_exact_test_gives_the_printed_p_values(published: Published) -> None:
    values = printed_p_values(published)
    assert sum(value.form == "decimals" for value in values) == 25
    assert reproduced(values) == {"exact": 25, "mid_p": 0, "chi_square": 0, "chi_square_corrected": 10}
    bounds = [value for value in values if value.form == "bound"]
    assert len(bounds) == 5
    assert all(value.variants["exact"] < float(value.printed.replace("<10^", "1e")) for value in bounds)
    [scientific] = [value for value in values if value.form == "scientific"]
    assert (scientific.wins, scientific.losses) == (129, 61)
    assert round(scientific.variants["exact"], 6) == 1.0e-6  # so it is a rounding to six decimals
    assert [f"{p:.1e}" for p in scientific.variants.values()].count("1.0e-06") == 0  # and no variant gives its digits


def test_intervals_and_p_disagree_in_two_cells(published: Published) -> None:
    assert [line.split(":")[0] for line in interval_disagreements(published)] == [
        "table2 l2r1_vs_l1/within",
        "table2 l2r1_vs_parent/within",
    ]


@pytest.mark.parametrize(
    ("operation", "operands", "printed", "ok"),
    [
        ("value", "table1/a/x - table1/a/y", "3", True),
        ("value", "table1/a/x - table1/a/y", "-3", False),
        ("percent", "table1/a/x; table1/a/y", "142.9", True),
        ("change", "table1/a/y; table1/a/x", "-30.0", True),
        ("ratio", "table1/a/x; table1/a/y", "1.43", True),
        ("ratio", "table1/a/x; table1/a/y", "1.42", False),
        ("range", "table1/a/x; table1/a/y; table1/a/x + table1/a/y", "7 to 17", True),
        ("range", "table1/a/x; table1/a/y", "7 to 11", False),
        ("range", "table1/a/x; table1/a/y", "7", False),
        ("value", "table1/b/x", "10", False),
    ],
)
def test_operations_of_statements(operation: str, operands: str, printed: str, ok: bool) -> None:
    [check] = check_statement(operation, operands, printed)
    assert check.ok is ok


@pytest.mark.parametrize(
    ("operation", "operands"),
    [("product", "table1/a/x"), ("ratio", "table1/a/x"), ("percent", "table1/a/x; table1/a/zero")],
)
def test_statements_without_a_value_are_refused(operation: str, operands: str) -> None:
    with pytest.raises(UserError, match="operation"):
        check_statement(operation, operands, "1")


def check_statement(operation: str, operands: str, printed: str) -> list[Check]:
    table: dict[tuple[str, ...], Row] = {("a",): Row("table1", ("a",), [("x", "10"), ("y", "7"), ("zero", "0")])}
    texts = [("printed", printed), ("operation", operation), ("operands", operands)]
    statements: dict[tuple[str, ...], Row] = {("S",): Row("statements", ("S",), texts)}
    return list(check_statements(Published({"table1": table, "statements": statements})))


def test_broken_files_are_named(tmp_path: Path) -> None:
    for name, (old, new), message in [
        ("table1.csv", ("402,1000", "4o2,1000"), "table1 std_rlvr_cont math500: '4o2' is not a number"),
        ("table1.csv", ("arm,label", "arms,label"), "table1.csv: column arm is missing"),
        (
            "table3a.csv",
            ("parent_step100,42", "parent_step100,102"),
            "table3a.csv: row parent_step100/102 occurs twice",
        ),
        ("table2.csv", (",657,349,", ",,349,"), "table2 l0_vs_std/all6: nothing is printed for wins"),
        ("table2.csv", (",657,349,", ",-657,349,"), "table2 l0_vs_std/all6 wins: -657 is not a count"),
        ("table3a.csv", ("159,350,45.43", "159,0,45.43"), "slow_n: 0, by which nothing can be divided"),
        ("table3b.csv", ("14,14,30,", "14,14,00,"), "steps: 0, by which nothing can be divided"),
        ("protocol.json", ("{", "["), "protocol.json: unreadable"),
        ("protocol.json", ('"panels"', '"panel"'), "protocol: panels is missing"),
        ("known_inconsistencies.csv", ("1,percentage", "1,"), "known_inconsistencies.csv: rule is missing"),
    ]:
        folder = copied(tmp_path / message[:30].replace("/", "_").replace(":", "_"))
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UserError, match=re.escape(message)):
            build_check(folder)
    (folder / "table2.csv").unlink()
    with pytest.raises(UserError, match=r"table2\.csv: No such file"):
        build_check(folder)


def run_script(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "workflow/scripts/check_published.py"
    command = [sys.executable, str(script), "--published", str(folder), "--out-dir", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_script_is_loud_about_any_difference(published: Published, tmp_path: Path) -> None:
    good = run_script(PUBLISHED, tmp_path / "good")
    assert (good.returncode, good.stderr) == (0, "")
    report = json.loads((tmp_path / "good" / "check.json").read_text())
    assert report["checks"]["failed"] == 10
    assert report["as_recorded"] is True
    assert "exactly the recorded ones" in (tmp_path / "good" / "check.md").read_text()

    folder = copied(tmp_path)  # a known inconsistency mended: fewer than recorded is also a difference
    plant(folder, published.need("table1", "fork_thinker_rep2", "within_decontam_pct"), "45.43")
    mended = run_script(folder, tmp_path / "mended")
    assert mended.returncode == 1
    assert mended.stderr.count("\n") == 1
    assert "not found: percentage | table1 | fork_thinker_rep2 | within_decontam_pct | 45.42" in mended.stderr
    assert "NOT the recorded ones" in (tmp_path / "mended" / "check.md").read_text()


def test_a_new_inconsistency_is_reported_as_unexpected(published: Published, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    plant(folder, published.need("table2", "l1_vs_l0", "all6", "p"), "0.9234")
    report = build_check(folder)
    assert report["unexpected"] == ["exact_p | table2 | l1_vs_l0/all6 | p | 0.9234 | 0.923268"]
    assert report["missing"] == []
    assert report["as_recorded"] is False
