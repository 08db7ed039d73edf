"""What is measured: the cases of each chapter, without PyTorch."""
import dataclasses

from tile_c import BYTES

# Rows and columns where the peers' figures are known (expected.json), and one row that is longer
# than the registers of a cluster of multiprocessors.
SOFTMAX_SIZES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 32768), (4096, 131072))
LONGEST_SOFTMAX = (8192, 262144)
LAYERNORM_SIZES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 16384))
PASSES = ("forward", "backward")
TYPES = ("fp32", "fp16", "bf16")


@dataclasses.dataclass(frozen=True)
class Case:
    chapter: str         # the folder's name
    operation: str       # vector_add, matmul, softmax, layernorm or rmsnorm
    type: str            # of the elements
    sizes: tuple         # (n), (m, n, k) or (rows, columns)
    direction: str = "forward"
    is_sweep: bool = False  # one of many; bursts only, and not beside torch.compile

    @property
    def name(self):
        """As the benchmark in C++ calls it."""
        extents = {1: ["n"], 2: ["rows", "cols"], 3: ["m", "n", "k"]}[len(self.sizes)]
        words = [self.type, *(extent + str(size) for extent, size in zip(extents, self.sizes))]
        return " ".join(words + ["rms"] * (self.operation == "rmsnorm"))

    @property
    def title(self):
        return f"{self.chapter}, {self.name}, {self.direction}"

    @property
    def is_arithmetic(self):
        return self.operation == "matmul"

    @property
    def amount(self):
        """Operations of a product, bytes moved by everything else: what it must read and write,
        once."""
        if self.is_arithmetic:
            m, n, k = self.sizes
            return 2 * m * n * k
        count = 1
        for size in self.sizes:
            count *= size
        tensors = 3 if self.operation == "vector_add" or self.direction == "backward" else 2
        return tensors * count * BYTES[self.type]

    @property
    def unit(self):
        return "TFLOP/s" if self.is_arithmetic else "TB/s"

    @property
    def metric(self):
        return "throughput" if self.is_arithmetic else "bandwidth"


def all_cases(sweep=False):
    """Every case of every chapter. The sweep is measured instead of them, not beside them."""
    return list(_sweep() if sweep else _tables())


def _tables():
    for element_type in TYPES:
        for n in (1 << 20, 1 << 24, 1 << 28):
            yield Case("01_vector_add", "vector_add", element_type, (n,))
    yield Case("01_vector_add", "vector_add", "fp32", (1 << 29,))
    for element_type in TYPES:
        for size in (2048, 4096, 8192):
            yield Case("02_matmul", "matmul", element_type, (size, size, size))
    for element_type in ("fp32", "bf16"):
        sizes = SOFTMAX_SIZES + (LONGEST_SOFTMAX,) * (element_type == "bf16")
        for size in sizes:
            for direction in PASSES:
                yield Case("03_softmax", "softmax", element_type, size, direction)
    for operation in ("layernorm", "rmsnorm"):
        for element_type in ("fp32", "bf16"):
            for size in LAYERNORM_SIZES:
                for direction in PASSES:
                    yield Case("04_layernorm", operation, element_type, size, direction)


def _sweep():
    """Row lengths as the tutorials of Triton have them."""
    for columns in range(256, 12672 + 1, 128):
        yield Case("03_softmax", "softmax", "fp32", (4096, columns), is_sweep=True)
    for columns in range(1024, 15872 + 1, 512):
        yield Case("04_layernorm", "layernorm", "fp16", (4096, columns), "backward", True)


# What --check-only computes: odd sizes, several rows, more than a warp's and a block's columns.
SMALL_SIZES = {"vector_add": ((1,), (1003,)), "matmul": ((1, 1, 1), (37, 29, 65)),
               "softmax": ((1, 1), (5, 33), (3, 2049)), "layernorm": ((1, 7), (5, 33), (7, 2049)),
               "rmsnorm": ((1, 7), (5, 33), (7, 2049))}


def small_cases():
    """Each operation in each type and direction, in small sizes."""
    chapters = {case.operation: (case.chapter, set()) for case in all_cases()}
    for case in all_cases():
        chapters[case.operation][1].add(case.direction)
    return [Case(chapter, operation, element_type, size, direction)
            for operation, (chapter, directions) in chapters.items()
            for element_type in TYPES
            for direction in PASSES if direction in directions
            for size in SMALL_SIZES[operation]]


def select(cases, chapter="", part=""):
    """Those of a chapter, given by the beginning of its folder's name, with `part` in the title."""
    return [case for case in cases if case.chapter.startswith(chapter) and part in case.title]
