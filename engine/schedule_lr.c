// SPDX-License-Identifier: Apache-2.0
/* Learning rate schedules.
 *
 * Problem   a resumed run, a run with skipped steps and an unbroken run must agree on the rate of
 *           update i to the last bit, and users compare curves with DeepSpeed's.
 * Choice    pure functions of i in fp64, in DeepSpeed's order of operations. i is the number of
 *           updates applied before this one; it is DeepSpeed's last_batch_iteration.
 * Rejected  an object that is stepped: its position would be one more thing to checkpoint, and the
 *           two counts (calls, updates) drift apart as soon as a step is skipped.
 * Faults not copied: OneCycle there sets beta2 to 0.99 as well; here the optimizer's beta2 stays.
 */
#include "engine/schedule_lr.h"

#include <math.h>
#include <stddef.h>

#define PI 3.14159265358979323846

/* The rising part, 0 to 1, of DeepSpeed's three warm-ups; 1 afterwards. */
static double warmup_gamma(const struct sl_schedule *s, double steps, double i)
{
    if (i >= steps)
        return 1;
    return s->warmup_log ? 1.0 / log(steps) * log(i + 1) : i / steps;
}

static double decay_gamma(const struct sl_schedule *s, double steps, double i)
{
    if (i < steps)
        return warmup_gamma(s, steps, i);
    double total = (double)s->total_steps;
    return fmax(0, (total - i) / fmax(1, total - steps));
}

static double warmup_cosine_ratio(const struct sl_schedule *s, double steps, double i)
{
    if (i < steps)
        return s->warmup_min_ratio + warmup_gamma(s, steps, i) * (1 - s->warmup_min_ratio);
    double progress = fmin(1, (i - steps + 1) / fmax(1, (double)s->total_steps - steps));
    double ratio = (1 + cos(PI * progress)) / 2;
    return fmax(0, s->min_ratio + (1 - s->min_ratio) * ratio);
}

/* Height inside the cycle, 0 to 1 and back; stairs are cut from the count of batches, because the
 * height itself may lie one rounding under an exact stair. */
static double cycle_height(const struct sl_schedule *s, double i)
{
    double batch = i + 1, total = s->cycle_first_steps + s->cycle_second_steps;
    double step_ratio = s->cycle_first_steps / total;
    double x = 1 + batch / total - floor(1 + batch / total);
    bool first = x <= step_ratio;
    uint64_t stairs = first ? s->cycle_first_stairs : s->cycle_second_stairs;
    if (stairs == 0) {
        if (first)
            return step_ratio > 0 ? x / step_ratio : 0;
        return (x - 1) / (step_ratio - 1);
    }
    double inside = fmod(batch, total);
    double position = inside <= s->cycle_first_steps
                          ? inside * (double)stairs / s->cycle_first_steps
                          : (total - inside) * (double)stairs / s->cycle_second_steps;
    return floor(position) / (double)stairs;
}

static bool cycle_over(const struct sl_schedule *s, double i, double *decay_steps)
{
    double total = s->cycle_first_steps + s->cycle_second_steps;
    *decay_steps = i - total + 1;
    return i >= total;
}

static double one_cycle_lr(const struct sl_schedule *s, double i)
{
    double decay_steps;
    if (!cycle_over(s, i, &decay_steps))
        return s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * cycle_height(s, i);
    if (s->decay_step_size == 0 || s->decay_lr_rate == 0)
        return s->cycle_min_lr;
    return s->cycle_min_lr / (1 + s->decay_lr_rate * (decay_steps / s->decay_step_size));
}

static double range_test_lr(const struct sl_schedule *s, double i)
{
    double interval = (i + 1) / s->range_step_size;
    if (s->range_staircase)
        interval = floor(interval);
    return s->range_min_lr * (1 + s->range_step_rate * interval);
}

/* transformers' schedules, with a floor. */
static double plain_ratio(const struct sl_schedule *s, double i)
{
    double warmup = (double)s->warmup_steps, total = (double)s->total_steps;
    if (i < warmup)
        return i / fmax(1, warmup);
    if (s->kind == SL_SCHEDULE_CONSTANT)
        return 1;
    double progress = fmin(1, (i - warmup) / fmax(1, total - warmup));
    double ratio = s->kind == SL_SCHEDULE_LINEAR ? 1 - progress : 0.5 * (1 + cos(PI * progress));
    return s->min_ratio + (1 - s->min_ratio) * ratio;
}

double sl_schedule_lr(const struct sl_schedule *s, uint64_t step)
{
    double i = (double)step;
    double steps = fmax(2, (double)s->warmup_steps);
    double delta = s->warmup_max_lr - s->warmup_min_lr;
    switch (s->kind) {
    case SL_SCHEDULE_CONSTANT:
    case SL_SCHEDULE_LINEAR:
    case SL_SCHEDULE_COSINE:
        return s->base_lr * plain_ratio(s, i);
    case SL_SCHEDULE_WARMUP:
        return s->warmup_min_lr + delta * warmup_gamma(s, steps, i);
    case SL_SCHEDULE_WARMUP_DECAY:
        return s->warmup_min_lr + delta * decay_gamma(s, steps, i);
    case SL_SCHEDULE_WARMUP_COSINE:
        return s->base_lr * warmup_cosine_ratio(s, steps, i);
    case SL_SCHEDULE_ONE_CYCLE:
        return one_cycle_lr(s, i);
    case SL_SCHEDULE_LR_RANGE_TEST:
        return range_test_lr(s, i);
    }
    return s->base_lr;
}

double sl_schedule_momentum(const struct sl_schedule *s, uint64_t step, double otherwise)
{
    if (s->kind != SL_SCHEDULE_ONE_CYCLE || !s->cycle_momentum)
        return otherwise;
    double i = (double)step, decay_steps;
    double low = s->cycle_min_momentum, high = s->cycle_max_momentum;
    if (!cycle_over(s, i, &decay_steps))
        return high - (high - low) * cycle_height(s, i);
    if (s->decay_step_size == 0 || s->decay_momentum_rate == 0)
        return high;
    return high * (1 + s->decay_momentum_rate * (decay_steps / s->decay_step_size));
}

const char *sl_schedule_name(enum sl_schedule_kind kind)
{
    static const char *const names[] = {
        [SL_SCHEDULE_CONSTANT] = "constant",
        [SL_SCHEDULE_LINEAR] = "linear",
        [SL_SCHEDULE_COSINE] = "cosine",
        [SL_SCHEDULE_WARMUP] = "WarmupLR",
        [SL_SCHEDULE_WARMUP_DECAY] = "WarmupDecayLR",
        [SL_SCHEDULE_WARMUP_COSINE] = "WarmupCosineLR",
        [SL_SCHEDULE_ONE_CYCLE] = "OneCycle",
        [SL_SCHEDULE_LR_RANGE_TEST] = "LRRangeTest",
    };
    return (unsigned)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}
