"""Process-wide settings of torch that results depend on, and the engine that the runtime names."""

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dosematch.errors import UserError
from dosematch.parallel import size
from dosematch.rollout.engine import Engine
from dosematch.rollout.shared_engine import SharedEngine
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.rollout.vllm_engine import VllmEngine
from dosematch.settings import Runtime


def prepare_runtime(runtime: Runtime) -> None:
    """Fix threads and deterministic kernels; raises `UserError` when the device is not there."""
    quiet_transformers()
    torch.set_num_threads(runtime.threads)
    torch.use_deterministic_algorithms(True)
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise UserError("scale: runtime.device: cuda is not available on this machine")


def quiet_transformers() -> None:
    """No progress bars and notices in logs."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def start_engine(
    runtime: Runtime, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> Engine:
    """The engine of `runtime.engine`, with the weights of `model`; one in every process where there are several."""
    kind = VllmEngine if runtime.engine == "vllm" else TorchEngine
    engine: Engine = kind(model, tokenizer.eos_token_id, batch_size)
    return SharedEngine(engine) if size() > 1 else engine
