#!/usr/bin/env python3
"""Holds the structs of tile_c.py against tile.h, as a C compiler lays them out. Run by CI."""
import ctypes
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import tile_c

HEADER = pathlib.Path(__file__).parents[1] / "c/tile.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


STRUCTS = {struct.__name__: struct for struct in tile_c.STRUCTS.values()} | {
    "tile_tensor": tile_c.TENSOR, "tile_rotation": tile_c.ROTATION}


def declared_structs():
    """name -> fields, from the header."""
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", TEXT, re.S):
        # "const float* beta;", "int64_t m, n, k;"
        found[name] = [re.sub(r"\[.*", "", field.split()[-1]).lstrip("*")
                       for line in body.split(";") if line.strip() for field in line.split(",")]
    return found


class Layout(unittest.TestCase):
    def test_every_operation_of_the_header_is_bound(self):
        # A reference takes the args of its operation.
        functions = re.findall(r"TILE_API tile_status\s+tile_(\w+)\(\s*const (\w+)\* args\)", TEXT)
        self.assertGreater(len(functions), 2)
        operations = {name.removesuffix("_reference") for name, _ in functions}
        self.assertEqual(set(tile_c.STRUCTS), operations)
        for name, args in functions:
            self.assertEqual(tile_c.STRUCTS[name.removesuffix("_reference")].__name__, args)

    def test_fields_are_those_of_the_header_in_order(self):
        self.assertEqual({name: [field for field, _ in struct._fields_]
                          for name, struct in STRUCTS.items()}, declared_structs())

    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def test_sizes_and_offsets_are_those_of_a_compiler(self):
        lines = []
        for name, fields in declared_structs().items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            lines += [f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                      f"sizeof((({name}*)0)->{field}));" for field in fields]
        program = ("#include <stdio.h>\n#include <tile.h>\nint main(void) {\n" + "\n".join(lines)
                   + "\nreturn 0;\n}\n")
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
            source.write_text(program, encoding="utf-8")
            subprocess.run([COMPILER, "-std=c99", "-I", HEADER.parent, source, "-o", binary],
                           check=True)
            said = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
        expected = []
        for name in declared_structs():
            struct = STRUCTS[name]
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, _ in struct._fields_:
                place = getattr(struct, field)
                expected.append(f"{name}.{field} {place.offset} {place.size}")
        self.assertEqual(said.splitlines(), expected)

    def test_types_have_the_numbers_and_bytes_of_the_header(self):
        numbers = {name.lower(): int(number) for name, number in
                   re.findall(r"TILE_((?:FP|BF|TF)\d+|E4M3) = (\d+)", TEXT)}
        self.assertEqual(tile_c.TYPES, numbers)
        self.assertEqual(set(tile_c.BYTES), set(numbers))
        for name in ("LAYER_NORM", "RMS_NORM", "FAR_REROPE", "FAR_LEAKY_REROPE", "FAR_SELF_EXTEND"):
            self.assertIn(f"TILE_{name} = {getattr(tile_c, name)}", TEXT)


class Loading(unittest.TestCase):
    def test_a_library_that_does_not_load_is_an_error_that_names_it(self):
        with self.assertRaisesRegex(tile_c.TileError, "/nonexistent/libtile_c.so"):
            tile_c.Library("/nonexistent/libtile_c.so")


class Steps(unittest.TestCase):
    def library(self):
        names = {b"01_a": [b"one"], b"02_b": [b"naive", b"tiles"]}
        c = mock.MagicMock()
        c.tile_chapter_count = lambda: len(names)
        c.tile_chapter_name = mock.Mock(side_effect=lambda i: list(names)[i])
        c.tile_step_count = lambda i: len(names[list(names)[i]])
        c.tile_step_name = mock.Mock(side_effect=lambda i, step: names[list(names)[i]][step])
        with mock.patch.object(ctypes, "CDLL", return_value=c):
            return tile_c.Library("lib.so")

    def test_steps_are_those_of_the_chapter(self):
        self.assertEqual(self.library().steps("02_b"), ["naive", "tiles"])
        with self.assertRaisesRegex(tile_c.TileError, "03_c"):
            self.library().steps("03_c")


if __name__ == "__main__":
    unittest.main()
