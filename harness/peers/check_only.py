"""Checks every operation of libtile_c.so in small sizes, without PyTorch: against its own
references in double precision, which take numbers of the host."""
import ctypes
import math
import random
from typing import NamedTuple

import tile_c
import values
from cases import ATTENTION_INPUTS
from rotary import frequencies

U = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
HOST = {"int32": ctypes.c_int32}  # other numbers are doubles there


class Call(NamedTuple):
    """An operation and its arguments. Numbers are those that the kernel gets: rounded."""
    operation: str
    fields: dict
    inputs: dict   # name -> (type, numbers)
    outputs: dict  # name -> (type, count)


def rounded(kind, numbers):
    return values.from_bytes(kind, values.to_bytes(kind, numbers))


def normal(case, count):
    return case.type, rounded(case.type, [random.gauss(0, 1) for _ in range(count)])


def expected(library, call):
    """What the reference computes, by output."""
    if call.operation == "vector_add":  # has no reference: there is nothing to get wrong
        return {"c": [a + b for a, b in zip(call.inputs["a"][1], call.inputs["b"][1])]}
    inputs = {name: (HOST.get(kind, ctypes.c_double) * len(numbers))(*numbers)
              for name, (kind, numbers) in call.inputs.items()}
    outputs = {name: (ctypes.c_double * count)() for name, (_, count) in call.outputs.items()}
    library.run(f"{call.operation}_reference", "fp64", **call.fields, **inputs, **outputs)
    return {name: list(numbers) for name, numbers in outputs.items()}


def computed(library, case, call):
    """What the kernels compute. Outputs are NaN before."""
    inputs = {name: library.memory(values.to_bytes(kind, numbers))
              for name, (kind, numbers) in call.inputs.items()}
    outputs = {name: library.memory(b"\xff" * (count * tile_c.BYTES[kind]))
               for name, (kind, count) in call.outputs.items()}
    pointers = {name: memory.pointer for name, memory in {**inputs, **outputs}.items()}
    if hasattr(tile_c.STRUCTS[call.operation], "workspace"):
        count = library.workspace_bytes(call.operation, case.type, **call.fields)
        workspace = library.memory(b"\xff" * count)
        pointers["workspace"] = workspace.pointer
        if hasattr(tile_c.STRUCTS[call.operation], "workspace_bytes"):
            pointers["workspace_bytes"] = count
    library.run(call.operation, case.type, **call.fields, **pointers)
    library.synchronize()
    return {name: values.from_bytes(call.outputs[name][0], memory.read())
            for name, memory in outputs.items()}


def difference(name, kind, terms, got, wanted, rounded_factors=0):
    """What is wrong, or "". Two roundings to the type, and those of sums in fp32, relative to the
    largest result; so are those of a sum's factors, which add up to that many of the largest result
    (they differ in sign). NaN never passes."""
    unit = U["fp32"] * (64 + 4 * terms**0.5) + rounded_factors * U[kind]
    slack = unit * max((abs(each) for each in wanted if math.isfinite(each)), default=0)
    for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
        bound = 2 * U[kind] * abs(other) + slack if math.isfinite(other) else 0
        if one != other and not abs(one - other) <= bound:
            return f"{name}[{i}] is {one:.7g} where it should be {other:.7g} within {bound:.2g}"
    return ""


def vector_add(library, case):
    n, = case.sizes
    return Call("vector_add", {"n": n}, {"a": normal(case, n), "b": normal(case, n)},
                {"c": (case.type, n)})


def matmul(library, case):
    m, n, k = case.sizes
    return Call("matmul", dict(m=m, n=n, k=k, transpose_b=int(case.type == "e4m3")),
                {"a": normal(case, m * k), "b": normal(case, k * n)},
                {"c": (case.result_type, m * n)})


def softmax(library, case):
    rows, cols = case.sizes
    fields, count = dict(rows=rows, cols=cols), rows * cols
    output = case.type, count
    forward = Call("softmax", fields, {"x": normal(case, count)}, {"y": output})
    if case.direction == "forward":
        return forward
    y = case.type, rounded(case.type, expected(library, forward)["y"])
    return Call("softmax_backward", fields, {"y": y, "dy": normal(case, count)}, {"dx": output})


def layernorm(library, case):
    rows, cols = case.sizes
    is_rms = case.operation == "rmsnorm"
    fields = dict(norm=tile_c.RMS_NORM if is_rms else tile_c.LAYER_NORM, rows=rows, cols=cols)
    matrix, row, a_number_a_row = (case.type, rows * cols), (case.type, cols), ("fp32", rows)
    inputs = {name: normal(case, count) for name, count in
              (("x", rows * cols), ("gamma", cols), ("beta", cols))}
    forward = Call("layernorm", fields, without(is_rms, "beta", inputs), without(
        is_rms, "mean", {"y": matrix, "mean": a_number_a_row, "rstd": a_number_a_row}))
    if case.direction == "forward":
        return forward
    found = expected(library, forward)
    saved = {name: ("fp32", rounded("fp32", found[name])) for name in ("mean", "rstd")
             if name in found}
    return Call("layernorm_backward", fields,
                without(True, "beta", inputs) | saved | {"dy": normal(case, rows * cols)},
                without(is_rms, "dbeta", {"dx": matrix, "dgamma": row, "dbeta": row}))


def attention(library, case):
    batch, heads, kv_heads, queries, keys, head_dim, _ = case.sizes
    fields = case.attention_fields
    of_queries, of_keys = batch * queries * heads * head_dim, batch * keys * kv_heads * head_dim
    counts = {name: of_queries if name[0] == "q" else of_keys
              for name in ATTENTION_INPUTS[case.operation].split()}
    inputs = {name: normal(case, count) for name, count in counts.items()}
    if case.operation == "windowed_rotary_attention":
        inputs |= windowed_tables(library, case)
    if case.has_lengths:
        inputs |= {name: ("int32", length) for name, length in
                   zip(("query_lengths", "key_lengths"), case.lengths)}
    output, lse = (case.result_type, of_queries), ("fp32", batch * heads * queries)
    forward = Call(case.operation, fields, inputs, {"o": output, "lse": lse})
    if case.direction == "forward":
        return forward
    found = expected(library, forward)
    saved = {name: (kind, rounded(kind, found[name]))
             for name, (kind, _) in forward.outputs.items()}
    return Call(case.operation + "_backward", fields,
                inputs | saved | {"dout": normal(case, of_queries)},
                {"d" + name: (case.type, count) for name, count in counts.items()})


def windowed_tables(library, case):
    """The library's own; its reference has only the frequencies."""
    *_, keys, head_dim, _ = case.sizes
    turns = frequencies(head_dim)
    tables = {name: (ctypes.c_float * (3 * keys * len(turns)))() for name in ("cos", "sin")}
    library.run("windowed_rotary_tables", None, far=tile_c.FAR_REROPE, window=case.far,
                rotary_dim=head_dim, positions=keys,
                frequencies=(ctypes.c_double * len(turns))(*turns), **tables)
    return {name: ("fp32", list(table)) for name, table in tables.items()} | {
        "frequencies": ("fp64", turns)}


def rotary(library, case):
    batch, length, heads, kv_heads, head_dim, interleaved = case.sizes
    rotary_dim = head_dim // 4 * 2  # of a part of each row
    fields = dict(batch=batch, length=length, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                  rotary_dim=rotary_dim, interleaved=interleaved, table_positions=length,
                  backward=int(case.direction == "backward"))
    turns = frequencies(rotary_dim)
    angles = [position * turn for position in range(length) for turn in turns]
    of_q, of_k = (batch * length * count * head_dim for count in (heads, kv_heads))
    return Call("rotary", fields,
                {"q": normal(case, of_q), "k": normal(case, of_k), "frequencies": ("fp64", turns),
                 "cos": ("fp32", rounded("fp32", [math.cos(angle) for angle in angles])),
                 "sin": ("fp32", rounded("fp32", [math.sin(angle) for angle in angles]))},
                {"q_out": (case.type, of_q), "k_out": (case.type, of_k)})


def without(really, name, named):
    return {key: value for key, value in named.items() if not (really and key == name)}


CALLS = {"vector_add": vector_add, "matmul": matmul, "softmax": softmax, "layernorm": layernorm,
         "rmsnorm": layernorm, "attention": attention, "windowed_attention": attention,
         "windowed_rotary_attention": attention, "rotary": rotary}
# Attention's weights and their gradients are rounded to the type between two products, and rows
# when they have been rotated.
ROUNDED_FACTORS = dict.fromkeys(ATTENTION_INPUTS, 4)


def wrong(library, case):
    """What is wrong with the results of a case; "" if nothing is."""
    random.seed(case.title)
    call = CALLS[case.operation](library, case)
    wanted, got = expected(library, call), computed(library, case, call)
    for name, (kind, _) in call.outputs.items():
        factors = ROUNDED_FACTORS.get(case.operation, 0)
        if case.type == "e4m3":  # sums keep 14 bits: off by less than a rounding to C's type
            factors = 1
            if case.operation == "attention":  # weights have 4 bits, and scores those of sums
                factors = (2.0**-4 if name == "o" else 2.0**-8) / U[kind]
        if case.operation == "windowed_rotary_attention":  # lse too is that of rounded rows
            factors *= U[case.type] / U[kind]
        message = difference(name, kind, max(case.sizes), got[name], wanted[name], factors)
        if message:
            return message
    return ""


def check(library, cases, report):
    """The exit status. A GPU may lack what a type needs; the CPU device has everything."""
    report(f"{library.device_name}: small sizes against the references in double precision")
    failed = unsupported = 0
    for case in cases:
        lacking, step = False, ""
        try:
            message = wrong(library, case)
            step = f", by {library.last_step}"
        except tile_c.TileError as error:
            message = str(error)
            lacking = error.status == tile_c.UNSUPPORTED and not library.is_simulated
        unsupported += lacking
        failed += bool(message) and not lacking
        report(f"  {case.title}{step}: {message or 'right'}")
    right = len(cases) - failed - unsupported
    report(f"{right} of {len(cases)} cases are right, {failed} failed, {unsupported} are not "
           "supported by this GPU")
    return 1 if failed or not right else 0
