"""Measures one machine at the size of a scale, with random weights, and writes one JSON (docs/cluster.md)."""

import platform
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.benchmarks.timing import environment
from dosematch.cli import run
from dosematch.config import StudyConfig
from dosematch.hardware_check import rollout_speed, training_steps
from dosematch.policy import load_tokenizer
from dosematch.random_weights import write_random_model
from dosematch.records import read_yaml, write_json
from dosematch.runtime import prepare_runtime
from dosematch.settings import Runtime, TrainSettings

LENGTH = 384  # of a completion, about; fixed-length rollouts have 256


def main(
    out: Annotated[Path, typer.Option()],
    scale: Annotated[str, typer.Option()] = "qwen3-0.6b",
    device: Annotated[str, typer.Option(help="cuda, or cpu for a slow trial")] = "cuda",
    threads: Annotated[int, typer.Option()] = 8,
    arms: Annotated[list[str], typer.Option()] = ["std_stabilized_g8", "fork_thinker"],  # noqa: B006
    rollouts: Annotated[bool, typer.Option(help="speed of both engines")] = True,
    horizon: Annotated[float, typer.Option(help="factor on all lengths")] = 1.0,
    layers: Annotated[int, typer.Option(help="of the model")] = 28,
    steps: Annotated[int, typer.Option(help="per arm; the first one warms up")] = 3,
) -> None:
    """Write rollout tokens/s of each engine, and step time, memory and log-probability gap of each arm."""
    raw = read_yaml(Path("config/config.yaml"))
    study = StudyConfig(raw | {"scale": scale})
    runtime = study.scale.runtime.model_copy(update={"device": device, "threads": threads, "engine": "torch"})
    prepare_runtime(runtime)
    tokens = max(1, round(256 * horizon))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_random_model(
            model, load_tokenizer("resources/micro_base"), runtime.dtype, LENGTH * horizon, num_hidden_layers=layers
        )
        trained = []
        for arm in arms:
            settings = TrainSettings.model_validate_json(study.train_settings(arm))
            trained.append(training_steps(model, shortened(settings, horizon, runtime), steps))
        engines = [Runtime.model_validate(runtime.model_dump() | {"engine": name}) for name in ("torch", "vllm")]
        speeds = [row for engine in engines if rollouts for row in rollout_speed(model, engine, [8, 64], tokens)]
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    machine = {"gpu": gpu, "machine": platform.machine(), **environment(threads)}
    write_json(out, {"machine": machine, "scale": scale, "layers": layers, "training": trained, "rollouts": speeds})


def shortened(settings: TrainSettings, horizon: float, runtime: Runtime) -> TrainSettings:
    """The same arm with all lengths, and with them the memory of batches and logits, multiplied by `horizon`."""
    training, evaluation = settings.training, settings.evaluation
    tokens = max(1024, round(training.micro_batch_tokens * horizon))
    rows = max(64, round(training.logit_rows * horizon))
    shorter = {"max_tokens": max(1, round(evaluation.max_tokens * horizon))}
    update = {
        "arm": settings.arm.scaled(horizon),
        "runtime": runtime,
        "training": training.model_copy(update={"micro_batch_tokens": tokens, "logit_rows": rows}),
        "evaluation": evaluation.model_copy(update=shorter),
    }
    return settings.model_copy(update=update)


if __name__ == "__main__":
    run(main)
