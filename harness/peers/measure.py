"""Times on a GPU, taken as ../measure.hpp says, with two differences. PyTorch may need longer to
start work than the GPU to do it, so the GPU is held back until the host is ahead of it, and an
execution that it had to wait for is not counted. Products draw more power than a card may take for
long, and it lowers its clock: their bursts are shorter and the pauses longer, and sustained load
begins after 2 s."""
import time
from typing import NamedTuple

CLEAR_BYTES = 256 << 20  # more than any card's L2
FEWEST, MOST, QUICK = 3, 30, 10  # repetitions
WORK_MS, BURST_MS = 400, 300
PAUSE_S, HEATING_S = 0.2, 0.5
PRODUCTS_BURST, PRODUCTS_PAUSE_S, PRODUCTS_HEATING_S = 10, 2, 2  # of attention too
ROUNDS_AHEAD = 2      # that heating enqueues before it waits
MOST_TRIES = 4        # a repetition is tried so often on average
HOLD_MARGIN = 1.5
LONGEST_HOLD_MS = 400
CLOCK_CYCLES = (40_000, 440_000)  # the difference takes 0.2 ms


class Timing(NamedTuple):
    median: float  # milliseconds, as are the next two
    low: float     # a tenth of the repetitions was faster
    high: float    # a tenth was slower
    repetitions: int
    sm_clock: float  # MHz, right after the last repetition


class TooLate(Exception):
    """The host starts work more slowly than the GPU does it, whatever is tried."""


def summary(times, sm_clock):
    times = sorted(times)

    def at(share):
        return times[int(share * (len(times) - 1) + 0.5)]
    return Timing(at(0.5), at(0.1), at(0.9), len(times), sm_clock)


class Plan(NamedTuple):
    repetitions: int
    burst: int                  # calls between two pauses
    pause: float = PAUSE_S      # seconds, before each burst
    heating: float = HEATING_S  # seconds of the same work before sustained load


def plan(milliseconds, quick=False, is_arithmetic=False):
    """30 repetitions, or as many as take 0.4 s for each work, but at least 3; bursts of 0.3 s, of
    products at most 10 of each work. `milliseconds` are those of one execution of each work."""
    whole = sum(milliseconds)
    repetitions = int(min(max(WORK_MS * len(milliseconds) / whole, FEWEST),
                          QUICK if quick else MOST))
    burst = int(min(max(BURST_MS / whole, 1), repetitions))
    if is_arithmetic:
        return Plan(repetitions, min(burst, PRODUCTS_BURST), PRODUCTS_PAUSE_S, PRODUCTS_HEATING_S)
    return Plan(repetitions, burst)


class Interval(NamedTuple):
    start: object
    end: object
    in_time: bool  # all of the work was enqueued when the GPU came to it


def enqueue(card, work):
    """One execution with the cache cleared before it. Does not wait."""
    card.clear_cache()
    start = card.record()
    work()
    in_time = not card.has_passed(start)
    return Interval(start, card.record(), in_time)


def time_once(card, works):
    """Milliseconds of one execution of each, to plan with. The second one: the first may load
    code."""
    for work in works:
        work()
    card.synchronize()
    intervals = [enqueue(card, work) for work in works]
    card.synchronize()
    return [card.elapsed(interval.start, interval.end) for interval in intervals]


def heat(card, works, seconds):
    """Repeats the same work for this long. The queue is not empty at the end."""
    ends = []
    stop = card.now() + seconds
    while card.now() < stop:
        ends.append([enqueue(card, work) for work in works][-1].end)
        if len(ends) > ROUNDS_AHEAD:
            card.wait_for(ends[-1 - ROUNDS_AHEAD])


class Pace:
    """How long the host takes to enqueue a round and the GPU to do it, and so how long the GPU must
    be held back for the host to stay ahead."""

    def __init__(self, card, works):
        card.synchronize()
        begin = card.now()
        intervals = [enqueue(card, work) for work in works]
        self.host = (card.now() - begin) * 1e3
        card.synchronize()
        # From the first start on, without the first clearing of the cache: too short by that.
        self.gpu = card.elapsed(intervals[0].start, intervals[-1].end)
        self._factor = HOLD_MARGIN

    def hold(self, rounds):
        """Milliseconds."""
        ahead = self.host + max(0, self.host - self.gpu) * (rounds - 1)
        return min(self._factor * ahead, LONGEST_HOLD_MS)

    def was_late(self):
        self._factor *= 2


def time_in_turn(card, works, plan, duty):
    """Times works in turn, one execution of each at a time, so that all see the same card. `duty`
    is "burst", after a pause and with another one between bursts, or "sustained", after heating by
    the same work. A tenth as many rounds go before, unmeasured."""
    for _ in range(max(1, plan.repetitions // 10)):
        pace = Pace(card, works)
    if duty == "sustained":
        heat(card, works, plan.heating)
    times = [[] for _ in works]
    tries = 0
    while (missing := plan.repetitions - min(map(len, times))) > 0:
        if tries >= MOST_TRIES * plan.repetitions:
            raise TooLate("the host starts work more slowly than the GPU does it")
        rounds = min(missing, plan.burst if duty == "burst" else plan.repetitions)
        tries += rounds
        if duty == "burst":
            card.synchronize()
            card.sleep(plan.pause)
        card.hold(pace.hold(rounds))
        intervals = [[enqueue(card, work) for work in works] for _ in range(rounds)]
        clock = card.start_clock()
        card.synchronize()
        sm_clock = clock()
        for done in intervals:
            for i, interval in enumerate(done):
                if interval.in_time and len(times[i]) < plan.repetitions:
                    times[i].append(card.elapsed(interval.start, interval.end))
        if not all(interval.in_time for done in intervals for interval in done):
            pace.was_late()
    return [summary(each, sm_clock) for each in times]


class Card:
    """The GPU that PyTorch uses, its current stream, and time."""
    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)

    def __init__(self, torch):
        self._torch = torch
        # Read, not written: lines left dirty would be written back within the time measured.
        self._cache = torch.rand(CLEAR_BYTES // 4, device="cuda")
        self._sink = torch.empty((), device="cuda")

    def clear_cache(self):
        self._torch.sum(self._cache, 0, out=self._sink)

    def record(self):
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def has_passed(self, event):
        return event.query()

    def wait_for(self, event):
        event.synchronize()

    def elapsed(self, start, end):
        return start.elapsed_time(end)

    def synchronize(self):
        self._torch.cuda.synchronize()

    def hold(self, milliseconds):
        """Keeps the GPU from what is enqueued next, by one thread that counts cycles."""
        cycles = int(milliseconds * 2e6)
        if cycles > 0:
            self._torch.cuda._sleep(cycles)

    def start_clock(self):
        """Enqueues two counts of cycles; the difference of their times is without what a launch
        costs. Gives a function that says MHz once they are done."""
        events = [self.record()]
        for cycles in CLOCK_CYCLES:
            self._torch.cuda._sleep(cycles)
            events.append(self.record())

        def megahertz():
            short, long = (self.elapsed(*events[i:i + 2]) for i in range(2))
            return (CLOCK_CYCLES[1] - CLOCK_CYCLES[0]) / (long - short) * 1e-3
        return megahertz
