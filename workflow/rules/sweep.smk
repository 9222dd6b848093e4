# The base learning rate, tuned with one arm on the development panel: snakemake --cores all base_lr_sweep
# The choice is printed, not applied: base_lr is written into the scale by hand, once, before any arm is compared.

SWEEP = f"{RESULTS}/base_lr_sweep"
SWEEP_CURVES = [f"{folder}/{study.study.development_panel}_curve.jsonl" for folder in study.sweep_folders]


use rule train_arm as train_base_lr with:
    output:
        weights=f"{SWEEP}/lr{{lr}}/seed{{seed}}/model/model.safetensors",
        training=f"{SWEEP}/lr{{lr}}/seed{{seed}}/training.jsonl",
        curve=f"{SWEEP}/lr{{lr}}/seed{{seed}}/{study.study.development_panel}_curve.jsonl",
        meta=f"{SWEEP}/lr{{lr}}/seed{{seed}}/train_meta.json",
    log:
        f"{RESULTS}/logs/train_base_lr.lr{{lr}}.seed{{seed}}.log",
    params:
        settings=lambda wildcards: study.train_settings(study.scale.base_lr_sweep.arm, float(wildcards.lr)),
        launcher=study.launcher,
        code=source_digest("train_arm"),


rule choose_base_lr:
    input:
        curves=SWEEP_CURVES,
        metas=[f"{folder}/train_meta.json" for folder in study.sweep_folders],
    output:
        f"{SWEEP}/base_lr.csv",
    params:
        code=source_digest("choose_base_lr"),
    shell:
        "python workflow/scripts/choose_base_lr.py --out {output} {input.curves}"


rule base_lr_sweep:
    input:
        rules.choose_base_lr.output,
