# Mid-training: one job per arm and seed, at any scale of config/t5. Settings are params by function (braces in JSON).


rule train_t5:
    input:
        base=lambda wildcards: f"{T5[wildcards.t5scale].scale.base}/model.safetensors",
        positions=lambda wildcards: T5[wildcards.t5scale].scale.positions,
