# Every checkpoint on every panel: generate once, grade the stored completions, merge the grades.

COMPLETIONS = expand(f"{RESULTS}/arms/{{{{arm}}}}/seed{{{{seed}}}}/completions/{{panel}}.parquet", panel=study.panels)
GRADES = expand(f"{RESULTS}/arms/{{{{arm}}}}/seed{{{{seed}}}}/grades/{{panel}}.parquet", panel=study.panels)
VERIFY_SLOW = f"{RESULTS}/arms/{{arm}}/seed{{seed}}/verify_slow.parquet"
VERIFY_SLOW_GRADES = f"{RESULTS}/arms/{{arm}}/seed{{seed}}/verify_slow_grades.parquet"


def checkpoint_weights(wildcards) -> str:
    return study.model_file(wildcards.arm, wildcards.seed)


rule generate_panel:
    input:
        weights=checkpoint_weights,
        panels=PANEL_FILES,
    output:
        COMPLETIONS,
        verify_slow=VERIFY_SLOW,
    log:
        f"{RESULTS}/logs/generate_panel.{{arm}}.seed{{seed}}.log",
    threads: THREADS
    resources:
        gpu=study.gpus,
    params:
        settings=lambda wildcards: study.eval_settings(),
        code=source_digest("generate_panel"),
    shell:
        "python workflow/scripts/generate_panel.py --settings {params.settings:q} --weights {input.weights}"
        " --out-dir $(dirname {output[0]}) --verify-slow {output.verify_slow} {input.panels} 2> >(tee {log} >&2)"


rule grade_panel:
    input:
        panels=PANEL_FILES,
        completions=COMPLETIONS,
        verify_slow=VERIFY_SLOW,
    output:
        grades=GRADES,
        verify_slow=VERIFY_SLOW_GRADES,
    params:
        verify_slow_panel=study.study.verify_slow_panel,
        panels=lambda wildcards, input: repeat_option("--panel", input.panels),
        completions=lambda wildcards, input: repeat_option("--completions", input.completions),
        out=lambda wildcards, output: repeat_option("--out", output.grades),
        code=source_digest("grade_panel"),
    shell:
        "python workflow/scripts/grade_panel.py {params.panels} {params.completions} {params.out}"
        " --verify-slow {input.verify_slow} --verify-slow-panel {params.verify_slow_panel}"
        " --verify-slow-out {output.verify_slow}"


rule merge_eval:
    input:
        weights=checkpoint_weights,
        panels=PANEL_FILES,
        completions=COMPLETIONS,
        grades=GRADES,
        verify_slow=VERIFY_SLOW,
        verify_slow_grades=VERIFY_SLOW_GRADES,
    output:
        f"{RESULTS}/arms/{{arm}}/seed{{seed}}/eval_6panel_bs50.json",
    params:
        settings=lambda wildcards: study.record_settings(),
        run=lambda wildcards: study.arms[wildcards.arm].run,
        code=source_digest("merge_eval"),
    shell:
        "python workflow/scripts/merge_eval.py --arm {wildcards.arm} --seed {wildcards.seed} --run {params.run}"
        " --checkpoint {input.weights} --settings {params.settings:q} --panels $(dirname {input.panels[0]})"
        " --completions $(dirname {input.completions[0]}) --grades $(dirname {input.grades[0]})"
        " --verify-slow {input.verify_slow} --verify-slow-grades {input.verify_slow_grades} --out {output}"
