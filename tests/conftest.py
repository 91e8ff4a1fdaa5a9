"""Shape annotations become checks, and bf16 products stay clear of a trap on some virtual CPUs."""

import os

# Some virtual CPUs advertise AMX and trap on it; this is only a cap, and must precede torch.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():  # on a GPU models are compiled, and the checks cannot be
    install_import_hook("statetrack", "beartype.beartype")

torch.set_num_threads(1)  # the suite runs in two processes on two cores
