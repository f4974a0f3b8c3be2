// SPDX-License-Identifier: Apache-2.0
/* Initial weights as a function of (seed, tensor name, element).
 *
 * Weights are initialized in whatever pieces the tiers want, by any number of threads, on any
 * machine, and must be the same. So there is no generator state: element i of a tensor is the
 * inverse normal distribution at a uniform number that is a hash of (key, i), where the key is a
 * hash of seed and name.
 *
 * Rejected: Box-Muller (pairs tie an element to its neighbour, and libm's log and cos differ
 * between C libraries in the last bit) and sums of uniforms (no tails). The inverse distribution is
 * Wichura's rational approximation, good to 1e-16, computed with + - * / and sqrt only; its
 * logarithm, needed for 15 % of the elements, is made here from the same operations. So the bits
 * follow from IEEE arithmetic alone.
 *
 * Source  SplitMix64: Steele, Lea, Flood 2014. AS 241: Wichura, Applied Statistics 37 (1988).
 */
#include <math.h>
#include <string.h>

#include "engine/model.h"

#define INITIAL_DEVIATION 0.02

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t tensor_key(const char *name, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return mix(hash ^ mix(seed + 0x9e3779b97f4a7c15u));
}

/* Natural logarithm of x in (0, 1): x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
 * ln m = 2 artanh((m - 1) / (m + 1)) as a series; |s| <= 0.1716, so 11 terms reach 1e-17. */
static double log_exactly_the_same_everywhere(double x)
{
    int exponent;
    double m = frexp(x, &exponent); /* exact */
    if (m < 0.70710678118654752440) {
        m *= 2;
        exponent--;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * square + 1.0 / k;
    return exponent * 0.69314718055994530942 + 2 * s * sum;
}

static double rational(double r, const double p[8], const double q[8])
{
    double numerator = p[0], denominator = q[0];
    for (int i = 1; i < 8; i++) {
        numerator = numerator * r + p[i];
        denominator = denominator * r + q[i];
    }
    return numerator / denominator;
}

static double inverse_normal(double p)
{
    static const double center_p[8] = {
        2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
        13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
    static const double center_q[8] = {
        5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
        5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
    static const double near_p[8] = {7.7454501427834140764e-4, .0227238449892691845833,
                                     .24178072517745061177,    1.27045825245236838258,
                                     3.64784832476320460504,   5.7694972214606914055,
                                     4.6303378461565452959,    1.42343711074968357734};
    static const double near_q[8] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                     .0151986665636164571966,   .14810397642748007459,
                                     .68976733498510000455,     1.6763848301838038494,
                                     2.05319162663775882187,    1.0};
    static const double far_p[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                    .0012426609473880784386,   .026532189526576123093,
                                    .29656057182850489123,     1.7848265399172913358,
                                    5.4637849111641143699,     6.6579046435011037772};
    static const double far_q[8] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                                    1.8463183175100546818e-5,   7.868691311456132591e-4,
                                    .0148753612908506148525,    .13692988092273580531,
                                    .59983220655588793769,      1.0};
    double q = p - 0.5;
    if (fabs(q) <= 0.425)
        return q * rational(0.180625 - q * q, center_p, center_q);
    double r = sqrt(-log_exactly_the_same_everywhere(q < 0 ? p : 1 - p));
    double value = r <= 5 ? rational(r - 1.6, near_p, near_q) : rational(r - 5, far_p, far_q);
    return q < 0 ? -value : value;
}

static bool is_norm_weight(enum sl_role role)
{
    switch (role) {
    case SL_ROLE_NORM1:
    case SL_ROLE_NORM2:
    case SL_ROLE_POST_NORM1:
    case SL_ROLE_POST_NORM2:
    case SL_ROLE_Q_NORM:
    case SL_ROLE_K_NORM:
    case SL_ROLE_FINAL_NORM:
        return true;
    default:
        return false;
    }
}

void sl_model_initial(const struct sl_model *model, const struct sl_param *param, uint64_t seed,
                      uint64_t first, size_t count, float *out)
{
    if (param->vector) {
        bool ones = is_norm_weight(param->role) && model->norm != SL_NORM_RMS_PLUS_ONE;
        for (size_t i = 0; i < count; i++)
            out[i] = ones ? 1.0f : 0.0f;
        return;
    }
    double deviation = INITIAL_DEVIATION;
    if (param->role == SL_ROLE_O || param->role == SL_ROLE_DOWN)
        deviation /= sqrt(2.0 * model->layers);
    uint64_t key = tensor_key(param->name, seed);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = mix(key + (first + i + 1) * 0x9e3779b97f4a7c15u) >> 11;
        double uniform = ((double)bits + 0.5) * 0x1p-53;
        out[i] = (float)(deviation * inverse_normal(uniform));
    }
}
