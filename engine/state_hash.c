// SPDX-License-Identifier: Apache-2.0
#include "engine/state_hash.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/size.h"

struct sl_state_hasher {
    XXH3_state_t *state;
};

int sl_state_hasher_create(struct sl_state_hasher **out, struct sl_error *error)
{
    *out = calloc(1, sizeof(**out));
    if (*out)
        (*out)->state = XXH3_createState();
    if (!*out || !(*out)->state) {
        free(*out);
        *out = NULL;
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for a hash");
    }
    XXH3_64bits_reset((*out)->state);
    return 0;
}

void sl_state_hasher_destroy(struct sl_state_hasher *hasher)
{
    if (!hasher)
        return;
    XXH3_freeState(hasher->state);
    free(hasher);
}

void sl_state_hasher_bytes(struct sl_state_hasher *hasher, const void *data, uint64_t bytes)
{
    XXH3_64bits_update(hasher->state, data, bytes);
}

uint64_t sl_state_hasher_value(const struct sl_state_hasher *hasher)
{
    return XXH3_64bits_digest(hasher->state);
}

static void add_moment(struct sl_state_hasher *hasher, const void *moment, size_t element,
                       const float *scale, uint64_t first, uint64_t count)
{
    if (moment)
        sl_state_hasher_bytes(hasher, (const char *)moment + first * element, count * element);
    if (scale)
        sl_state_hasher_bytes(hasher, scale + first / SL_OPTIM_Q8_BLOCK,
                              sl_div_up(count, SL_OPTIM_Q8_BLOCK) * sizeof(float));
}

void sl_state_hasher_add(struct sl_state_hasher *hasher, const struct sl_step_plan *sp,
                         const struct sl_state_span *span)
{
    enum sl_moment_kind kind = sp->options.moment_kind;
    size_t moment = sl_moment_bytes(kind);
    size_t weight = sl_dtype_bytes(sp->options.precision);
    /* In fp32 a trained weight is its own master and counts twice. Without moments the files of a
     * checkpoint do not say which ones were trained, so all do. */
    const struct sl_optim_hyper *hyper = &sp->options.hyper;
    bool own_master = sp->options.precision == SL_F32 && !sl_optim_has_exp_avg(hyper) &&
                      !sl_optim_has_exp_avg_sq(hyper);
    float values[SL_STATE_HASH_CHUNK];
    for (uint64_t first = 0; first < span->count; first += SL_STATE_HASH_CHUNK) {
        uint64_t count = sl_min_u64(SL_STATE_HASH_CHUNK, span->count - first);
        sl_state_hasher_bytes(hasher, (const char *)span->weight + first * weight, count * weight);
        if (span->master || span->low || own_master) {
            sl_state_master_load(sp, span, first, count, values);
            sl_state_hasher_bytes(hasher, values, count * sizeof(float));
        }
        add_moment(hasher, span->exp_avg, moment, span->exp_avg_scale, first, count);
        add_moment(hasher, span->exp_avg_sq, moment, span->exp_avg_sq_scale, first, count);
    }
}
