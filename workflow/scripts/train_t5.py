"""Mid-trains one arm with one seed and writes model, window rows, seconds, data ledger and provenance."""

import logging
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from dosematch import __version__
from dosematch.cli import run
from dosematch.midtrain.loop import MidTrainer
from dosematch.midtrain.material import load_material
from dosematch.midtrain.settings import T5TrainSettings
from dosematch.policy import load_policy, load_tokenizer, save_policy
from dosematch.records import digest, sha256_file, write_json, write_jsonl
from dosematch.resume import ResumeFolder, remove_leftovers
from dosematch.runtime import quiet_transformers
