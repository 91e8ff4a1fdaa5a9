"""A float32 number as two of bfloat16, as the matrix units take them."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["split"]


@triton.jit
@no_type_check
def split(x, ASM: tl.constexpr):
    """(high, low) in bfloat16 with high + low = x to 16 bits; two numbers at a time with ASM."""
    if ASM:
        high, low = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 first, second;
            .reg .f32 rest, other;
            cvt.rn.bf16x2.f32 $0, $3, $2;
            shl.b32 first, $0, 16;
            and.b32 second, $0, 0xffff0000;
            sub.f32 rest, $2, first;
            sub.f32 other, $3, second;
            cvt.rn.bf16x2.f32 $1, other, rest;
            }
            """,
            "=&r,=&r,r,r",
            [x],
            (tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
        return high, low
    else:
        high = x.to(tl.bfloat16)
        return high, (x - high.to(tl.float32)).to(tl.bfloat16)
