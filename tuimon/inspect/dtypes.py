"""What the numbers of a checkpoint can be: their sizes, the values of the small ones, their limits.

Every format of 8 or 16 bits is known by a table of all its values, so that one pass that counts bit
patterns tells everything about a tensor. numpy only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IEEE = "ieee"  # an exponent of ones is Inf or NaN
FN = "fn"  # all ones is NaN; there is no Inf
FNUZ = "fnuz"  # what would be -0 is NaN; there is no Inf
SCALE = "scale"  # powers of two without sign; all ones is NaN


@dataclass(frozen=True)
class Layout:
    """The bits of a floating-point number, without its sign."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: str


@dataclass(frozen=True)
class DType:
    """One kind of number.

    Attributes:
        name: as torch has it.
        bits: of one element.
        numpy: how numpy reads it, or the bit pattern of it where there is a `layout`; "" for what
            is not measured.
        layout: of a float that is looked up.
        is_float: whether it can be NaN at all, and has something to lose by another dtype.
    """

    name: str
    bits: int
    numpy: str
    layout: Layout | None = None
    is_float: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether a tensor is measured by counting bit patterns."""
        return self.bits in (8, 16) and bool(self.numpy)


def _float(name: str, bits: int, layout: Layout) -> DType:
    return DType(name, bits, f"<u{bits // 8}", layout, is_float=True)


_ALL = (
    DType("bool", 8, "<u1"),
    DType("uint8", 8, "<u1"),
    DType("int8", 8, "<i1"),
    DType("uint16", 16, "<u2"),
    DType("int16", 16, "<i2"),
    DType("uint32", 32, "<u4"),
    DType("int32", 32, "<i4"),
    DType("uint64", 64, "<u8"),
    DType("int64", 64, "<i8"),
    DType("float32", 32, "<f4", is_float=True),
    DType("float64", 64, "<f8", is_float=True),
    DType("complex64", 64, "<f4", is_float=True),  # measured by their two halves
    DType("complex128", 128, "<f8", is_float=True),
    _float("float16", 16, Layout(5, 10, 15, IEEE)),
    _float("bfloat16", 16, Layout(8, 7, 127, IEEE)),
    # OCP 8-bit Floating Point Specification, and the variants without negative zero.
    _float("float8_e4m3fn", 8, Layout(4, 3, 7, FN)),
    _float("float8_e5m2", 8, Layout(5, 2, 15, IEEE)),
    _float("float8_e4m3fnuz", 8, Layout(4, 3, 8, FNUZ)),
    _float("float8_e5m2fnuz", 8, Layout(5, 2, 16, FNUZ)),
    _float("float8_e8m0fnu", 8, Layout(8, 0, 127, SCALE)),
    # Several elements share a byte, and none of them can be NaN or Inf.
    DType("float4_e2m1fn", 4, ""),
    DType("float6_e2m3fn", 6, ""),
    DType("float6_e3m2fn", 6, ""),
    DType("float4_e2m1fn_x2", 8, ""),
)
DTYPES = {each.name: each for each in _ALL}

# How safetensors calls them: its `Dtype`.
SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
}  # fmt: skip

# What weights are served in, and the largest finite number of each.
SERVING_MAX = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


@functools.cache
def values(dtype: DType) -> NDArray[np.float64]:
    """The value of every bit pattern of a dtype of 8 or 16 bits."""
    patterns = np.arange(1 << dtype.bits, dtype=np.uint32).astype(f"<u{dtype.bits // 8}")
    if dtype.layout is None:
        return patterns.view(dtype.numpy).astype(np.float64)
    return _decoded(patterns.astype(np.int64), dtype.bits, dtype.layout)


def _decoded(patterns: NDArray[np.int64], bits: int, layout: Layout) -> NDArray[np.float64]:
    if layout.special == SCALE:
        scales = np.ldexp(1.0, patterns - layout.bias)
        scales[-1] = np.nan
        return scales
    mantissa_unit = 1 << layout.mantissa_bits
    mantissa = patterns % mantissa_unit
    exponent = patterns // mantissa_unit % (1 << layout.exponent_bits)
    is_normal = exponent > 0
    significand = np.where(is_normal, mantissa + mantissa_unit, mantissa).astype(np.float64)
    power = np.maximum(exponent, 1) - layout.bias - layout.mantissa_bits
    decoded = np.ldexp(significand, power)
    top = exponent == (1 << layout.exponent_bits) - 1
    if layout.special == IEEE:
        decoded[top & (mantissa == 0)] = np.inf
        decoded[top & (mantissa > 0)] = np.nan
    elif layout.special == FN:
        decoded[top & (mantissa == mantissa_unit - 1)] = np.nan
    signed: NDArray[np.float64] = np.where(patterns >> (bits - 1), -decoded, decoded)
    if layout.special == FNUZ:
        signed[1 << (bits - 1)] = np.nan
    return signed
