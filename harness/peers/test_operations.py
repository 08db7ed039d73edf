#!/usr/bin/env python3
"""Which results the checks accept, with PyTorch's own on a CPU. Skipped where there is no
PyTorch."""
import unittest
import warnings
from unittest import mock

import cases

try:
    import torch
except ImportError:
    torch = None
else:
    import bench
    import operations


ATTENTION = (1, 2, 1, 33, 33, 64, 1), (2, 4, 2, 9, 37, 16, 0)


@unittest.skipUnless(torch, "there is no PyTorch")
class Checks(unittest.TestCase):
    def problems(self):
        torch.manual_seed(2)
        for case in cases.small_cases():
            if case.sizes in ((1003,), (37, 29, 65), (37, 48, 80), (5, 33), (7, 2049),
                              *ATTENTION):
                problem = bench.PROBLEMS[case.operation](torch, case, "cpu")
                problem.compiled = lambda function: function
                if problem.peers():
                    yield case, problem

    def test_results_of_peers_pass(self):
        for case, problem in self.problems():
            for work in [make() for make in problem.peers().values()]:
                with self.subTest(case=case.title, peer=work.name):
                    self.assertEqual(problem.wrong(work), "")

    def test_wrong_results_do_not(self):
        def nan(tensor):
            tensor.view(-1)[-1] = float("nan")

        def one_element(tensor):
            tensor.view(-1)[len(tensor) // 2] += tensor.abs().max() / 8

        def scaled(tensor):
            tensor *= 1.05

        def unwritten(tensor):
            tensor.view(-1)[tensor.numel() // 2:] = 0
        for case, problem in self.problems():
            peer = problem.peers()["torch"]()
            right = [output.clone(memory_format=torch.contiguous_format)
                     for output in peer.outputs()]
            for mistake in (nan, one_element, scaled, unwritten):
                for i, output in enumerate(right):
                    if mistake is not nan and not output.any():
                        continue  # gradients of far keys where there are none, say
                    wrong = [each.clone() for each in right]
                    mistake(wrong[i])
                    with self.subTest(case=case.title, mistake=mistake.__name__, output=i):
                        self.assertNotEqual(
                            problem.wrong(operations.Work("", None, lambda: wrong)), "")

    def test_a_missing_output_and_another_type_are_wrong(self):
        for case, problem in self.problems():
            outputs = problem.peers()["torch"]().outputs()
            self.assertIn("0 results", problem.wrong(operations.Work("", None, lambda: [])))
            doubles = [each.double() for each in outputs]
            self.assertIn("float64", problem.wrong(operations.Work("", None, lambda: doubles)))

    def test_a_sweep_compiles_nothing(self):
        for is_sweep, names in ((True, ["torch"]), (False, ["torch", "torch.compile"])):
            case = cases.Case("03_softmax", "softmax", "fp32", (4, 64), is_sweep=is_sweep)
            problem = bench.PROBLEMS["softmax"](torch, case, "cpu")
            self.assertEqual(list(problem.peers()), names)

    def test_attention_sees_the_keys_that_it_should(self):
        """As ../../tile/mask.hpp has them."""
        for case in cases.select(cases.small_cases(), "05", "fp32"):
            problem = bench.PROBLEMS["attention"](torch, case, "cpu")
            batch, _, _, queries, keys, _, causal = case.sizes
            left, right = case.window or (1000, 1000)
            right = 0 if causal else right
            for entry in range(batch):
                here = (queries, keys)
                if case.has_lengths:
                    here = [each[entry] for each in case.lengths]
                seen = problem.visible(entry, *map(problem.numbers, (problem.q, problem.k)))
                for i in range(queries):
                    own = i + here[1] - here[0]
                    wanted = [i < here[0] and j < here[1] and own - left <= j <= own + right
                              for j in range(keys)]
                    self.assertEqual(seen[i].tolist(), wanted, (case.title, entry, i))

    def test_attention_of_which_some_rows_are_checked(self):
        """Those rows of all results are compared with what all rows must be."""
        for direction in cases.PASSES:
            for sizes in ATTENTION:
                case = cases.Case("05_flash_attention", "attention", "fp32", sizes, direction)
                whole = bench.PROBLEMS["attention"](torch, case, "cpu")
                some = bench.PROBLEMS["attention"](torch, case, "cpu")
                some.query_rows, some.key_rows = (torch.arange(1, rows, 3) for rows in
                                                  (sizes[0] * sizes[3], sizes[0] * sizes[4]))
                for (name, _, all_values, all_bounds), (_, _, values, bound) in zip(
                        whole.checks, some.checks):
                    rows = some.query_rows if name in ("o", "dq") else some.key_rows
                    torch.testing.assert_close(values, all_values[rows])
                    torch.testing.assert_close(bound, all_bounds[rows])

    def test_flex_attentions_of_near_and_far_keys_are_merged(self):
        """Where all keys are near, too, or all are far. Not compiled: then FlexAttention has the
        gradients on a CPU that it refuses there."""
        for case in cases.select(cases.small_cases(), "07", "fp32 B1 "):
            if case.has_lengths:
                continue
            problem = bench.PROBLEMS[case.operation](torch, case, "cpu")
            problem.compiled = lambda function: function
            with mock.patch("torch.nn.attention.flex_attention._validate_device"), \
                    warnings.catch_warnings(), self.subTest(case=case.title):
                warnings.simplefilter("ignore")  # that it is slow
                self.assertEqual(problem.wrong(problem.by_flex_attention()), "")
            torch._dynamo.reset()

    def test_flash_attention_3s_of_near_and_far_keys_are_merged(self):
        """Each call is PyTorch's attention here, given what FlashAttention-3 is."""
        def scores(q, k, left, scale):
            shared = q.shape[2] // k.shape[2]
            q, k = q.double().transpose(1, 2), k.double().transpose(1, 2)
            found = q @ k.repeat_interleave(shared, 1).mT * scale
            distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
            hidden = (distance < 0) | ((distance > left) & (left >= 0))
            return found.masked_fill(hidden, -float("inf"))

        class Calls:
            @staticmethod
            def fwd(q, k, v, *, softmax_scale, is_causal, window_size_left, window_size_right,
                    num_splits):
                self.assertTrue(is_causal)
                found = scores(q, k, window_size_left, softmax_scale)
                values = v.double().transpose(1, 2).repeat_interleave(q.shape[2] // v.shape[2], 1)
                o = (found.softmax(-1) @ values).transpose(1, 2).to(q.dtype).contiguous()
                return o, found.logsumexp(-1).float(), None

            @staticmethod
            def bwd(dout, q, k, v, o, lse, dq, dk, dv, *, softmax_scale, is_causal,
                    window_size_left, window_size_right, deterministic):
                leaves = [each.detach().double().requires_grad_() for each in (q, k, v)]
                p = (scores(*leaves[:2], window_size_left, softmax_scale)
                     - lse.double()[..., None]).exp()
                values = leaves[2].transpose(1, 2).repeat_interleave(q.shape[2] // v.shape[2], 1)
                delta = (dout.double() * o.double()).sum(-1).transpose(1, 2)[..., None]
                dp = dout.double().transpose(1, 2) @ values.mT
                found = scores(*leaves[:2], window_size_left, softmax_scale)
                ds = (p * (dp - delta)).detach()
                seen = found.isfinite()
                found_dq, found_dk = torch.autograd.grad(found[seen] @ ds[seen], leaves[:2])
                found_dv, = torch.autograd.grad(
                    (p.detach() @ values * dout.double().transpose(1, 2)).sum(), leaves[2:])
                for place, found in zip((dq, dk, dv), (found_dq, found_dk, found_dv)):
                    place.copy_(found)

        tried = set()
        for case in cases.select(cases.small_cases(), "07", "bf16 B1 H2 Hkv1 S33 d64 W"):
            problem = bench.PROBLEMS[case.operation](torch, case, "cpu")
            problem.compiled = lambda function: function
            with mock.patch("windowed.has_flash_attention_3", lambda _: True), \
                    mock.patch.object(torch.ops, "flash_attn_3", Calls, create=True), \
                    self.subTest(case=case.title):
                self.assertEqual(problem.has_flash_attention_3_pair(), 0 < case.far < 33)
                if problem.has_flash_attention_3_pair() and not case.has_lengths:
                    self.assertEqual(problem.wrong(problem.by_flash_attention_3_pair()), "")
                    tried.add((case.operation, case.direction, case.far))
        self.assertEqual(len(tried), 2 * 2 * 2)

    def test_both_passes_have_peers_that_both_have(self):
        case = cases.Case("07_windowed_rope", "windowed_rotary_attention", "fp32",
                          (1, 2, 1, 9, 9, 64, 1), cases.BOTH, far=4)
        problem = bench.problem_of(torch, case, "cpu")
        (name, make), = problem.peers().items()
        work = make()
        self.assertEqual((name, problem.wrong(work)), ("torch", ""))
        forward, backward = problem.passes
        forward, backward = work.outputs()
        backward = backward._replace(outputs=lambda: [torch.zeros(1)])
        self.assertEqual(problem.wrong(problem.both(forward, backward)),
                         "1 results instead of 3")

    def test_peers_of_windowed_attention_on_a_gpu(self):
        """Scores that the memory does not hold are left out. Plain attention is checked as such."""
        in_memory, others = ["torch", "torch.compile"], ["FlexAttention pair", "cuDNN causal"]
        case, = cases.select(cases.small_cases(), "07", "bf16 B1 H2 Hkv1 S33 d64 W7 causal, for")
        problem = bench.PROBLEMS[case.operation](torch, case, "cpu")
        problem.device = "cuda"
        with mock.patch("windowed.Attention") as plain:
            for scores, names in ((1 << 32, in_memory + others), (1 << 33, others)):
                problem.scores = scores
                self.assertEqual(list(problem.peers()), names)
            self.assertEqual(plain.call_args.args[1].operation, "attention")
            work = operations.Work("cuDNN causal", None, None)
            self.assertIs(problem.wrong(work), plain.return_value.wrong.return_value)

    def test_no_workspace_is_without_limit(self):
        def fields(bytes_needed):
            library = mock.MagicMock(is_simulated=False, last_step="")
            library.workspace_bytes.return_value = bytes_needed
            case = cases.Case("05_flash_attention", "attention", "bf16", (1, 2, 1, 1, 1024, 16, 0))
            bench.PROBLEMS["attention"](torch, case, "cpu").ours(library)
            return library.prepare.call_args.kwargs
        self.assertEqual(fields(64)["workspace_bytes"], 64)
        self.assertNotIn("workspace", fields(1 << 50))

    def test_rows_to_check_begin_and_end_with_the_matrix(self):
        case = cases.Case("03_softmax", "softmax", "fp32", (100_000, 64))
        rows = bench.PROBLEMS[case.operation](torch, case, "cpu").chosen.tolist()
        self.assertEqual((rows[0], rows[-1], len(set(rows))), (0, 99_999, 64))


if __name__ == "__main__":
    unittest.main()
