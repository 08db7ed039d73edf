"""The C interface (../c/tile.h) for Python: every operation of libtile_c.so, by ctypes."""
import ctypes

POINTER, I64, I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
F32, F64 = ctypes.c_float, ctypes.c_double
STRIDES = ctypes.c_int64 * 3


class TENSOR(ctypes.Structure):
    """tile_tensor. A call gives it as two fields: q, its pointer, and q_strides."""
    _fields_ = [("data", POINTER), ("strides", STRIDES)]


class ROTATION(ctypes.Structure):
    """tile_rotation. A call gives it by its own fields."""
    _fields_ = [("cos", POINTER), ("sin", POINTER), ("frequencies", POINTER),
                ("positions", POINTER), ("rotary_dim", I64), ("table_positions", I64),
                ("first_position", I64), ("interleaved", I32), ("attention_factor", F64),
                ("far", I32), ("far_factor", F64)]


TYPES = {"fp32": 1, "fp16": 2, "bf16": 3, "fp64": 4, "tf32": 5, "e4m3": 6}
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8, "tf32": 4, "e4m3": 1}

# What stands in each tile_NAME_args after struct_size, step and type, in order. test_tile_c.py
# holds it against tile.h.
OPERATIONS = {
    "vector_add": [(I64, "n"), (POINTER, "a b c stream")],
    "matmul": [(I64, "m n k"), (I32, "transpose_a transpose_b"), (POINTER, "a b c"),
               (I64, "lda ldb ldc"), (POINTER, "alpha beta stream bias"), (I64, "activation"),
               (POINTER, "a_scale b_scale workspace"), (I64, "workspace_bytes")],
    "activate": [(I64, "rows cols"), (POINTER, "x y"), (I64, "ldx ldy activation"),
                 (POINTER, "stream")],
    "activate_backward": [(I64, "rows cols"), (POINTER, "x dy dx dbias"),
                          (I64, "ldx lddy lddx activation"), (POINTER, "workspace"),
                          (I64, "workspace_bytes"), (POINTER, "stream")],
    "softmax": [(F32, "scale"), (I64, "rows cols"), (POINTER, "x y"), (I64, "ldx ldy"),
                (I32, "log causal"), (I64, "queries"), (POINTER, "workspace"),
                (I64, "workspace_bytes"), (POINTER, "stream")],
    "softmax_backward": [(F32, "scale"), (I64, "rows cols"), (POINTER, "y dy dx"),
                         (I64, "ldy lddy lddx"), (I32, "log causal"), (I64, "queries"),
                         (POINTER, "workspace"), (I64, "workspace_bytes"), (POINTER, "stream")],
    "layernorm": [(I32, "norm"), (I64, "rows cols"), (POINTER, "x gamma beta y mean rstd"),
                  (I64, "ldx ldy"), (POINTER, "eps workspace"), (I64, "workspace_bytes"),
                  (POINTER, "stream")],
    "layernorm_backward": [(I32, "norm"), (I64, "rows cols"),
                           (POINTER, "x gamma mean rstd dy dx dgamma dbeta workspace"),
                           (I64, "ldx lddy lddx"), (POINTER, "stream")],
    "attention": [(I32, "causal windowed"), (F32, "scale"),
                  (I64, "batch heads queries keys head_dim kv_heads left right"),
                  (TENSOR, "q k v o"), (POINTER, "lse query_lengths key_lengths workspace"),
                  (I64, "workspace_bytes"), (TENSOR, "q_far k_far"), (I64, "window"),
                  (ROTATION, "rotation"), (POINTER, "q_scale k_scale v_scale"),
                  (I32, "free_multiprocessors"), (POINTER, "stream")],
    "attention_backward": [
        (I32, "causal windowed"), (F32, "scale"),
        (I64, "batch heads queries keys head_dim kv_heads left right"),
        (TENSOR, "q k v o"), (POINTER, "lse"), (TENSOR, "dout dq dk dv"),
        (POINTER, "query_lengths key_lengths workspace"), (I64, "workspace_bytes"),
        (TENSOR, "q_far k_far dq_far dk_far"), (I64, "window"), (ROTATION, "rotation"),
        (POINTER, "stream")],
    "rotary": [(I32, "interleaved backward"), (F64, "attention_factor"),
               (I64, "batch length heads head_dim kv_heads rotary_dim first_position"
                     " table_positions"),
               (POINTER, "q k q_out k_out cos sin frequencies positions"),
               (STRIDES, "q_strides k_strides q_out_strides k_out_strides"), (POINTER, "stream")],
    "embedding": [(I64, "batch length dim table_positions first_position"),
                  (POINTER, "x table y positions stream")],
    "embedding_backward": [(I64, "batch length dim table_positions first_position"),
                           (POINTER, "dy dtable positions workspace stream")],
}
# The same for functions of the host, whose structs have no step and no type.
HOST_FUNCTIONS = {
    "rotary_tables": [(I32, "rule scaling"), (I64, "rotary_dim positions"), (F64, "base factor"),
                      (I64, "trained_length length"),
                      (F64, "beta_fast beta_slow high_frequency_factor low_frequency_factor"),
                      (POINTER, "short_factors long_factors frequencies cos sin"),
                      (I32, "untruncated"), (I64, "unrotated_pairs"), (F64, "attention_factor"),
                      (POINTER, "used_attention_factor")],
    "windowed_rotary_tables": [(I32, "far"), (F64, "attention_factor"), (I64, "window"),
                               (F64, "far_factor"), (I64, "rotary_dim positions"),
                               (POINTER, "frequencies cos sin")],
}
# These take attention's structs, both forward and backward.
ATTENTIONS = ("rotary_attention", "windowed_attention", "windowed_rotary_attention")
LAYER_NORM, RMS_NORM = 0, 1
FAR_REROPE, FAR_LEAKY_REROPE, FAR_SELF_EXTEND = 1, 2, 3


def _struct(name, groups):
    fields = [("struct_size", ctypes.c_size_t)]
    if name in OPERATIONS:
        fields += [("step", ctypes.c_char_p), ("type", I32)]
    fields += [(field, kind) for kind, names in groups for field in names.split()]
    return type(f"tile_{name}_args", (ctypes.Structure,), {"_fields_": fields})


STRUCTS = {name: _struct(name, groups) for name, groups in (OPERATIONS | HOST_FUNCTIONS).items()}
STRUCTS |= {name + suffix: STRUCTS["attention" + suffix]
            for name in ATTENTIONS for suffix in ("", "_backward")}
OF_ROTATION = dict(ROTATION._fields_)


INVALID_ARGUMENT, UNSUPPORTED = 1, 2


class TileError(Exception):
    """What a call that failed says. `status` is its tile_status, or None without a call."""

    def __init__(self, message, status=None):
        super().__init__(message)
        self.status = status


class Library:
    """libtile_c.so. Loading it does not start the device."""

    def __init__(self, path):
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise TileError(f"cannot load {path}: {error}") from error
        for name in ("tile_status_name", "tile_last_error", "tile_last_step"):
            getattr(self._c, name).restype = ctypes.c_char_p
        self._c.tile_alloc.argtypes = [ctypes.POINTER(POINTER), I64]
        for name in ("tile_free", "tile_synchronize"):
            getattr(self._c, name).argtypes = [POINTER]
        for name in ("tile_copy_to_device", "tile_copy_from_device"):
            getattr(self._c, name).argtypes = [POINTER, POINTER, I64]

    def _check(self, status):
        if status != 0:
            name = self._c.tile_status_name(status).decode()
            raise TileError(f"{name}: {self._c.tile_last_error().decode()}", status)

    def _call(self, function, *arguments):
        self._check(getattr(self._c, function)(*arguments))

    @property
    def device_name(self):
        name = ctypes.c_char_p()
        self._call("tile_device_name", ctypes.byref(name))
        return name.value.decode()

    @property
    def is_simulated(self):
        return bool(self._c.tile_device_is_simulated())

    def steps(self, chapter):
        """The names of a chapter's steps in order: forward, then what only a backward pass has."""
        for name in ("tile_chapter_name", "tile_step_name"):
            getattr(self._c, name).restype = ctypes.c_char_p
        for i in range(self._c.tile_chapter_count()):
            if self._c.tile_chapter_name(i).decode() == chapter:
                return [self._c.tile_step_name(i, step).decode()
                        for step in range(self._c.tile_step_count(i))]
        raise TileError(f"this library has no chapter {chapter}")

    @property
    def last_step(self):
        """The step that the last operation was started with."""
        return self._c.tile_last_step().decode()

    def _function(self, name):
        function = getattr(self._c, f"tile_{name}", None)
        if not function:
            raise TileError(f"this library has no tile_{name}: is it an old one?")
        return function

    def _arguments(self, operation, element_type, fields):
        """The struct, and what must live as long. A function of the host has no element type."""
        kind = STRUCTS[operation.removesuffix("_reference")]
        args = kind(struct_size=ctypes.sizeof(kind))
        if element_type:
            args.type = TYPES[element_type]
        known, kept = dict(kind._fields_), []
        for name, value in fields.items():
            place, field, field_kind = args, name, known.get(name)
            if field_kind is TENSOR:
                place, field, field_kind = getattr(args, name), "data", POINTER
            elif known.get(name.removesuffix("_strides")) is TENSOR:
                place, field = getattr(args, name.removesuffix("_strides")), "strides"
            elif "rotation" in known and name in OF_ROTATION:
                place, field_kind = args.rotation, OF_ROTATION[name]
            elif name not in known:
                raise TypeError(f"{kind.__name__} has no field {name}")
            if field_kind is POINTER and isinstance(value, (ctypes.Array, ctypes._SimpleCData)):
                kept.append(value)
                value = ctypes.addressof(value)
            setattr(place, field, value)
        return args, kept

    def prepare(self, operation, element_type, **fields):
        """A function that starts the operation. Its arguments are made once, so that a call costs
        little. Fields that are not given are 0, their default. Pointers are integers, or ctypes
        arrays, which the function keeps alive."""
        function = self._function(operation)
        args, kept = self._arguments(operation, element_type, fields)
        pointer = ctypes.byref(args)

        def start(_keep=(args, kept)):
            status = function(pointer)
            if status:
                self._check(status)
        return start

    def _workspace_bytes(self, operation, args):
        count = I64()
        self._check(self._function(f"{operation}_workspace_bytes")(ctypes.byref(args),
                                                                   ctypes.byref(count)))
        return count.value

    def workspace_bytes(self, operation, element_type, **fields):
        args, _ = self._arguments(operation, element_type, fields)
        return self._workspace_bytes(operation, args)

    def run(self, operation, element_type, **fields):
        self.prepare(operation, element_type, **fields)()

    def run_with_workspace(self, operation, element_type, allocate, **fields):
        """run(), with a workspace of allocate(bytes) that has a data_ptr()."""
        args, _kept = self._arguments(operation, element_type, fields)
        count = self._workspace_bytes(operation, args)
        workspace = allocate(count)
        args.workspace = workspace.data_ptr()
        if hasattr(args, "workspace_bytes"):
            args.workspace_bytes = count
        self._check(self._function(operation)(ctypes.byref(args)))

    def synchronize(self, stream=None):
        self._call("tile_synchronize", stream)

    def memory(self, data):
        """Device memory that begins as `data`."""
        return Memory(self, data)


class Memory:
    """Device memory of the library. Freed with the object."""

    def __init__(self, library, data):
        self._library, self.bytes = library, len(data)
        pointer = POINTER()
        library._call("tile_alloc", ctypes.byref(pointer), self.bytes)
        self.pointer = pointer.value
        library._call("tile_copy_to_device", self.pointer, bytes(data), self.bytes)

    def data_ptr(self):
        """As PyTorch's tensors have it."""
        return self.pointer

    def read(self):
        data = ctypes.create_string_buffer(self.bytes)
        self._library._call("tile_copy_from_device", data, self.pointer, self.bytes)
        return data.raw

    def __del__(self):
        if getattr(self, "pointer", None):
            self._library._c.tile_free(self.pointer)
