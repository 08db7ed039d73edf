"""One case: our best step or all of them, and the peers, checked and then timed in turn."""
import contextlib

import attention
import cases
import copies
import measure
import norms
import operations
import results
import rotary
import tile_c
import windowed

DUTIES = ("burst", "sustained")
# By a step of the other direction, or one that does not take the problem.
DECLINED = (tile_c.INVALID_ARGUMENT, tile_c.UNSUPPORTED)
APART = 4  # steps so many times slower than the fastest are timed apart from it
PROBLEMS = {"vector_add": operations.VectorAdd, "matmul": operations.Matmul,
            "softmax": operations.Softmax, "layernorm": norms.Norm, "rmsnorm": norms.Norm,
            "attention": attention.Attention, "rotary": rotary.Rotary,
            "windowed_attention": windowed.WindowedAttention,
            "windowed_rotary_attention": windowed.WindowedRotaryAttention}


def problem_of(torch, case, device):
    of_pass = PROBLEMS[case.operation]
    if case.direction == cases.BOTH:
        return operations.BothPasses(of_pass, torch, case, device)
    return of_pass(torch, case, device)


def set_up(torch):
    """Settings of PyTorch that the whole program runs with."""
    import torch._dynamo
    import torch._functorch.config
    torch._dynamo.config.error_on_recompile = True  # it would happen inside a measurement
    # It would take time that no kernel takes.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # A compiled backward pass that may overwrite what it was given runs only once.
    torch._functorch.config.donated_buffer = False


@contextlib.contextmanager
def compiler_reset(torch):
    """Discards the code compiled for a case before the next one."""
    try:
        yield
    finally:
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def described(error):
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def checked(problem, library, report, steps=()):
    """The works whose results are right: ours by step, the best first, and the peers'. Reports the
    others; without our best there is nothing to compare. `steps` are those that are wanted beside
    the best."""
    def right(name, make, may_decline=False):
        """The work, or None."""
        try:
            work = make()
            message = problem.wrong(work)
        except Exception as error:  # whatever a compiler or a driver raises
            if may_decline and getattr(error, "status", None) in DECLINED:
                return None
            message = described(error)
        if message:
            report(f"{name()} is not timed: {message}")
        return None if message else work

    def our_step():
        return problem.step_that_ran(library) or "our step"

    best = right(our_step, lambda: problem.ours(library))
    if not best:
        return {}, []
    ours = {problem.step_that_ran(library): best}
    for step in steps:
        if step in ours:
            continue
        problem.step = step
        work = right(our_step, lambda: problem.ours(library), may_decline=True)
        if work and library.last_step == step:  # not an earlier one's kernel
            ours[step] = work
    peers = [right(lambda: name, make) for name, make in problem.peers().items()]
    return ours, [work for work in peers if work]


def check_case(torch, library, case, device, report):
    """Whether all results of a case are right."""
    with compiler_reset(torch):
        problem = problem_of(torch, case, device)
        wrong = []
        checked(problem, library, wrong.append)
        for message in wrong:
            report(f"{case.title}: {message}")
        return not wrong


def time_case(torch, library, card, case, quick, steps, report):
    """The rows of a case, and whether all its results were right."""
    wrong = []
    with compiler_reset(torch):
        problem = problem_of(torch, case, "cuda")
        if case.direction == cases.BOTH:
            steps = ()  # of which a pass has its own
        ours, peers = checked(problem, library, wrong.append, steps)
        for message in wrong:
            report(f"{case.title}: {message}")
        if not ours:
            return [], False
        rows = []
        for duty in DUTIES[:1] if quick or case.is_sweep else DUTIES:
            rows += time_duty(torch, card, case, ours, peers, duty, quick, report)
        return rows, not wrong


def time_together(card, case, runs, steps, quick, duty):
    """Timings by name. Slow steps of ours are timed apart, the best, which is the first, never."""
    once = dict(zip(runs, measure.time_once(card, list(runs.values()))))
    fastest = min(once[step] for step in steps)
    apart = [step for step in steps[1:] if once[step] > APART * fastest]
    timings = {}
    for names in [[name for name in runs if name not in apart], *([step] for step in apart)]:
        # A sweep is long, and mostly of small products: it goes without the pauses of large ones.
        planned = measure.plan([once[name] for name in names], quick,
                               case.is_arithmetic and not case.is_sweep)
        timings |= zip(names, measure.time_in_turn(card, [runs[name] for name in names], planned,
                                                   duty))
    return timings


def time_duty(torch, card, case, ours, peers, duty, quick, report):
    ceilings = {} if case.is_arithmetic else copies.works(torch, case.amount)
    # The order of ../bench.cpp: copies, peers, ours.
    runs = dict(ceilings) | {work.name: work.run for work in peers}
    runs |= {step: work.run for step, work in ours.items()}
    timings = time_together(card, case, runs, list(ours), quick, duty)
    of_peers = {work.name: timings[work.name] for work in peers}
    ceiling, how = None, ""
    if ceilings:
        fastest = min(ceilings, key=lambda name: timings[name].median)
        ceiling = results.rate(case, timings[fastest].median)
        of_peers = {"copy": timings[fastest]} | of_peers
        how = f"; the copy is {fastest}"
    best = timings[next(iter(ours))]
    report(f"{case.title}, {duty}: {best.repetitions} times, {best.sm_clock:.0f} MHz{how}")
    for name, timing in [(step, timings[step]) for step in ours] + list(of_peers.items()):
        ratio = "" if timing is best else f"  {timing.median / best.median:6.3f} x"
        report(f"  {name:24s} {timing.median:9.4f} ms {results.rate(case, timing.median):8.2f} "
               f"{case.unit}{ratio}")
    return [results.row(case, step, duty, timings[step], name, timing, ceiling)
            for step in ours for name, timing in of_peers.items()]
