"""What every episode is given and returns."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from dosematch.objectives import Segment
from dosematch.prompts import Prompts
from dosematch.rollout.engine import Completion, Engine, Request
from dosematch.sampling import uniforms
from dosematch.settings import Arm, RolloutGroup


class Reward(Protocol):
    """Grades a completion's text against the reference answer."""

    def __call__(self, text: str, gold: str) -> bool:
        """True when the text's answer is right."""
        ...


@dataclass(frozen=True)
class Context:
    """Everything an episode may use; the sampling counter is completed by step, question, stage and rollout."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    prompts: Prompts
    reward: Reward
    arm: Arm
    study: str
    seed: int

    def text(self, completion: Completion) -> str:
        """The completion's text without special tokens."""
        return str(self.tokenizer.decode(list(completion.token_ids), skip_special_tokens=True))

    def sample(
        self, prompt_ids: tuple[int, ...], groups: list[RolloutGroup], *, step: int, question: str, stage: str
    ) -> list[Completion]:
        """Sample all rollouts of one stage; rollouts are numbered through the groups in order."""
        requests: list[Request] = []
        for group in groups:
            for _ in range(group.n):
                draws = uniforms(
                    group.max_tokens,
                    study=self.study,
                    seed=self.seed,
                    run=self.arm.run,
                    step=step,
                    question=question,
                    stage=stage,
                    rollout=len(requests),
                )
                requests.append(Request(prompt_ids, group.max_tokens, group.min_tokens, draws, self.arm.temperature))
        return self.engine.generate(requests, batch_size=len(requests))


@dataclass
class Episode:
    """Segments to train on, the fields they add to the step's row, and what was generated per stage (tokens)."""

    segments: list[Segment]
    record: dict[str, Any]
    generated: dict[str, int] = field(default_factory=dict)
