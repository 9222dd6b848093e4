# Panels, pools, training streams, and which panel question was trained on.

PANEL_FILES = expand(f"{RESULTS}/panels/{{panel}}.jsonl", panel=study.panels)
POOLS = {name: f"{RESULTS}/pools/{name}.jsonl" for name in ("parent", "stencil", "pool")}
MANIFEST = f"{RESULTS}/panels/manifest.json"
STREAM_VARIANT = "" if study.study.streams == "study" else ".clean"


rule prepare_questions:
    input:
        study.scale.frozen_panels or [],
    output:
        **POOLS,
        panels=PANEL_FILES,
        manifest=MANIFEST,
    params:
        settings=lambda wildcards: study.question_settings(),
        frozen=study.frozen_option(),
        code=source_digest("prepare_questions"),
    shell:
        "python workflow/scripts/prepare_questions.py --settings {params.settings:q} --out-dir {RESULTS} {params.frozen}"


rule build_stream:
    input:
        **POOLS,
        manifest=MANIFEST,
    output:
        f"{RESULTS}/streams/seed{{seed}}{{variant}}.json",
    params:
        steps=study.scale.training.steps,
        flag=lambda wildcards: "--clean" if wildcards.variant else "--study",
        code=source_digest("build_stream"),
    shell:
        "python workflow/scripts/build_stream.py --seed {wildcards.seed} --steps {params.steps} {params.flag}"
        " --stencil {input.stencil} --pool {input.pool} --parent {input.parent} --manifest {input.manifest}"
        " --out {output}"


rule audit_ancestry:
    input:
        manifest=MANIFEST,
        parent=POOLS["parent"],
        panels=PANEL_FILES,
        streams=expand(f"{RESULTS}/streams/seed{{seed}}{{{{variant}}}}.json", seed=study.study.seeds),
    output:
        f"{RESULTS}/audit/ancestry{{variant}}.json",
    params:
        panels=lambda wildcards, input: repeat_option("--panels", input.panels),
        code=source_digest("audit_ancestry"),
    shell:
        "python workflow/scripts/audit_ancestry.py --manifest {input.manifest} --parent {input.parent}"
        " {params.panels} --out {output} {input.streams}"
