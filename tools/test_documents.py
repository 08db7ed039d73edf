#!/usr/bin/env python3
"""Tests of documents.py: what blocks become, and what is refused. Run by CI."""
import contextlib
import io
import json
import pathlib
import subprocess
import tempfile
import textwrap
import time
import unittest
from unittest import mock

import documents
from documents import DocumentError

SOURCE = """\
namespace a {
  // snippet-begin kernel
  void kernel() {
    // snippet-begin body
    run();

    # snippet-end body
  }
  // snippet-end kernel
}
"""


class Snippets(unittest.TestCase):
    def test_part_is_dedented_and_loses_inner_markers(self):
        self.assertEqual(documents.snippet(SOURCE, "kernel"),
                         ["void kernel() {", "  run();", "", "}"])

    def test_inner_part_loses_blank_lines_at_its_ends(self):
        self.assertEqual(documents.snippet(SOURCE, "body"), ["run();"])

    def test_parts_may_overlap(self):
        source = ("// snippet-begin a\n1\n// snippet-begin b\n2\n"
                  "// snippet-end a\n3\n// snippet-end b\n")
        self.assertEqual(documents.snippet(source, "a"), ["1", "2"])
        self.assertEqual(documents.snippet(source, "b"), ["2", "3"])

    def test_wrong_markers_are_refused_with_their_line(self):
        begin, end = "// snippet-begin a\n", "// snippet-end a\n"
        for source, line, message in (
                (begin + "x\n" + end, 0, "there is no snippet 'kernel'; there are: a"),
                ("x\n", 0, "there is no snippet 'kernel'; there are: none"),
                (begin + "x\n" + end + begin + "x\n" + end, 4, "snippet-begin a is there twice"),
                ("x\n" + begin + "x\n", 2, "snippet-begin a without an end"),
                ("x\n" + end, 2, "snippet-end a without a beginning"),
                (begin + "x\n" + end + end, 4, "snippet-end a without a beginning"),
                ("x; " + begin, 1, "snippet-begin takes a name, and a line of its own"),
                ("// snippet-end\n", 1, "snippet-end takes a name, and a line of its own"),
                ("// snippet-end a b\n", 1, "snippet-end takes a name, and a line of its own"),
                ("\n// snippet-begin kernel\n \n\n// snippet-end kernel\n", 2,
                 "the snippet kernel is empty")):
            with self.subTest(source), self.assertRaises(DocumentError) as caught:
                documents.snippet(source, "kernel")
            self.assertEqual((str(caught.exception), caught.exception.line), (message, line))


class Blocks(unittest.TestCase):
    def parse(self, text):
        return documents.blocks_of(textwrap.dedent(text).split("\n"))

    def test_parts_of_a_comment(self):
        found = self.parse("""\
            text
              <!-- output exit=2 lines=1,3-9: A=1 ./x: y -->
            old
              <!-- end -->""")
        self.assertEqual(found, [documents.Block("output", {"exit": "2", "lines": "1,3-9"},
                                                 "A=1 ./x: y", "  ", 2, 2, 3)])

    def test_comment_over_several_lines(self):
        found = self.parse("""\
            <!-- results: a.json
                 columns=step -->
            <!-- end -->""")
        self.assertEqual([(b.argument, b.line, b.first, b.last) for b in found],
                         [("a.json columns=step", 1, 2, 2)])

    def test_fences_hide_comments(self):
        self.assertEqual(self.parse("""\
            ````
            ```
            <!-- snippet: a#b -->
            ````
            ~~~
            <!-- end -->
            ```
            ~~~
            `````` is no fence: `
            <!-- a comment -->
            <!-- output of what? -->"""), [])

    def test_end_inside_what_was_generated(self):
        found = self.parse("""\
            <!-- recorded: a.txt -->
            ```
            <!-- end -->
            ```
            <!-- end -->""")
        self.assertEqual([(b.first, b.last) for b in found], [(1, 4)])

    def test_unpaired_comments_are_refused_with_their_line(self):
        for text, line, message in (
                ("\n<!-- end -->", 2, "without a beginning"),
                ("<!-- snipet: a#b -->\n<!-- end -->", 2, "without a beginning"),
                ("<!-- output exit:2: a -->\n<!-- end -->", 2, "without a beginning"),
                ("\n<!-- snippet: a#b -->\n```\n```", 2, "has no <!-- end -->"),
                ("<!-- snippet: a#b -->\n```\n<!-- end -->", 1, "has no <!-- end -->"),
                ("<!-- snippet: a#b -->\n<!-- recorded: c -->\n<!-- end -->", 2,
                 "begins before the block of line 1 has ended"),
                ("<!-- snippet: a#b\n", 1, "the comment has no -->")):
            with self.subTest(text), self.assertRaises(DocumentError) as caught:
                self.parse(text)
            self.assertIn(message, str(caught.exception))
            self.assertEqual(caught.exception.line, line)

    def test_fence_is_longer_than_what_it_holds(self):
        self.assertEqual(documents.fenced(["a", "  ````"], "cpp"),
                         ["`````cpp", "a", "  ````", "`````"])
        self.assertEqual(documents.fenced(["`a`"]), ["```text", "`a`", "```"])


class Outputs(unittest.TestCase):
    def test_colours_progress_and_building_are_left_out(self):
        self.assertEqual(documents.clean(
            "\nBuilding for the device 'cpu' …\n"
            "Built in 3 s.\n"
            "\x1b[1;32mright\x1b[0m  \n     … comparing\n10 %\r20 %\r\x1b[Kdone\r\n\n"),
            ["right", "done"])
        self.assertEqual(documents.clean("\n\n"), [])

    def test_cuts_show_their_gaps(self):
        lines = list("abcde")
        for ranges, shown in (("1-5", "abcde"), ("2", "…b…"), ("1,3-4", "a…cd…"), ("4-", "…de"),
                              ("1,2-5", "abcde")):
            self.assertEqual("".join(documents.cut(lines, ranges)), shown)

    def test_cuts_that_do_not_fit_are_refused(self):
        for ranges in ("0-2", "6", "2-6", "4-3", "6-", "3,2", "1-2,2", "", "a", "-2", "1,,2"):
            with self.subTest(ranges), self.assertRaises(DocumentError):
                documents.cut(list("abcde"), ranges)


def row(step, case, value, peer="", ratio=None, unit="ms", **more):
    return {"chapter": "02_matmul", "step": step, "case": case, "value": value, "unit": unit,
            "peer": peer, "ratio": ratio, "gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0",
            "commit": "abc1234", "date": "2026-01-02", **more}


ROWS = [row("naive", "n16384", 10.04, "cuBLAS", 0.0123), row("naive", "n1024", 0.5),
        row("tiled", "n16384", 1.5, "cuBLAS", 1.006, date="2026-01-01", driver="570.9"),
        row("async", "n16384", 1.25)]
CAPTION = "*NVIDIA H200; driver 580.1, 570.9; CUDA 13.0; commit abc1234; 2026-01-01, 2026-01-02*"


class Tables(unittest.TestCase):
    def table(self, **options):
        return documents.results_table(ROWS, options)

    def test_filters_columns_and_caption(self):
        self.assertEqual(self.table(chapter="02_matmul", case="n16384", peer="cuBLAS",
                                    columns="step:kernel,value:time,ratio,peer"),
                         ["| kernel | time | ratio | peer |",
                          "| --- | ---: | ---: | --- |",
                          "| naive | 10.0 ms | 0.0123 | cuBLAS |",
                          "| tiled | 1.50 ms | 1.01 | cuBLAS |",
                          "", CAPTION])

    def test_a_column_of_units_takes_them_from_the_values(self):
        self.assertEqual(self.table(case="n1024", columns="value,unit")[2], "| 0.500 | ms |")

    def test_filters_take_any_of_several_none_and_patterns(self):
        def steps(**options):
            return [line.strip("| ") for line in self.table(columns="step", **options)[2:-2]]
        self.assertEqual(steps(step="tiled,async"), ["tiled", "async"])
        self.assertEqual(steps(peer=""), ["naive", "async"])
        self.assertEqual(steps(peer="cu*"), ["naive", "tiled"])

    def test_single_rows_keep_the_order_of_their_filters(self):
        def steps(*single, **options):
            lines = documents.results_table(ROWS, {"columns": "step,case", **options}, single)
            return [line.strip("| ") for line in lines[2:-2]]
        self.assertEqual(steps({"step": "tiled"}, {"step": "naive"}, case="n16384"),
                         ["tiled | n16384", "naive | n16384"])
        self.assertEqual(steps({"case": "n1024"}, step="naive"), ["naive | n1024"])
        for single, message in (({"step": "naive"}, "takes one row, and 2 have step=naive"),
                                ({"step": "gone"}, "no row that passes")):
            with self.subTest(single), self.assertRaisesRegex(DocumentError, message):
                steps(single)

    def test_order(self):
        def lines(sort, **options):
            return [line.strip("| ") for line in
                    self.table(columns="step,case,ratio", sort=sort, **options)[2:-2]]
        self.assertEqual(lines("case,step"),
                         ["naive | n1024 | –", "async | n16384 | –", "naive | n16384 | 0.0123",
                          "tiled | n16384 | 1.01"])
        self.assertEqual(lines("-ratio", case="n16384"),
                         ["tiled | n16384 | 1.01", "naive | n16384 | 0.0123", "async | n16384 | –"])
        self.assertEqual(lines("step", case="n16384", step="tiled,naive,async")[:2],
                         ["tiled | n16384 | 1.01", "naive | n16384 | 0.0123"])

    def test_pivot(self):
        self.assertEqual(self.table(pivot="case", sort="case"),
                         ["| step | n1024 | n16384 |",
                          "| --- | ---: | ---: |",
                          "| naive | 0.500 | 10.0 |",
                          "| tiled | – | 1.50 |",
                          "| async | – | 1.25 |",
                          "", "*In ms; " + CAPTION[1:]])
        self.assertEqual(self.table(pivot="peer", cells="ratio", columns="case:size,step",
                                    peer="cuBLAS")[:3],
                         ["| size | step | cuBLAS |", "| --- | --- | ---: |",
                          "| n16384 | naive | 0.0123 |"])

    def test_pivot_cells_of_different_units_carry_them(self):
        rows = [row("a", "n1", 4.219, unit="TB/s"), row("a", "n2", 1.5)]
        self.assertEqual(documents.results_table(rows, {"pivot": "case"})[2:],
                         ["| a | 4.22 TB/s | 1.50 ms |", "",
                          "*NVIDIA H200; driver 580.1; CUDA 13.0; commit abc1234; 2026-01-02*"])

    def test_share_of_the_ceiling(self):
        rows = [row("a", "n1", 49.2, unit="TFLOP/s", ceiling=65.1), row("b", "n1", 1),
                row("c", "n1", 0.5, unit="TFLOP/s", ceiling=65.1)]
        self.assertEqual(documents.results_table(rows, {"columns": "step,value,of_ceiling",
                                                        "sort": "of_ceiling"})[:5],
                         ["| step | value | of ceiling |", "| --- | ---: | ---: |",
                          "| c | 0.500 TFLOP/s | 0.00768 |", "| a | 49.2 TFLOP/s | 0.76 |",
                          "| b | 1.00 ms | – |"])
        self.assertEqual(documents.results_table(rows[:1], {"pivot": "case", "cells": "of_ceiling"})
                         [2], "| a | 0.76 |")

    def test_what_is_refused(self):
        for options, message in (
                ({"step": "naive,gone", "columns": "step"}, "no row that passes the other filters "
                 "has step=gone; in the files there is 'naive', 'tiled', 'async'"),
                ({"step": "tiled", "case": "n1024", "columns": "step"}, "no row that passes"),
                ({"stepp": "a", "columns": "step"}, "no row has the key 'stepp'; there are: chap"),
                ({"columns": "step,x"}, "no row has the key 'x'"),
                ({"columns": "step", "sort": "-x"}, "no row has the key 'x'"),
                ({"pivot": "x"}, "no row has the key 'x'"),
                ({"pivot": "case", "cells": "x"}, "no row has the key 'x'"),
                ({}, "a table needs columns"),
                ({"columns": "step", "cells": "ratio"}, "cells=… goes with pivot=… only"),
                ({"pivot": "chapter"}, "two rows for one cell, which differ in case, value, peer")):
            with self.subTest(options), self.assertRaises(DocumentError) as caught:
                self.table(**options)
            self.assertIn(message, str(caught.exception))
        with self.assertRaisesRegex(DocumentError, "the files have no rows"):
            documents.results_table([], {"columns": "step"})

    def test_numbers(self):
        for value, two_decimals, shown in (
                (28.7344, False, "28.7"), (0.06012, False, "0.0601"), (0, False, "0"),
                (3.6025, False, "3.60"), (9.996, False, "10.0"), (999.6, False, "1,000"),
                (18394.51, False, "18,395"), (4096, False, "4,096"), (-0.5, False, "-0.500"),
                (4.2149, True, "4.21"), (28.7344, True, "28.73"), (0.0123, True, "0.0123"),
                (18394.51, True, "18,395")):
            self.assertEqual(documents.number(value, two_decimals), shown)
        for value in (float("nan"), float("inf")):
            with self.assertRaises(DocumentError):
                documents.number(value)

    def test_bars_do_not_end_a_cell(self):
        self.assertEqual(documents.results_table([row("a|b", "n", 1)], {"columns": "step"})[2],
                         "| a\\|b |")


PAGE = """\
# Page
<!-- snippet: src/a.cu#kernel -->
<!-- end -->

- <!-- no block -->
  <!-- output lines=2-: ./say 'two  words' -->
  <!-- end -->

<!-- results: docs/*.json step=a columns="value:its time" -->
<!-- end -->
<!-- recorded: docs/gpu.txt -->
old
<!-- end -->
"""
WRITTEN = """\
# Page
<!-- snippet: src/a.cu#kernel -->

```cpp
void kernel() {
  run();

}
```

<!-- end -->

- <!-- no block -->
  <!-- output lines=2-: ./say 'two  words' -->

  ```text
  $ ./say 'two  words'
  …
  two  words
  ```

  <!-- end -->

<!-- results: docs/*.json step=a columns="value:its time" -->

| its time |
| ---: |
| 1.00 ms |

*NVIDIA H200; driver 580.1; CUDA 13.0; commit abc1234; 2026-01-02*

<!-- end -->
<!-- recorded: docs/gpu.txt -->

```text
bar  ███ 97 %
```

<!-- end -->
"""


class Pages(unittest.TestCase):
    """A repository with pages, and a ./tour that counts how often it is run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.write(".gitignore", "/build/\n")
        self.write("src/a.cu", SOURCE)
        self.write("docs/results.json", json.dumps([row("a", "n1", 1)]))
        self.write("docs/gpu.txt", "bar  ███ 97 %\n")
        self.script("tour", 'echo "$@" >>build/tour.log')
        self.script("say", "echo first\necho \"$1\" >&2")
        self.write("build/ignored.md", "<!-- end -->\n")
        self.write("folder/page.md", PAGE)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def script(self, path, text):
        self.write(path, f"#!/bin/sh\n{text}\n").chmod(0o755)

    def read(self, path="folder/page.md"):
        return (self.root / path).read_text(encoding="utf-8")

    def docs(self, *arguments):
        """Returns the exit status and what was printed."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = documents.main(list(arguments), self.root)
        return status, printed.getvalue()

    def test_fences_name_the_language(self):
        for suffix, language in ((".c", "c"), (".cu", "cpp"), (".py", "python"), (".txt", "text")):
            with self.subTest(suffix):
                self.write(f"src/part{suffix}", SOURCE)
                self.write("folder/page.md",
                           f"<!-- snippet: src/part{suffix}#body -->\n<!-- end -->\n")
                self.assertEqual(self.docs()[0], 0)
                self.assertIn(f"\n```{language}\nrun();\n```\n", self.read())

    def test_rewrites_once(self):
        status, printed = self.docs()
        self.assertEqual(status, 0)
        self.assertTrue(printed.endswith("docs: 4 blocks, 0 wrong, 4 stale and written anew\n"))
        self.assertEqual(self.read(), WRITTEN)
        self.assertEqual(self.docs("--check"), (0, "docs: 4 blocks, 0 wrong, 0 stale\n"))
        self.assertEqual(self.docs(), (0, "docs: 4 blocks, 0 wrong, 0 stale\n"))
        self.assertEqual(self.read(), WRITTEN)
        self.assertEqual(self.read("build/tour.log"), "list --device cpu\n" * 3)

    def test_links_lead_to_files_and_headings(self):
        self.write("folder/other.md", "# Step 1: `mma`, and *more*\n## The same\n```sh\n# no heading\n"
                   "```\n## The same\n## [Linked](other.md) text\n")
        good = ("[a](other.md) [b](other.md#step-1-mma-and-more) [c](../src/a.cu) [d](#page) [e](..)\n"
                "![f](other.md#the-same) [g](other.md#the-same-1) [h](other.md#linked-text)\n"
                "[i](https://a.b/c#d) `[j](none)`\n```text\n[k](none)\n```\n")
        self.write("folder/page.md", WRITTEN + good)
        self.assertEqual(self.docs("--check"), (0, "docs: 4 blocks, 0 wrong, 0 stale\n"))
        last = len((WRITTEN + good).split("\n"))
        for link, message in (("other.txt", "there is no file other.txt"),
                              ("/etc/passwd", "there is no file /etc/passwd"),
                              ("../../", "there is no file ../../"),
                              ("other.md#no-heading", "there is no heading #no-heading in other.md"),
                              ("other.md#the-same-2", "there is no heading #the-same-2 in other.md"),
                              ("../src/a.cu#L3", "there is no heading #L3 in a.cu"),
                              ("#pages", "there is no heading #pages in page.md")):
            with self.subTest(link):
                self.write("folder/page.md", f"{WRITTEN}{good}[x]({link})\n")
                self.assertEqual(self.docs("--check"), (1, f"folder/page.md:{last}: {message}\n"
                                                        "docs: 4 blocks, 1 wrong, 0 stale\n"))

    def test_check_names_page_line_and_change_and_writes_nothing(self):
        stale = WRITTEN.replace("  run();", "  walk();").replace("1.00 ms", "0.90 ms")
        self.write("folder/page.md", stale)
        self.assertEqual(self.docs("--check"), (1, """\
folder/page.md:2: stale snippet: src/a.cu#kernel
    -  walk();
    +  run();
folder/page.md:24: stale results: docs/*.json step=a columns="value:its time"
    -| 0.90 ms |
    +| 1.00 ms |
docs: 4 blocks, 0 wrong, 2 stale
docs: tools/docs writes them anew
"""))
        self.assertEqual(self.read(), stale)

    def test_each_source_of_a_block_makes_it_stale(self):
        self.docs()
        for path, old, new in (("src/a.cu", "run", "walk"), ("say", "$1", "$1!"),
                               ("docs/results.json", "H200", "H100"), ("docs/gpu.txt", "7", "8")):
            with self.subTest(path):
                kept = self.read(path)
                self.write(path, kept.replace(old, new))
                status, printed = self.docs("--check")
                self.assertEqual((status, printed.count(": stale ")), (1, 1))
                self.write(path, kept)

    def test_long_change_is_shortened(self):
        self.write("docs/gpu.txt", "".join(f"{i}\n" for i in range(100)))
        self.write("folder/page.md", "<!-- recorded: docs/gpu.txt -->\n<!-- end -->\n")
        printed = self.docs("--check")[1]
        self.assertIn("… and 88 more lines", printed)  # of 104, with fences and blank lines
        self.assertEqual(len(printed.splitlines()), documents.DIFF_LINES + 4)

    def test_wrong_blocks_are_named_and_nothing_is_written(self):
        self.write("b.json", "[1]")
        self.write("c.json", "[\n{]")
        self.write("empty.txt", "\n \n")
        (self.root / "latin1.txt").write_bytes(b"\xe4")
        for block, message in (
                ("snippet: src/gone.cu#kernel", "src/gone.cu: there is no file src/gone.cu"),
                ("snippet: src/a.cu#gone", "src/a.cu: there is no snippet 'gone'; there are: "
                 "kernel, body"),
                ("snippet: src/a.cu", "a snippet is written path#name, not 'src/a.cu'"),
                ("snippet: ../a.cu#kernel", "../a.cu: there is no file ../a.cu"),
                ("snippet exit=2: src/a.cu#kernel", "snippet takes no options before the colon"),
                ("recorded: /etc/passwd", "there is no file /etc/passwd"),
                ("recorded: latin1.txt", "latin1.txt is not UTF-8"),
                ("recorded: empty.txt", "empty.txt is empty"),
                ("results: gone/*.json columns=step", "there is no file gone/*.json"),
                ("results: /etc/host* columns=step", "there is no file /etc/host"),
                ("results: b.json columns=step", "b.json is not a list of objects"),
                ("results: c.json columns=step", "c.json:2: "),
                ("results: docs/*.json columns='step", "No closing quotation"),
                ("results: docs/*.json columns=step columns=case", "columns= is there twice"),
                ("results: docs/*.json step=gone columns=step", "no row that passes"),
                ("results: docs/*.json row='step=gone' columns=step", "no row that passes"),
                ("results: docs/*.json row='docs/a.json'", "row= holds filters only"),
                ("output: ./say a; exit 3", "`./say a; exit 3` ended with 3, not 0:\nfirst\na\n"),
                ("output exit=3: ./say a", "`./say a` ended with 0, not 3"),
                ("output: kill -SEGV $$", "`kill -SEGV $$` ended with 139, not 0"),
                ("output exit=x: ./say a", "exit=x is no exit status"),
                ("output lines=2-3: ./say a", "lines=2-3: '2-3' does not fit"),
                ("output as=html: ./say a", "as=html is not as=markdown"),
                ("output line=2: ./say a", "output has exit=, lines= and as=, not line=")):
            with self.subTest(block):
                self.write("wrong.md", f"\n<!-- {block} -->\nold\n<!-- end -->\n")
                status, printed = self.docs()
                self.assertEqual(status, 1)
                self.assertIn(f"wrong.md:2: {message}", printed)
                self.assertEqual((self.read("wrong.md"), self.read()),
                                 (f"\n<!-- {block} -->\nold\n<!-- end -->\n", PAGE))
        self.write("wrong.md", "\n<!-- end -->\n")
        status, printed = self.docs("--check")
        self.assertEqual(status, 1)
        self.assertIn("wrong.md:2: <!-- end --> without a beginning", printed)

    def test_wrong_marker_in_a_source_is_named_with_its_line(self):
        self.write("src/a.cu", SOURCE.replace("# snippet-end body", ""))
        self.assertIn("folder/page.md:2: src/a.cu:4: snippet-begin body without an end",
                      self.docs()[1])

    def test_exit_status_that_was_expected(self):
        self.write("folder/page.md", "<!-- output exit=2: exit 2 -->\n<!-- end -->\n")
        self.assertEqual(self.docs()[0], 0)
        self.assertIn("```text\n$ exit 2\n```", self.read())

    def test_what_changes_the_device_does_not_reach_commands(self):
        self.write("folder/page.md",
                   "<!-- output: echo \"<$CPU_DEVICE_ORDER>\" -->\n<!-- end -->\n")
        with mock.patch.dict("os.environ", CPU_DEVICE_ORDER="reverse"):
            self.docs()
        self.assertIn("\n<>\n", self.read())

    def test_a_command_runs_once(self):
        self.write("folder/page.md",
                   2 * "<!-- output: echo x >>build/runs; wc -l <build/runs -->\n<!-- end -->\n")
        self.docs()
        self.assertEqual(self.read().count("\n1\n"), 2)

    def test_a_command_has_a_time_limit_and_leaves_nothing_running(self):
        self.write("folder/page.md",
                   "<!-- output: sleep 30 & echo $! >build/pid; wait -->\n<!-- end -->\n")
        begun = time.monotonic()
        with mock.patch.object(documents, "COMMAND_SECONDS", 0.5):
            status, printed = self.docs()
        self.assertLess(time.monotonic() - begun, 20)
        self.assertEqual(status, 1)
        self.assertIn("did not end within 0.5 s", printed)
        stat = pathlib.Path(f"/proc/{self.read('build/pid').strip()}/stat")
        # A process that was killed may be seen for a moment.
        with contextlib.suppress(FileNotFoundError):
            while stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z":
                self.assertLess(time.monotonic() - begun, 20)
                time.sleep(0.01)

    def test_failed_build_ends_it(self):
        self.script("tour", "echo broken; exit 1")
        self.assertEqual(self.docs(),
                         (1, "docs: `./tour list --device cpu` ended with 1:\nbroken\n"))
        self.assertEqual(self.read(), PAGE)

    def test_markdown_is_part_of_the_page(self):
        self.write("table.md", "<!-- output as=markdown: ./say '| a |' -->\n<!-- end -->\n")
        self.assertEqual(self.docs()[0], 0)
        self.assertEqual((self.root / "table.md").read_text(encoding="utf-8"),
                         "<!-- output as=markdown: ./say '| a |' -->\n\nfirst\n| a |\n\n"
                         "<!-- end -->\n")

    def test_no_build_without_output(self):
        self.script("tour", "exit 1")
        self.write("folder/page.md", "<!-- recorded: docs/gpu.txt -->\n<!-- end -->\n")
        self.assertEqual(self.docs()[0], 0)

    def test_output_of_xray_for_some_chapters(self):
        self.script("tour", "[ $1 = list ] || echo made")
        for chapter in "01", "03":
            self.write(f"{chapter}.md", f"<!-- output: ./tour xray {chapter} 1 -->\n<!-- end -->\n")
        status, printed = self.docs("--check", "--xray", "02 03")
        self.assertEqual(status, 1)
        self.assertIn("03.md:1: stale output", printed)
        self.assertNotIn("01.md", printed)
        self.assertIn("5 blocks, 0 wrong, 5 stale, 1 of xray left out\n", printed)

    def test_no_block_at_all_fails(self):
        self.write("folder/page.md", "# Page\n")
        self.assertEqual(self.docs("--check"),
                         (1, "docs: 0 blocks, 0 wrong, 0 stale\ndocs: there is nothing to check\n"))

    def test_usage(self):
        self.assertEqual(self.docs("--chekc"),
                         (2, "tools/docs takes --check, with --xray CHAPTERS, or nothing, not '--chekc'\n"))
        self.assertEqual(self.docs("--help")[0], 0)
        self.assertEqual(self.read(), PAGE)


if __name__ == "__main__":
    unittest.main()
