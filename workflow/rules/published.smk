# The published numbers: an audit of them by themselves, and our contrasts beside them.

PUBLISHED = "resources/published"


rule check_published:
    input:
        tables=expand(
            f"{PUBLISHED}/{{name}}.csv",
            name=["table1", "table2", "table3a", "table3b", "exposed_items", "statements", "known_inconsistencies"],
        ),
        settings=expand(f"{PUBLISHED}/{{name}}.json", name=["protocol", "arms"]),
    output:
        json="results/published/check.json",
        md="results/published/check.md",
    params:
        folder=PUBLISHED,
        code=source_digest("check_published"),
    shell:
        "python workflow/scripts/check_published.py --published {params.folder} --out-dir $(dirname {output.json})"


rule compare_published:
    input:
        summary=rules.compare_arms.output,
        tables=rules.check_published.input.tables,
        settings=rules.check_published.input.settings,
        directions=f"{PUBLISHED}/directions.csv",
    output:
        csv=f"{RESULTS}/published/compare_published.csv",
        md=f"{RESULTS}/published/compare_published.md",
    params:
        folder=PUBLISHED,
        scale=study.scale.name,
        code=source_digest("compare_published"),
    shell:
        "python workflow/scripts/compare_published.py --summary {input.summary} --published {params.folder}"
        " --scale {params.scale} --out-dir $(dirname {output.csv})"
