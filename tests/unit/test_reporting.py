"""Tables, figures and report of the synthetic study: published formats, reproducible bytes, self-contained page."""

import csv
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dosematch.errors import UserError
from dosematch.reporting.configuration import fast_groups, table0
from dosematch.reporting.diagnostic_tables import table3a, table3b, table3c
from dosematch.reporting.figures import figure1, figure2, save, training_curves
from dosematch.reporting.findings import alarms
from dosematch.reporting.html import CAVEAT, SCALE_NOTE, grading, render_report
from dosematch.reporting.table import by_seed, percent, share, signed
from dosematch.reporting.tables import all_tables, table1, table2
from dosematch.statistics.settings import StudySettings
from dosematch.statistics.summary import build_summary

from .fixtures import synthetic_study as study

PUBLISHED = Path(os.environ.get("PUBLISHED_DIR", "../shared/published"))
CURVES = {run: study.curve(*run) for run in study.trained_runs()}
Summary = dict[str, Any]


@pytest.fixture(scope="module")
def settings() -> StudySettings:
    return StudySettings.model_validate(study.settings())


@pytest.fixture(scope="module")
def summary(settings: StudySettings) -> Summary:
    return build_summary(study.evaluations(), study.ancestry(), study.training(), settings)


@pytest.fixture(scope="module")
def figures(summary: Summary, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("figures")
    save(figure1(summary), folder / "figure1.svg", folder / "figure1.png")
    save(figure2(summary, study.training()), folder / "figure2.svg")
    save(training_curves(CURVES, summary["arm_order"]), folder / "curves.svg", folder / "curves.png")
    return {path.name: path for path in folder.iterdir()}


def report(summary: Summary, settings: StudySettings, figures: dict[str, Path]) -> str:
    metas = [study.train_meta(*run) for run in study.trained_runs()]
    return render_report(summary, study.evaluations(), study.ancestry(), metas, settings, figures)


@pytest.fixture(scope="module")
def page(summary: Summary, settings: StudySettings, figures: dict[str, Path]) -> str:
    return report(summary, settings, {"Figure 1": figures["figure1.svg"], "Curves": figures["curves.png"]})


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_numbers_print_as_in_the_study() -> None:
    assert percent(291, 480) == "60.62"  # a tie: 60.625
    assert percent(0, 0) == "-"
    assert by_seed({"s102": 1254, "s42": 1236}, [102, 42]) == "1,254 + 1,236"
    assert (share(12, 35), share(1, 3, 1), share(0, 0)) == ("12 (34.29 %)", "1 (33.3 %)", "0")
    assert [signed(x) for x in (308, -1508, 0)] == ["+308", "-1,508", "0"]
    assert [signed(x) for x in (5.949, -0.46, 0.0, -0.001)] == ["+5.95", "-0.46", "0.00", "0.00"]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"{PUBLISHED} is absent; PUBLISHED_DIR names it")
def test_percentages_and_differences_equal_the_published_ones() -> None:
    table = records((PUBLISHED / "table1.csv").read_text(encoding="utf-8"))
    columns = ["val_fast", "math500", "sec500", "ext240", "within", "within_decontam", "all6", "all6_decontam"]
    wrong = [
        (row["arm"], column)
        for row in table
        for column in columns
        if percent(int(row[column]), int(row[f"{column}_n"])) != row[f"{column}_pct"]
    ]
    assert wrong == [("fork_thinker_rep2", "within_decontam")]  # the study's own slip: 45.4250 printed as 45.42
    n = {"all6": 5180, "within": 3700, "math500": 1000}
    for row in records((PUBLISHED / "table2.csv").read_text(encoding="utf-8")):
        net = int(row["wins"]) - int(row["losses"])
        assert (signed(net), signed(100 * net / n[row["suite"]])) == (row["net"], row["pp"])


def test_table1_csv_holds_plain_numbers(summary: Summary) -> None:
    rows = records(table1(summary).csv())
    assert [row["arm"] for row in rows] == list(study.ARMS)
    for row in rows:
        assert int(row["all6"]) == int(row["all6_s102"]) + int(row["all6_s42"])
        assert row["all6_n"] == "518"
        assert row["conf500_decontam_n"] == "96"
        assert row["math500_pct"] == f"{int(row['math500']):.2f}"


def test_table1_shows_decontaminated_counts_only_where_items_left(summary: Summary) -> None:
    table = table1(summary)
    first = dict(zip(table.headers, table.rows[0], strict=True))
    assert "[" in first["conf500"]
    assert "[" not in first["math500"]
    assert re.fullmatch(r"\d+/518\n\d\d\.\d\d %\n\d+ \+ \d+\n\[\d+/512: \d\d\.\d\d %]", first["all6"])


def test_table1_keeps_single_seed_arms_apart(whole: Summary) -> None:
    table = table1(whole)
    names = [row[0].split("\n")[0] for row in table.rows]
    assert names[-3:] == ["Single-seed arms", "brier_scd_pure", "thinker_unweighted_sumsft_rep2"]
    assert [record["block"] for record in table.records] == ["arms"] * 11 + ["single_seed_arms"] * 2
    alone = dict(zip(table.headers, table.rows[-1], strict=True))
    assert "/259\n" in alone["all6"]
    assert "+" not in alone["all6"]
    assert "[" not in alone["val350, Verify→Slow"]


def test_table2_has_one_record_per_contrast_and_suite(summary: Summary) -> None:
    table = table2(summary)
    rows = records(table.csv())
    assert len(rows) == 9
    assert table.headers == ["Contrast", "all6", "within", "math500"]
    for row, contrast in zip(rows, summary["contrasts"], strict=True):
        assert float(row["p"]) == contrast["p_exact"]
        assert int(row["net"]) == int(row["wins"]) - int(row["losses"])
        assert [float(row["ci_lo"]), float(row["ci_hi"])] == contrast["ci"]
        assert (row["decontam_net"] == "") == (row["suite"] == "math500")


def test_table3b_totals(summary: Summary) -> None:
    table = table3b(summary)
    rows = records(table.csv())
    assert [(row["arm"], row["seed"]) for row in rows] == [(arm, str(seed)) for arm, seed in study.trained_runs()]
    cell = dict(zip(table.headers, table.rows[1], strict=True))["Generated tokens"]
    parts = [int(row["gen_total"]) for row in rows[2:]]
    assert cell.startswith(f"{parts[0]:,} + {parts[1]:,} = {sum(parts):,}\n")
    assert f"{100 * sum(parts) / (60 * 5120):.1f} % of the cap" in cell
    assert "% vs. std_rlvr_cont" in cell


def test_table1_shows_verify_slow_beside_fast(summary: Summary) -> None:
    table = table1(summary)
    cell = dict(zip(table.headers, table.rows[0], strict=True))["val350, Verify→Slow"]
    slow = summary["arms"]["parent_step100"]["val_slow"]
    first, second = slow["trig"]
    assert cell.startswith(f"{slow['correct']}/70\n")
    assert cell.endswith(f"triggers {first + second} [{first} + {second}]\n+{slow['wins']}/-{slow['losses']}")
    row = records(table.csv())[0]
    assert int(row["val_slow"]) == int(row["val350"]) + int(row["slow_win"]) - int(row["slow_loss"])
    assert int(row["trig"]) == int(row["trig_s102"]) + int(row["trig_s42"])


@pytest.fixture(scope="module")
def whole() -> Summary:
    """Every arm of the project's configuration, with made-up records."""
    contrasts = [{"a": "fork_thinker", "b": "std_rlvr_cont", "label": "Level 2"}]
    contrasts += [{"a": "std_stabilized_g8", "b": "std_rlvr_cont", "label": "Level 0"}]
    parsed = StudySettings.model_validate({**study.study_settings(), "contrasts": contrasts})
    runs = study.runs(study.study_settings())
    rows = [row for run in runs if run[0] != parsed.parent for row in study.training_rows(*run)]
    return build_summary([study.evaluation(*run) for run in runs], study.ancestry(), rows, parsed)


def test_table0_says_what_every_arm_ran(whole: Summary) -> None:
    table = table0(whole)
    rows = {row[0]: dict(zip(table.headers, row, strict=True)) for row in table.rows}
    assert list(rows) == whole["arm_order"]
    fork = rows["fork_thinker"]
    assert fork["Fast"] == "4x512 (min 16)"
    assert fork["Forks"] == "4x768 (min 24), at most 896 with prefix"
    keys = ("Isolation", "Supervised", "Gate", "Prefix mask", "Accumulation", "Run", "Cap per step")
    assert [fork[key] for key in keys] == ["isolated", "fork", "brier", "yes", "5", "1", "5,120"]
    thinker = rows["bc_thinker_v2"]
    assert thinker["Verify/Slow/Summary"] == "192/768/512"
    assert thinker["Rate: PG / mixed / distill"] == "0.65 / 0.65 / 0.35"
    assert [rows[arm]["Alpha / top-k"] for arm in ("bc_thinker", "fork_thinker", "std_rlvr_cont")] == [
        *("0.5 / 16", "1 / -", "-"),
    ]
    assert [rows[arm]["Isolation"] for arm in ("thinker_baseline", "std_rlvr_cont")] == ["shared actor", "n/a"]
    assert rows["brier_scd_pure"]["Policy gradient"] == "none"
    assert fast_groups(whole["switches"]["std_stabilized_g8"]) == "4x512 (min 16) + 4x768 (min 24)"
    switches = records(table.csv())[2]
    assert (switches["arm"], switches["pg_stages"], switches["slow.max_tokens"]) == ("thinker_baseline", "true", "768")


def test_table2_states_the_spread_between_runs(whole: Summary) -> None:
    rows = records(table2(whole).csv())
    spread = whole["replicates"][1]["suites"]["all6"]["by_seed"]
    nets = f"{signed(spread['s102']['net'])} (s102), {signed(spread['s42']['net'])} (s42)"
    assert rows[0]["run_spread"] == f"runs fork_thinker / fork_thinker_rep2: {nets}"
    assert rows[0]["run_spread"] in table2(whole).rows[0][1]
    assert {row["run_spread"] for row in rows[3:]} == {""}


def test_table3a_has_a_line_per_arm_and_seed_and_its_cells_sum(whole: Summary) -> None:
    rows = records(table3a(whole).csv())
    assert [(row["arm"], int(row["seed"])) for row in rows] == study.runs(study.study_settings())
    for row in rows:
        number = {key: int(value) for key, value in row.items() if value.isdigit()}
        assert number["c_yes"] + number["c_no"] + number["c_invalid"] == number["fast_correct"]
        assert number["w_yes"] + number["w_no"] + number["w_invalid"] == number["fast_wrong"]
        assert number["fast_correct"] + number["fast_wrong"] == number["slow_n"] == 35
        assert number["trig_no_only"] + number["trig_nobox_only"] + number["trig_both"] == number["trig"]
        assert number["slow_correct"] == number["fast_correct"] + number["slow_win"] - number["slow_loss"]
        assert number["tot_no"] == number["c_no"] + number["w_no"] == number["trig_no_only"] + number["trig_both"]


def test_table3b_counts_every_kind_of_tokens(whole: Summary) -> None:
    table = table3b(whole)
    assert table.headers[-6:] == ["Generated tokens", "Entropy", "PG", "Distillation", "Anchor", "Teacher"]
    row = next(row for row in records(table.csv()) if row["arm"] == "brier_scd_pure")
    logged = study.training_rows("brier_scd_pure", 102)
    assert int(row["anc_bwd_fed"]) == sum(step["anchor_bwd_tokens"]["fed"] for step in logged)
    assert int(row["gen_total"]) == int(row["gen_fast"]) + int(row["gen_verify"]) == 30 * 1000


def test_table3c_shows_terms_and_collapse(whole: Summary) -> None:
    table = table3c(whole)
    row = next(row for row in table.rows if row[:2] == ["bc_thinker", "42"])
    assert row[3].startswith("anchor 0.200, 0.200 (")
    assert "distill/pg -0.200 (" in row[4]
    assert row[-1] == "No, steps 20 to 30"
    assert next(row for row in table.rows if row[0] == "std_rlvr_cont")[-2:] == ["-", "-"]


def test_report_of_the_whole_study(whole: Summary) -> None:
    study_wide = StudySettings.model_validate(study.study_settings())
    evals = [study.evaluation(*run) for run in study.runs(study.study_settings())]
    text = render_report(whole, evals, study.ancestry(), [], study_wide, {})
    assert "all 18 checks passed" in text
    assert "<strong>12 alarms:</strong>" in text
    assert "No makes up more than 95% of the verdicts of every 5 steps in a row from step 20 to step 30" in text
    assert "fork_thinker and fork_thinker_rep2, two runs that differ only in their random numbers" in text
    for title in ("Table 0.", "Table 1.", "Table 2.", "Table 3A.", "Table 3B.", "Table 3C."):
        assert f"<h3>{title}" in text


def test_a_collapsed_panel_raises_an_alarm(whole: Summary) -> None:
    quiet = {
        arm: {seed: {**run, "collapse": []} for seed, run in seeds.items()}
        for arm, seeds in whole["training_diagnostics"].items()
    }
    run = whole["verifier"]["bc_thinker"]["42"]
    collapsed = {**run, "collapsed": "No", "verdicts": {"Yes": 0, "No": 35, "Invalid": 0}}
    found = alarms({**whole, "training_diagnostics": quiet, "verifier": {"bc_thinker": {"42": collapsed}}})
    assert found == [{"arm": "bc_thinker", "seed": "42", "place": "val350", "text": "35 of 35 verdicts are No"}]


def test_every_table_has_a_file_of_its_own(summary: Summary) -> None:
    rules = (study.ROOT / "workflow" / "rules" / "report.smk").read_text(encoding="utf-8")
    declared = re.search(r"^TABLES = \[(.*)\]$", rules, re.MULTILINE)
    assert declared
    assert re.findall(r'"(\w+)"', declared[1]) == [table.name for table in all_tables(summary)]


def test_markdown_is_one_rectangular_table(summary: Summary) -> None:
    for table in all_tables(summary):
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        assert {line.count("|") for line in lines} == {len(table.headers) + 1}
        assert len(lines) == len(table.rows) + 2


def test_figures_are_the_same_bytes_twice(summary: Summary, figures: dict[str, Path], tmp_path: Path) -> None:
    save(figure1(summary), tmp_path / "figure1.svg", tmp_path / "figure1.png")
    save(figure2(summary, study.training()), tmp_path / "figure2.svg")
    save(training_curves(CURVES, summary["arm_order"]), tmp_path / "curves.svg", tmp_path / "curves.png")
    for name, path in figures.items():
        assert (tmp_path / name).read_bytes() == path.read_bytes()


def test_figures_hold_no_date(figures: dict[str, Path]) -> None:
    assert "<dc:date>" not in figures["figure1.svg"].read_text(encoding="utf-8")
    assert b"tEXtDate" not in figures["figure1.png"].read_bytes()
    assert b"Software" not in figures["figure1.png"].read_bytes()


def test_figure1_draws_every_value(summary: Summary) -> None:
    axes = figure1(summary).axes[0]
    widths = sorted(bar.get_width() for bar in axes.patches)
    arms = summary["arms"].values()
    expected = sorted(100 * arm[s]["pooled"] / arm[s]["n"] for arm in arms for s in summary["suite_order"])
    assert widths == pytest.approx(expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(study.ARMS)


def test_curves_draw_seeds_and_their_mean(summary: Summary) -> None:
    """Per arm: two seeds and their mean for Fast, the same dashed for Verify -> Slow, the other arm in grey."""
    panels = [axes for axes in training_curves(CURVES, summary["arm_order"]).axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == list(study.ARMS)[1:]
    for axes in panels:
        lines = axes.get_lines()
        assert [line.get_linestyle() for line in lines] == ["-"] * 3 + ["--"] * 3 + ["-"]
        for first, second, mean in (lines[:3], lines[3:6]):
            pairs = zip(first.get_ydata(), second.get_ydata(), strict=True)
            assert list(mean.get_ydata()) == pytest.approx([(a + b) / 2 for a, b in pairs])
    assert list(panels[0].get_lines()[6].get_ydata()) == list(panels[1].get_lines()[2].get_ydata())


def test_figure2_draws_the_verifier_and_every_update(summary: Summary) -> None:
    left, right = figure2(summary, study.training()).axes
    bars = [bar.get_width() for bar in left.patches]
    assert bars == pytest.approx([100 * summary["arms"][arm]["val_slow"]["accuracy"] for arm in study.ARMS])
    triggered = [sum(summary["arms"][arm]["val_slow"]["trig"]) / 70 for arm in study.ARMS]
    assert [x for x, _ in left.collections[0].get_offsets()] == pytest.approx([100 * rate for rate in triggered])
    norms = [row["grad_norm"] for row in study.training() if row["arm"] == "std_rlvr_cont" and row["grad_norm"] > 0]
    drawn = [x for line in right.get_lines() for x in line.get_xdata()]
    assert right.get_xscale() == "log"
    assert {min(norms), max(norms), 1.0} <= set(drawn)


def test_figures_refuse_what_they_cannot_do(summary: Summary, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"written as \.svg or \.png"):
        save(figure1(summary), tmp_path / "figure1.pdf")
    with pytest.raises(UserError, match="arm stranger"):
        training_curves({("stranger", 1): []}, summary["arm_order"])


def test_report_is_the_same_bytes_twice(
    page: str, summary: Summary, settings: StudySettings, figures: dict[str, Path]
) -> None:
    again = report(summary, settings, {"Figure 1": figures["figure1.svg"], "Curves": figures["curves.png"]})
    assert again == page


class Loads(HTMLParser):
    """Collects everything that a browser would fetch or follow."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.targets += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_report_loads_nothing_from_a_network(page: str) -> None:
    parser = Loads()
    parser.feed(page)
    assert len(parser.targets) > 2
    assert all(target.startswith(("#", "data:image/")) for target in parser.targets)
    assert not re.search(r"https?://|@import|url\(|<script", page)


def test_report_says_what_it_must(page: str, summary: Summary) -> None:
    for text in ("<strong>Scale: micro.</strong>", CAVEAT, SCALE_NOTE, "all 18 checks passed"):
        assert text in page
    for arm in study.settings()["arms"]:
        assert arm["about"].replace("'", "&#39;") in page
    for item in summary["exposure"]:
        assert item["sha1_12"] in page
    for record in study.evaluations():
        assert record["checkpoint_sha256"] in page
    net = summary["contrasts"][0]["net"]
    assert f"std_stabilized_g8 gets {net} more answers right than std_rlvr_cont in 518 pairs of all6" in page


def test_report_lists_failing_checks(summary: Summary, settings: StudySettings) -> None:
    text = report({**summary, "steps": 31}, settings, {})
    assert "1 of 18 checks failed" in text
    assert "30 steps, 30 classified, 31 planned" in text


def test_report_escapes_text_from_records(summary: Summary, settings: StudySettings) -> None:
    changed = settings.model_copy(update={"about": "<script>alert(1)</script>"})
    assert "<script>" not in report(summary, changed, {})


def test_report_without_contrasts_training_or_exposure(settings: StudySettings) -> None:
    bare = settings.model_copy(update={"contrasts": []})
    summary = build_summary(study.evaluations(), {"exposed": []}, [], bare)
    text = render_report(summary, study.evaluations(), {}, [], bare, {})
    assert "No contrasts were configured" in text


def test_the_report_counts_outcomes_and_where_answers_stood(page: str) -> None:
    panel = {
        "per_item_outcome": ["correct", "correct", "wrong", "no_answer", "timeout"],
        "per_item_extracted": ["1", "2", "3", None, "x"],
        "per_item_has_box": [True, False, True, True, False],
    }
    (line,) = grading([{"arm": "a", "seed": 1, "panels": {"p": panel, "q": panel}}])
    assert line["n"] == 10
    assert line["counts"] == {
        "correct": 4, "wrong": 2, "no_answer": 2, "unparsable": 0, "timeout": 2, "error": 0,
        "boxed": 4, "fallback": 4, "none": 2,
    }  # fmt: skip
    assert "Outcomes of grading" in page and "<th>fallback</th>" in page
