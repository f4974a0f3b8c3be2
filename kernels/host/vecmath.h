// SPDX-License-Identifier: Apache-2.0
/* exp, tanh, erf and their relatives on 16 lanes.
 *
 * Written out as one sequence of IEEE operations and explicit fma, so that all instruction sets
 * give equal bits; libm's scalar functions would cost more than the matrix products of attention.
 * Accuracy (tests/kernels/test_host_math.c): exp, tanh, sigmoid within 4 ulp, erf within 4e-7.
 * Method: exp by reduction to |r| <= ln(2)/2 and a Taylor polynomial of degree 7 (truncation
 * 5e-9 relative, below half an ulp); the power of two is applied in two factors so that subnormal
 * results are right and large ones become infinite. NaN stays NaN.
 */
#ifndef SLUICE_KERNELS_HOST_VECMATH_H
#define SLUICE_KERNELS_HOST_VECMATH_H

#include "kernels/host/simd.h"

/* 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits. */
#define ROUND_MAGIC 12582912.0f

struct exp_parts {
    vf fraction;  /* e^r - 1 */
    vf low, high; /* 2^n = low * high */
};

VECTOR struct exp_parts vexp_reduce(vf x)
{
    struct exp_parts out;
    x = vmax(vset(-104.0f), vmin(vset(89.0f), x));
    vf magic = vset(ROUND_MAGIC);
    vf shifted = vfma(x, vset(0x1.715476p+0f), magic);
    vf n = vsub(shifted, magic);
    vf r = vfnma(n, vset(0x1.62e400p-1f), x); /* ln 2 in two parts; the first has 11 free bits */
    r = vfnma(n, vset(0x1.7f7d1cp-20f), r);
    vf q = vset(0x1.a01a02p-13f); /* 1/7! ... 1/2! */
    q = vfma(q, r, vset(0x1.6c16c2p-10f));
    q = vfma(q, r, vset(0x1.111112p-7f));
    q = vfma(q, r, vset(0x1.555556p-5f));
    q = vfma(q, r, vset(0x1.555556p-3f));
    q = vfma(q, r, vset(0.5f));
    out.fraction = vfma(vmul(q, r), r, r);
    EACH(i)
    {
        ipart exponent = (ipart)shifted.p[i] - 0x4b400000;
        ipart half = exponent >> 1;
        out.low.p[i] = (fpart)((half + 127) << 23);
        out.high.p[i] = (fpart)((exponent - half + 127) << 23);
    }
    return out;
}

VECTOR vf vexp(vf x)
{
    struct exp_parts e = vexp_reduce(x);
    vf mantissa = vadd(e.fraction, vset(1.0f));
    return vmul(vmul(mantissa, e.low), e.high);
}

/* 1 / (1 + e^-x) */
VECTOR vf vsigmoid(vf x)
{
    vf e = vexp(vsub(vset(0.0f), x));
    return vdiv(vset(1.0f), vadd(vset(1.0f), e));
}

struct tanh_parts {
    vf value;      /* tanh x */
    vf complement; /* 1 - |tanh x|, without cancellation: 1 - tanh^2 = complement (2 - complement)
                    */
};

/* tanh|x| = t / (t + 2) with t = e^(2|x|) - 1 formed without cancellation. */
VECTOR struct tanh_parts vtanh_parts(vf x)
{
    struct tanh_parts r;
    vf limit = vset(44.0f); /* e^88 is finite, and tanh is 1 long before; a NaN passes */
    vf magnitude = vmin(limit, vabs(x));
    struct exp_parts e = vexp_reduce(vadd(magnitude, magnitude));
    vf power = vmul(e.low, e.high);
    vf t = vfma(e.fraction, power, vsub(power, vset(1.0f)));
    vf bottom = vadd(t, vset(2.0f));
    r.value = vcopysign(vdiv(t, bottom), x);
    r.complement = vselect(vgt(vabs(x), limit), vset(0), vdiv(vset(2.0f), bottom));
    return r;
}

VECTOR vf vtanh(vf x)
{
    return vtanh_parts(x).value;
}

/* Below 1 an odd polynomial; above, 1 - e^(-x^2) p(1 / (1 + x/2)), exact 1 from 4 on. Coefficients:
 * Chebyshev interpolation in rational arithmetic, truncation below 2e-9 relative. */
VECTOR vf verf(vf x)
{
    vf a = vabs(x);
    vf z = vmul(a, a);
    vf small = vset(0x1.4a569p-14f);
    small = vfma(small, z, vset(-0x1.a45088p-11f));
    small = vfma(small, z, vset(0x1.541270p-8f));
    small = vfma(small, z, vset(-0x1.b7fabap-6f));
    small = vfma(small, z, vset(0x1.ce2d10p-4f));
    small = vfma(small, z, vset(-0x1.81273ep-2f));
    small = vfma(small, z, vset(0x1.20dd74p+0f));
    small = vmul(small, a);
    vf t = vdiv(vset(1.0f), vfma(vset(0.5f), a, vset(1.0f)));
    vf large = vset(0x1.ed1ed6p-4f);
    large = vfma(large, t, vset(-0x1.e63a54p-2f));
    large = vfma(large, t, vset(0x1.232262p-1f));
    large = vfma(large, t, vset(-0x1.ba1792p-4f));
    large = vfma(large, t, vset(0x1.6642ccp-2f));
    large = vfma(large, t, vset(0x1.095352p-2f));
    large = vfma(large, t, vset(0x1.23d78cp-2f));
    large = vfma(large, t, vset(-0x1.4f82p-13f));
    large = vfnma(large, vexp(vsub(vset(0.0f), z)), vset(1.0f));
    large = vselect(vgt(a, vset(4.0f)), vset(1.0f), large);
    return vcopysign(vselect(vgt(a, vset(1.0f)), large, small), x);
}

#endif
