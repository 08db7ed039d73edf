"""Runs the cells of docs/notebook.ipynb one after the other, by IPython, as a browser's notebook does.

Shell commands that fail do not stop a notebook. So a cell's metadata has `expect`, a regex that its
output must match. The exercise that the notebook solves is as it was afterwards.
"""
import json
import os
import pathlib
import re
import sys

from IPython import get_ipython
from IPython.utils.capture import capture_output

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXERCISE = ROOT / "01_vector_add/exercises/1_axpy.cu"

shell = get_ipython()
shell.system = shell.system_piped  # to Python's output, which can be looked at
os.chdir(ROOT)
cells = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
shipped = EXERCISE.read_text(encoding="utf-8")
failed = False
try:
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        source, expect = "".join(cell["source"]), cell["metadata"]["expect"]
        with capture_output() as output:
            result = shell.run_cell(source)
        print(f"In: {source}\n{output.stdout}{output.stderr}", flush=True)
        if not result.success or not re.search(expect, output.stdout):
            print(f"run_notebook: this cell should have printed {expect!r}")
            failed = True
            break
finally:
    EXERCISE.write_text(shipped, encoding="utf-8")
os._exit(failed)  # IPython would go on and ask
