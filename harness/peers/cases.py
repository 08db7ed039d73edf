"""What is measured: the cases of each chapter, without PyTorch."""
import dataclasses
import math
import random

from tile_c import BYTES, FAR_REROPE

# m, n and k of products. The last of bf16: few tiles in C, twice; tiles that lack a part; a layer.
CUBES = tuple((size,) * 3 for size in (2048, 4096, 8192, 16384))
PRODUCT_SIZES = {"fp32": ((256, 256, 16384), (16, 4096, 4096), (1000,) * 3, (3001,) * 3,
                          *CUBES[:3]),
                 "fp16": CUBES,
                 "bf16": ((512, 512, 8192), (8192, 128, 8192), (16, 16384, 4096), (1024,) * 3,
                          (3000, 3000, 3000), (4100,) * 3, (2048, 11008, 4096), *CUBES),
                 "e4m3": CUBES[1:]}
# Rows and columns where the peers' figures are known (expected.json), and one row that is longer
# than the registers of a cluster of multiprocessors.
SOFTMAX_SIZES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 32768), (4096, 131072))
LONGEST_SOFTMAX = (8192, 262144)
# Rows that begin anywhere, and rows longer than clusters hold, for chapters 03 and 04.
ODD_SIZES = (("bf16", (8192, 50257)), ("bf16", (50000, 777)), ("bf16", (100000, 100)),
             ("bf16", (64, 1000001)), ("fp16", (1, 1 << 24)))
LAYERNORM_SIZES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 16384))
# Batch, heads, heads of k and v, queries, keys, head dimension: as ../../05_flash_attention/test
# has them. Each causal and full.
ATTENTION_SIZES = ((8, 32, 32, 2048, 2048, 64), (2, 32, 32, 8192, 8192, 64),
                   (1, 32, 32, 16384, 16384, 64), (8, 16, 16, 2048, 2048, 128),
                   (2, 16, 16, 8192, 8192, 128), (1, 16, 16, 16384, 16384, 128),
                   (2, 32, 8, 8192, 8192, 128), (8, 8, 8, 2048, 2048, 256),
                   (2, 8, 8, 8192, 8192, 256), (1, 8, 8, 16384, 16384, 256))
ATTENTION_SIZES_E4M3 = tuple(size for size in ATTENTION_SIZES if size[-1] <= 128)
# Also as ../../07_windowed_rope/test has them, causal, with the distance from which keys are
# far.
WINDOWED_SIZES = ((1, 32, 32, 8192, 8192, 64), (1, 16, 16, 8192, 8192, 128),
                  (1, 32, 32, 16384, 16384, 64))
WINDOW = 2048
# What attention takes: tensors of queries, of keys, and v.
ATTENTION_INPUTS = {"attention": "q k v", "windowed_attention": "q q_far k k_far v",
                    "windowed_rotary_attention": "q k v"}
# Batch, tokens, heads of q and of k, head dimension, and 1 for interleaved pairs.
ROTARY_SIZES = tuple((4, 4096, 32, 8, head_dim, interleaved)
                     for head_dim in (64, 128) for interleaved in (0, 1))
# One new token of a text, or a few that were guessed and are checked: this number of queries beside
# k and v of 256 MiB to 1 GiB.
DECODED = (1, 16, 64)
DECODING_KEYS = (1 << 16, 1 << 17, 1 << 18)
PASSES = ("forward", "backward")
BOTH = "forward+backward"
TYPES = ("fp32", "fp16", "bf16")  # and of products and of attention's forward pass e4m3


@dataclasses.dataclass(frozen=True)
class Case:
    chapter: str         # the folder's name
    # vector_add, matmul, softmax, layernorm, rmsnorm, rotary, or one of ATTENTION_INPUTS
    operation: str
    type: str            # of the elements
    # (n), (m, n, k), (rows, columns); of attention batch, heads, heads of k and v, queries, keys,
    # head dimension, and 1 for causal or 0; of a rotation as ROTARY_SIZES has them
    sizes: tuple
    direction: str = "forward"
    is_sweep: bool = False  # one of many; bursts only, and not beside torch.compile
    window: tuple = ()      # keys seen before and after a query's own; () for no limit
    has_lengths: bool = False  # batch entries are shorter than the tensors, each by its own
    far: int = 0               # of windowed attention: the distance from which keys are far
    scale: float = 0           # of attention's scores; 0 for 1 / sqrt(head dimension)

    @property
    def name(self):
        """As the benchmark in C++ calls it."""
        if self.is_attention:
            batch, heads, kv_heads, queries, keys, head_dim, causal = self.sizes
            words = [f"B{batch}", f"H{heads}", f"Hkv{kv_heads}"]
            words += [f"Sq{queries}"] * (queries != keys) + [f"S{keys}", f"d{head_dim}"]
            words += [f"W{self.far}"] * (self.operation != "attention")
            words += ["rerope" if self.operation == "windowed_rotary_attention" else
                      "causal" if causal else "full"]
            words += ["window" + "+".join(map(str, self.window))] * bool(self.window)
            words += ["lengths"] * self.has_lengths + [f"scale{self.scale}"] * bool(self.scale)
            return " ".join([self.type, *words])
        if self.operation == "rotary":
            extents = ("B", "S", "H", "Hkv", "d")
            words = [extent + str(size) for extent, size in zip(extents, self.sizes)]
            return " ".join([self.type, *words, ("half", "interleaved")[self.sizes[-1]]])
        extents = {1: ["n"], 2: ["rows", "cols"], 3: ["m", "n", "k"]}[len(self.sizes)]
        words = [self.type, *(extent + str(size) for extent, size in zip(extents, self.sizes))]
        # Of 8 bits there is one layout.
        return " ".join(words + ["rms"] * (self.operation == "rmsnorm")
                        + ["B^T"] * (self.type == "e4m3"))

    @property
    def result_type(self):
        """Results of 8-bit products have 16 bits."""
        return "bf16" if self.type == "e4m3" else self.type

    @property
    def title(self):
        direction = "both passes" if self.direction == BOTH else self.direction
        return f"{self.chapter}, {self.name}, {direction}"

    @property
    def lengths(self):
        """Of queries and of keys, in each batch entry. With causal, a square has more queries than
        keys then, and the first see nothing."""
        batch, _, _, queries, keys, *_ = self.sizes
        return ([queries * (entry + 2) // (batch + 2) for entry in range(batch)],
                [keys * (batch - entry) // (batch + 1) for entry in range(batch)])

    @property
    def is_attention(self):
        return self.operation in ATTENTION_INPUTS

    @property
    def attention_fields(self):
        """The numbers in the C interface's arguments."""
        names = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal")
        fields = dict(zip(names, self.sizes))
        if self.window:
            fields |= dict(windowed=1, left=self.window[0], right=self.window[1])
        if self.scale:
            fields["scale"] = self.scale
        if self.operation != "attention":
            fields["window"] = self.far
        if self.operation == "windowed_rotary_attention":
            fields |= dict(far=FAR_REROPE, table_positions=fields["keys"])
        return fields

    @property
    def is_decoding(self):
        """Few queries beside many keys: what it takes is to read k and v."""
        return self.is_attention and 1024 * self.sizes[3] <= self.sizes[4]

    @property
    def is_arithmetic(self):
        return (self.operation == "matmul" or self.is_attention) and not self.is_decoding

    @property
    def amount(self):
        """Operations of products, bytes moved by everything else: what it must read and write,
        once."""
        if self.is_attention:
            return self._amount_of_attention()
        if self.operation == "rotary":
            batch, length, heads, kv_heads, head_dim, _ = self.sizes
            return 2 * batch * length * (heads + kv_heads) * head_dim * BYTES[self.type]
        if self.is_arithmetic:
            m, n, k = self.sizes
            return 2 * m * n * k
        count = 1
        for size in self.sizes:
            count *= size
        tensors = 3 if self.operation == "vector_add" or self.direction == "backward" else 2
        # gamma and beta; or gamma and both gradients. RMSNorm has no beta.
        vectors = {"layernorm": tensors, "rmsnorm": tensors - 1}.get(self.operation, 0)
        return (tensors * count + vectors * self.sizes[-1]) * BYTES[self.type]

    def _amount_of_attention(self):
        batch, heads, kv_heads, queries, keys, head_dim, causal = self.sizes
        if self.is_decoding:
            return 2 * batch * keys * kv_heads * head_dim * BYTES[self.type]
        # Of each pair of a query and a key that it sees, head_dim multiply-adds in each product.
        pairs = queries * keys
        if causal:
            pairs = sum(min(max(keys - later, 0), keys) for later in range(queries))
        products = {"forward": 2, "backward": 5, BOTH: 7}[self.direction]
        return 2 * products * pairs * batch * heads * head_dim

    @property
    def unit(self):
        return "ms" if self.direction == BOTH else "TFLOP/s" if self.is_arithmetic else "TB/s"

    @property
    def metric(self):
        return {"ms": "time", "TFLOP/s": "throughput", "TB/s": "bandwidth"}[self.unit]


def all_cases(sweep=False, seed=None):
    """Every case of every chapter. The sweep, or random cases, are measured instead of them, not
    beside them."""
    return list(_tables() if seed is None and not sweep else
                _sweep() if seed is None else _random(random.Random(seed)))


def _tables():
    for element_type in TYPES:
        for n in (1 << 20, 1 << 24, 1 << 28):
            yield Case("01_vector_add", "vector_add", element_type, (n,))
    yield Case("01_vector_add", "vector_add", "fp32", (1 << 29,))
    for element_type, sizes in PRODUCT_SIZES.items():
        for size in sizes:
            yield Case("02_matmul", "matmul", element_type, size)
    for element_type in ("fp32", "bf16"):
        sizes = SOFTMAX_SIZES + (LONGEST_SOFTMAX,) * (element_type == "bf16")
        for size in sizes:
            for direction in PASSES:
                yield Case("03_softmax", "softmax", element_type, size, direction)
    for element_type, size in ODD_SIZES:
        for direction in PASSES:
            yield Case("03_softmax", "softmax", element_type, size, direction)
            yield Case("04_layernorm", "layernorm", element_type, size, direction)
    for operation in ("layernorm", "rmsnorm"):
        for element_type in ("fp32", "bf16"):
            for size in LAYERNORM_SIZES:
                for direction in PASSES:
                    yield Case("04_layernorm", operation, element_type, size, direction)
    for element_type in ("bf16", "fp16"):
        for size in ATTENTION_SIZES:
            for causal in (1, 0):
                for direction in PASSES:
                    yield Case("05_flash_attention", "attention", element_type, (*size, causal),
                               direction)
    for size in ATTENTION_SIZES_E4M3:
        for causal in (1, 0):
            yield Case("05_flash_attention", "attention", "e4m3", (*size, causal))
    for element_type in ("bf16", "fp32"):
        for size in ROTARY_SIZES:
            for direction in PASSES:
                yield Case("06_rope", "rotary", element_type, size, direction)
    for operation in ("windowed_attention", "windowed_rotary_attention"):
        for element_type in ("bf16", "fp16"):
            for size in WINDOWED_SIZES:
                for direction in (*PASSES, BOTH):
                    yield Case("07_windowed_rope", operation, element_type, (*size, 1), direction,
                               far=WINDOW)
    for element_type in ("bf16", "fp16"):  # larger scores, whose greatest rises more often
        for direction in PASSES:
            yield Case("07_windowed_rope", "windowed_rotary_attention", element_type,
                       (*WINDOWED_SIZES[0], 1), direction, far=WINDOW, scale=0.5)
    for queries in DECODED:
        for keys in DECODING_KEYS:
            yield Case("05_flash_attention", "attention", "bf16",
                       (1, 32, 8, queries, keys, 128, 0))


def _sweep():
    """Row lengths as the tutorials of Triton have them."""
    for columns in range(256, 12672 + 1, 128):
        yield Case("03_softmax", "softmax", "fp32", (4096, columns), is_sweep=True)
    for columns in range(1024, 15872 + 1, 512):
        yield Case("04_layernorm", "layernorm", "fp16", (4096, columns), "backward", True)


def _random(numbers):
    """60 row lengths of 2^27 elements and, with extents that 8 divides and with odd ones, 40 products
    each: shapes that no table has."""
    def extent(least, greatest):
        return round(math.exp(numbers.uniform(math.log(least), math.log(greatest))))

    for _ in range(60):
        columns = extent(256, 1 << 20)
        for chapter, operation in (("03_softmax", "softmax"), ("04_layernorm", "layernorm")):
            for direction in PASSES:
                yield Case(chapter, operation, "bf16", ((1 << 27) // columns, columns), direction, True)
    for _ in range(40):
        eighths = [extent(16, 1024) for _ in range(3)]
        for sizes in ([8 * size for size in eighths], [8 * size - 1 for size in eighths]):
            for element_type in ("bf16", "fp32"):
                yield Case("02_matmul", "matmul", element_type, tuple(sizes), is_sweep=True)


# What --check-only computes: odd sizes, several rows, more than a warp's and a block's columns.
SMALL_SIZES = {"vector_add": ((1,), (1003,)), "matmul": ((1, 1, 1), (37, 29, 65)),
               "softmax": ((1, 1), (5, 33), (3, 2049)), "layernorm": ((1, 7), (5, 33), (7, 2049)),
               "rmsnorm": ((1, 7), (5, 33), (7, 2049)),
               "attention": ((1, 2, 1, 33, 33, 64, 1), (2, 4, 2, 9, 37, 16, 0),
                             (1, 2, 2, 5, 19, 128, 1), (1, 2, 1, 7, 11, 24, 0)),
               "windowed_attention": ((1, 2, 1, 33, 33, 64, 1), (2, 2, 1, 37, 37, 16, 0),
                                      (2, 3, 3, 9, 19, 24, 1)),
               "windowed_rotary_attention": ((1, 2, 1, 33, 33, 64, 1), (2, 3, 3, 9, 19, 24, 1)),
               "rotary": ((2, 5, 4, 2, 64, 0), (1, 7, 3, 0, 32, 1), (2, 3, 1, 1, 6, 1))}
# Rows of 8 bits begin at multiples of 16 bytes, and PyTorch wants n in 16s.
SMALL_E4M3 = (("02_matmul", "matmul", (37, 48, 80)),
              ("05_flash_attention", "attention", (1, 2, 1, 17, 70, 64, 1)))
# Of each size of attention too. Windows: every key is far, all but a query's own, some, none.
SMALL_WINDOWS = ({"far": 0}, {"far": 1}, {"far": 7}, {"far": 99})
SMALL_OPTIONS = {"attention": ({}, {"window": (6, 2)}, {"has_lengths": True}),
                 "windowed_attention": (*SMALL_WINDOWS, {"far": 7, "has_lengths": True}),
                 "windowed_rotary_attention": SMALL_WINDOWS}


def small_cases():
    """Each operation in each type and direction, in small sizes."""
    e4m3 = [Case(chapter, operation, "e4m3", size) for chapter, operation, size in SMALL_E4M3]
    chapters = {case.operation: (case.chapter, set()) for case in all_cases()}
    for case in all_cases():
        chapters[case.operation][1].add(case.direction)
    return [Case(chapter, operation, element_type, size, direction, **options)
            for operation, (chapter, directions) in chapters.items()
            for element_type in TYPES
            for direction in PASSES if direction in directions
            for size in SMALL_SIZES[operation]
            for options in SMALL_OPTIONS.get(operation, ({},))] + e4m3


def select(cases, chapter="", part=""):
    """Those of a chapter, given by the beginning of its folder's name, with `part` in the title."""
    return [case for case in cases if case.chapter.startswith(chapter) and part in case.title]
