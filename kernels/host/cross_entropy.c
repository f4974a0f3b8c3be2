// SPDX-License-Identifier: Apache-2.0
/* Cross-entropy over tiles of the vocabulary, online: a row keeps its running maximum, the running
 * sum of exp(logit - maximum) and its target's logit, so that no [tokens, vocabulary] array lives.
 * Rows whose target is negative are ignored: no statistics, gradient 0, loss 0. */
#include "kernels/host/variant.h"
#include "kernels/host/vecmath.h"

static void cap_row(float *logits, size_t width, float softcap)
{
    vf cap = vset(softcap), inverse = vset(1.0f / softcap);
    for (size_t i = 0; i < width; i += LANES) {
        size_t n = width - i < LANES ? width - i : LANES;
        vstore_n(logits + i, vmul(cap, vtanh(vmul(vload_n(logits + i, n), inverse))), n);
    }
}

static float row_maximum(const float *x, size_t width)
{
    vf top = vset(-INFINITY);
    size_t i = 0;
    for (; i + LANES <= width; i += LANES)
        top = vmax(vload(x + i), top);
    float maximum = vmax_lanes(top);
    for (; i < width; i++)
        maximum = x[i] > maximum ? x[i] : maximum;
    return maximum;
}

static float row_exp_sum(const float *x, size_t width, float maximum)
{
    vf sum = vset(0), shift = vset(maximum);
    size_t i = 0;
    for (; i + LANES <= width; i += LANES)
        sum = vadd(sum, vexp(vsub(vload(x + i), shift)));
    if (i < width) {
        vf tail = vexp(vsub(vload_n(x + i, width - i), shift));
        sum = vadd(sum, vselect(vfirst(width - i), tail, vset(0)));
    }
    return vsum(sum);
}

static float exp_one(float x)
{
    return vexp(vset(x)).p[0][0];
}

void HOST(cross_entropy_stats)(const struct sl_host_cross_entropy *a, size_t first, size_t count)
{
    for (size_t row = first; row < first + count; row++) {
        float *logits = a->logits + row * a->width;
        int32_t target = a->targets[row];
        if (a->reset) {
            a->row_max[row] = -INFINITY;
            a->row_sum[row] = 0;
            a->target_logit[row] = 0;
        }
        if (target < 0)
            continue;
        if (a->softcap > 0)
            cap_row(logits, a->width, a->softcap);
        float before = a->row_max[row];
        float maximum = row_maximum(logits, a->width);
        maximum = maximum > before ? maximum : before;
        float shift = maximum == -INFINITY ? 0 : maximum; /* -inf alone sums to 0, NaN to NaN */
        float kept = a->row_sum[row] * exp_one(before - shift);
        a->row_sum[row] = kept + row_exp_sum(logits, a->width, shift);
        a->row_max[row] = maximum;
        size_t column = (size_t)target - a->column_first;
        if ((size_t)target >= a->column_first && column < a->width)
            a->target_logit[row] = logits[column];
    }
}

static void backward_row(const struct sl_host_cross_entropy *a, size_t row)
{
    float *logits = a->logits + row * a->width;
    vf shift = vset(a->row_max[row]), inverse = vset(1.0f / a->row_sum[row]);
    vf scale = vset(a->scale), one = vset(1.0f);
    vf cap_inverse = vset(a->softcap > 0 ? 1.0f / a->softcap : 0);
    size_t column = (size_t)a->targets[row] - a->column_first;
    bool here = (size_t)a->targets[row] >= a->column_first && column < a->width;
    float target_logit = here ? logits[column] : 0;
    for (size_t i = 0; i < a->width; i += LANES) {
        size_t n = a->width - i < LANES ? a->width - i : LANES;
        vf logit = vload_n(logits + i, n);
        vf d = vmul(vmul(vexp(vsub(logit, shift)), inverse), scale);
        if (a->softcap > 0) {
            vf t = vmul(logit, cap_inverse);
            d = vmul(d, vfnma(t, t, one));
        }
        vstore_n(logits + i, d, n);
    }
    if (here) {
        float p = exp_one(target_logit - a->row_max[row]) * (1.0f / a->row_sum[row]);
        float d = (p - 1.0f) * a->scale;
        if (a->softcap > 0) {
            float t = target_logit * (1.0f / a->softcap);
            d *= fmaf(-t, t, 1.0f);
        }
        logits[column] = d;
    }
}

void HOST(cross_entropy_backward)(const struct sl_host_cross_entropy *a, size_t first, size_t count)
{
    for (size_t row = first; row < first + count; row++) {
        float *logits = a->logits + row * a->width;
        if (a->targets[row] < 0) {
            memset(logits, 0, a->width * sizeof(float));
            continue;
        }
        if (a->softcap > 0 && !a->softcapped)
            cap_row(logits, a->width, a->softcap);
        backward_row(a, row);
    }
}

void HOST(cross_entropy_loss)(const struct sl_host_cross_entropy *a, size_t first, size_t count)
{
    for (size_t row = first; row < first + count; row++) {
        if (a->targets[row] < 0)
            a->loss[row] = 0;
        else
            a->loss[row] = (float)(log((double)a->row_sum[row]) + (double)a->row_max[row] -
                                   (double)a->target_logit[row]);
    }
}
