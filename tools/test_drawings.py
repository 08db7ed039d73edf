#!/usr/bin/env python3
"""Tests of drawing.py and of the figures: their layout, and that they show what the code does. Run
by CI."""
import contextlib
import io
import json
import math
import pathlib
import re
import tempfile
import unittest
import xml.etree.ElementTree

import drawing
import drawings_01_vector_add as vector_add
import drawings_02_hopper as hopper
import drawings_02_matmul as matmul
import drawings_02_shapes as shapes
import drawings_02_tensor_cores as tensor_cores
import drawings_03_softmax as softmax
import drawings_04_layernorm as layernorm
import drawings_05_eight_bits as eight_bits
import drawings_05_flash_attention as attention
import drawings_05_products as products
import drawings_06_rope as rope
import drawings_07_methods as methods
import drawings_07_windowed_rope as windowed
import drawings_contributing as contributing
import drawings_front_page as front_page
import drawings_length_extrapolation as lengths
import drawings_online_softmax as online_softmax
import drawings_results as results
import drawings_ring_attention as ring_attention
from drawing import Canvas

ROOT = pathlib.Path(__file__).parents[1]


def of_page(figures, *names):
    """Those of the figures whose file's name begins so."""
    return {path: draw for path, draw in figures.items()
            if path.rpartition("/")[2].startswith(names)}


PAGES = {"README.md": front_page.FIGURES, "CONTRIBUTING.md": contributing.FIGURES,
         "docs/online_softmax.md": online_softmax.FIGURES,
         "docs/ring_attention.md": ring_attention.FIGURES,
         "01_vector_add/README.md": vector_add.FIGURES, "02_matmul/README.md": matmul.FIGURES,
         "02_matmul/tensor_cores.md": tensor_cores.FIGURES, "02_matmul/hopper.md": hopper.FIGURES,
         "02_matmul/shapes.md": shapes.FIGURES,
         "03_softmax/README.md": softmax.FIGURES, "04_layernorm/README.md": layernorm.FIGURES,
         "05_flash_attention/README.md": of_page(attention.FIGURES | products.FIGURES,
                                                 "attention", "forward2"),
         "05_flash_attention/tensor_cores.md": of_page(attention.FIGURES, "forward3", "forward4",
                                                       "forward7"),
         "05_flash_attention/decoding.md": of_page(attention.FIGURES, "forward8"),
         "05_flash_attention/hopper.md": of_page(attention.FIGURES, "forward9"),
         "05_flash_attention/eight_bits.md": eight_bits.FIGURES,
         "05_flash_attention/backward.md": of_page(attention.FIGURES | products.FIGURES,
                                                   "backward_", "backward3", "backward6"),
         "05_flash_attention/backward_hopper.md": of_page(products.FIGURES, "backward7",
                                                          "backward9"),
         "06_rope/README.md": of_page(rope.FIGURES, "rotary"),
         "06_rope/scaling.md": of_page(rope.FIGURES, "wavelengths", "angles"),
         "06_rope/absolute.md": of_page(rope.FIGURES, "absolute"),
         "07_windowed_rope/README.md": of_page(windowed.FIGURES, "distances", "tile_map", "parts",
                                               "gradients", "backward5"),
         "07_windowed_rope/methods.md": methods.FIGURES,
         "07_windowed_rope/lengths.md": lengths.FIGURES,
         "07_windowed_rope/encodings.md": of_page(windowed.FIGURES, "scores")}


def source(file):
    return (ROOT / file).read_text(encoding="utf-8")


class WithSource(unittest.TestCase):
    """Drawings that repeat formulas of the code. Where the code's text is asked for, look at the
    figure anew if it has changed."""
    chapter = "02_matmul"

    def holds(self, file, *texts):
        code = " ".join(source(f"{self.chapter}/{file}").split())
        for text in texts:
            self.assertIn(text, code)


class RingAttention(unittest.TestCase):
    def test_each_score_is_computed_once_and_work_is_that_of_the_page(self):
        every = sorted((query, key) for query in range(8) for key in range(query + 1))
        page, totals = source("docs/ring_attention.md"), []
        for name, chunks in ring_attention.SPLITS:
            steps = range(ring_attention.RANKS)
            self.assertEqual(sorted(place[1:] for step in steps
                                    for place in ring_attention.squares(chunks, step)), every, name)
            totals.append(sum(max(ring_attention.work(chunks, step, rank) for rank in steps)
                              for step in steps))
        self.assertIn("{:g} squares one after the other, where {:g} would do".format(*totals), page)
        self.assertEqual({ring_attention.work(ring_attention.SPLITS[1][1], step, rank)
                          for step in steps for rank in steps}, {2})


class PathOfACall(unittest.TestCase):
    def test_each_file_has_what_it_hands_on(self):
        places = [contributing.FROM_C, contributing.FROM_TOUR, contributing.READ, *contributing.PATH]
        for file, _, name in places:
            self.assertIn(name, source(file), file)
        for leaf in contributing.LEAVES:
            self.assertTrue((ROOT / leaf).exists(), leaf)


class Constants(unittest.TestCase):
    def test_definitions(self):
        self.assertEqual(drawing.constants("constexpr int kA = 12, kB = kA / 5 * (1 + 2);  // x\n"
                                           "  constexpr int kInner = 1;\n"
                                           "inline constexpr std::int64_t kOther = 3;\n"
                                           "constexpr std::int64_t kC = kB - 1;\n"),
                         {"kA": 12, "kB": 6, "kC": 5})

    def test_what_cannot_be_computed_is_refused(self):
        for expression in ("f()", "kUnknown", "1.5", "kA % 2"):
            with self.subTest(expression), self.assertRaises(ValueError):
                drawing.constants(f"constexpr int kA = {expression};")


class Canvases(unittest.TestCase):
    def setUp(self):
        self.canvas = Canvas(100, 50, "title")

    def test_what_leaves_the_figure_is_refused(self):
        for draw in (lambda c: c.rect(90, 0, 11, 5), lambda c: c.line(0, -1, 5, 5),
                     lambda c: c.dot(2, 20, 3), lambda c: c.text(50, 20, "longer than half of it"),
                     lambda c: c.text(50, 49, "low"), lambda c: c.text(5, 20, "left", anchor="end"),
                     lambda c: c.text(5, 20, "one\ntwo\nthree")):
            with self.assertRaises(ValueError):
                draw(self.canvas)

    def test_small_text_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'x' is too small to read: 11 px"):
            self.canvas.text(5, 20, "x", 11)

    def test_text_is_escaped(self):
        self.canvas.text(5, 20, "a < b & c")
        root = xml.etree.ElementTree.fromstring(self.canvas.svg())
        self.assertEqual(root[-1].text, "a < b & c")


class Files(unittest.TestCase):
    """A project with one figure."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "chapter").mkdir()
        self.title = "old"

    def figures(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = drawing.main(list(arguments),
                                  {"chapter/figures/a.svg": lambda root: Canvas(9, 9, self.title)},
                                  self.root)
        return status, printed.getvalue()

    def test_written_then_current_then_stale(self):
        file = self.root / "chapter/figures/a.svg"
        self.assertEqual(self.figures("--check")[0], 1)
        self.assertFalse(file.exists())
        self.assertEqual(self.figures()[0], 0)
        self.assertEqual(self.figures("--check"), (0, "figures: 1, 0 stale\n"))
        self.title = "new"
        status, printed = self.figures("--check")
        self.assertEqual(status, 1)
        self.assertIn("chapter/figures/a.svg: stale; tools/figures draws it anew", printed)
        self.assertIn("<title>old</title>", file.read_text(encoding="utf-8"))
        self.assertEqual(self.figures()[0], 0)
        self.assertIn("<title>new</title>", file.read_text(encoding="utf-8"))

    def test_a_figure_that_nothing_draws_fails(self):
        self.figures()
        (self.root / "chapter/figures/gone.svg").write_text("<svg/>", encoding="utf-8")
        self.assertEqual(self.figures("--check"),
                         (1, "chapter/figures/gone.svg: nothing draws it\nfigures: 1, 0 stale\n"))

    def test_usage(self):
        self.assertEqual(self.figures("--chekc"),
                         (2, "tools/figures takes --check or nothing, not '--chekc'\n"))
        self.assertEqual(self.figures("--help")[0], 0)


class Figures(unittest.TestCase):
    def test_every_figure_is_xml_and_no_text_lies_over_another(self):
        for path, draw in [item for figures in [*PAGES.values(), results.FIGURES]
                           for item in figures.items()]:
            with self.subTest(path):
                canvas = draw(ROOT)
                xml.etree.ElementTree.fromstring(canvas.svg())
                self.assertLessEqual(canvas.width, 800)  # what a forge shows without shrinking it
                for i, (x0, y0, x1, y1, text) in enumerate(canvas.texts):
                    for left, top, right, bottom, other in canvas.texts[:i]:
                        self.assertFalse(x0 < right and left < x1 and y0 < bottom and top < y1,
                                         f"'{text}' over '{other}'")

    def test_every_figure_is_shown_with_a_text_in_its_place(self):
        for page, figures in PAGES.items():
            text = source(page)
            for path in figures:
                name = path.removeprefix(page.partition("/")[0] + "/")
                self.assertRegex(text, r"!\[[^\]]{20,}\]\(" + name.replace(".", r"\.") + r"\)")

    def test_letters_on_a_phone(self):
        """The site lets a figure scroll before its letters have less than 9 px."""
        kept = float(re.search(r"minWidth = `\$\{([\d.]+) \*", (ROOT / "tools/site_files/site.js")
                               .read_text(encoding="utf-8"))[1])
        files = [*ROOT.glob("[0-9]*/figures/*.svg"), *ROOT.glob("docs/figures/*.svg")]
        self.assertTrue(files)
        for file in files:
            sizes = re.findall(r'font-size="([\d.]+)"', file.read_text(encoding="utf-8"))
            with self.subTest(file.name):
                self.assertGreaterEqual(kept * min(map(float, sizes)), 9)

    def test_dark_screens(self):
        """Each colour has one for dark screens, and text can be read on every ground it may have."""
        def light(colour):
            parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05

        def contrast(one, other):
            return max(light(one), light(other)) / min(light(one), light(other))

        for path in sorted(ROOT.glob("*/figures/*.svg")):
            text = path.read_text(encoding="utf-8")
            if not (style := re.search(r"<style>.*</style>", text)):
                self.assertEqual(path.name, "watch.svg")  # a terminal is dark anyway
                continue
            drawn = text.replace(style[0], "")
            for colour in set(re.findall(r'(?:fill|stroke)="(#[^"]*)"', drawn)):
                self.assertIn(colour, drawing.DARK, path)
                self.assertIn(f'[fill="{colour}"]{{fill:{drawing.DARK[colour]}}}', text, path)
            for colour in set(re.findall(r'<text[^>]* fill="(#[^"]*)"', drawn)) - {drawing.GROUND}:
                self.assertGreaterEqual(contrast(drawing.DARK[colour], drawing.DARK[drawing.GROUND]), 4.5)
        for pale in (drawing.LIGHT, drawing.A_PALE, drawing.B_PALE, drawing.C_PALE, drawing.RED_PALE):
            self.assertGreaterEqual(contrast(drawing.DARK[drawing.INK], drawing.DARK[pale]), 4.5)
        for full in (drawing.A, drawing.B, drawing.C, drawing.RED):  # with text of the ground's colour
            self.assertGreaterEqual(contrast(drawing.DARK[full], drawing.DARK[drawing.GROUND]), 4.5)


class Results(unittest.TestCase):
    def row(self, **values):
        return {"chapter": "03_softmax", "direction": "forward", "case": "bf16 rows2 cols2",
                "metric": "bandwidth burst", "step": "online", "value": 2.0, "unit": "TB/s", "peer": "",
                "peer_value": 0, "ratio": 0, "date": "2026-01-01"} | values

    def test_the_fastest_peer_is_one_that_computes_the_same(self):
        rows = [self.row(peer=peer, peer_value=value)
                for peer, value in (("copy", 9), ("torch", 3), ("torch.compile", 4), ("cuDNN causal", 8))]
        self.assertEqual(results.best_peer(rows)["peer"], "torch.compile")
        self.assertEqual(results.best_peer(rows[:1])["peer"], "copy")
        self.assertIsNone(results.best_peer([self.row()]))
        rows.append(self.row(peer="torch.compile", peer_value=2, date="2026-02-02"))  # it became slower
        self.assertEqual(results.best_peer(rows)["peer"], "torch")

    def test_a_ratio_says_whether_it_is_of_one_run(self):
        rows = [self.row(peer="A", peer_value=4, ratio=0.4), self.row(step="queue", value=6, peer="B", peer_value=3,
                                                                     ratio=2)]
        self.assertEqual(results.beside_peer(rows)[2:], (1.5, False))
        rows.append(self.row(step="queue", value=6, peer="A", peer_value=4, ratio=1.6))
        self.assertEqual(results.beside_peer(rows)[2:], (1.6, True))
        self.assertEqual(results.beside_peer(rows, {"queue"})[2:], (0.4, True))

    def test_steps_on_request_are_those_of_the_ladders(self):
        found = {(chapter, direction): results.on_request(ROOT, chapter, direction)
                 for chapter in results.LADDERS for direction in ("forward", "backward")}
        self.assertEqual(found["05_flash_attention", "backward"], {"in_order"})
        self.assertEqual(found["05_flash_attention", "forward"], set())
        marks = sum(header.read_text(encoding="utf-8").count(".on_request = true")
                    for header in ROOT.glob("0*/**/*.hpp"))
        self.assertEqual(sum(map(len, found.values())), marks)

    def test_the_page_lists_the_steps_without_a_row(self):
        page, listed = source("docs/results/README.md"), {}
        for chapter, *cells in re.findall(r"^\| (\d\d)[^|]* \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE):
            for direction, cell in zip(("forward", "backward"), cells, strict=True):
                listed.setdefault((chapter, direction), set()).update(re.findall(r"`(\w+)`", cell))
        rows = json.loads(source(results.H200.results))
        measured = {(row["chapter"], row["direction"], row["step"]) for row in rows}
        for chapter in results.LADDERS:
            for direction in ("forward", "backward")[:1 if chapter[:2] in ("01", "02") else 2]:
                without = {step for step in results.order_of_steps(ROOT, chapter, direction)
                           if (chapter, direction, step) not in measured}
                same_name = {"vectors", "composed"}  # as a step of another ladder, which has rows
                self.assertEqual(listed.get((chapter[:2], direction), set()) - same_name,
                                 without - same_name, (chapter, direction))

    def test_each_chart_is_shown_with_a_text_in_its_place(self):
        for path in results.FIGURES:
            pages = ROOT.glob("docs/results/*.md") if "results_" in path else \
                ROOT.glob(f"{path[-6:-4]}_*/*.md")
            text = "".join(page.read_text(encoding="utf-8") for page in pages)
            self.assertRegex(text, r"!\[[^\]]{20,}\]\([./]*(docs/)?figures/" + pathlib.Path(path).name)

    def test_steps_stand_in_the_ladders_order(self):
        rows = results.rows_of(ROOT, "03_softmax", "forward", "bf16 rows32768 cols4096")
        self.assertEqual(list(results.newest(rows)), ["thread_per_row", "block_per_row", "shuffles", "online",
                                                      "registers", "shared", "cluster", "queue"])

    def test_intensity(self):
        self.assertAlmostEqual(results.intensity(self.row(chapter="01_vector_add", case="fp32 n9")), 1 / 12)
        self.assertAlmostEqual(results.intensity(self.row(
            chapter="02_matmul", unit="TFLOP/s", case="fp32 m4096 n4096 k4096")), 4096 / 6)
        # 2 products of 2 d operations for 8 * 9 / 2 pairs; q, k, v, o of 8 rows of d numbers of 2 bytes.
        self.assertAlmostEqual(results.intensity(self.row(
            chapter="05_flash_attention", unit="TFLOP/s", case="bf16 B1 H1 Hkv1 S8 d64 causal")),
            4 * 64 * 36 / (4 * 8 * 64 * 2))
        self.assertAlmostEqual(results.intensity(self.row(
            chapter="05_flash_attention", unit="TFLOP/s", case="bf16 B1 H1 Hkv1 S8 d64 full")),
            4 * 64 * 64 / (4 * 8 * 64 * 2))

    def test_no_kernel_is_above_its_roof(self):
        for card in (results.H200, results.H100):
            for row in results.points(ROOT, card):
                roof = min(results.FP8_TFLOPS if "e4m3" in row["case"] else results.TENSOR_TFLOPS,
                           results.intensity(row) * card.tb_per_s)
                self.assertLess(results.rate(row), roof, row)


class Lengths(unittest.TestCase):
    def test_what_lies_on_one_line(self):
        means = lengths.curves(ROOT)
        self.assertEqual(lengths.lines_of(means), [["plain RoPE"], ["NTK"], ["YaRN"],
                                                   ["ReRoPE", "Leaky ReRoPE", "Self-Extend"]])
        self.assertLess(max(map(max, means.values())), lengths.HIGHEST)

    def test_labels_stand_apart(self):
        self.assertEqual(lengths.apart([10, 50, 52, 54, 90], 16), [10, 36, 52, 68, 90])


class FrontPage(unittest.TestCase):
    def test_the_screen_is_one_of_80_by_24_and_shows_a_mistake_in_the_file(self):
        lines = source(front_page.SCREEN).splitlines()
        self.assertLessEqual(len(lines), 24)
        self.assertLessEqual(max(map(len, lines)), front_page.COLUMNS)
        self.assertRegex("\n".join(lines), r"01_vector_add/exercises/1_axpy\.cu:\d+")


class VectorAdd(WithSource):
    chapter = "01_vector_add"

    def test_the_grid_of_step_1(self):
        self.assertEqual(vector_add.of(ROOT, "step1_thread_per_element.cu"), {"kThreads": 256})
        self.holds("step1_thread_per_element.cu",
                   "static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;",
                   "if (i < n)")
        self.holds("README.md", "1000 elements do not fill four blocks of 256.", "24 threads")

    def test_sectors(self):
        self.assertEqual(vector_add.sectors(range(32)), [0, 1, 2, 3])
        self.assertEqual(vector_add.sectors([7, 8, 800]), [0, 1, 100])


class Matmul(WithSource):
    def test_constants(self):
        self.assertEqual(matmul.of(ROOT, "tiles.cuh"),
                         {"kTileM": 128, "kTileN": 128, "kTileK": 8, "kWarpM": 64, "kWarpN": 64,
                          "kLanesM": 4, "kLanesN": 8, "kThreadM": 16, "kThreadN": 8, "kWarpsN": 2,
                          "kThreads": 128, "kVector": 4, "kPitch": 132})
        self.assertEqual(matmul.of(ROOT, "step3_shared_tile.cu"), {"kTile": 32})
        step4 = matmul.of(ROOT, "step4_register_tile.cu")
        self.assertEqual((step4["kThreadM"], step4["kThreads"], step4["kPitch"]), (8, 256, 132))

    def test_steps_1_and_2(self):
        self.holds("step1_naive.cu", "row = corner.row + threadIdx.x;",
                   "col = corner.col + threadIdx.y;", "kTileM = 32;")
        self.holds("step2_coalesced.cu", "row = corner.row + threadIdx.y;",
                   "col = corner.col + threadIdx.x;", "kTileN = 32;")
        self.assertEqual(len(matmul.sectors(matmul.lanes_of_a_warp(True), 32)), 32)
        self.assertEqual(len(matmul.sectors(matmul.lanes_of_a_warp(False), 32)), 4)

    def every_element_once(self, elements_of, k):
        tile = [at for thread in range(k["kThreads"]) for at in elements_of(thread, k)]
        self.assertEqual(sorted(tile), [(row, col) for row in range(k["kTileM"])
                                        for col in range(k["kTileN"])])

    def test_step_4(self):
        self.holds("step4_register_tile.cu",
                   "first_row = threadIdx.x / kThreadsN, first_col = threadIdx.x % kThreadsN;",
                   "a_smem[l][first_row + i * kThreadsM]", "b_smem[l][first_col + j * kThreadsN]",
                   "x = kAlongK ? i / kTileK : i % kTileM;",
                   "l = kAlongK ? i % kTileK : i / kTileM;")
        self.every_element_once(matmul.step4_elements, matmul.of(ROOT, "step4_register_tile.cu"))

    def test_banks_of_step_4(self):
        k = matmul.of(ROOT, "step4_register_tile.cu")
        for pitch, most in ((k["kTileM"], 8), (k["kPitch"], 1)):
            banks = [matmul.bank(*matmul.step4_stored(lane, k), pitch) for lane in range(32)]
            self.assertEqual(max(banks.count(bank) for bank in banks), most)

    def test_steps_5_and_6(self):
        self.holds("tiles.cuh",
                   "row = warp / kWarpsN * warp_rows + lane / kLanesN * kVector;",
                   "ThreadPosition(int warp_rows = kWarpM, int warp_cols = kWarpN)",
                   "col = warp % kWarpsN * warp_cols + lane % kLanesN * kVector;",
                   "return i / kVector * kLanesM * kVector + i % kVector;",
                   "return j / kVector * kLanesN * kVector + j % kVector;")
        self.every_element_once(matmul.step5_elements, matmul.of(ROOT, "tiles.cuh"))

    def test_order_of_step_6(self):
        self.holds("step6_double_buffered.cu", "group = blockIdx.x / (kGroup * across)",
                   "in_group = blockIdx.x % (kGroup * across)",
                   "rows = min(kGroup, down - group * kGroup);",
                   "{(group * kGroup + in_group % rows) * kTileM, in_group / rows * kTileN}")
        for down, across in ((64, 64), (5, 3), (17, 2), (8, 1)):
            tiles = [matmul.tile_of_block(block, down, across, 8) for block in range(down * across)]
            self.assertEqual(sorted(tiles), [(i, j) for i in range(down) for j in range(across)])
        self.assertEqual(matmul.blocks_at_a_time(ROOT), 264)


class TensorCores(WithSource):
    def test_a_fragment_has_each_element_once(self):
        for key, rows, cols in (("a", 16, 16), ("b", 16, 8), ("d", 16, 8), ("ldmatrix", 8, 8),
                                ("ldmatrix_trans", 8, 8)):
            lanes = tensor_cores.maps(ROOT)[key]
            self.assertEqual(sorted(tensor_cores.owners(lanes)),
                             [(row, col) for row in range(rows) for col in range(cols)])
            self.assertEqual(sum(len(lane) for lane in lanes), rows * cols)

    def test_fragments_are_those_of_the_comment(self):
        held = tensor_cores.maps(ROOT)
        for lane in range(32):
            g, t = lane // 4, lane % 4 * 2
            self.assertEqual(held["a"][lane],
                             [[row, col] for corner in (t, t + 8) for row in (g, g + 8)
                              for col in (corner, corner + 1)])
            self.assertEqual(held["b"][lane], [[row, g] for row in (t, t + 1, t + 8, t + 9)])
            self.assertEqual(held["d"][lane], [[row, col] for row in (g, g + 8)
                                               for col in (t, t + 1)])

    def test_addresses_of_ldmatrix(self):
        self.holds("../tile/ptx/ldmatrix.cuh",
                   "Lane i passes the address of row i % 8 of tile i / 8, aligned to 16 bytes.")
        held = tensor_cores.maps(ROOT)
        for lane in range(32):  # of A's four, register j is what ldmatrix gives of number j
            for matrix in range(4):
                row, col = held["a"][0][2 * matrix]
                self.assertEqual(held["a"][lane][2 * matrix:2 * matrix + 2],
                                 [[row + at[0], col + at[1]] for at in held["ldmatrix"][lane]])

    def test_chunks_of_a_tile(self):
        self.holds("step8_ldmatrix.cu", "kRowChunks = kCols / 8, kPitch = kRowChunks + 1;",
                   "return row * kPitch + chunk;")
        self.holds("tensor_tiles.cuh", "return row * kPitch + (kRowChunks == 4 ? "
                   "tile::swizzle_64B(row, chunk) : tile::swizzle_128B(row, chunk));",
                   "kBlockK = 32;")
        for layout, expected in (("plain", 4), ("padded", 1), ("swizzled", 1)):
            lies = tensor_cores.places(ROOT, layout, 128)
            self.assertEqual(len(set(lies.values())), len(lies))
            for row in range(0, 128, 8):
                for chunk in range(4):
                    self.assertEqual(tensor_cores.wavefronts(
                        [lies[row + i, chunk] for i in range(8)]), expected)
        # Eight threads that store: the page says it of a tile with padding.
        for layout, expected in (("plain", 1), ("padded", 2), ("swizzled", 1)):
            lies = tensor_cores.places(ROOT, layout, 128)
            for row in range(0, 128, 2):
                self.assertEqual(tensor_cores.wavefronts(
                    [lies[row + i // 4, i % 4] for i in range(8)]), expected)

    def test_the_ring(self):
        self.assertEqual(tensor_cores.of(ROOT, "step10_pipeline.cu"), {"kStages": 4})
        code = " ".join(source("02_matmul/step10_pipeline.cu").split())
        self.assertRegex(code, r"i < kStages - 1; \+\+i\) copy\(\);.*cp_async_wait<kStages - 2>\(\);"
                               r".*__syncthreads\(\); copy\(\);.*turn % kStages \* kStageBytes;"
                               r".*add_products")

    def test_the_exchange_is_a_transpose(self):
        self.holds("../tile/ptx/quad.cuh", "distance = 1; distance <= 2; ++distance",
                   "const bool upper = threadIdx.x & distance;", "if (i & distance) continue;",
                   "&low = v[i], &high = v[i + distance];", "upper ? low : high, distance",
                   "(upper ? low : high) = other;")
        values = [[(i, lane) for i in range(4)] for lane in range(4)]
        for distance in (1, 2):
            values = tensor_cores.exchange(values, distance)
        self.assertEqual(values, [[(lane, i) for i in range(4)] for lane in range(4)])


class Hopper(WithSource):
    def test_distances_are_those_of_the_descriptors(self):
        self.holds("../tile/ptx/wgmma_descriptor.cuh", "along_k(SharedAddress tile) { return "
                   "WgmmaDescriptor(tile, kUnused, kPattern); }",
                   "return WgmmaDescriptor(tile, box_bytes, kPattern);")
        self.holds("hopper_tiles.cuh", "kRows = kAlongK ? kExtent : kBlockK;",
                   "kBoxBytes = kRows * kBoxElements * 2;",
                   "kPartBytes = kAlongK ? kWgmmaK * 2 : kWgmmaK * kBoxElements * 2;")
        self.holds("hopper_launch.hpp", ".swizzle_bytes = 128}")
        self.assertEqual(hopper.distances(ROOT), {
            "along k": {"leading": None, "stride": 1024, "part": 32},
            "along n": {"leading": 8192, "stride": 1024, "part": 2048}})

    def test_a_part_of_k_lies_where_the_swizzle_of_its_address_says(self):
        swizzle = tensor_cores.maps(ROOT)["swizzle_128B"]
        for part in range(4):
            for row in range(16):
                for chunk in range(2):
                    address = row * 128 + part * 32 + chunk * 16
                    self.assertEqual((address ^ (address >> 3) & 0x70) % 128 // 16,
                                     swizzle[row % 8][2 * part + chunk])

    def test_the_ring(self):
        code = " ".join(source("02_matmul/step16_warp_specialized.cu").split())
        self.assertRegex(code, r"mbarrier_wait\(&empty\[place.stage\], place.parity \^ 1\); "
                               r"mbarrier_arrive_expect.*mbarrier_wait\(&full\[place.stage\], "
                               r"place.parity\);.*wgmma_wait<1>\(sums\);.*"
                               r"mbarrier_arrive\(&empty\[read\]\);")
        for stages in (1, 2, 3, 4):
            tiles = hopper.ring_of(stages, 20)
            for t, (asked, landed, begun, read) in enumerate(tiles):
                self.assertLessEqual(asked + hopper.COPY, landed)
                self.assertLessEqual(landed, begun)
                if t >= stages:
                    self.assertEqual(asked, tiles[t - stages][3])
            waits = [tile[2] - before[3] for before, tile in zip(tiles[1:], tiles[2:])]
            # What the figure says: none, as long as a copy takes fewer turns than stages - 1.
            self.assertEqual(max(waits) < 1e-9, hopper.COPY < stages - 1)

    def test_registers(self):
        self.holds("hopper_tiles.cuh", "static_assert(kProducerRegisters + kConsumers * "
                   "kConsumerRegisters <= (1 + kConsumers) * (65536 / kThreads / 8 * 8));")
        for file in ("step16_warp_specialized.cu", "step17_persistent_ring.cu",
                     "step18_cluster_ring.cu"):
            k = hopper.shape(ROOT, file)
            self.assertEqual((k["kTileM"], k["kTileN"], k["at_start"], k["kProducerRegisters"],
                              k["kConsumerRegisters"]), (128, 256, 168, 40, 232))
            self.assertLessEqual(
                k["kWarpgroup"] * (k["kProducerRegisters"] + 2 * k["kConsumerRegisters"]), 65536)

    def test_the_cluster(self):
        self.holds("step18_cluster_ring.cu",
                   "tile::init_ring(full, empty, kCluster * Tile::kConsumers);",
                   "mbarrier_arrive_expect(&full[place.stage], kStageBytes);",
                   "BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0, "
                   "&full[place.stage], rank);")
        self.holds("hopper_tiles.cuh", "kCopied = kRows / kBlocks;")
        k = hopper.shape(ROOT, "step18_cluster_ring.cu")
        self.assertEqual((k["a_bytes"], k["b_bytes"], k["kStages"]), (16384, 32768, 4))


class Softmax(WithSource):
    chapter = "03_softmax"

    def test_the_tree_of_step_2(self):
        self.holds("forward2_block_per_row.cu", "kThreads = 256;",
                   "tree_smem[thread] = value; __syncthreads();",
                   "for (int half = kThreads / 2; half > 0; half /= 2) { if (thread < half) { "
                   "tree_smem[thread] = merge(tree_smem[thread], tree_smem[thread + half]); } "
                   "__syncthreads();", "result = tree_smem[0]; __syncthreads();")
        rounds = softmax.tree(range(256))
        self.assertEqual([len(places) for places in rounds[1:]], [128, 64, 32, 16, 8, 4, 2, 1])
        self.assertEqual(rounds[-1], [sum(range(256))])
        self.assertEqual(softmax.tree(softmax.NUMBERS[:8])[1:], [[8, 10, 6, 7], [14, 17], [31]])

    def test_the_butterfly_of_step_3(self):
        self.holds("../tile/reduce.cuh",
                   "for (int distance = lanes / 2; distance > 0; distance /= 2) { value = "
                   "merge(value, __shfl_xor_sync(kAllLanes, value, distance)); }")
        self.holds("../tile/basics.cuh", "kWarp = 32;")
        rounds = softmax.butterfly(softmax.NUMBERS)
        self.assertEqual(len(rounds), 6)
        self.assertEqual(rounds[-1], [sum(softmax.NUMBERS)] * 32)
        for colours, values in ((4, rounds[3]), (2, rounds[4])):  # equal where the colours are
            self.assertEqual(values[:8], values[:colours] * (8 // colours))
            self.assertEqual(len(set(values)), colours)

    def test_maximum_and_sum_of_step_4(self):
        row = (1, 3, 2, -7, 4, 4, 3.5)
        for i, (greatest, _, _, total) in enumerate(softmax.online(row)):
            self.assertEqual(greatest, max(row[:i + 1]))
            self.assertAlmostEqual(total, sum(math.exp(z - greatest) for z in row[:i + 1]), 14)
        self.assertEqual([round(s, 3) for _, _, _, s in softmax.online((1, 3, 2))],
                         [1, 1.135, 1.503])  # the page's

    def test_every_order_ends_with_the_same_pair(self):
        for title, _, rounds in online_softmax.ORDERS:
            made = online_softmax.pairs(rounds)
            for (first, last), (greatest, total) in (each for now in made for each in now.items()):
                row = online_softmax.ROW[first:last]
                self.assertEqual(greatest, max(row), title)
                self.assertAlmostEqual(total, sum(math.exp(z - greatest) for z in row), 14)
            self.assertEqual(list(made[-1]), [(0, len(online_softmax.ROW))], title)

    def test_reads_and_writes_are_those_of_the_page(self):
        table = source("03_softmax/README.md")
        for ladder, steps, files, reads, writes in (
                ("forward", "1 to 3", ("1_thread_per_row", "2_block_per_row", "3_shuffles"), 3, 1),
                ("forward", "4", ("4_online",), 2, 1),
                ("forward", "5 to 8", ("5_registers", "6_shared", "7_cluster", "8_queue"), 1, 1),
                ("backward", "1 to 3", ("1_thread_per_row", "2_block_per_row", "3_shuffles"), 4, 1),
                ("backward", "4 to 6", ("4_registers", "5_shared", "6_cluster"), 2, 1)):
            for file in files:
                file = f"{ladder}{file}.cu"
                self.assertEqual(softmax.passes(ROOT, file), (reads, writes), file)
            self.assertIn(f"| {ladder} {steps} | {reads} + {writes} |", table)

    def test_the_cluster_of_step_7(self):
        self.holds("forward7_cluster.cu", "constexpr int kMaxThreads = 512;",
                   "constexpr int kChunks = 8;", "most = (all + blocks - 1) / blocks;",
                   "threads = (most + kChunks * 32 - 1) / (kChunks * 32) * 32;",
                   "columns{rank * in_smem.threads + in_smem.thread, blocks * in_smem.threads};")
        rows = " ".join(source("tile/rows.cuh").split())
        self.assertIn("return (i * threads + thread) * kWidth;", rows)
        self.holds("README.md", "So 8 blocks; each has up to 2,500 chunks, for which 320 threads")
        threads, pieces = softmax.shares(40000, 4)
        self.assertEqual((threads, sum(map(sum, pieces))), (320, 40000))
        self.assertEqual([len(columns) for columns in pieces], [8, 8, 8, 8])
        with self.assertRaises(AssertionError):
            softmax.shares(40000, 2)
        code = " ".join(source("tile/shared_slice.cuh").split())
        self.assertRegex(code, r"in_block_of_cluster\(mine, .*\) = value; ptx::cluster_sync\(\);"
                               r".*merge_some\(partial, lane, blocks \* warps, merge\)")


class LayerNorm(WithSource):
    chapter = "04_layernorm"
    FAR = (998.84375, 999.15625, 1000.84375, 1001.15625)  # the page's

    def test_a_merge_is_what_the_definition_gives(self):
        for a, b in (((1, 2, 2, 3), (7, 9)), ((5,), (1, 2, 3)), ((4, 4), (4,)), ((-3,), (8,))):
            both, added = layernorm.merged(layernorm.moments(a), layernorm.moments(b))
            self.assertEqual(both, layernorm.moments(a + b))
            self.assertEqual(both[2] - layernorm.moments(a)[2] - layernorm.moments(b)[2],
                             sum(added))

    def test_fp32(self):
        self.assertEqual(layernorm.fp32(998.84375 ** 2), 997688.8125)  # the page's
        self.assertEqual(layernorm.fp32(1 + 2 ** -24), 1)              # ties to even
        self.assertEqual(layernorm.fp32(1 + 3 * 2 ** -24), 1 + 2 ** -22)

    def test_variances(self):
        self.assertEqual(layernorm.exact_variance(self.FAR), 1.0244140625)
        self.assertEqual(layernorm.one_pass(self.FAR), 1)
        for way in (layernorm.two_pass, layernorm.welford):
            self.assertLess(layernorm.relative_error(way, self.FAR), 1e-4)
        x = layernorm.row_at(0.0)
        self.assertEqual(len(x), 4096)
        self.assertAlmostEqual(float(layernorm.exact_variance(x)), 1, 1)
        self.assertAlmostEqual(sum(x) / len(x), 0, 1)
        for way in (layernorm.one_pass, layernorm.two_pass, layernorm.welford):
            self.assertLess(layernorm.relative_error(way, x), 1e-6)

    def test_every_number_counts_once(self):
        values = [float(i) for i in range(4096)]  # fp32 has all sums of them
        self.assertEqual(layernorm.row_sum(values), sum(values))
        ones = layernorm.reduce_block([(1.0, 3.0, 0.0)] * 256, layernorm.merge_moments,
                                      (0.0, 0.0, 0.0))
        self.assertEqual(ones, (256.0, 3.0, 0.0))

    def test_the_code_computes_the_same(self):
        self.holds("forward1_two_pass.cu", "kThreads = 256;",
                   "distance = static_cast<float>(x_row[col]) - origin - row_mean; "
                   "squares += distance * distance;")  # drawn with an origin of 0
        self.holds("moments.cuh", "distance = x - seen.mean;",
                   "mean = seen.mean + distance / count;",
                   "seen.squares + distance * (x - mean)", "distance = b.mean - a.mean;",
                   "(__fmul_rn(a.count, a.mean) + __fmul_rn(b.count, b.mean)) / count",
                   "a.squares + b.squares + distance * distance * (a.count * b.count / count)")
        self.holds("forward2_welford.cu", "rsqrtf(squares / static_cast<float>(cols) + eps)")
        self.holds("../tile/reduce.cuh",
                   "return reduce_lanes(lane < warps ? partial[lane] : merge.identity(), merge);")

    def test_a_row_in_registers(self):
        self.holds("../tile/host/row_plan.hpp",
                   "threads = (cols + elements * 32 - 1) / (elements * 32) * 32;")
        self.holds("../tile/rows.cuh", "return (i * threads + thread) * kWidth;")
        self.holds("forward3_registers.cu", "plan = register_plan(p, b);")
        self.holds("layernorm.cuh", "RowPlan register_plan(",
                   "tile::plan_row(p.cols, vectors, true, vectors && "
                   "long_row ? kPacked : kFloats);", "long_row = p.cols > 8 * 1024")
        self.assertEqual(layernorm.of(ROOT, "layernorm.cuh"), {"kFloats": 32, "kPacked": 64})
        self.assertEqual((layernorm.plan(4096), layernorm.plan(32768)), (128, 1024))
        chunks = [col for thread in range(128)
                  for col in layernorm.columns_of(thread, 128, 8, 4)]
        self.assertEqual(sorted(chunks), list(range(0, 4096, 4)))

    def test_column_sums(self):
        k = layernorm.of(ROOT, "backward2_two_stage.cu")
        self.assertEqual(k, {"kThreads": 256, "kBlockCols": 64, "kRowsAtOnce": 4,
                             "kMaxGroups": 64})
        self.holds("backward2_two_stage.cu", "for (std::int64_t row = group * kRowsAtOnce + "
                   "first; row < rows; row += groups * kRowsAtOnce)")
        for rows, groups in ((24, 3), (37, 2), (5, 1)):
            for group in range(groups):
                walked = sorted(row for first in range(k["kRowsAtOnce"])
                                for row in range(group * k["kRowsAtOnce"] + first, rows,
                                                 groups * k["kRowsAtOnce"]))
                self.assertEqual(walked, [row for row in range(rows)
                                          if layernorm.group_of(row, k, groups) == group])

    def test_the_sums_of_four_rows(self):
        self.holds("four_sums.cuh", "kRows = 4;", "distance = lanes / 2;",
                   "is_upper = (lane & distance) != 0;", "given = is_upper ? lower : upper;",
                   "return (is_upper ? upper : lower) + __shfl_xor_sync(tile::kAllLanes, given, "
                   "distance);",
                   "first = exchange(own[0], own[2]), second = exchange(own[1], own[3]);",
                   "distance /= 2; return tile::reduce_lanes(exchange(first, second), tile::Add{}, "
                   "distance);")
        for lanes in (4, 8, 32):
            last = layernorm.exchange_and_add(lanes, 4)[-1]
            self.assertEqual(last, [{lane // (lanes // 4): set(range(lanes))}
                                    for lane in range(lanes)])


class FlashAttention(WithSource):
    chapter = "05_flash_attention"

    def output(self, query):
        """By the definition: the output, and the sum of the exponentials."""
        weights = [2.0 ** attention.score(query, key) for key in attention.KEYS]
        return [sum(w * v[d] for w, v in zip(weights, attention.VALUES)) / sum(weights)
                for d in range(2)], sum(weights)

    def test_the_example(self):
        page = source("05_flash_attention/README.md")
        for query, (out, total) in zip(attention.QUERIES, (((8, 11), 9), ((4.5, 9), 8),
                                                           ((5, 8), 2.25),
                                                           ((7.875, 12.375), 32))):
            self.assertEqual(self.output(query), (list(out), total))
            _, reference, _, _, online_total, online_out = attention.online(query)[-1]
            self.assertEqual([float(o / online_total) for o in online_out], list(out))
            self.assertEqual(2 ** reference * online_total, total)
        for numbers in ((5, 8), (7.875, 12.375), (11.25, 18), (15.75, 24.75)):
            self.assertIn("({:g}, {:g})".format(*numbers), page)
        self.assertEqual([attention.online(query)[1][2] for query in attention.QUERIES],
                         [0.5, 1, 1, 0.25])

    def test_what_step_2_does_with_it(self):
        self.holds("../tile/float_rows.cuh", "max = fmaxf(reference, reduce_lanes(score, Max{}));",
                   "correction = ptx::exp2_approx(reference - finite);",
                   "weight = ptx::exp2_approx(score - finite);",
                   "sum = sum * correction + weight;",
                   "for (float& each : out) each *= correction;")

    def test_the_backward_operands(self):
        self.holds("backward3_mma.cu", "mma_ABt<T>(weights, k_tile, warp_key, q_tile, 0);",
                   "mma_ABt<T>(dscores, v_tile, warp_key, dout_tile, 0);",
                   "mma_AB<T>(dv_sums, as_fragment<T>(weights), dout_tile, 0, col0);",
                   "mma_AB<T>(dk_sums, as_fragment<T>(dscores), q_tile, 0, col0);",
                   "mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile, 0, col0);")
        self.holds("backward6_one_pass.cu", "store_in_tile<T>(dscores, ds_tile, warp_key, part);",
                   "dq_row = warp % (kQueries / Plan::kDqRows) * Plan::kDqRows;",
                   "dq_col = warp / (kQueries / Plan::kDqRows) * Plan::kDqCols;")

    def test_split_keys(self):
        whole, total = self.output(attention.QUERIES[0])
        for middle in (1, 2, 3):
            out, weight = attention.merged([attention.part(attention.QUERIES[0], 0, middle),
                                            attention.part(attention.QUERIES[0], middle, 4)])
            self.assertEqual(([float(o) for o in out], weight), (whole, total))

    def test_the_gradients_of_the_example(self):
        query, step = attention.QUERIES[0], 1e-4
        out, total = self.output(query)
        weights = [2.0 ** attention.score(query, key) / total for key in attention.KEYS]
        delta = out[0]  # dO is (1, 0)
        ds = [w * (v[0] - delta) for w, v in zip(weights, attention.VALUES)]
        for got, expected in zip(ds, (2 / 9, -8 / 9, 2 / 9, 4 / 9)):
            self.assertAlmostEqual(got, expected, 14)
        for axis, expected in ((0, 0.924), (1, -1.078)):
            slope = math.log(2) * sum(s * key[axis] for s, key in zip(ds, attention.KEYS))
            self.assertAlmostEqual(slope, expected, 3)

            def moved(by):
                return self.output([x + by * (i == axis) for i, x in enumerate(query)])[0][0]
            self.assertAlmostEqual((moved(step) - moved(-step)) / (2 * step), slope, 6)

    def test_constants(self):
        k = attention.of(ROOT, "forward3_mma.cu")
        self.assertEqual((k["kWarps"], k["kThreads"], k["kQueries"]), (4, 128, 64))
        self.assertEqual(attention.number(ROOT, "forward3_mma.cu", r"kDim == 256 \? \d+ : (\d+);"),
                         64)
        product, exponentials = attention.group_cycles(ROOT)
        self.assertEqual((round(product), exponentials), (214, 256))

    def test_masks(self):
        counts = [attention.tile_counts(printed, mask[1])
                  for (_, mask), printed in zip(attention.MASKS, attention.masks(ROOT))]
        self.assertEqual(counts, [(10, 6, 16), (7, 5, 8), (3, 1, 8), (9, 0, 16), (10, 4, 16),
                                  (16, 12, 16)])
        for (_, (queries, keys, left, right)), printed in zip(attention.MASKS,
                                                              attention.masks(ROOT)):
            for query, (first, end) in enumerate(printed["seen"]):
                stands = query + keys - queries
                self.assertEqual([key for key in range(keys) if first <= key < end],
                                 [key for key in range(keys)
                                  if stands - left <= key <= stands + right])


class Rope(WithSource):
    chapter = "06_rope"

    def test_a_turn(self):
        self.holds("rotary/rotary.cuh", "return {fmaf(pair.x, c, -pair.y * s), fmaf(pair.y, c, "
                   "pair.x * s)};")
        for formula in ("x' = x c - y s y' = y c + x s", "x' = x c + x s y' = y c - y s (wrong)"):
            self.holds("README.md", formula)
        self.assertEqual(rope.rotated(rope.Q, 0), list(rope.Q))
        self.assertEqual(rope.wrong(rope.Q, 0), list(rope.Q))
        for m in range(rope.SHOWN):
            self.assertAlmostEqual(rope.length(rope.rotated(rope.Q, m)), rope.length(rope.Q), 14)
            for n in range(rope.SHOWN):
                other = max(m - n, 0), max(n - m, 0)
                self.assertAlmostEqual(
                    rope.score(rope.rotated(rope.Q, m), rope.rotated(rope.K, n)),
                    rope.score(rope.rotated(rope.Q, other[0]), rope.rotated(rope.K, other[1])), 13)
        lengths = [rope.length(rope.wrong(rope.Q, p)) for p in range(25)]
        self.assertLess(min(lengths), 0.6 * rope.length(rope.Q))
        self.assertGreater(max(lengths), 1.3 * rope.length(rope.Q))

    def test_units(self):
        self.holds("rotary/rotary_unit.cuh", "kPairs = kChunks * kWidth / 2;",
                   "x = kChunks == 2 ? value[0][i] : value[0][2 * i];",
                   "y = kChunks == 2 ? value[kChunks - 1][i] : value[0][2 * i + 1];")
        self.holds("rotary/forward3_vectors.cu",
                   "const int col = (unit + (unit < turning ? 0 : (Unit::kChunks - 1) * turning)) "
                   "* Unit::kWidth;", "load(from + i * from_step + j * pairs)")
        for interleaved, count in ((False, 2), (True, 4)):
            lanes, width = rope.units(ROOT, interleaved)
            self.assertEqual(len(lanes), count)
            for chunks, turns in lanes:
                loaded = {first + e for first in chunks for e in range(width)}
                self.assertEqual(loaded, {e for pair in turns for e in pair})
            self.assertEqual(sorted(e for _, turns in lanes for pair in turns for e in pair),
                             list(range(rope.ROW)))

    def test_wavelengths_are_those_of_the_page(self):
        data, page = rope.printed(ROOT), source("06_rope/scaling.md")
        none, factor = data["none"], rope.FACTOR
        within = [rope.TRAINED_LENGTH * f / (2 * math.pi) for f in none]
        self.assertIn("these are 14 of 64", page)
        self.assertEqual(sum(turns < 1 for turns in within), 14)
        for name, first, last in (("yarn", 25, 50), ("llama3", 40, 50)):
            self.assertEqual([i for i in range(64) if data[name][i] == none[i]],
                             list(range(first + 1)))
            self.assertEqual([i for i in range(64) if data[name][i] == none[i] / factor],
                             list(range(last, 64)))
        self.assertIn("from pair 25 to pair 50", page)
        self.assertIn("pairs 41 to 49", page)
        self.assertAlmostEqual(none[63] / data["ntk"][63], factor, 12)
        self.assertAlmostEqual(none[63] / data["dynamic_ntk"][63], 57, 10)
        self.assertIn("= 57 times", page)

    def test_errors_are_those_of_the_page(self):
        data = rope.printed(ROOT)
        self.assertEqual(len(data["of_table"]), 17)
        for error in data["of_table"]:
            self.assertLessEqual(error, 2 ** -25 + 131072 * 2 ** -53)
        self.assertIn("3 · 10⁻⁸", source("06_rope/scaling.md"))
        # What both roundings of an angle can make: of a frequency below 1, and of the product.
        self.assertLess(data["of_angle"][-1], 131071 * 2 ** -25 + 2 ** -8)
        self.assertGreater(data["of_angle"][-1], 7e-3)


class WindowedRope(WithSource):
    chapter = "07_windowed_rope"

    def test_tiles_of_the_map(self):
        self.assertEqual(windowed.tile_shape(ROOT), (128, 128))
        counts = [windowed.tile_counts(windowed.tile_kinds(ROOT, right, window))
                  for _, right, window in windowed.MAPS]
        self.assertEqual(counts, [((15, 6, 15, 28), 42), ((8, 13, 15, 28), 49),
                                  ((22, 12, 30, 0), 76), ((8, 26, 30, 0), 90)])
        for (near, mixed, far, _), turns in counts:
            self.assertEqual(near + 2 * mixed + far, turns)

    def test_near_and_far_by_the_definition(self):
        length, (queries, keys) = windowed.LENGTH, windowed.tile_shape(ROOT)
        for name, right, window in windowed.MAPS:
            data = windowed.tile_kinds(ROOT, right, window)
            kinds = [[0] * (length // keys) for _ in range(length // queries)]
            for i in range(length):
                seen = i + 1 if name == "causal" else length
                ranges = [range(*part["seen"][i]) for part in data["parts"]]
                self.assertEqual([list(keys_of) for keys_of in ranges],
                                 [list(range(i - window + 1)), list(range(i + window, seen)),
                                  list(range(max(i - window + 1, 0), min(i + window, seen)))])
                for part, keys_of in zip(data["parts"], ranges):
                    for tile in {key // keys for key in keys_of}:
                        kinds[i // queries][tile] |= windowed.NEAR if part["near"] else windowed.FAR
            self.assertEqual(data["kinds"], kinds)

    def test_parts_and_turns(self):
        limit, w = windowed.NO_LIMIT, windowed.SHOWN_WINDOW
        for right, expected in ((limit, [(False, limit, -w), (False, -w, limit),
                                         (True, w - 1, w - 1)]),
                                (0, [(False, limit, -w), (False, -w, 0), (True, w - 1, 0)])):
            data = windowed.tile_kinds(ROOT, right, w)
            self.assertEqual([(part["near"], part["left"], part["right"])
                              for part in data["parts"]], expected)
        data = windowed.tile_kinds(ROOT, limit, w)
        self.assertEqual(windowed.turns_of(data, windowed.SHOWN_TILE),
                         [[0, 1, 2], [6, 7], [2, 3, 4, 5, 6]])
        self.holds("windowed/forward4_two_visits.cu",
                   "for (int of_mask = 0; of_mask < Window::kParts; ++of_mask)",
                   "visited = mask.tiles(block_query, kQueries, kKeys);",
                   "const Heads<const T> k = tile::ptx::flag_once(near) ? k1 : k2;",
                   "(near ? q1 : q2).rows(work.batch, work.head, block_query)",
                   "int tile = visited.first; for (; tile < visited.whole_first; ++tile) "
                   "visit(tile, std::true_type{}); for (; tile < visited.whole_last; ++tile) "
                   "visit(tile, std::false_type{}); for (; tile < visited.last; ++tile) "
                   "visit(tile, std::true_type{});")

    def test_distances(self):
        w, farthest = windowed.WINDOW, windowed.FARTHEST
        by_definition = {"rerope": lambda i, j, _: w,
                         "leaky_rerope": lambda i, j, factor: w + (i - j - w) / factor,
                         "self_extend": lambda i, j, g: i // g - j // g + w - w // g}
        for method, factor, *_ in windowed.METHODS:
            seen = windowed.distances_of(ROOT, method, factor)
            self.assertEqual(seen, [d if d < w else by_definition[method](farthest, farthest - d,
                                                                         factor)
                                    for d in range(farthest + 1)])
            self.assertLess(max(seen), windowed.TRAINED)
            for d in range(w, farthest + 1):  # the figure draws a line: within half a pixel
                on_line = seen[w] + (seen[-1] - seen[w]) * (d - w) / (farthest - w)
                self.assertLess(abs(seen[d] - on_line), 4)
        self.assertEqual(windowed.distances_of(ROOT, "rerope", 1, windowed.NO_LIMIT),
                         list(range(farthest + 1)))
        self.assertEqual([windowed.crossing(ROOT, method, factor)
                          for method, factor, *_ in windowed.METHODS], [12793, 25088, None])

    def test_block_of_backward_step_5(self):
        self.holds("windowed/backward5_wgmma.cu", "using KeyBlock = tile::KeyBlock<T, kDim, 2>;",
                   "if (i == far_tiles) finish_dk(dk2);", "start_dq(dq, i - 1)",
                   "block.start_dq(dq, i, i >= far_tiles);")
        self.holds("../tile/key_blocks.cuh", "{[kKeyTensors]{keys}, values, [4]{queries or")
        self.holds("../tile/key_block.cuh", "// Then [2]{dS^T}, [kWarps]{dQ}.")

    def test_gradients(self):
        self.assertEqual(windowed.small_kinds(ROOT), [
            [0 if j > i else windowed.NEAR if i - j < windowed.SMALL_WINDOW else windowed.FAR
             for j in range(windowed.SMALL)] for i in range(windowed.SMALL)])
        self.holds("windowed/backward4_one_pass.cu", "tile::ptx::flag_once(near) ? dq1_sums : dq2_sums",
                   "store(dk_sums, (near ? dk1 : dk2).rows(work.batch, work.head)",
                   "store(dv_sums, dv.rows(work.batch, work.head)")
        self.holds("method/backward1_composed.cu", "near_cos[entry], -near_sin[entry]);",
                   "far_cos[entry], -far_sin[entry]);", "to[x] = static_cast<T>(a.x + b.x); to[y] = "
                   "static_cast<T>(a.y + b.y);")
        self.holds("method/method.hpp", "dq_i = R(i)^T dq1_i + R(i')^T dq2_i dk_j = R(j)^T dk1_j + "
                   "R(j')^T dk2_j")


class Methods(WithSource):
    chapter = "07_windowed_rope"

    def test_bytes_are_those_of_the_page(self):
        composed, prologue, turn_twice = map(methods.moved, methods.FORWARD)
        self.assertEqual(round(prologue), 101)
        self.holds("methods.md", f"{turn_twice:.0f} MB are moved instead of the {composed:.0f}")
        self.holds("method/forward1_composed.cu", "TILE_TRY(rotate_twice(p, inner, positions, stream));")
        self.holds("method/forward3_turn_twice.cu", "TILE_TRY(turn_all_twice(p, inner, positions, stream));")


if __name__ == "__main__":
    unittest.main()
