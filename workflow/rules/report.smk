# Paired statistics, tables, figures, report.

ANCESTRY = f"{RESULTS}/audit/ancestry{STREAM_VARIANT}.json"
OTHER_ANCESTRY = f"{RESULTS}/audit/ancestry{'' if STREAM_VARIANT else '.clean'}.json"
EVALS = [f"{RESULTS}/arms/{arm}/seed{seed}/eval_6panel_bs50.json" for arm, seed in CHECKPOINTS]
TRAINED = [f"{RESULTS}/arms/{arm}/seed{seed}" for arm, seed in CHECKPOINTS if arm in study.trained_arms()]
TABLES = ["table1", "table2", "table3b"]
FIGURES = ["figure1", "training_curves"]


rule compare_arms:
    input:
        evals=EVALS,
        training=[f"{folder}/training.jsonl" for folder in TRAINED],
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
        curves=[f"{folder}/{study.study.development_panel}_curve.jsonl" for folder in TRAINED],
    output:
        report(
            expand(f"{RESULTS}/figures/{{figure}}.svg", figure=FIGURES),
            caption="../captions/figures.rst",
            category="Figures",
        ),
        expand(f"{RESULTS}/figures/{{figure}}.png", figure=FIGURES),
    params:
        curves=lambda wildcards, input: repeat_option("--curves", input.curves),
        code=source_digest("make_figures"),
    shell:
        "python workflow/scripts/make_figures.py --summary {input.summary} {params.curves}"
        " --out-dir $(dirname {output[0]})"


rule make_report:
    input:
        summary=rules.compare_arms.output,
        tables=rules.make_tables.output,
        figures=rules.make_figures.output,
        evals=EVALS,
        meta=[f"{folder}/train_meta.json" for folder in TRAINED],
        ancestry=ANCESTRY,
        other_ancestry=OTHER_ANCESTRY,
    output:
        report(REPORT, caption="../captions/report.rst", category="Report"),
    params:
        settings=lambda wildcards: study.report_settings(),
        evals=lambda wildcards, input: repeat_option("--evals", input.evals),
        meta=lambda wildcards, input: repeat_option("--meta", input.meta),
        code=source_digest("make_report"),
    shell:
        "python workflow/scripts/make_report.py --summary {input.summary} --figures-dir $(dirname {input.figures[0]})"
        " {params.evals} {params.meta} --ancestry {input.ancestry} --settings {params.settings:q} --out {output}"
