"""Rows of docs/results/<gpu>.json, as ../results.cpp writes them, and the figures that peers are
expected to reach."""
import datetime
import json
import math
import os
import pathlib
import subprocess
from typing import NamedTuple, Optional

KEY = ("chapter", "step", "direction", "case", "metric", "peer")
# A peer that is slower than this share of what it is known to reach was not measured properly.
LEAST_SHARE = 0.95
EXPECTED = pathlib.Path(__file__).with_name("expected.json")


class Result(NamedTuple):
    """One number; the fields of tile::Result."""
    chapter: str
    step: str
    direction: str
    case: str
    metric: str
    value: float
    unit: str
    ceiling: Optional[float]
    peer: str
    peer_value: Optional[float]
    ratio: Optional[float]
    low: float
    high: float
    sm_clock: float


class Origin(NamedTuple):
    """What all rows of a run have in common."""
    gpu: str
    driver: str
    cuda: str
    commit: str
    date: str


def rate(case, milliseconds):
    """In case.unit: TFLOP/s or TB/s, or the time itself."""
    return milliseconds if case.unit == "ms" else case.amount / milliseconds * 1e-9


def row(case, step, duty, ours, peer, theirs, ceiling):
    """Our timing beside a peer's. `ceiling` is a rate, or None."""
    low, high = sorted(rate(case, each) for each in (ours.low, ours.high))
    return Result(chapter=case.chapter, step=step, direction=case.direction, case=case.name,
                  metric=f"{case.metric} {duty}", value=rate(case, ours.median), unit=case.unit,
                  ceiling=ceiling, peer=peer, peer_value=rate(case, theirs.median),
                  ratio=theirs.median / ours.median, low=low, high=high,
                  sm_clock=ours.sm_clock)


def to_json(result, origin):
    """A row as one line."""
    fields = {**result._asdict(), **origin._asdict()}
    return "{" + ", ".join(f'"{name}": {_json(value)}' for name, value in fields.items()) + "}"


def _json(value):
    if value is None:
        return "null"
    if not isinstance(value, str):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no measurement")
        return f"{value:.4g}"  # more digits than the spread of any measurement
    if any(ord(character) < 0x20 for character in value):
        raise ValueError(f"a control character in {value!r}")
    return json.dumps(value, ensure_ascii=False)


def _read_rows(path):
    rows = []
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines():
        if line in ("", "[", "]"):
            continue
        line = line.removesuffix(",")
        if not (line.startswith("{") and line.endswith("}")):
            raise ValueError(f"{path} is not a list with a row a line: {line}")
        rows.append(line)
    return rows


def _key(line):
    try:
        fields = json.loads(line)
        return tuple(fields[name] for name in KEY)
    except (ValueError, KeyError) as error:
        raise ValueError(f"no row of results: {line}") from error


def merge(path, results, origin):
    """Merges rows into a file, which need not exist: a row takes the place of one with the same
    key, others are appended. Raises ValueError or OSError, and then leaves the file alone."""
    path = pathlib.Path(path)
    rows = _read_rows(path)
    at = {}
    for i, line in enumerate(rows):
        at.setdefault(_key(line), i)
    for result in results:
        line = to_json(result, origin)
        place = at.setdefault(_key(line), len(rows))
        rows[place:place + 1] = [line]
    following = path.with_name(path.name + ".new")
    try:
        following.write_text("[\n" + "".join(f"{line},\n" for line in rows[:-1])
                             + "".join(f"{line}\n" for line in rows[-1:]) + "]\n",
                             encoding="utf-8")
        os.replace(following, path)
    except OSError:
        following.unlink(missing_ok=True)
        raise


class Expected:
    """What peers are known to reach on one kind of GPU."""

    def __init__(self, path=EXPECTED):
        file = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.gpu = file["gpu"]
        self.figures = {tuple(figure[name] for name in ("chapter", "direction", "case", "peer")):
                        (figure["value"], figure["unit"]) for figure in file["figures"]}

    def why_void(self, result, gpu):
        """Why the row must not be written; "" if it may."""
        key = (result.chapter, result.direction, result.case, result.peer)
        if gpu != self.gpu or key not in self.figures:
            return ""
        # Under a sustained load the card's power decides how fast a product is, ours as well.
        if result.unit == "TFLOP/s" and result.metric.endswith("sustained"):
            return ""
        figure, unit = self.figures[key]
        if unit != result.unit:
            raise ValueError(f"{key} is expected in {unit} and measured in {result.unit}")
        if result.peer_value >= LEAST_SHARE * figure:
            return ""
        return (f"{result.peer} reached {result.peer_value:.4g} {unit}, less than "
                f"{LEAST_SHARE:.0%} of the {figure:.4g} {unit} that it is known to reach")


def marked(commit, folder=None):
    """The commit with -dirty if git knows it and says that it is not what lies here. Results do
    not count; ./tour bench has the same rule."""
    folder = folder or pathlib.Path(__file__).parents[2]

    def git(*words):
        try:
            return subprocess.run(["git", *words], cwd=folder, capture_output=True).returncode
        except OSError:
            return 1
    if git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") != 0:
        return commit
    same = git("diff", "--quiet", commit, "--", ".", ":!docs/results") == 0
    return commit if same else commit + "-dirty"


def driver_version():
    """As ../device_gpu.cpp finds it."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=driver_version",
                               "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    lines = said.stdout.splitlines()
    return lines[0] if said.returncode == 0 and lines else "unknown"


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
