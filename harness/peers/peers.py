#!/usr/bin/env python3
"""Measures the steps of this project beside PyTorch, in one process and in turn.

    python3 harness/peers/peers.py --library build/gpu/harness/c/libtile_c.so --chapter 03
    python3 harness/peers/peers.py --library build/cpu/harness/c/libtile_c.so --check-only

README.md beside this file says what is measured and how."""
import argparse
import sys

import attention
import bench
import cases
import check_only
import measure
import memory
import results
import tile_c


def arguments(words):
    parser = argparse.ArgumentParser(
        description="Measures the steps of this project beside PyTorch.")
    add = parser.add_argument
    add("--library", required=True, help="libtile_c.so, of a GPU build to measure")
    add("--chapter", default="", help="only this one: 03, or 03_softmax")
    add("--case", default="", help="only cases with this text in them, such as 'bf16 rows32768'")
    add("--sweep", action="store_true", help="many row lengths of chapters 03 and 04 instead")
    add("--random", type=int, metavar="SEED",
        help="random row lengths of chapters 03 and 04 and random products of 02 instead")
    add("--steps", nargs="?", const="", metavar="NAMES",
        help="every step whose own kernel takes a case, and not only the best; or the best and "
             "those named, as in pipeline,lazy")
    add("--fa3", action="append", default=[], metavar="FILE",
        help="a library that registers FlashAttention-3's operations; before it, in another --fa3, "
             "what it needs")
    add("--memory", action="store_true",
        help="the memory that attention needs beside its tensors, and no times")
    add("--quick", action="store_true", help="10 repetitions and not 30, in bursts only")
    add("--json", help="merge the rows into this file")
    add("--commit", help="what the rows say of the code's state; needed for --json")
    add("--check-only", action="store_true",
        help="check small sizes against the references, without PyTorch, and time nothing")
    add("--check-peers", action="store_true",
        help="check small sizes, PyTorch's results too, and time nothing")
    given = parser.parse_args(words)
    if given.json and not given.commit:
        parser.error("--json needs --commit")
    if given.json and (given.check_only or given.check_peers or given.memory):
        parser.error("--json is for measurements of time")
    return given


class Unusable(Exception):
    """Why nothing can be run."""


def report(line):
    print(line, flush=True)


def chosen(every, given):
    selected = cases.select(every, given.chapter, given.case)
    if not selected:
        raise Unusable("no case has this --chapter and --case")
    return selected


def steps_beside_the_best(library, selected, names):
    """By chapter. `names` are those of --steps: None without it, and "" for every step."""
    every = {case.chapter: library.steps(case.chapter) for case in selected}
    wanted = {name for name in (names or "").split(",") if name}
    if unknown := wanted.difference(*every.values()):
        raise Unusable(f"--steps: no chapter that is measured has {', '.join(sorted(unknown))}")
    return {chapter: [] if names is None else [step for step in steps if step in wanted or not wanted]
            for chapter, steps in every.items()}


def load_torch(given):
    try:
        import torch
    except ImportError as error:
        raise Unusable(f"this needs PyTorch ({error}); --check-only does not") from error
    bench.set_up(torch)
    if torch.cuda.is_available():
        found = attention.load_flash_attention_3(torch, given.fa3)
        report(f"FlashAttention-3 is {'' if found else 'not '}installed")
    return torch


def attempt(case, work):
    """What `work` gives; None, and a line, if it fails: the other cases go on."""
    try:
        return work()
    except Exception as error:  # whatever a compiler or a driver raises
        report(f"{case.title}: failed: {bench.described(error)}")
        return None


def check_peers(library, given):
    torch = load_torch(given)
    device = "cpu" if library.is_simulated else "cuda"
    selected = chosen(cases.small_cases(), given)
    failed = [case for case in selected
              if not attempt(case, lambda: bench.check_case(torch, library, case, device, report))]
    report(f"{len(selected) - len(failed)} of {len(selected)} cases are right")
    return 1 if failed else 0


def require_gpu(library):
    if library.is_simulated:
        raise Unusable("this library is of the CPU device, whose times and memory say nothing "
                       "about a GPU: use --check-only or --check-peers")


def tell_memory(library, given):
    require_gpu(library)
    torch = load_torch(given)
    for direction in cases.PASSES:
        memory.tell(torch, library, direction, report)
    return 0


def time_all(library, given):
    selected = chosen(cases.all_cases(given.sweep, given.random), given)
    require_gpu(library)
    steps = steps_beside_the_best(library, selected, given.steps)
    torch = load_torch(given)
    card = measure.Card(torch)
    expected = results.Expected()
    gpu = torch.cuda.get_device_name()
    origin = results.Origin(gpu, results.driver_version(), torch.version.cuda,
                            results.marked(given.commit or ""), results.today())
    report(f"{gpu}, driver {origin.driver}, CUDA {origin.cuda}, PyTorch {torch.__version__}")
    failed = void = written = 0
    for case in selected:
        found = attempt(case, lambda: bench.time_case(torch, library, card, case, given.quick,
                                                      steps[case.chapter], report))
        rows, right = found or ([], False)
        failed += not right
        reasons = {row: expected.why_void(row, gpu) for row in rows}
        for row, reason in reasons.items():
            if reason:
                report(f"  void, {row.metric}: {reason}")
        kept = [row for row, reason in reasons.items() if not reason]
        void += len(rows) - len(kept)
        if given.json:  # after each case: what is measured is not lost
            results.merge(given.json, kept, origin)
            written += len(kept)
    report(f"{len(selected)} cases: {failed} failed, {void} rows void, {written} written")
    return 1 if failed else 0


def main(words):
    given = arguments(words)
    try:
        library = tile_c.Library(given.library)
        if given.check_only:
            return check_only.check(library, chosen(cases.small_cases(), given), report)
        if given.check_peers:
            return check_peers(library, given)
        if given.memory:
            return tell_memory(library, given)
        return time_all(library, given)
    except (tile_c.TileError, Unusable, OSError) as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
