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


def of_e4m3(bits):
    """There is no infinity: only 0x7f and 0xff are NaN."""
    exponent, fraction = bits >> 3 & 15, bits & 7
    if (exponent, fraction) == (15, 7):
        return math.nan
    size = (8 + fraction) * 2.0**(exponent - 10) if exponent else fraction * 2.0**-9
    return -size if bits & 0x80 else size


E4M3 = [of_e4m3(bits) for bits in range(256)]


def rounded_to_e4m3(value):
    """The nearest number, of two the even one. What exceeds 448 becomes it."""
    if math.isnan(value):
        return 0x7f
    size = min(abs(value), 448)
    nearest = min(range(0x7f), key=lambda bits: (abs(E4M3[bits] - size), bits & 1))
    return nearest | (0x80 if math.copysign(1, value) < 0 else 0)


def to_bytes(kind, numbers):
    if kind == "e4m3":
        return bytes(map(rounded_to_e4m3, numbers))
    if kind == "bf16":
        return array.array("H", map(rounded_to_bf16, numbers)).tobytes()
    return struct.pack(f"<{len(numbers)}{FORMATS[kind]}", *numbers)


def from_bytes(kind, data):
    if kind == "e4m3":
        return [E4M3[bits] for bits in data]
    if kind == "bf16":
        halves = array.array("H", data)
        data = struct.pack(f"<{len(halves)}I", *(bits << 16 for bits in halves))
        kind = "fp32"
    code = FORMATS[kind]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


FORMATS = {"fp32": "f", "fp16": "e", "fp64": "d", "int32": "i"}
