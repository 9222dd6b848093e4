# The micro base model that resources/ ships. Not part of `all`: `make base` runs it and installs the result.

BASE_RECIPE = "config/base/micro.yaml"


rule pretrain_micro_base:
    input:
        recipe=BASE_RECIPE,
    output:
        weights="results/base/micro/model.safetensors",
        provenance="results/base/micro/provenance.json",
    threads: 2  # the recipe's own number: part of what decides the bytes
    params:
        code=source_digest("pretrain_micro_base"),
    shell:
        "python workflow/scripts/pretrain_micro_base.py --recipe {input.recipe}"
        " --out-dir $(dirname {output.weights})"
