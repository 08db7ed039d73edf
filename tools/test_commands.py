#!/usr/bin/env python3
"""Plants pages with commands that tools/commands must run, or must not. Run by CI."""
import contextlib
import io
import pathlib
import subprocess
import tempfile
import unittest

import commands

PAGE = """
<!-- output: ./tour list -->

```sh
generated
```

<!-- end -->

```sh
./tour list --device cpu   # tools/docs runs it
echo run >>ran             # once
echo run >>ran
elsewhere --or other
```

```text
no command
```
"""


class Commands(unittest.TestCase):
    def run_on(self, page, elsewhere=(("elsewhere .*", "reason"),), arguments=()):
        """The exit code, what was said, and what ran."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            (root / "page.md").write_text(page, encoding="utf-8")
            code = commands.main(list(arguments), root, elsewhere)
            ran = (root / "ran").read_text(encoding="utf-8") if (root / "ran").exists() else ""
        return code, said.getvalue(), ran

    def test_each_command_of_a_block_runs_once(self):
        code, said, ran = self.run_on(PAGE)
        self.assertEqual((code, ran), (0, "run\n"), said)
        self.assertIn("commands: 3, 1 were run", said)

    def test_the_list_runs_nothing(self):
        code, said, ran = self.run_on(PAGE, arguments=["--list"])
        self.assertEqual((code, ran), (0, ""))
        for line in ("page.md:11: ./tour list --device cpu\n    tools/docs runs it",
                     "page.md:12: echo run >>ran\n    runs here",
                     "page.md:14: elsewhere --or other\n    reason"):
            self.assertIn(line, said)

    def test_a_command_that_fails_is_told_with_its_place_and_output(self):
        code, said, _ = self.run_on("\n```sh\necho words; exit 3\n```\n", ())
        self.assertEqual(code, 1)
        self.assertIn("page.md:3: echo words; exit 3 ended with 3:\nwords", said)

    def test_a_reason_that_fits_no_command_is_told(self):
        code, said, _ = self.run_on("", (("gone", "reason"),))
        self.assertEqual(code, 1)
        self.assertIn("no page has a command like gone", said)

    def test_the_device_is_the_cpu_device(self):
        self.assertEqual(commands.here("./tour run 01"), "./tour run 01 --device cpu")
        self.assertEqual(commands.here("./tour help"), "./tour help")
        self.assertEqual(commands.here("./tour run 01 --device cpu"), "./tour run 01 --device cpu")

    def test_commands_in_running_text(self):
        tree = commands.Tree(commands.ROOT)
        for command in ("./tour", "./tour run 03 backward 4", "./tour run 02 5 --size 64x64x64 --device cpu",
                        "./tour run 06 attention backward 1", "./tour run 06 vectors", "./tour run … --check",
                        "./tour test tile", "./tour test 05 forward 9 --check", "./tour play FILE.cu",
                        "./tour play docs/measure/memory.cu -- 3", "./tour exercise 05.4", "tools/docs --check",
                        "tools/drawings_<chapter>.py", "tools/mutate NAME --sample 3"):
            with self.subTest(command):
                self.assertEqual(tree.why_not(command), "")
        for command, why in (("./tour walk", "./tour has no command walk"),
                             ("./tour run 03 --fast", "./tour has no flag --fast"),
                             ("./tour run 08", "there is no chapter 08"),
                             ("./tour run 01 9", "01_vector_add has no forward step 9"),
                             ("./tour run 01 backward", "01_vector_add has no backward steps"),
                             ("./tour run 06 attention 3", "06_rope has no forward step 3"),
                             ("./tour run 01 1 2", "'2' is one word too many"),
                             ("./tour run 01 --size 64by64", "64by64 is no value of --size"),
                             ("./tour play gone.cu", "there is no file gone.cu"),
                             ("./tour exercise 05.44", "there is no exercise 05.44"),
                             ("tools/gone", "there is no file tools/gone"),
                             ("tools/docs --fix", "tools/docs has no flag --fix")):
            with self.subTest(command):
                self.assertEqual(tree.why_not(command), why)

    def test_a_wrong_command_in_running_text_is_told_with_its_place(self):
        code, said, _ = self.run_on("\nRun `tools/gone`.\n\n```text\n`tools/too`\n```\n", ())
        self.assertEqual(code, 1)
        self.assertIn("page.md:2: tools/gone: there is no file tools/gone", said)
        self.assertNotIn("tools/too", said)

    def test_every_reason_fits_a_command_of_the_pages(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(commands.main(["--list"]), 0, said.getvalue()[-500:])


if __name__ == "__main__":
    unittest.main()
