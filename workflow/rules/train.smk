# The parents, and the arms that continue them. Both run the same script on other settings.
# Settings are params by function, since Snakemake would take the braces of their JSON for wildcards.

PROCESSES = study.scale.runtime.processes


rule train_parent:
    input:
        start=f"{study.scale.model}/model.safetensors",
        stream=POOLS["parent"],
        development=f"{RESULTS}/panels/{study.study.development_panel}.jsonl",
    output:
        weights=f"{RESULTS}/parents/seed{{seed}}/model/model.safetensors",
        training=f"{RESULTS}/parents/seed{{seed}}/training.jsonl",
        curve=f"{RESULTS}/parents/seed{{seed}}/{study.study.development_panel}_curve.jsonl",
        meta=f"{RESULTS}/parents/seed{{seed}}/train_meta.json",
    log:
        f"{RESULTS}/logs/train_parent.seed{{seed}}.log",
    threads: THREADS * PROCESSES
    resources:
        gpu=study.gpus * PROCESSES,
    params:
        settings=lambda wildcards: study.train_settings(study.study.parent),
        launcher=study.launcher,
        code=source_digest("train_arm"),
    shell:
        "{params.launcher} workflow/scripts/train_arm.py --settings {params.settings:q} --code {params.code}"
        " --seed {wildcards.seed} --start {input.start} --stream {input.stream} --development {input.development}"
        " --out-dir $(dirname {output.training}) 2> >(tee {log} >&2)"


rule train_arm:
    input:
        start=rules.train_parent.output.weights,
        stream=f"{RESULTS}/streams/seed{{seed}}{STREAM_VARIANT}.json",
        development=rules.train_parent.input.development,
    output:
        weights=f"{RESULTS}/arms/{{arm}}/seed{{seed}}/model/model.safetensors",
        training=f"{RESULTS}/arms/{{arm}}/seed{{seed}}/training.jsonl",
        curve=f"{RESULTS}/arms/{{arm}}/seed{{seed}}/{study.study.development_panel}_curve.jsonl",
        meta=f"{RESULTS}/arms/{{arm}}/seed{{seed}}/train_meta.json",
    log:
        f"{RESULTS}/logs/train_arm.{{arm}}.seed{{seed}}.log",
    threads: THREADS * PROCESSES
    resources:
        gpu=study.gpus * PROCESSES,
    params:
        settings=lambda wildcards: study.train_settings(wildcards.arm),
        launcher=study.launcher,
        code=source_digest("train_arm"),
    shell:
        "{params.launcher} workflow/scripts/train_arm.py --settings {params.settings:q} --code {params.code}"
        " --seed {wildcards.seed} --start {input.start} --stream {input.stream} --development {input.development}"
        " --out-dir $(dirname {output.training}) 2> >(tee {log} >&2)"
