#!/usr/bin/env python3
"""The program without a GPU and without PyTorch: arguments, what is timed, what is written. Run by
CI."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import bench
import cases
import measure
import memory
import operations
import peers
import results
import tile_c
from test_measure import FakeCard

SOFTMAX = cases.Case("03_softmax", "softmax", "fp32", (32768, 1024))


def run(*words):
    """The exit status and what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = peers.main(["--library", "lib.so", *words])
        except SystemExit as error:
            status = error.code
    return status, out.getvalue()


class FakeLibrary:
    is_simulated = False
    last_step = "registers"

    def __init__(self, path="lib.so"):
        self.path = path

    def steps(self, chapter):
        return ["naive", "shared", "of_the_other_pass", "declines", "shuffles", "registers"]


class Arguments(unittest.TestCase):
    def test_results_need_a_commit_and_a_measurement(self):
        self.assertEqual(run("--json", "a.json")[0], 2)
        self.assertEqual(run("--json", "a.json", "--commit", "a", "--check-only")[0], 2)
        for other in ("--check-peers", "--memory"):
            self.assertEqual(run("--json", "a.json", "--commit", "a", other)[0], 2)

    def test_a_library_that_does_not_load_is_named(self):
        status, text = run("--check-only")
        self.assertEqual(status, 2)
        self.assertIn("lib.so", text)

    def test_steps_are_all_or_those_named(self):
        def steps(names):
            return peers.steps_beside_the_best(FakeLibrary(), [SOFTMAX], names)[SOFTMAX.chapter]
        self.assertEqual(steps(None), [])
        self.assertEqual(steps(""), FakeLibrary().steps(SOFTMAX.chapter))
        self.assertEqual(steps("shared,naive"), ["naive", "shared"])
        with self.assertRaisesRegex(peers.Unusable, "--steps: .* fused"):
            steps("shared,fused")

    @mock.patch.object(tile_c, "Library", FakeLibrary)
    def test_no_case_is_an_error(self):
        for words in (["--chapter", "99"], ["--case", "fp63"], ["--check-only", "--case", "fp63"]):
            status, text = run(*words)
            self.assertEqual(status, 2)
            self.assertIn("no case", text)

    @mock.patch.object(tile_c, "Library", FakeLibrary)
    def test_the_cpu_device_is_not_timed(self):
        for words in ([], ["--memory"]):
            with mock.patch.object(FakeLibrary, "is_simulated", True):
                status, text = run(*words)
            self.assertEqual(status, 2)
            self.assertIn("CPU device", text)


class FakeProblem:
    """Works of these names with these times; those in `bad` have wrong results. Earlier steps take
    longer, and the kernel of "shuffles" is that of "shared"."""
    EARLIER = {"naive": 7.0, "shared": 3.0, "shuffles": 3.0}

    def __init__(self, card, times, bad=(), case=None):
        self._card, self.case, self.step = card, case, None
        self._works = [operations.Work(name, card.work(name, time), None)
                       for name, time in times.items()]
        self._bad = bad

    def ours(self, library):
        if not self.step:
            return self._works[0]
        if self.step not in self.EARLIER:
            raise tile_c.TileError("step", tile_c.UNSUPPORTED if self.step == "declines"
                                   else tile_c.INVALID_ARGUMENT)
        library.last_step = "shared" if self.step == "shuffles" else self.step
        return operations.Work(self.step, self._card.work(self.step, self.EARLIER[self.step]), None)

    def step_that_ran(self, library):
        return library.last_step

    def peers(self):
        return {work.name: lambda work=work: work for work in self._works[1:]}

    def wrong(self, work):
        if "fails" in self._bad and work.name == "torch":
            raise RuntimeError("out of memory")
        return "y is 7" if work.name in self._bad else ""


class TimingACase(unittest.TestCase):
    TIMES = {"ours": 1.0, "torch": 2.0, "torch.compile": 0.5}

    def time(self, case=SOFTMAX, bad=(), quick=False, every_step=False):
        self.card, self.lines = FakeCard(), []
        torch = mock.MagicMock()
        copies = {"copy_": self.card.work("copy_", 0.9),
                  "cudaMemcpyAsync": self.card.work("cudaMemcpyAsync", 0.8)}
        problem = FakeProblem(self.card, self.TIMES, bad, case)
        with mock.patch.dict(bench.PROBLEMS, {case.operation: lambda *_: problem}), \
                mock.patch("bench.copies.works", lambda *_: copies):
            library = FakeLibrary()
            return bench.time_case(torch, library, self.card, case, quick,
                                   library.steps("03") if every_step else (), self.lines.append)

    def test_rows_of_all_peers_in_both_duties(self):
        rows, right = self.time()
        self.assertTrue(right)
        self.assertEqual([(row.peer, row.metric) for row in rows],
                         [(peer, f"bandwidth {duty}") for duty in ("burst", "sustained")
                          for peer in ("copy", "torch", "torch.compile")])
        for row, ratio in zip(rows, (0.8, 2.0, 0.5)):
            self.assertAlmostEqual(row.ratio, ratio)
            self.assertEqual(row.step, "registers")
            self.assertAlmostEqual(row.ceiling, SOFTMAX.amount / 0.8e-3 / 1e12)
        self.assertIn("cudaMemcpyAsync", self.lines[0])

    def test_works_alternate_one_execution_at_a_time(self):
        self.time(quick=True)
        log = [name for name in self.card.log if name != "clear"]
        order = ["copy_", "cudaMemcpyAsync", "torch", "torch.compile", "ours"]
        self.assertEqual(log, order * (len(log) // 5))

    def test_a_wrong_peer_is_never_run_again(self):
        rows, right = self.time(bad=["torch"])
        self.assertFalse(right)
        self.assertEqual({row.peer for row in rows}, {"copy", "torch.compile"})
        self.assertNotIn("torch", self.card.log)
        self.assertIn("torch is not timed: y is 7", self.lines[0])

    def test_a_peer_that_fails_leaves_the_others(self):
        rows, right = self.time(bad=["fails"])
        self.assertFalse(right)
        self.assertEqual({row.peer for row in rows}, {"copy", "torch.compile"})
        self.assertIn("torch is not timed: RuntimeError: out of memory", self.lines[0])

    def test_our_wrong_result_ends_the_case(self):
        rows, right = self.time(bad=["ours"])
        self.assertEqual((rows, right, self.card.log), ([], False, []))
        self.assertIn("registers is not timed: y is 7", self.lines[0])

    def test_every_step_whose_own_kernel_takes_the_case_has_rows_beside_each_peer(self):
        rows, right = self.time(every_step=True)
        self.assertTrue(right)
        self.assertEqual([(row.step, row.peer) for row in rows if "burst" in row.metric],
                         [(step, peer) for step in ("registers", "naive", "shared")
                          for peer in ("copy", "torch", "torch.compile")])
        for row in rows:
            if row.peer == "torch":
                ours = {"registers": 1.0} | FakeProblem.EARLIER
                self.assertAlmostEqual(row.ratio, 2.0 / ours[row.step])

    def test_steps_that_are_much_slower_are_timed_apart(self):
        self.time(every_step=True, quick=True)
        log = [name for name in self.card.log if name != "clear"]
        together = ["copy_", "cudaMemcpyAsync", "torch", "torch.compile", "registers", "shared"]
        log = ["registers" if name == "ours" else name for name in log]
        planning = 2 * (len(together) + 1)  # each runs twice
        at = log.index("naive", planning)
        self.assertEqual(log[planning:at], together * ((at - planning) // len(together)))
        self.assertEqual(set(log[at:]), {"naive"})

    def test_an_earlier_step_that_is_wrong_leaves_the_others(self):
        rows, right = self.time(every_step=True, bad=["naive"])
        self.assertFalse(right)
        self.assertEqual({row.step for row in rows}, {"registers", "shared"})
        self.assertIn("naive is not timed: y is 7", self.lines[0])

    def test_both_passes_are_one_time(self):
        """In ms, of a step each. --steps says nothing of them."""
        case = cases.Case("07_windowed_rope", "windowed_attention", "bf16", (1, 1, 1, 9, 9, 64, 1),
                          cases.BOTH, far=4)
        card, library, lines = FakeCard(), FakeLibrary(), []

        class OnePass(FakeProblem):
            def __init__(self, torch, case, device):
                ours, peer = (1.0, 2.0) if case.direction == "forward" else (3.0, 6.0)
                super().__init__(card, {"ours": ours, "pair": peer}, case=case)

            def ours(self, library):
                def outputs():
                    library.last_step = f"of {self.case.direction}"
                return super().ours(library)._replace(outputs=outputs)

            def wrong(self, work):
                if work.name == "ours":
                    work.outputs()
                return super().wrong(work)
        with mock.patch.dict(bench.PROBLEMS, {case.operation: OnePass}):
            rows, right = bench.time_case(mock.MagicMock(), library, card, case, True,
                                          ["naive"], lines.append)
        self.assertTrue(right)
        row, = rows
        self.assertEqual((row.step, row.direction, row.metric, row.unit, row.peer),
                         ("of forward+of backward", "forward+backward", "time burst", "ms", "pair"))
        self.assertAlmostEqual(row.value, 4, 1)
        self.assertAlmostEqual(row.ratio, 2, 1)
        self.assertLessEqual(row.low, row.high)

    def test_quick_and_sweeps_have_bursts_only(self):
        self.assertEqual({row.metric for row in self.time(quick=True)[0]}, {"bandwidth burst"})
        rows, _ = self.time(cases.Case("03_softmax", "softmax", "fp32", (4096, 256),
                                       is_sweep=True))
        self.assertEqual({row.metric for row in rows}, {"bandwidth burst"})

    def test_products_have_no_copy_and_no_ceiling(self):
        rows, _ = self.time(cases.Case("02_matmul", "matmul", "bf16", (64, 64, 64)))
        self.assertEqual({(row.peer, row.ceiling) for row in rows},
                         {("torch", None), ("torch.compile", None)})
        self.assertEqual(rows[0].metric, "throughput burst")
        self.assertAlmostEqual(self.card.slept, 3 * measure.PRODUCTS_PAUSE_S)


class Memory(unittest.TestCase):
    def tell(self, has_nan=False):
        torch, library, lines = mock.MagicMock(), mock.MagicMock(last_step="best"), []
        for made in (torch.randn, torch.full):
            made.return_value.nbytes = 1 << 20
            made.return_value.isnan.return_value.any.return_value = has_nan
        # The first run, in small, is where the driver takes memory for the kernels.
        torch.cuda.mem_get_info.side_effect = [(9000, 0), (5000, 0), (5000, 0), (3800, 0)]
        library.workspace_bytes.side_effect = lambda name, kind, **fields: (
            1 << 40 if fields.get("step") else 1000 if fields["queries"] > 256 else 0)
        memory.tell(torch, library, "backward", lines.append)
        return lines, library

    def test_what_the_memory_has_less_of_is_told_beside_what_scores_would_take(self):
        (line,), library = self.tell()
        for words in ("backward, bf16, batch 1, heads 16", "by best: 1,200 bytes beside tensors of "
                      "9,437,184", "workspace has 1,000", "scores would have 1,099,511,627,776"):
            self.assertIn(words, line)
        small, large = (call.kwargs for call in library.run.call_args_list)
        self.assertNotIn("workspace", small)
        self.assertEqual((large["queries"], large["workspace_bytes"]), (1 << 17, 1000))

    def test_a_pass_that_wrote_nothing_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "NaN"):
            self.tell(has_nan=True)


@mock.patch.object(tile_c, "Library", FakeLibrary)
class Writing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "gpu.json"

    def run_with(self, time_case, gpu="NVIDIA H200"):
        torch = mock.MagicMock()
        torch.cuda.get_device_name.return_value = gpu
        torch.version.cuda, torch.__version__ = "13.0", "2.11"
        with mock.patch.object(peers, "load_torch", lambda given: torch), \
                mock.patch.object(bench, "time_case", time_case), \
                mock.patch.object(measure, "Card"):
            return run("--chapter", "03", "--case", "fp32 rows32768 cols1024, forward", "--json",
                       str(self.path), "--commit", "abc")

    def rows(self):
        return json.loads(self.path.read_text(encoding="utf-8"))

    def timed(self, torch_rate):
        """Rows beside torch and a copy; torch is known to reach 3.76 TB/s here on an H200."""
        def time_case(torch, library, card, case, quick, every_step, report):
            ours = measure.Timing(*[case.amount / 4e12 * 1e3] * 3, 30, 1980)
            theirs = measure.Timing(*[case.amount / torch_rate / 1e9] * 3, 30, 1980)
            return [results.row(case, "registers", "burst", ours, peer, timing, None)
                    for peer, timing in (("copy", ours), ("torch", theirs))], True
        return time_case

    def test_rows_are_written_with_their_origin(self):
        status, text = self.run_with(self.timed(3.8))
        self.assertEqual(status, 0, text)
        self.assertEqual([row["peer"] for row in self.rows()], ["copy", "torch"])
        self.assertEqual((self.rows()[0]["gpu"], self.rows()[0]["cuda"], self.rows()[0]["commit"]),
                         ("NVIDIA H200", "13.0", "abc"))

    def test_a_void_row_is_printed_and_not_written(self):
        _, text = self.run_with(self.timed(3.5))
        self.assertEqual([row["peer"] for row in self.rows()], ["copy"])
        self.assertIn("void, bandwidth burst: torch reached 3.5 TB/s", text)
        self.assertIn("1 rows void, 1 written", text)

    def test_another_gpu_has_no_figures(self):
        self.run_with(self.timed(1.0), "NVIDIA A100")
        self.assertEqual(len(self.rows()), 2)

    def test_a_case_that_fails_is_printed_and_counted(self):
        def fails(*_):
            raise RuntimeError("out of memory\nand more")
        status, text = self.run_with(fails)
        self.assertEqual(status, 1)
        self.assertIn("failed: RuntimeError: out of memory", text)
        self.assertIn("1 cases: 1 failed", text)

    def test_wrong_results_are_in_the_exit_status(self):
        self.assertEqual(self.run_with(lambda *_: ([], False))[0], 1)


if __name__ == "__main__":
    unittest.main()
