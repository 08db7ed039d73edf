#!/usr/bin/env python3
"""Reads a build log with ptxas reports (-Xptxas=-v) and fails on what costs speed in silence.

    tools/check_ptxas.py LOG

ptxas prints these as information, so a build that has them succeeds:
  - registers spilled to local memory, for compute capability 8.0 and 9.0. No kernel may, but those
    in MAY_SPILL.
  - wgmma instructions that were serialised (C7510, C7511, C7512, C7520 and others), because an
    accumulator is touched while they run, or a function call or a branch stands between them.
Prints how many kernels it read. None at all is an error: then the log is no such log.
"""
import re
import sys

# Kernels that may spill: an expression for a part of the name, and the reason.
MAY_SPILL: dict[str, str] = {
    "matmul_stream_k": "24 to 44 bytes, of a tile that is stored float by float: once a tile",
    "windowed_backward_one_pass": "8 to 104 bytes: chapter 05's kernel in a loop over the parts",
    "windowed_backward_mma": "4 to 60 bytes, for the same reason",
    "windowed_two_visits":
        "16 to 76 bytes, for the same reason; 56 to 192 with rotation, once a part",
    "windowed_mma": "4 bytes at head dimension 256 on compute capability 8.0",
    "windowed_backward_wgmma": "4 and 12 bytes, of which the loop has none with 128 columns",
    "method_backward_prologue": "100 bytes: `one_pass` has 48, and the keys are rotated back",
    "attention_backward_one_pass":
        "8 to 180 bytes; written without, it was 9 % slower on an H200",
    "attention_interleaved":
        "16 bytes at head dimension 128; written without, it was 3 % slower on an H200",
    "attention_lazy":
        "8 bytes at head dimension 128 on compute capability 8.0",
    "attention_composed":
        "12 bytes at head dimension 128 on compute capability 9.0",
    "attention_backward_composed":
        "4 bytes at head dimension 128 on compute capability 8.0",
    "attention_backward_fused":
        "4 bytes at head dimension 128",
    "attention_backward_warp_tiles":
        "4 to 60 bytes from head dimension 64 on, most at 128 on compute capability 8.0",
    "attention_backward_late_dq": "4 bytes with 128 columns",
    "attention_backward_overlap": "8 bytes with 64 columns: a load an iteration",
    "attention_backward_in_order": "8 and 24 bytes, of the threads that load and send",
    "windowed_persistent": "12 bytes with 64 columns, of the thread that loads: once a tile",
    r"matmul_persistentI\w*Lb0ELb1ELb0EEEv":  # A along m, B along k, not kWhole
        "24 bytes on compute capability 8.0, with bounds of each chunk",
    "layernorm_ends":
        "8 to 68 bytes on compute capability 8.0, with four chunks or more a thread",
    "attention_backward_pipeline":
        "8 to 44 bytes, mostly at the mask's border; of whole tiles at d128 four loads a turn",
}

SPILLS_COUNT_FOR = "sm_80", "sm_90a"

KERNEL = re.compile(r"Compiling entry function '(?P<name>\S+)' for '(?P<architecture>\w+)'")
SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
SERIALISED = re.compile(r"wgmma.*serialized")  # the number says why


def check(lines):
    """Returns the number of kernels and a list of complaints."""
    kernels = 0
    complaints = []
    current = "a function before any kernel"
    for line in lines:
        if kernel := KERNEL.search(line):
            kernels += 1
            current = f"{kernel['name']} for {kernel['architecture']}"
        elif spills := SPILLS.search(line):
            spilled = int(spills["stores"]) + int(spills["loads"])
            counts = current.endswith(SPILLS_COUNT_FOR)
            if spilled and counts and not any(re.search(part, current) for part in MAY_SPILL):
                complaints.append(f"{current} spills {spilled} bytes")
        elif SERIALISED.search(line):
            complaints.append(f"{current}: {line.strip()}")
    if kernels == 0:
        complaints.append("no kernel in the log")
    return kernels, complaints


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as log:
        kernels, complaints = check(log)
    for complaint in complaints:
        print(f"ptxas: {complaint}")
    print(f"ptxas: {kernels} kernels read, {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
