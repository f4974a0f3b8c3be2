// SPDX-License-Identifier: Apache-2.0
/* SiLU and GELU, plain or gated (SwiGLU, GeGLU), with derivatives recomputed from the input. */
#include "kernels/host/variant.h"
#include "kernels/host/vecmath.h"

#define GELU_K 0x1.988454p-1f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f
#define SQRT_HALF 0x1.6a09e6p-1f
#define NORMAL_PEAK 0x1.988454p-2f /* 1 / sqrt(2 pi) */

struct value_slope {
    vf value, slope;
};

/* act(x) and act'(x); what the caller does not use is not computed. */
VECTOR struct value_slope activate(enum sl_host_act_kind kind, vf x)
{
    struct value_slope r;
    vf one = vset(1.0f), half = vset(0.5f);
    if (kind == SL_HOST_ACT_SILU) {
        vf s = vsigmoid(x);
        r.value = vmul(x, s);
        r.slope = vmul(s, vfma(x, vsub(one, s), one));
    } else if (kind == SL_HOST_ACT_GELU_TANH) {
        vf square = vmul(x, x);
        vf u = vmul(vmul(vset(GELU_K), x), vfma(vset(GELU_CUBE), square, one));
        vf rest = vtanh_parts(u).complement; /* of tanh u: both tails keep their digits */
        vf tail = vmul(half, rest);
        vf cdf = vselect(vgt(vset(0), u), tail, vsub(one, tail));
        vf du = vmul(vset(GELU_K), vfma(vset(3 * GELU_CUBE), square, one));
        vf slope = vmul(vmul(half, x), vmul(rest, vsub(vset(2.0f), rest)));
        r.value = vmul(x, cdf);
        r.slope = vfma(slope, du, cdf);
    } else {
        vf cdf = vmul(half, vadd(one, verf(vmul(x, vset(SQRT_HALF)))));
        vf density = vmul(vset(NORMAL_PEAK), vexp(vmul(vset(-0.5f), vmul(x, x))));
        r.value = vmul(x, cdf);
        r.slope = vfma(x, density, cdf);
    }
    return r;
}

VECTOR void forward_row(enum sl_host_act_kind kind, bool gated, const float *in, float *out,
                        size_t width)
{
    for (size_t i = 0; i < width; i += LANES) {
        size_t n = width - i < LANES ? width - i : LANES;
        vf y = activate(kind, vload_n(in + i, n)).value;
        if (gated)
            y = vmul(y, vload_n(in + width + i, n));
        vstore_n(out + i, y, n);
    }
}

VECTOR void backward_row(enum sl_host_act_kind kind, bool gated, const float *in, const float *dout,
                         float *din, size_t width)
{
    for (size_t i = 0; i < width; i += LANES) {
        size_t n = width - i < LANES ? width - i : LANES;
        struct value_slope r = activate(kind, vload_n(in + i, n));
        vf d = vload_n(dout + i, n);
        if (gated) {
            vf up = vload_n(in + width + i, n);
            vstore_n(din + width + i, vmul(d, r.value), n);
            d = vmul(d, up);
        }
        vstore_n(din + i, vmul(d, r.slope), n);
    }
}

/* One loop per kind, so that the choice is outside of it. */
#define ROWS(kind_constant, call)                                                                  \
    case kind_constant:                                                                            \
        for (size_t row = first; row < first + count; row++) {                                     \
            const float *in = a->in + row * in_width;                                              \
            call;                                                                                  \
        }                                                                                          \
        break

void HOST(act)(const struct sl_host_act *a, size_t first, size_t count)
{
    size_t width = a->width, in_width = a->gated ? 2 * width : width;
    switch (a->kind) {
        ROWS(SL_HOST_ACT_SILU,
             forward_row(SL_HOST_ACT_SILU, a->gated, in, a->out + row * width, width));
        ROWS(SL_HOST_ACT_GELU_TANH,
             forward_row(SL_HOST_ACT_GELU_TANH, a->gated, in, a->out + row * width, width));
        ROWS(SL_HOST_ACT_GELU,
             forward_row(SL_HOST_ACT_GELU, a->gated, in, a->out + row * width, width));
    }
}

void HOST(act_backward)(const struct sl_host_act *a, size_t first, size_t count)
{
    size_t width = a->width, in_width = a->gated ? 2 * width : width;
    switch (a->kind) {
        ROWS(SL_HOST_ACT_SILU, backward_row(SL_HOST_ACT_SILU, a->gated, in, a->dout + row * width,
                                            a->din + row * in_width, width));
        ROWS(SL_HOST_ACT_GELU_TANH,
             backward_row(SL_HOST_ACT_GELU_TANH, a->gated, in, a->dout + row * width,
                          a->din + row * in_width, width));
        ROWS(SL_HOST_ACT_GELU, backward_row(SL_HOST_ACT_GELU, a->gated, in, a->dout + row * width,
                                            a->din + row * in_width, width));
    }
}
