"""How much memory a training needs, calculated before anything is loaded, and how much there is."""

import logging
from pathlib import Path

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from dosematch.arm import Arm
from dosematch.errors import UserError
from dosematch.settings import TrainSettings

log = logging.getLogger(__name__)
GB = 1e9
PROMPT_TOKENS = 512  # allowed for a question with its instruction, beside what is generated
CGROUP_LIMIT, CGROUP_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def check_memory(folder: Path | str, settings: TrainSettings) -> None:
    """Log the estimate for the model in `folder`; raises `UserError` with one line when it exceeds what is free."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    parts = training_memory(config, settings)
    total, free = sum(parts.values()), free_memory(settings.runtime.device)
    if settings.runtime.device == "cpu":  # the processes of one training share it
        free //= settings.runtime.processes
    largest = ", ".join(f"{name} {size / GB:.1f}" for name, size in sorted(parts.items(), key=lambda part: -part[1]))
    log.info("memory estimate %.2f GB of %.1f GB free: %s", total / GB, free / GB, largest)
    if total > free:
        raise UserError(
            f"scale: training {settings.arm.name} needs about {total / GB:.1f} GB, {settings.runtime.device} has "
            f"{free / GB:.1f} GB free (GB: {largest})"
        )


def training_memory(config: PreTrainedConfig, settings: TrainSettings) -> dict[str, int]:
    """Bytes by purpose at the peak of a training step, from shapes alone.

    fp32 masters, two moments, the accumulated gradient and one gradient per loss term stand beside the working
    weights, their gradient, the engine's copy and the tail average (thinker-spec 9, 11).
    """
    runtime, training = settings.runtime, settings.training
    size = getattr(torch, runtime.dtype).itemsize
    parameters = count_parameters(config)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    keys = config.num_key_value_heads * (getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    sequences, tokens = _rollouts(settings.arm)
    sequences = max(sequences, settings.evaluation.batch_size)
    tokens = max(tokens, settings.evaluation.max_tokens) + PROMPT_TOKENS
    # What autograd keeps of one layer: norms and residuals, projections, and the feed-forward block's products.
    layer = 8 * hidden + 4 * keys + 2 * config.num_attention_heads * config.head_dim + 4 * config.intermediate_size
    kept = hidden * layers + layer if training.gradient_checkpointing else layer * layers
    return {
        "weights": parameters * size,
        "masters": parameters * 4,
        "moments": parameters * 8,
        "accumulated gradient": parameters * 4,
        "gradients": parameters * (size + 4 * len(loss_terms(settings.arm))),
        "tail average": parameters * 4,
        "engine": parameters * size + sequences * tokens * layers * 2 * keys * size,
        "activations": training.micro_batch_tokens * kept * size,
        "logits": training.logit_rows * config.vocab_size * (2 * size + 3 * 4),
    }


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the causal language model that `config` describes; nothing is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def loss_terms(arm: Arm) -> list[str]:
    """The loss terms that one step of the arm may hold, each with a gradient of its own until the step ends."""
    stages = ["verify", "slow", "summary_pg"] if arm.pg_stages else []
    distilled = ["distill"] if arm.summary_sft or arm.fork_sft else []
    return ["pg"] * arm.pg_fast + stages + distilled + ["anchor"] * arm.anchor


def _rollouts(arm: Arm) -> tuple[int, int]:
    """Sequences in flight at once, and the tokens that the longest of them may hold beside the question."""
    n, fast = sum(group.n for group in arm.fast), max(group.max_tokens for group in arm.fast)
    stages = sum(stage.max_tokens for stage in (arm.verify, arm.slow) if stage)
    return max(n, arm.fork.k if arm.fork else 0), fast + stages + (arm.fork.max_tokens if arm.fork else 0)


def free_memory(device: str) -> int:
    """Bytes that this process may still take on the device: of the GPU, or of the machine within its cgroup."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    free = int(psutil.virtual_memory().available)
    if CGROUP_LIMIT.is_file() and CGROUP_LIMIT.read_text().strip().isdigit():
        free = min(free, int(CGROUP_LIMIT.read_text()) - int(CGROUP_USED.read_text()))
    return free
