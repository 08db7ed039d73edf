#!/usr/bin/env python3
"""Times on a card that is simulated: a clock for the host and one for the GPU. Run by CI."""
import unittest

import measure


class FakeCard:
    """A GPU with one queue. Clearing the cache takes it `clear` milliseconds; starting anything
    takes the host `launch`."""

    def __init__(self, clear=0.1, launch=0.01):
        self.clear, self.launch = clear, launch
        self.host = self.gpu = 0.0  # milliseconds: now, and when the queue will be empty
        self.log = []
        self.slept = self.held = 0.0

    def enqueue(self, host, gpu):
        self.host += host
        self.gpu = max(self.gpu, self.host) + gpu

    def work(self, name, gpu, host=None):
        def run():
            self.log.append(name)
            self.enqueue(self.launch if host is None else host, gpu)
        return run

    def now(self):
        return self.host / 1e3

    def sleep(self, seconds):
        self.slept += seconds
        self.host += seconds * 1e3

    def clear_cache(self):
        self.log.append("clear")
        self.enqueue(self.launch, self.clear)

    def record(self):
        self.enqueue(self.launch, 0)
        return self.gpu

    def has_passed(self, event):
        return event <= self.host

    def wait_for(self, event):
        self.host = max(self.host, event)

    def elapsed(self, start, end):
        return end - start

    def synchronize(self):
        self.host = max(self.host, self.gpu)

    def hold(self, milliseconds):
        self.held += milliseconds
        self.enqueue(self.launch, milliseconds)

    def start_clock(self):
        return lambda: 1980.0


class Summary(unittest.TestCase):
    def test_median_and_tenths_are_those_of_the_benchmark_in_cpp(self):
        times = [float(i) for i in range(30)]
        timing = measure.summary(reversed(times), 1980)
        # static_cast<std::size_t>(share * 29 + 0.5)
        self.assertEqual((timing.median, timing.low, timing.high), (15, 3, 26))
        self.assertEqual((timing.repetitions, timing.sm_clock), (30, 1980))

    def test_one_time_is_everything(self):
        self.assertEqual(measure.summary([2.0], 1)[:3], (2, 2, 2))


class Planning(unittest.TestCase):
    def test_short_works_have_thirty_repetitions_in_one_burst(self):
        self.assertEqual(measure.plan([0.1, 0.2]), measure.Plan(30, 30))

    def test_long_works_have_fewer(self):
        self.assertEqual(measure.plan([40.0, 60.0]), measure.Plan(8, 3))
        self.assertEqual(measure.plan([1000.0]), measure.Plan(3, 1))

    def test_quick_has_ten_at_most(self):
        self.assertEqual(measure.plan([0.1, 0.2], quick=True), measure.Plan(10, 10))
        self.assertEqual(measure.plan([1000.0], quick=True), measure.Plan(3, 1))

    def test_products_have_short_bursts_and_a_long_rest_or_heating(self):
        self.assertEqual(measure.plan([0.1, 0.2], is_arithmetic=True), measure.Plan(30, 10, 2, 2))
        self.assertEqual(measure.plan([40.0, 60.0], is_arithmetic=True), measure.Plan(8, 3, 2, 2))


class InTurn(unittest.TestCase):
    def time(self, card, works, duty="burst", plan=measure.Plan(30, 30)):
        return measure.time_in_turn(card, works, plan, duty)

    def test_works_alternate_and_each_has_a_clear_cache(self):
        card = FakeCard()
        self.time(card, [card.work("a", 0.2), card.work("b", 0.3)])
        log = card.log
        self.assertEqual(log[:4] * (len(log) // 4), log)
        self.assertEqual(log[:4], ["clear", "a", "clear", "b"])

    def test_times_are_those_of_the_gpu(self):
        for duty in ("burst", "sustained"):
            card = FakeCard()
            found = self.time(card, [card.work("a", 0.2), card.work("b", 0.3)], duty)
            self.assertAlmostEqual(found[0].median, 0.2)
            self.assertAlmostEqual(found[1].high, 0.3)
            self.assertEqual([timing.repetitions for timing in found], [30, 30])

    def test_a_slow_host_does_not_lengthen_times(self):
        """Without the hold, the GPU would wait between the start event and the work."""
        for duty in ("burst", "sustained"):
            card = FakeCard()
            found = self.time(card, [card.work("a", 0.02, host=0.3), card.work("b", 0.03)], duty)
            self.assertAlmostEqual(found[0].high, 0.02)
            self.assertAlmostEqual(found[1].high, 0.03)
            self.assertGreater(card.held, 0)

    def test_executions_that_the_gpu_waited_for_are_not_counted(self):
        card = FakeCard()
        calls = []

        def sometimes_slow():
            calls.append(0)
            card.enqueue(50 if len(calls) % 7 == 0 else 0.01, 0.2)
        found, = self.time(card, [sometimes_slow])
        self.assertAlmostEqual(found.high, 0.2)
        self.assertEqual(found.repetitions, 30)
        self.assertGreater(len(calls), 33)

    def test_a_host_that_is_always_late_is_an_error(self):
        card = FakeCard()
        card.hold = lambda milliseconds: None
        with self.assertRaises(measure.TooLate):
            self.time(card, [card.work("a", 0.02, host=1)])

    def test_bursts_have_a_pause_before_each(self):
        for plan in (measure.Plan(9, 3), measure.Plan(9, 3, pause=2)):
            card = FakeCard()
            self.time(card, [card.work("a", 30)], plan=plan)
            self.assertAlmostEqual(card.slept, 3 * plan.pause)

    def test_sustained_load_is_the_same_work_before_and_no_pause(self):
        for plan in (measure.Plan(10, 10), measure.Plan(10, 10, heating=2)):
            card = FakeCard()
            self.time(card, [card.work("a", 1)], "sustained", plan)
            self.assertEqual(card.slept, 0)
            self.assertGreater(len(card.log) / 2 - 11, plan.heating * 1e3 / 1.1 - 3)

    def test_one_execution_is_timed_to_plan_with(self):
        card = FakeCard()
        times = measure.time_once(card, [card.work("a", 0.2), card.work("b", 5)])
        self.assertAlmostEqual(times[0], 0.2)
        self.assertAlmostEqual(times[1], 5)


if __name__ == "__main__":
    unittest.main()
