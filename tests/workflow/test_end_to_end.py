"""The smoke study from nothing to the report: what is promised exists, and its numbers follow from the grades."""

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from scipy.stats import binomtest

CLAIMS = ["val350", "math500", "sec500", "conf500", "fresh500", "ext240"]
PANELS = [*CLAIMS, "val500"]
SUITES = {"all6": CLAIMS, "within": CLAIMS[:4], "math500": ["math500"]}
PARENT, SEEDS = "parent_step100", [102, 42]
FOUR_STAGES = ["thinker_baseline", "thinker_unweighted_sumsft", "bc_thinker", "bc_thinker_v2", "bc_thinker_h1024"]
FORKING = ["fork_unweighted_nomask", "fork_thinker", "fork_thinker_rep2"]
SINGLE_SEED = ["brier_scd_pure", "thinker_unweighted_sumsft_rep2"]
CONTINUED = ["std_rlvr_cont", *FOUR_STAGES, "std_stabilized_g8", *FORKING, *SINGLE_SEED]
ARMS = [PARENT, *CONTINUED]
SEEDS_OF = {arm: SEEDS[:1] if arm in SINGLE_SEED else SEEDS for arm in ARMS}
CHECKPOINTS = [(arm, seed) for arm in ARMS for seed in SEEDS_OF[arm]]
TRAINED = [(arm, seed) for arm, seed in CHECKPOINTS if arm != PARENT]
VERIFIED = "val350"
STEPS = 10
TABLES = ["table0", "table1", "table2", "table3a", "table3b", "table3c", "table3d"]
FIGURES = ["figure1", "figure2", "training_curves"]
MODEL = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
RECORD_COLUMNS = {
    "per_item_sha1": "sha1_12",
    "per_item_extracted": "extracted",
    "per_item_tokens": "n_tokens",
    "per_item_has_box": "has_box",
    "per_item_correct": "correct",
    "per_item_outcome": "outcome",
    "per_item_finish": "finish_reason",
}


@pytest.fixture(scope="module")
def results(study) -> Path:
    return study.results


@pytest.fixture(scope="module")
def items(results: Path) -> pd.DataFrame:
    """One row per arm, seed and panel question, from completions and grades alone; `exposed` from the streams alone."""
    frames = []
    for (arm, seed), panel in product(CHECKPOINTS, PANELS):
        folder = results / f"arms/{arm}/seed{seed}"
        grades = pd.read_parquet(folder / f"grades/{panel}.parquet")
        completions = pd.read_parquet(folder / f"completions/{panel}.parquet")
        frame = completions.merge(grades, on=["index", "sha1_12"], validate="one_to_one")
        assert len(frame) == len(grades) == len(completions)
        frames.append(frame.assign(arm=arm, seed=seed, panel=panel))
    trained_on = {item["sha1_12"] for seed in SEEDS for item in load(results / f"streams/seed{seed}.json")["items"]}
    rows = pd.concat(frames)
    return rows.assign(exposed=rows["sha1_12"].isin(trained_on))


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def load_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def none_for_missing(column: pd.Series) -> list[Any]:
    return column.astype(object).where(column.notna(), None).tolist()


def test_every_promised_file_exists(results: Path) -> None:
    tables = [f"tables/{name}.{kind}" for name in TABLES for kind in ("csv", "md")]
    figures = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    audits = ["audit/ancestry.json", "audit/ancestry.clean.json"]
    questions = [f"panels/{panel}.jsonl" for panel in PANELS] + ["panels/manifest.json"]
    questions += [f"pools/{pool}.jsonl" for pool in ("parent", "stencil", "pool")]
    streams = [f"streams/seed{seed}{variant}.json" for seed in SEEDS for variant in ("", ".clean")]
    trained = [f"parents/seed{seed}" for seed in SEEDS] + [f"arms/{a}/seed{s}" for a, s in TRAINED]
    training = ["training.jsonl", "train_meta.json", "val500_curve.jsonl", *(f"model/{name}" for name in MODEL)]
    evaluation = [f"{kind}/{panel}.parquet" for kind in ("completions", "grades") for panel in PANELS]
    files = [
        *tables,
        *figures,
        *audits,
        *questions,
        *streams,
        "summary.json",
        "report.html",
        "supplement.zip",
        "regrade.json",
    ]
    files += [f"{folder}/{name}" for folder in trained for name in training]
    evaluation += ["verify_slow.parquet", "verify_slow_grades.parquet", "eval_6panel_bs50.json"]
    files += [f"arms/{arm}/seed{seed}/{name}" for arm, seed in CHECKPOINTS for name in evaluation]
    assert [name for name in files if not (results / name).is_file()] == []
    assert [name for name in files if (results / name).stat().st_size == 0] == []


def test_nothing_else_is_left_behind(results: Path) -> None:
    kinds = {".json", ".jsonl", ".parquet", ".safetensors", ".csv", ".md", ".svg", ".png", ".html", ".log", ".zip"}
    strangers = [path for path in results.rglob("*") if path.is_file() and path.suffix not in kinds]
    assert strangers == []
    assert list(results.rglob(".*")) == []


def test_second_call_has_nothing_to_do(project) -> None:
    before, start = project.digests(), time.monotonic()
    done = project.snakemake("--cores", "2")
    assert time.monotonic() - start < 15  # 2 s on a quiet machine
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout + done.stderr
    assert project.digests() == before


def test_every_question_is_answered_once(results: Path, items: pd.DataFrame) -> None:
    assert not items.duplicated(["arm", "seed", "panel", "index"]).any()
    for panel, rows in items.groupby("panel"):
        identities = load(results / "panels/manifest.json")[panel]["sha1_12"]
        for _, run in rows.groupby(["arm", "seed"]):
            assert run.sort_values("index")["sha1_12"].tolist() == identities


def test_completions_are_consistent(items: pd.DataFrame) -> None:
    assert (items["token_ids"].map(len) == items["n_tokens"]).all()
    assert set(items["finish_reason"]) <= {"stop", "length"}
    limit = round(768 * 0.125)
    assert items["n_tokens"].max() <= limit
    assert (items.loc[items["finish_reason"] == "length", "n_tokens"] == limit).all()
    assert items["prompt_sha1"].nunique() == items["grader"].nunique() == 1


def test_grades_follow_from_texts(results: Path, items: pd.DataFrame) -> None:
    gold = {q["id"]: q["answer"] for panel in PANELS for q in load_lines(results / f"panels/{panel}.jsonl")}
    boxes = items["text"].str.findall(r"\\boxed\{(-?\d+)\}").map(lambda found: found[-1] if found else None)
    plain = items[boxes.notna()]
    assert (plain["correct"] == (boxes[boxes.notna()] == plain["question_id"].map(gold))).all()
    assert not items.loc[~items["text"].str.contains(r"\d"), "correct"].any()
    assert items["correct"].any()
    assert (items["correct"] == (items["outcome"] == "correct")).all()
    assert set(items["outcome"]) <= {"correct", "wrong", "no_answer", "unparsable"}


def test_evaluation_records_hold_the_grades(results: Path, items: pd.DataFrame) -> None:
    for (arm, seed), rows in items.groupby(["arm", "seed"]):
        record = load(results / f"arms/{arm}/seed{seed}/eval_6panel_bs50.json")
        assert (record["arm"], record["seed"]) == (arm, seed)
        assert set(record["panels"]) == set(PANELS)
        for panel, frame in rows.groupby("panel"):
            entry, frame = record["panels"][panel], frame.sort_values("index")
            assert (entry["n"], entry["correct"]) == (len(frame), frame["correct"].sum())
            assert entry["accuracy"] == pytest.approx(frame["correct"].mean())
            for key, column in RECORD_COLUMNS.items():
                assert entry[key] == none_for_missing(frame[column]), (arm, seed, panel, key)
        claims, within = rows[rows["panel"].isin(CLAIMS)], rows[rows["panel"].isin(SUITES["within"])]
        totals = {"all6": claims, "within_math": within}
        assert record["totals"] == {k: {"n": len(v), "correct": int(v["correct"].sum())} for k, v in totals.items()}


def test_verify_slow_follows_from_its_grades(results: Path, items: pd.DataFrame) -> None:
    for arm, seed in CHECKPOINTS:
        folder = results / f"arms/{arm}/seed{seed}"
        again = pd.read_parquet(folder / "verify_slow.parquet")
        slow = pd.read_parquet(folder / "verify_slow_grades.parquet")["correct"]
        fast = items[(items["arm"] == arm) & (items["seed"] == seed) & (items["panel"] == VERIFIED)].sort_values(
            "index"
        )
        right, boxless = fast["correct"].reset_index(drop=True), ~fast["has_box"].reset_index(drop=True)
        no = again["verdict"] == "No"
        assert (again["missing_fast_box"] == boxless).all()
        assert (again["triggered"] == (no | boxless)).all()
        assert (again["slow_text"].notna() == again["triggered"]).all()
        final = right.where(~again["triggered"], slow)
        record = load(folder / "eval_6panel_bs50.json")[f"{VERIFIED}_verify_slow"]
        assert record["per_item_final_correct"] == final.tolist()
        counts = {"n": len(right), "fast_correct": right.sum(), "correct": final.sum()}
        counts |= {"slow_wins": (final & ~right).sum(), "slow_losses": (right & ~final).sum()}
        assert {key: record[key] for key in counts} == counts
        causes = {"no_only": no & ~boxless, "nobox_only": ~no & boxless, "both": no & boxless}
        assert record["triggers"] == {k: v.sum() for k, v in causes.items()} | {"total": again["triggered"].sum()}
        for name, chosen in (("fast_right", right), ("fast_wrong", ~right)):
            verdicts = {v.lower(): (chosen & (again["verdict"] == v)).sum() for v in ("Yes", "No", "Invalid")}
            assert record["confusion_matrix"][name] == verdicts | {"nobox": (chosen & boxless).sum()}


def test_table1_counts_the_grades(results: Path, items: pd.DataFrame) -> None:
    table = pd.read_csv(results / "tables/table1.csv").set_index("arm")
    assert list(table.index) == ARMS
    columns = {**{panel: [panel] for panel in CLAIMS}, "all6": SUITES["all6"], "within": SUITES["within"]}
    for (arm, row), (column, panels) in product(table.iterrows(), columns.items()):
        frame = items[(items["arm"] == arm) & items["panel"].isin(panels)]
        clean = frame[~frame["exposed"]]
        assert (row[column], row[f"{column}_n"]) == (frame["correct"].sum(), len(frame))
        assert (row[f"{column}_decontam"], row[f"{column}_decontam_n"]) == (clean["correct"].sum(), len(clean))
        for seed in SEEDS_OF[arm]:
            assert row[f"{column}_s{seed}"] == frame.loc[frame["seed"] == seed, "correct"].sum()
    assert (table["all6_decontam_n"] < table["all6_n"]).all(), "no exposed question: the audit was not tested"


def test_table2_pairs_the_grades(results: Path, items: pd.DataFrame) -> None:
    table = pd.read_csv(results / "tables/table2.csv")
    assert len(table) == 3 * 12  # contrasts x suites
    wide = items.set_index(["panel", "index", "seed", "arm"])["correct"].unstack("arm").reset_index()
    for row in table.itertuples():
        pairs = wide[wide["panel"].isin(SUITES[row.suite])]
        a, b = pairs[row.arm_a].astype(bool), pairs[row.arm_b].astype(bool)
        wins, losses = int((a & ~b).sum()), int((~a & b).sum())
        assert (row.n, row.wins, row.losses, row.net) == (len(pairs), wins, losses, wins - losses)
        assert row.pp == pytest.approx(100 * (wins - losses) / len(pairs))
        p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert row.p == pytest.approx(p)
        assert row.ci_lo <= row.pp + 1e-9
        assert row.ci_hi >= row.pp - 1e-9


def test_audit_lists_what_was_trained_on(results: Path) -> None:
    manifest = load(results / "panels/manifest.json")
    expected = {
        (seed, item["step"], panel, entry["sha1_12"].index(item["sha1_12"]))
        for seed in SEEDS
        for item in load(results / f"streams/seed{seed}.json")["items"]
        for panel, entry in manifest.items()
        if item["sha1_12"] in entry["sha1_12"]
    }
    exposed = load(results / "audit/ancestry.json")["exposed"]
    assert {(e["train_seed"], e["step"], e["panel"], e["index"]) for e in exposed} == expected != set()
    assert load(results / "audit/ancestry.clean.json")["exposed"] == []


def test_training_logs_follow_the_streams(results: Path) -> None:
    for arm, seed in TRAINED:
        folder = results / f"arms/{arm}/seed{seed}"
        stream = [item["sha1_12"] for item in load(results / f"streams/seed{seed}.json")["items"]]
        rows = load_lines(folder / "training.jsonl")
        assert [(row["step"], row["sha1_12"]) for row in rows] == list(enumerate(stream, 1))
        assert {(row["arm"], row["seed"], row["run"]) for row in rows} == {
            (arm, seed, 2 if arm.endswith("_rep2") else 1)
        }
        assert [point["step"] for point in load_lines(folder / "val500_curve.jsonl")] == [0, 5, STEPS]
        table = pd.read_csv(results / "tables/table3b.csv").set_index(["arm", "seed"]).loc[(arm, seed)]
        assert table["gen_total"] == sum(row["gen_tokens"]["total"] for row in rows)
        classes = pd.Series([row["step_class"] for row in rows]).value_counts()
        assert [table[name] for name in ("all_wrong", "all_right", "mixed")] == [
            classes.get(name, 0) for name in ("all_wrong", "all_right", "mixed")
        ]


def test_token_counters_and_doses_follow_from_the_rows(results: Path) -> None:
    """C31, and equal caps of the arms that are compared at one dose."""
    caps = {}
    for arm, seed in TRAINED:
        caps[arm] = dose(load(results / f"arms/{arm}/seed{seed}/train_meta.json")["settings"]["arm"])
        for row in load_lines(results / f"arms/{arm}/seed{seed}/training.jsonl"):
            stages = {name: n for name, n in row["gen_tokens"].items() if name != "total"}
            names = {"fast", "verify", "slow", "summary"} if "verdicts" in row else {"fast"}
            assert stages.keys() == names | ({"fork"} if "n_fork" in row else set())
            assert row["gen_tokens"]["total"] == sum(stages.values())
            assert stages["fast"] == sum(row["fast_len"])
            if row["step_class"] == "all_right":
                assert stages.get("fork", 0) == stages.get("slow", 0) == row["entropy_fwd_tokens"] == 0
                assert row["distill_bwd_tokens"] == {"fed": 0, "loss": 0}
            assert row["gen_tokens"]["total"] <= caps[arm]
    assert len({caps[arm] for arm in ("std_stabilized_g8", *FORKING)}) == 1


def dose(arm: dict[str, Any]) -> int:
    """The most tokens that one step may generate."""
    per_rollout = sum(arm[stage]["max_tokens"] for stage in ("verify", "slow", "summary") if arm[stage])
    forks = arm["fork"]["k"] * arm["fork"]["max_tokens"] if arm["fork"] else 0
    return sum(group["n"] * (group["max_tokens"] + per_rollout) for group in arm["fast"]) + forks


def test_repeated_runs_differ_in_their_run_alone(results: Path) -> None:
    """C34."""
    for arm in [name for name in CONTINUED if name.endswith("_rep2")]:
        original, again = (
            load(results / f"arms/{name}/seed102/train_meta.json")["settings"]
            for name in (arm.removesuffix("_rep2"), arm)
        )
        differing = {key for key in again["arm"] if again["arm"][key] != original["arm"][key]}
        assert differing == {"name", "run"}
        assert {k: v for k, v in again.items() if k != "arm"} == {k: v for k, v in original.items() if k != "arm"}


def test_something_was_trained(results: Path) -> None:
    """A study in which no gradient flows would pass many of these tests."""
    records = [load(results / f"arms/{arm}/seed{seed}/eval_6panel_bs50.json") for arm, seed in CHECKPOINTS]
    # Arms that differ only in what never came up in ten steps may end in equal weights, none in its parent's.
    assert len({record["checkpoint_sha256"] for record in records}) > len(records) // 2
    for arm, seed in TRAINED:
        meta = load(results / f"arms/{arm}/seed{seed}/train_meta.json")
        parent = load(results / f"arms/{PARENT}/seed{seed}/eval_6panel_bs50.json")
        assert meta["n_updates"] > 0
        assert meta["parent_sha256"] == parent["checkpoint_sha256"]


def test_the_supplement_rebuilds_itself_with_the_code_it_holds(study, results: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(results / "supplement.zip") as archive:
        archive.extractall(tmp_path)
    code = tmp_path / "workflow"
    assert (code / "dosematch/training.py").read_bytes() == (study.root / "workflow/dosematch/training.py").read_bytes()
    done = subprocess.run(
        [sys.executable, code / "scripts/regrade.py", "--supplement", results / "supplement.zip"],
        cwd=tmp_path,
        env=study.environment | {"PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
    )
    answers = sum(len(load_lines(results / f"panels/{panel}.jsonl")) for panel in PANELS) * len(CHECKPOINTS)
    assert done.returncode == 0, done.stderr
    assert f"{answers} answers of {len(CHECKPOINTS)} evaluations" in done.stdout


class Links(HTMLParser):
    """Everything a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [value or "" for key, value in attrs if key in ("href", "src", "srcset", "data", "action")]


def test_report_opens_without_network(results: Path) -> None:
    text = (results / "report.html").read_text(encoding="utf-8")
    links = Links()
    links.feed(text)
    assert [target for target in links.targets if not target.startswith(("#", "data:"))] == []
    assert links.tags.isdisjoint({"script", "link", "iframe", "object", "embed"})
    assert re.findall(r"url\((?!['\"]?(?:data:|#))|@import", text) == []
    anchors = {target[1:] for target in links.targets if target.startswith("#")}
    assert [anchor for anchor in anchors if f'id="{anchor}"' not in text] == []


def test_report_shows_the_study(study, results: Path, items: pd.DataFrame) -> None:
    text = (results / "report.html").read_text(encoding="utf-8")
    for arm in ARMS:
        total = items.loc[(items["arm"] == arm) & items["panel"].isin(CLAIMS), "correct"]
        assert arm in text
        assert f"{total.sum()}/{len(total)}" in text
    for arm, seed in CHECKPOINTS:
        assert load(results / f"arms/{arm}/seed{seed}/eval_6panel_bs50.json")["checkpoint_sha256"][:12] in text
    config = yaml.safe_load((study.root / "config/config.yaml").read_text(encoding="utf-8"))
    assert [entry["label"] for entry in config["thinker"]["contrasts"] if entry["label"] not in text] == []
    assert text.count("data:image/svg+xml;base64,") == len(FIGURES)


def test_snakemake_report(project) -> None:
    done = project.snakemake("--report", "report.zip")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(project.root / "report.zip") as archive:
        names = [Path(name).name for name in archive.namelist()]
        assert {
            "report.html",
            "figure1.svg",
            "figure2.svg",
            "training_curves.svg",
            "table1.csv",
            "table2.csv",
            "table3a.csv",
        } <= set(names)
        page = next(name for name in archive.namelist() if name.endswith("report.html") and name.count("/") == 1)
        text = archive.read(page).decode()
    for category in ("Tables", "Figures", "Report"):
        assert category in text


def test_cores_and_folder_change_no_byte(studies) -> None:
    """Questions, trainings, completions and grades, in other folders and processes, with one and two jobs at a time."""
    whole, three = (project.digests() for project in studies)
    common = [name for name in three if set(Path(name).parts) & {"panels", "pools", "streams", "parents", "arms"}]
    assert len(common) > 150
    assert [name for name in common if three[name] != whole[name]] == []


def test_statistics_and_report_come_out_again_to_the_byte(project) -> None:
    """All that follows from the evaluations is deleted and made again with one job at a time."""
    before = project.digests()
    kept = {"panels", "pools", "streams", "parents", "arms", "audit", "logs"}
    for path in project.results.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert len(before) - len(project.digests()) > 20
    done = project.snakemake("--cores", "1")
    assert done.returncode == 0, done.stderr
    ran = set(re.findall(r"^(?:local)?rule (\w+):", done.stdout + done.stderr, re.MULTILINE))
    assert {"compare_arms", "make_report"} <= ran
    assert not {"train_parent", "train_arm", "generate_panel"} & ran
    assert project.digests() == before
