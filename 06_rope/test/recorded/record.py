#!/usr/bin/env python3
"""Records what Hugging Face transformers and vLLM compute for rotary embeddings, which
test_frequencies.cpp compares ours with.

    pip install torch==2.8.0 transformers==4.57.1
    pip download --no-deps vllm==0.11.0
    python3 06_rope/test/recorded/record.py vllm-0.11.0-….whl

It writes transformers.inc (frequencies and attention factors of ROPE_INIT_FUNCTIONS) and vllm.inc
(rows of cos_sin_cache) beside itself. Of vLLM only the files that build the tables are taken from
the wheel, and what else they import is replaced by nothing, so that no GPU is needed.
"""
import importlib.abc
import importlib.machinery
import math
import pathlib
import sys
import tempfile
import unittest.mock
import zipfile

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
POSITIONS = (0, 1, 1000, 131071)
PACKAGE = "vllm/model_executor/layers/rotary_embedding"


def factors(pairs, step):
    """A list for longrope; fp32 has each of its numbers."""
    return [1 + step * i / 16 for i in range(pairs)]


def problem(d, scaling, base=10000.0, **fields):
    """The fields of a FrequencyProblem, in its order."""
    return {"rotary_dim": d, "base": base, "scaling": scaling, **fields}


LLAMA3 = {"high_frequency_factor": 4.0, "low_frequency_factor": 1.0}
OF_TRANSFORMERS = (
    problem(128, "none"),
    problem(96, "none", 500000.0),
    problem(128, "linear", factor=8.0),
    problem(128, "dynamic_ntk", factor=8.0, trained_length=8192, length=8000),
    problem(128, "dynamic_ntk", factor=8.0, trained_length=8192, length=40000),
    problem(128, "yarn", factor=8.0, trained_length=8192),
    problem(64, "yarn", 150000.0, factor=32.0, trained_length=4096, beta_fast=24.0, beta_slow=2.0),
    problem(128, "llama3", 500000.0, factor=8.0, trained_length=8192, **LLAMA3),
    problem(96, "longrope", factor=32.0, trained_length=4096, length=4096,
            short_factors=factors(48, 0.25), long_factors=factors(48, 8)),
    problem(96, "longrope", factor=32.0, trained_length=4096, length=4097,
            short_factors=factors(48, 0.25), long_factors=factors(48, 8)),
)
OF_VLLM = (
    problem(64, "none"),
    problem(64, "linear", factor=8.0),
    problem(64, "ntk", factor=8.0),
    # vLLM builds its table once, for the longest text there may be.
    problem(64, "dynamic_ntk", factor=8.0, trained_length=16384, length=131072),
    problem(64, "yarn", factor=8.0, trained_length=16384),
    problem(64, "llama3", 500000.0, factor=8.0, trained_length=8192, **LLAMA3),
    problem(64, "longrope", factor=32.0, trained_length=4096, length=131072,
            short_factors=factors(32, 0.25), long_factors=factors(32, 8)),
)


# ---- What others compute ----
def of_transformers(p):
    """Frequencies, and the attention factor."""
    kind = {"none": "default", "dynamic_ntk": "dynamic"}.get(p["scaling"], p["scaling"])
    trained = p.get("trained_length", 2048)
    scaling = {"factor": p.get("factor"), "original_max_position_embeddings": trained}
    for ours, theirs in (("beta_fast", "beta_fast"), ("beta_slow", "beta_slow"),
                         ("high_frequency_factor", "high_freq_factor"),
                         ("low_frequency_factor", "low_freq_factor"),
                         ("short_factors", "short_factor"), ("long_factors", "long_factor")):
        if ours in p:
            scaling[theirs] = p[ours]
    config = transformers.PretrainedConfig(
        rope_theta=p["base"], head_dim=p["rotary_dim"], hidden_size=p["rotary_dim"],
        num_attention_heads=1, max_position_embeddings=trained)
    config.rope_scaling = scaling
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=p.get("length"))


def vllm_modules(wheel, folder):
    """vLLM's modules of tables, by name."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist()
                                    if name.startswith(PACKAGE + "/")])

    class CustomOp(torch.nn.Module):
        @staticmethod
        def register(_name):
            return lambda kind: kind

    package = PACKAGE.replace("/", ".")

    class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """Modules of vLLM outside of the package, which have whatever is asked for."""

        def find_spec(self, name, path, target=None):
            outside = name.split(".")[0] == "vllm" and not name.startswith(package + ".")
            return importlib.machinery.ModuleSpec(name, self) if outside else None

        def create_module(self, spec):
            module = unittest.mock.MagicMock(CustomOp=CustomOp)
            module.__path__ = [str(pathlib.Path(folder, *spec.name.split(".")))]
            return module

        def exec_module(self, module):
            pass

    sys.meta_path.insert(0, Empty())
    return lambda name: importlib.import_module(f"{package}.{name}")


def of_vllm(p, module):
    """The table, of float32."""
    d, base, s, length = p["rotary_dim"], p["base"], p.get("factor"), POSITIONS[-1] + 1
    trained = p.get("trained_length")
    last = torch.float32
    if p["scaling"] == "none":
        return module("base").RotaryEmbedding(d, d, length, base, True, last).cos_sin_cache
    if p["scaling"] == "linear":
        return module("linear_scaling_rope").LinearScalingRotaryEmbedding(
            d, d, math.ceil(length / s), base, True, s, last).cos_sin_cache
    if p["scaling"] == "ntk":
        return module("ntk_scaling_rope").NTKScalingRotaryEmbedding(
            d, d, length, base, True, s, last).cos_sin_cache
    if p["scaling"] == "dynamic_ntk":
        return module("dynamic_ntk_scaling_rope").DynamicNTKScalingRotaryEmbedding(
            d, d, trained, base, True, s, last).cos_sin_cache
    if p["scaling"] == "yarn":
        return module("yarn_scaling_rope").YaRNScalingRotaryEmbedding(
            d, d, trained, base, True, s, last).cos_sin_cache
    if p["scaling"] == "llama3":
        return module("llama3_rope").Llama3RotaryEmbedding(
            d, d, length, base, True, last, s, p["low_frequency_factor"],
            p["high_frequency_factor"], trained).cos_sin_cache
    table = module("phi3_long_rope_scaled_rope").Phi3LongRoPEScaledRotaryEmbedding(
        d, d, length, trained, base, True, last, p["short_factors"], p["long_factors"])
    return table.long_short_cos_sin_cache[trained:]


# ---- As C++ ----
def number(value):
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def numbers(values):
    """In lines; nine digits are enough for a number of fp32."""
    texts = [f"{value:.9g}" for value in values]
    lines = [", ".join(texts[at:at + 8]) for at in range(0, len(texts), 8)]
    return "{" + ",\n  ".join(lines) + "}"


def initializer(p):
    fields = []
    for name, value in p.items():
        text = (f"Scaling::{value}" if name == "scaling" else
                numbers(value) if isinstance(value, list) else number(value))
        fields.append(f".{name} = {text}")
    return "{" + ", ".join(fields) + "}"


def write(file, versions, meaning, records):
    text = f"// By record.py, with {versions}. {meaning}\n"
    (HERE / file).write_text(text + "".join("{" + record + "},\n" for record in records),
                             encoding="utf-8")


def main(wheel):
    records = []
    for p in OF_TRANSFORMERS:
        frequencies, factor = of_transformers(p)
        assert frequencies.dtype == torch.float32
        records.append(f"{initializer(p)},\n {factor:.17g},\n {numbers(frequencies.tolist())}")
    write("transformers.inc", f"transformers {transformers.__version__} and torch "
          f"{torch.__version__}", "A problem, the attention factor, the frequencies.", records)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        module = vllm_modules(wheel, folder)
        for p in OF_VLLM:
            table = of_vllm(p, module)
            assert table.dtype == torch.float32
            rows = ",\n ".join(f"{{{at}, {numbers(table[at].tolist())}}}" for at in POSITIONS)
            records.append(f"{initializer(p)},\n {{{rows}}}")
    version = pathlib.Path(wheel).name.split("-")[1]
    write("vllm.inc", f"vLLM {version} and torch {torch.__version__}",
          "A problem; positions, with the cosines\n// of all pairs and then the sines.", records)


if __name__ == "__main__":
    main(*sys.argv[1:])
