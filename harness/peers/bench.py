"""One case: our last step and its peers, checked and then timed in turn."""
import contextlib

import copies
import measure
import norms
import operations
import results

DUTIES = ("burst", "sustained")
PROBLEMS = {"vector_add": operations.VectorAdd, "matmul": operations.Matmul,
            "softmax": operations.Softmax, "layernorm": norms.Norm, "rmsnorm": norms.Norm}


def set_up(torch):
    """Settings of PyTorch that the whole program runs with."""
    import torch._dynamo
    import torch._functorch.config
    torch._dynamo.config.error_on_recompile = True  # it would happen inside a measurement
    # A compiled backward pass that may overwrite what it was given runs only once.
    torch._functorch.config.donated_buffer = False


@contextlib.contextmanager
def compiler_reset(torch):
    """Nothing compiled for a case is there in the next one."""
    try:
        yield
    finally:
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def described(error):
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def checked(problem, library, report):
    """Our step's name and the works whose results are right, ours first. Reports the others;
    without ours there is nothing to compare."""
    step, right = "our step", []
    for name, make in [("ours", lambda: problem.ours(library)), *problem.peers().items()]:
        try:
            work = make()
            message = problem.wrong(work)
            step = library.last_step if name == "ours" else step
        except Exception as error:  # whatever a compiler or a driver raises
            message = described(error)
        if not message:
            right.append(work)
            continue
        report(f"{step if name == 'ours' else name} is not timed: {message}")
        if name == "ours":
            return step, []
    return step, right


def check_case(torch, library, case, device, report):
    """Whether all results are right."""
    with compiler_reset(torch):
        problem = PROBLEMS[case.operation](torch, case, device)
        wrong = []
        checked(problem, library, wrong.append)
        for message in wrong:
            report(f"{case.title}: {message}")
        return not wrong


def time_case(torch, library, card, case, quick, report):
    """The rows of a case, and whether all its results were right."""
    wrong = []
    with compiler_reset(torch):
        problem = PROBLEMS[case.operation](torch, case, "cuda")
        step, right = checked(problem, library, wrong.append)
        for message in wrong:
            report(f"{case.title}: {message}")
        if not right:
            return [], False
        rows = []
        for duty in DUTIES[:1] if quick or case.is_sweep else DUTIES:
            rows += time_duty(torch, card, case, step, right, duty, quick, report)
        return rows, not wrong


def time_duty(torch, card, case, step, right, duty, quick, report):
    ceilings = {} if case.is_arithmetic else copies.works(torch, case.amount)
    # The order of ../bench.cpp: copies, peers, ours.
    runs = dict(ceilings) | {work.name: work.run for work in right[1:]} | {"ours": right[0].run}
    works = list(runs.values())
    planned = measure.plan(measure.time_once(card, works), quick)
    timings = dict(zip(runs, measure.time_in_turn(card, works, planned, duty)))
    peers = {work.name: timings[work.name] for work in right[1:]}
    ceiling, how = None, ""
    if ceilings:
        fastest = min(ceilings, key=lambda name: timings[name].median)
        ceiling = results.rate(case, timings[fastest].median)
        peers = {"copy": timings[fastest]} | peers
        how = f"; the copy is {fastest}"
    ours = timings["ours"]
    report(f"{case.title}, {duty}: {ours.repetitions} times, {ours.sm_clock:.0f} MHz{how}")
    for name, timing in [(step, ours), *peers.items()]:
        ratio = "" if timing is ours else f"  {timing.median / ours.median:6.3f} x"
        report(f"  {name:24s} {timing.median:9.4f} ms {results.rate(case, timing.median):8.2f} "
               f"{case.unit}{ratio}")
    return [results.row(case, step, duty, ours, name, timing, ceiling)
            for name, timing in peers.items()]
