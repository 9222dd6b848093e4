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


# The model of a scale that names a repository of the hub; a folder that is there is left alone.
if study.scale.hub:

    rule fetch_model:
        output:
            protected(f"{study.scale.model}/model.safetensors"),
        params:
            repository=study.scale.hub.repository,
            revision=study.scale.hub.revision,
        shell:
            "python workflow/scripts/fetch_model.py --repository {params.repository} --revision {params.revision}"
            " --out-dir $(dirname {output})"


# The model of a scale that names a GGUF file in a package: for machines without the hub.
if study.scale.gguf:

    rule convert_gguf:
        output:
            protected(f"{study.scale.model}/model.safetensors"),
        params:
            source=lambda wildcards: study.gguf_settings(),
        shell:
            "python workflow/scripts/convert_gguf.py --source {params.source:q} --out-dir $(dirname {output})"
