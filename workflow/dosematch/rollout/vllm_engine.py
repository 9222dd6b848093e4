"""The vLLM engine: the same promises as the in-process one where vLLM can keep them, weaker ones where it cannot.

Greedy tokens are those of the model; a log-probability is that of the distribution drawn from. What is weaker:
vLLM draws with generators of its own, so a request's `uniforms` only seed its generator. The same request gives the
same tokens on the same vLLM and machine, but other tokens than the torch engine, and a batch of another shape may
round differently.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from dosematch.errors import UserError
from dosematch.rollout.engine import Completion, Request

MEMORY_SHARE = 0.4  # of a GPU, for weights and cache: the trainer lives on the same one


class VllmEngine:
    """Implements `Engine` with vLLM in this process; the model's folder gives it shapes, `load_weights` its weights."""

    def __init__(self, model: PreTrainedModel, eos_token_id: int, batch_size: int = 64, compiled: bool = False) -> None:
        """Start vLLM on the folder that `model` was loaded from; raises `UserError` where vLLM is not installed.

        `compiled` lets it compile on the CPU too, which takes up to minutes; on a GPU it always does.
        """
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process: weights are handed over, not sent
        try:
            import vllm
        except ImportError as error:
            raise UserError(f"scale: runtime.engine: vllm is not installed in this environment ({error})") from None
        folder = Path(str(model.config.name_or_path))
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder}: vllm needs a model that was loaded from a folder")
        self.eos, self.batch_size, self.parameters = eos_token_id, batch_size, vllm.SamplingParams
        self.limit = model.config.max_position_embeddings
        self.llm = vllm.LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=self.limit,
            max_num_seqs=batch_size,
            gpu_memory_utilization=MEMORY_SHARE,
            enforce_eager=model.device.type == "cpu" and not compiled,
            logprobs_mode="processed_logprobs",
            seed=0,
        )
        self.load_weights(model.state_dict())

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights (Hugging Face names) and forget cached prefixes, which were made with the old ones."""
        copies = [(name, tensor.detach().clone()) for name, tensor in weights.items()]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": copies})
        self.llm.reset_prefix_cache()

    def close(self) -> None:
        """Stop vLLM and free its memory."""
        self.llm.llm_engine.engine_core.shutdown()

    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:
        """Complete every request, in request order, never more at a time than the engine was made for."""
        width = max((len(request.prompt_ids) + request.max_tokens for request in requests), default=0)
        if width > self.limit:
            raise UserError(f"engine vllm: prompt and max_tokens need {width} positions, the model has {self.limit}")
        done: list[Completion] = []
        for chunk in batched(requests, batch_size or self.batch_size):
            prompts: list[Any] = [{"prompt_token_ids": list(request.prompt_ids)} for request in chunk]
            outputs = self.llm.generate(prompts, [self._parameters(request) for request in chunk], use_tqdm=False)
            done += [_completion(output.outputs[0], request) for output, request in zip(outputs, chunk, strict=True)]
        return done

    def _parameters(self, request: Request) -> Any:
        greedy = request.uniforms is None
        return self.parameters(
            temperature=0.0 if greedy else request.temperature,
            seed=None if greedy else seed_of(request),
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=[self.eos],
            ignore_eos=True,  # the configuration's end of sequence may be another token; ours is a stop token
            logprobs=0,
            detokenize=False,
        )


def seed_of(request: Request) -> int:
    """A seed for vLLM's generator, from the request's counter-based random numbers alone (63 bits)."""
    assert request.uniforms is not None
    return int.from_bytes(sha256(request.uniforms.tobytes()).digest()[:8], "big") >> 1


def batched(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    """Consecutive slices of at most `size` requests."""
    return (requests[start : start + size] for start in range(0, len(requests), size))


def _completion(output: Any, request: Request) -> Completion:
    """vLLM's output as ours: the stop token is among the tokens of both."""
    tokens = tuple(output.token_ids)
    logprobs = tuple(entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True))
    reason: Literal["stop", "length"] = "stop" if output.finish_reason == "stop" else "length"
    return Completion(tokens, logprobs, reason, request.min_tokens)
