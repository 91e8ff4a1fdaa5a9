"""The package: registered on import, and one clear line where something is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from statetrack import hf
from tests.hf.cases import TOKENS
from tests.models.test_causal_lm import build
from tests.test_package import BLOCK, ROOT


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT
    )


def test_registered() -> None:
    model = AutoModelForCausalLM.from_config(hf.StatetrackConfig(build("GLA").config))
    assert type(model) is hf.StatetrackForCausalLM
    assert AutoConfig.for_model("statetrack", model=build("GLA").config).vocab_size == 23


def test_without_transformers() -> None:
    done = run('BLOCKED = {"transformers"}\n' + BLOCK + "import statetrack.hf")
    last = done.stderr.strip().splitlines()[-1]
    assert last == ("ImportError: statetrack.hf needs transformers: pip install 'statetrack[hf]'")


LOAD = """
import os, sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=bool(sys.argv[2]))
print(type(model).__module__, model.config.vocab_size)
model.save_pretrained(sys.argv[1] + "/again")
print(*sorted(os.listdir(sys.argv[1] + "/again")))
"""


@pytest.mark.slow
def test_folders_say_what_to_install(tmp_path: Path) -> None:
    """Without statetrack; and with it, but not imported: then only on the user's word."""
    build("DeltaNet").save(tmp_path)
    missing = run('BLOCKED = {"statetrack"}\n' + BLOCK + LOAD, str(tmp_path), "yes")
    assert "pip install 'statetrack[hf]'" in missing.stderr.strip().splitlines()[-1]
    refused = run(LOAD, str(tmp_path), "")
    assert str(tmp_path) in refused.stderr and "trust_remote_code=True" in refused.stderr
    found = run(LOAD, str(tmp_path), "yes")
    assert found.stdout.splitlines() == [
        "statetrack.hf.modeling 23",
        "config.json generation_config.json model.safetensors modeling_statetrack.py",
    ], found.stderr
    trusting = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(trusting) is hf.StatetrackForCausalLM
    assert trusting(TOKENS).logits.shape == (3, 11, 23)
