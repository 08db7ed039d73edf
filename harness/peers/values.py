"""Numbers of the element types as bytes and back, without any package."""
import array
import math
import struct


def rounded_to_bf16(value):
    """The upper half of the fp32 value, rounded to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return 0x7fff
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def to_bytes(kind, numbers):
    if kind == "bf16":
        return array.array("H", map(rounded_to_bf16, numbers)).tobytes()
    return struct.pack(f"<{len(numbers)}{FORMATS[kind]}", *numbers)


def from_bytes(kind, data):
    if kind == "bf16":
        halves = array.array("H", data)
        data = struct.pack(f"<{len(halves)}I", *(bits << 16 for bits in halves))
        kind = "fp32"
    code = FORMATS[kind]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


FORMATS = {"fp32": "f", "fp16": "e", "fp64": "d", "int32": "i"}
