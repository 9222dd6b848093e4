"""DoseMatch: the pipeline as a table of contents. Settings are in config/, rules in workflow/rules/."""

import sys
from pathlib import Path

from snakemake.utils import min_version, update_config

min_version("9.27")
sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from dosematch.config import StudyConfig
from dosematch.records import read_yaml
from dosematch.errors import UserError
from dosematch.provenance import source_digest

try:
    settings = read_yaml(Path("config/config.yaml"))
    update_config(settings, config)
    study = StudyConfig(settings)
except UserError as error:
    sys.exit(f"error: {error}")

RESULTS = study.results
CHECKPOINTS = study.checkpoints()
REPORT = f"{RESULTS}/report.html"
THINKER = [REPORT, "results/published/check.json", f"{RESULTS}/published/compare_published.csv"]
THREADS = study.scale.runtime.threads

shell.prefix(f"export PYTHONPATH={workflow.basedir}/workflow; set -euo pipefail; ")


def repeat_option(option: str, values) -> str:
    return " ".join(f"{option} {value}" for value in values)


wildcard_constraints:
    arm="|".join(study.arms),
    seed=r"\d+",
    variant=r"|\.clean",


# A limit on GPUs is one machine's (profiles/default); on a cluster the scheduler counts them.
resource_scopes:
    gpu="local",


rule all:
    input:
        THINKER,


rule thinker:
    input:
        THINKER,


include: "workflow/rules/base.smk"
include: "workflow/rules/questions.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/sweep.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/published.smk"


localrules:
    all,
    base_lr_sweep,
    thinker,
