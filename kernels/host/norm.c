// SPDX-License-Identifier: Apache-2.0
/* RMSNorm, Gemma's RMSNorm (1 + w) and LayerNorm.
 *
 * Statistics are recomputed in the backward pass from x: a pass over a row that is in cache costs
 * less than a slot of the plan for them. Weight gradients are summed over the rows of the call in
 * ascending order into an array of the caller's, who adds such parts in a fixed order: no atomics,
 * no dependence on threads.
 *
 *   xhat = (x - mean) * rstd            (mean = 0 for the RMS kinds)
 *   dx   = rstd * (g - mean(g) - xhat * mean(g * xhat)),  g = dout * w   (mean(g) = 0 for RMS)
 */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

struct row_stats {
    float mean, rstd;
};

static size_t row_offset(const struct sl_host_norm *a, size_t row)
{
    return row / a->row_group * a->row_stride + row % a->row_group * a->width;
}

static float row_sum(const float *x, size_t width)
{
    vf sum = vset(0);
    size_t i = 0;
    for (; i + LANES <= width; i += LANES)
        sum = vadd(sum, vload(x + i));
    if (i < width)
        sum = vadd(sum, vload_n(x + i, width - i));
    return vsum(sum);
}

static float row_square_sum(const float *x, size_t width, float mean)
{
    vf sum = vset(0), center = vset(mean);
    size_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vf d = vsub(vload(x + i), center);
        sum = vfma(d, d, sum);
    }
    for (; i < width; i++) { /* the tail's lanes hold no elements of the sum: one at a time */
        vf d = vset(0);
        d.p[0][0] = x[i] - mean;
        sum = vfma(d, d, sum);
    }
    return vsum(sum);
}

static struct row_stats row_statistics(const struct sl_host_norm *a, const float *x)
{
    struct row_stats s = {0, 0};
    if (a->kind == SL_HOST_NORM_LAYER)
        s.mean = row_sum(x, a->width) / (float)a->width;
    float variance = row_square_sum(x, a->width, s.mean) / (float)a->width;
    s.rstd = 1.0f / sqrtf(variance + a->eps);
    return s;
}

VECTOR vf load_scale(const struct sl_host_norm *a, size_t i, size_t n)
{
    vf w = vload_weight(a->weight.data, a->weight.dtype, i, n);
    return a->kind == SL_HOST_NORM_RMS_PLUS_ONE ? vadd(w, vset(1.0f)) : w;
}

VECTOR void norm_piece(const struct sl_host_norm *a, const float *x, float *out, struct row_stats s,
                       size_t i, size_t n)
{
    vf v = vload_n(x + i, n);
    vf xhat = vmul(vsub(v, vset(s.mean)), vset(s.rstd));
    vf w = load_scale(a, i, n);
    vf y = a->bias.data ? vfma(xhat, w, vload_weight(a->bias.data, a->bias.dtype, i, n))
                        : vmul(xhat, w);
    vstore_n(out + i, y, n);
}

void HOST(norm)(const struct sl_host_norm *a, size_t first, size_t count)
{
    for (size_t row = first; row < first + count; row++) {
        size_t offset = row_offset(a, row);
        const float *x = a->x + offset;
        struct row_stats s = row_statistics(a, x);
        size_t i = 0;
        for (; i + LANES <= a->width; i += LANES)
            norm_piece(a, x, a->out + offset, s, i, LANES);
        if (i < a->width)
            norm_piece(a, x, a->out + offset, s, i, a->width - i);
    }
}

struct backward_row {
    const float *x, *dout;
    float *dx, *dweight, *dbias;
    struct row_stats s;
    vf g_sum, gx_sum;
};

/* Sums of g and g * xhat, and this row's share of the weight gradients. Lanes past n are 0 in g. */
VECTOR void backward_sums(const struct sl_host_norm *a, struct backward_row *r, size_t i, size_t n)
{
    vf x = vload_n(r->x + i, n);
    vf dout = vload_n(r->dout + i, n);
    vf xhat = vmul(vsub(x, vset(r->s.mean)), vset(r->s.rstd));
    vf g = vmul(dout, load_scale(a, i, n));
    r->g_sum = vadd(r->g_sum, g);
    r->gx_sum = vfma(g, xhat, r->gx_sum);
    if (r->dweight)
        vstore_n(r->dweight + i, vfma(dout, xhat, vload_n(r->dweight + i, n)), n);
    if (r->dbias)
        vstore_n(r->dbias + i, vadd(dout, vload_n(r->dbias + i, n)), n);
}

VECTOR void backward_dx(const struct sl_host_norm *a, const struct backward_row *r, float g_mean,
                        float gx_mean, size_t i, size_t n)
{
    vf x = vload_n(r->x + i, n);
    vf dout = vload_n(r->dout + i, n);
    vf xhat = vmul(vsub(x, vset(r->s.mean)), vset(r->s.rstd));
    vf g = vmul(dout, load_scale(a, i, n));
    vf d = vfnma(xhat, vset(gx_mean), vsub(g, vset(g_mean)));
    vf dx = vmul(d, vset(r->s.rstd));
    if (a->accumulate)
        dx = vadd(dx, vload_n(r->dx + i, n));
    vstore_n(r->dx + i, dx, n);
}

void HOST(norm_backward)(const struct sl_host_norm *a, size_t first, size_t count,
                         float *dweight_part, float *dbias_part)
{
    size_t width = a->width, whole = width / LANES * LANES;
    if (dweight_part)
        memset(dweight_part, 0, width * sizeof(float));
    if (dbias_part)
        memset(dbias_part, 0, width * sizeof(float));
    for (size_t row = first; row < first + count; row++) {
        size_t offset = row_offset(a, row);
        struct backward_row r = {a->x + offset, a->dout + offset, a->dx + offset,
                                 dweight_part,  dbias_part,       row_statistics(a, a->x + offset),
                                 vset(0),       vset(0)};
        for (size_t i = 0; i < whole; i += LANES)
            backward_sums(a, &r, i, LANES);
        if (whole < width)
            backward_sums(a, &r, whole, width - whole);
        bool layer = a->kind == SL_HOST_NORM_LAYER;
        float g_mean = layer ? vsum(r.g_sum) / (float)width : 0;
        float gx_mean = vsum(r.gx_sum) / (float)width;
        for (size_t i = 0; i < whole; i += LANES)
            backward_dx(a, &r, g_mean, gx_mean, i, LANES);
        if (whole < width)
            backward_dx(a, &r, g_mean, gx_mean, whole, width - whole);
    }
}
