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
from dosematch.reporting.figures import figure1, save, training_curves
from dosematch.reporting.html import CAVEAT, SCALE_NOTE, render_report
from dosematch.reporting.tables import by_seed, percent, signed, table1, table2, table3b
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


def test_table1_keeps_single_seed_arms_apart(summary: Summary) -> None:
    arm = summary["arms"]["std_rlvr_cont"]
    others = {name: entry for name, entry in summary["arms"].items() if name != "std_rlvr_cont"}
    table = table1({**summary, "arms": others, "single_seed_arms": {"std_rlvr_cont": {**arm, "seeds": [102]}}})
    assert [row[0].split("\n")[0] for row in table.rows] == [*others, "Single-seed arms", "std_rlvr_cont"]
    assert [record["block"] for record in table.records] == ["arms", "arms", "single_seed_arms"]


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


def test_markdown_is_one_rectangular_table(summary: Summary) -> None:
    for table in (table1(summary), table2(summary), table3b(summary)):
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        assert {line.count("|") for line in lines} == {len(table.headers) + 1}
        assert len(lines) == len(table.rows) + 2


def test_figures_are_the_same_bytes_twice(summary: Summary, figures: dict[str, Path], tmp_path: Path) -> None:
    save(figure1(summary), tmp_path / "figure1.svg", tmp_path / "figure1.png")
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
    lines = training_curves(CURVES, summary["arm_order"]).axes[0].get_lines()
    assert len(lines) == 6
    seeds, mean = [line.get_ydata() for line in lines[:2]], lines[2].get_ydata()
    assert list(mean) == pytest.approx([(a + b) / 2 for a, b in zip(*seeds, strict=True)])


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
    for text in ("<strong>Scale: micro.</strong>", CAVEAT, SCALE_NOTE, "all 12 checks passed"):
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
    assert "1 of 12 checks failed" in text
    assert "30 steps, 30 classified, 31 planned" in text


def test_report_escapes_text_from_records(summary: Summary, settings: StudySettings) -> None:
    changed = settings.model_copy(update={"about": "<script>alert(1)</script>"})
    assert "<script>" not in report(summary, changed, {})


def test_report_without_contrasts_training_or_exposure(settings: StudySettings) -> None:
    bare = settings.model_copy(update={"contrasts": []})
    summary = build_summary(study.evaluations(), {"exposed": []}, [], bare)
    text = render_report(summary, study.evaluations(), {}, [], bare, {})
    assert "No contrasts were configured" in text
