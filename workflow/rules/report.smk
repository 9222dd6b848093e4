# Paired statistics, tables, figures, supplement, report.

ANCESTRY = f"{RESULTS}/audit/ancestry{STREAM_VARIANT}.json"
OTHER_ANCESTRY = f"{RESULTS}/audit/ancestry{'' if STREAM_VARIANT else '.clean'}.json"
EVALS = [f"{RESULTS}/arms/{arm}/seed{seed}/eval_6panel_bs50.json" for arm, seed in CHECKPOINTS]
TRAINED = [f"{RESULTS}/arms/{arm}/seed{seed}" for arm, seed in CHECKPOINTS if arm in study.trained_arms()]
LOGS = [f"{folder}/training.jsonl" for folder in TRAINED]
CURVES = [f"{folder}/{study.study.development_panel}_curve.jsonl" for folder in TRAINED]
METAS = [f"{folder}/train_meta.json" for folder in TRAINED]
TABLES = ["table0", "table1", "table2", "table3a", "table3b", "table3c", "table3d"]
FIGURES = ["figure1", "figure2", "training_curves"]
CONFIG_FILES = sorted(map(str, Path("config").rglob("*.yaml")))
CODE_FILES = [
    "Snakefile",
    *sorted(str(path) for kind in ("py", "smk", "j2", "rst") for path in Path("workflow").rglob(f"*.{kind}")),
]
SUPPLEMENT_BYTES = 2_000_000  # what a journal takes; the study's own has 523,955


rule compare_arms:
    input:
        evals=EVALS,
        training=LOGS,
        ancestry=ANCESTRY,
    output:
        f"{RESULTS}/summary.json",
    params:
        settings=lambda wildcards: study.report_settings(),
        evals=lambda wildcards, input: repeat_option("--evals", input.evals),
        training=lambda wildcards, input: repeat_option("--training", input.training),
        code=source_digest("compare_arms"),
    shell:
        "python workflow/scripts/compare_arms.py {params.evals} {params.training} --ancestry {input.ancestry}"
        " --settings {params.settings:q} --out {output}"


rule make_tables:
    input:
        summary=rules.compare_arms.output,
    output:
        report(
            expand(f"{RESULTS}/tables/{{table}}.csv", table=TABLES),
            caption="../captions/tables.rst",
            category="Tables",
        ),
        expand(f"{RESULTS}/tables/{{table}}.md", table=TABLES),
    params:
        code=source_digest("make_tables"),
    shell:
        "python workflow/scripts/make_tables.py --summary {input.summary} --out-dir $(dirname {output[0]})"


rule make_figures:
    input:
        summary=rules.compare_arms.output,
        curves=CURVES,
        training=LOGS,
    output:
        report(
            expand(f"{RESULTS}/figures/{{figure}}.svg", figure=FIGURES),
            caption="../captions/figures.rst",
            category="Figures",
        ),
        expand(f"{RESULTS}/figures/{{figure}}.png", figure=FIGURES),
    params:
        curves=lambda wildcards, input: repeat_option("--curves", input.curves),
        training=lambda wildcards, input: repeat_option("--training", input.training),
        code=source_digest("make_figures"),
    shell:
        "python workflow/scripts/make_figures.py --summary {input.summary} {params.curves} {params.training}"
        " --out-dir $(dirname {output[0]})"


rule make_supplement:
    input:
        evals=EVALS,
        panels=PANEL_FILES,
        summary=rules.compare_arms.output,
        ancestry=ANCESTRY,
        training=LOGS,
        tables=expand(f"{RESULTS}/tables/{{table}}.csv", table=TABLES),
        records=[
            *CODE_FILES,
            *CONFIG_FILES,
            OTHER_ANCESTRY,
            MANIFEST,
            *METAS,
            *CURVES,
            *expand(f"{RESULTS}/tables/{{table}}.md", table=TABLES),
            *expand(f"{RESULTS}/streams/seed{{seed}}{{variant}}.json", seed=study.study.seeds, variant=["", ".clean"]),
            *expand(
                f"{RESULTS}/parents/seed{{seed}}/{{file}}",
                seed=study.study.seeds,
                file=["training.jsonl", "train_meta.json", f"{study.study.development_panel}_curve.jsonl"],
            ),
        ],
    output:
        f"{RESULTS}/supplement.zip",
    params:
        settings=lambda wildcards: study.report_settings(),
        evals=lambda wildcards, input: repeat_option("--evals", input.evals),
        panels=lambda wildcards, input: repeat_option("--panels", input.panels),
        training=lambda wildcards, input: repeat_option("--training", input.training),
        tables=lambda wildcards, input: repeat_option("--tables", input.tables),
        files=lambda wildcards, input: repeat_option("--file", input.records),
        max_bytes=SUPPLEMENT_BYTES,
        code=source_digest("make_supplement"),
    shell:
        "python workflow/scripts/make_supplement.py {params.evals} {params.panels} {params.training} {params.tables}"
        " {params.files} --summary {input.summary} --ancestry {input.ancestry} --settings {params.settings:q}"
        " --max-bytes {params.max_bytes} --out {output}"


rule regrade:
    input:
        supplement=rules.make_supplement.output,
    output:
        f"{RESULTS}/regrade.json",
    params:
        code=source_digest("regrade"),
    shell:
        "python workflow/scripts/regrade.py --supplement {input.supplement} --out {output}"


rule make_report:
    input:
        summary=rules.compare_arms.output,
        tables=rules.make_tables.output,
        figures=rules.make_figures.output,
        evals=EVALS,
        meta=METAS,
        ancestry=ANCESTRY,
        other_ancestry=OTHER_ANCESTRY,
        regraded=rules.regrade.output,
    output:
        report(REPORT, caption="../captions/report.rst", category="Report"),
    params:
        settings=lambda wildcards: study.report_settings(),
        evals=lambda wildcards, input: repeat_option("--evals", input.evals),
        meta=lambda wildcards, input: repeat_option("--meta", input.meta),
        code=source_digest("make_report"),
    shell:
        "python workflow/scripts/make_report.py --summary {input.summary} --figures-dir $(dirname {input.figures[0]})"
        " {params.evals} {params.meta} --ancestry {input.ancestry} --settings {params.settings:q}"
        " --regraded {input.regraded} --out {output}"
