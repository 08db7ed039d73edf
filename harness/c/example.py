# snippet-begin script
"""C = 2 A B by two operations on the device, held against the product in double."""
import sys
from ctypes import *
from math import cos, sin

def fields(kind, names):
    return [(name, kind) for name in names.split()]

COMMON = [("struct_size", c_size_t), ("step", c_char_p), ("type", c_int32)]
class VectorAdd(Structure):
    _fields_ = COMMON + fields(c_int64, "n") + fields(c_void_p, "a b c stream")
class Matmul(Structure):
    _fields_ = (COMMON + fields(c_int64, "m n k") + fields(c_int32, "transpose_a transpose_b")
                + fields(c_void_p, "a b c") + fields(c_int64, "lda ldb ldc")
                + fields(c_void_p, "alpha beta stream bias") + fields(c_int64, "activation")
                + fields(c_void_p, "a_scale b_scale workspace")
                + fields(c_int64, "workspace_bytes"))

def check(status, wanted=0):
    if status != wanted:
        sys.exit(f"status {status}: {tile.tile_last_error().decode()}")

tile, FP32, FP64 = CDLL(sys.argv[1]), 1, 4  # libtile_c.so
tile.tile_last_error.restype = c_char_p
m, n, k = 50, 70, 30
a = (c_float * (m * k))(*map(sin, range(m * k)))
b, c = (c_float * (k * n))(*map(cos, range(k * n))), (c_float * (m * n))()
x, y, z = c_void_p(), c_void_p(), c_void_p()  # on the device
for memory, values in (x, a), (y, b), (z, c):
    check(tile.tile_alloc(byref(memory), c_int64(sizeof(values))))
    check(tile.tile_copy_to_device(memory, values, c_int64(sizeof(values))))
check(tile.tile_matmul(byref(Matmul(sizeof(Matmul), None, FP32, m, n, k, a=x, b=y, c=z))))
check(tile.tile_vector_add(byref(VectorAdd(sizeof(VectorAdd), None, FP32, m * n, z, z, z))))
check(tile.tile_copy_from_device(c, z, c_int64(sizeof(c))))
doubles = [(c_double * len(values))(*values) for values in (a, b, c)]
exact = Matmul(sizeof(Matmul), None, FP64, m, n, k, 0, 0, *map(addressof, doubles))
check(tile.tile_matmul_reference(byref(exact)))
if not all(abs(got - 2 * want) <= 2 * k * k * 2**-24 for got, want in zip(c, doubles[2])):
    sys.exit("C is wrong")  # by more than k roundings of k terms of at most 1, all twice
check(tile.tile_matmul(byref(Matmul(sizeof(Matmul), b"fastest", FP32))), wanted=1)
print("C is right.", tile.tile_last_error().decode())
# snippet-end script
