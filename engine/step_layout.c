// SPDX-License-Identifier: Apache-2.0
/* Cutting a model into pieces, sub-groups and runs.
 *
 * Everything here is a function of the model and the numeric keys, except the sub-group cuts and
 * the tiers, which are bit-neutral: gradient chunks (the portions of the norm) are counted from the
 * start of each tensor and belong to pieces in model order, whatever the sub-groups.
 */
#include "engine/step_layout.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/transformer.h"

#define GROUP_ALIGNMENT 2048u /* elements: 4 KiB of 2-byte gradients, O_DIRECT's unit */
#define RUN_ALIGNMENT SL_OPTIM_Q8_BLOCK
/* Arrays that are streamed together start at different offsets within a page; page-aligned
 * neighbours cost a third of the bandwidth (4K aliasing of loads behind stores). */
#define STAGGER_BYTES 1088u

enum sl_tier sl_spread_next(struct sl_spread *spread, double bytes)
{
    spread->total += bytes;
    enum sl_tier best = SL_TIER_HOST;
    double best_lack = -1e300;
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        if (spread->fraction[tier] <= 0)
            continue;
        double lack = spread->fraction[tier] * spread->total - spread->given[tier];
        if (lack > best_lack) {
            best_lack = lack;
            best = (enum sl_tier)tier;
        }
    }
    spread->given[best] += bytes;
    return best;
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Rows of a table's tile: whole gradient chunks, so that tiles cut no chunk. */
static uint32_t tile_rows(const struct sl_step_options *o, const struct sl_param *param)
{
    uint64_t row_bytes = param->columns * sl_dtype_bytes(o->precision);
    if (o->tile_bytes == 0 || param->rows * row_bytes <= o->tile_bytes)
        return (uint32_t)param->rows;
    uint64_t unit = SL_GRADIENT_CHUNK / greatest_divisor(SL_GRADIENT_CHUNK, param->columns);
    uint64_t rows = o->tile_bytes / row_bytes / unit * unit;
    return (uint32_t)sl_min_u64(rows ? rows : unit, param->rows);
}

static struct sl_piece *add_piece(struct sl_step_plan *sp, enum sl_piece_kind kind, uint32_t unit,
                                  uint32_t index, uint64_t first, uint64_t elements)
{
    struct sl_piece *grown = realloc(sp->pieces, (sp->piece_count + 1) * sizeof(*grown));
    if (!grown)
        return NULL;
    sp->pieces = grown;
    struct sl_piece *piece = &grown[sp->piece_count++];
    *piece = (struct sl_piece){.kind = kind,
                               .unit = unit,
                               .index = index,
                               .unit_first = first,
                               .elements = elements,
                               .weights = SL_PLAN_NONE,
                               .gradient = SL_PLAN_NONE,
                               .sums = SL_PLAN_NONE,
                               .updated = SL_PLAN_NONE};
    return piece;
}

static int add_table(struct sl_step_plan *sp, enum sl_piece_kind kind, const struct sl_param *param)
{
    uint32_t rows = tile_rows(&sp->options, param);
    uint32_t index = 0;
    for (uint64_t row = 0; row < param->rows; row += rows) {
        uint64_t count = sl_min_u64(rows, param->rows - row);
        struct sl_piece *piece =
            add_piece(sp, kind, param->unit, index++, param->offset + row * param->columns,
                      count * param->columns);
        if (!piece)
            return -ENOMEM;
        piece->row_first = (uint32_t)row;
        piece->row_count = (uint32_t)count;
    }
    return 0;
}

static bool is_matrix(enum sl_role role)
{
    return role == SL_ROLE_QKV || role == SL_ROLE_O || role == SL_ROLE_UP || role == SL_ROLE_DOWN;
}

/* A run of a layer's tensors: the rows of one fused matrix, or the norms and biases up to it. */
struct run_of_tensors {
    const struct sl_param *first, *end;
    uint64_t rows; /* of a matrix, else 0 */
};

static struct run_of_tensors next_run(const struct sl_param *first, const struct sl_param *end)
{
    struct run_of_tensors run = {.first = first, .end = first};
    for (; run.end < end && is_matrix(run.end->role) == is_matrix(first->role); run.end++) {
        if (is_matrix(first->role) && run.end->role != first->role)
            break;
        run.rows += is_matrix(first->role) ? run.end->rows : 0;
    }
    return run;
}

/* May a matrix be cut before this row? Tiles begin where the host device cuts its sums over rows,
 * so that theirs add up to the same bits, and cut no gradient chunk. */
static bool row_begins_tile(const struct run_of_tensors *matrix, uint64_t row)
{
    if (row % SL_MATMUL_DEPTH)
        return false;
    for (const struct sl_param *param = matrix->first; param < matrix->end; param++) {
        if (row < param->rows)
            return row * param->columns % SL_GRADIENT_CHUNK == 0;
        row -= param->rows;
    }
    return true;
}

/* The row after the tile that begins at `row`: as many rows as fit, or the fewest there may be. */
static uint64_t tile_end(const struct sl_step_options *o, const struct run_of_tensors *matrix,
                         uint64_t row)
{
    uint64_t row_bytes = matrix->first->columns * sl_dtype_bytes(o->precision);
    uint64_t fit = row + o->layer_bytes / row_bytes, end = row;
    if (fit >= matrix->rows)
        return matrix->rows;
    for (uint64_t next = row + SL_MATMUL_DEPTH; next < matrix->rows; next += SL_MATMUL_DEPTH) {
        if (next > fit && end > row)
            return end;
        if (row_begins_tile(matrix, next))
            end = next;
    }
    return end > row ? end : matrix->rows;
}

/* Elements up to `end` of the unit: what stands between two tensors goes with the first. */
static int add_layer_piece(struct sl_step_plan *sp, enum sl_piece_kind kind,
                           const struct sl_param *param, uint64_t *at, uint64_t end)
{
    struct sl_piece *piece = add_piece(sp, kind, param->unit, 0, *at, end - *at);
    if (!piece)
        return -ENOMEM;
    piece->role = param->role;
    *at = end;
    return 0;
}

static int add_tiles(struct sl_step_plan *sp, const struct run_of_tensors *matrix, uint64_t *at,
                     uint64_t end)
{
    uint64_t first = *at;
    int result = 0;
    for (uint64_t row = 0, next; row < matrix->rows && !result; row = next) {
        next = tile_end(&sp->options, matrix, row);
        uint64_t to = next < matrix->rows ? first + next * matrix->first->columns : end;
        result = add_layer_piece(sp, SL_PIECE_MATRIX, matrix->first, at, to);
        if (result)
            break;
        struct sl_piece *piece = &sp->pieces[sp->piece_count - 1];
        piece->row_first = (uint32_t)row;
        piece->row_count = (uint32_t)(next - row);
    }
    return result;
}

static int add_layer(struct sl_step_plan *sp, uint32_t layer)
{
    const struct sl_model *m = sp->options.model;
    uint32_t unit = layer + 1, first_piece = sp->piece_count;
    uint64_t elements = m->unit_elements[unit], at = 0, limit = sp->options.layer_bytes;
    if (limit == 0 || elements * sl_dtype_bytes(sp->options.precision) <= limit)
        return add_piece(sp, SL_PIECE_LAYER, unit, layer, 0, elements) ? 0 : -ENOMEM;
    const struct sl_param *param = &m->params[m->unit_first_param[unit]];
    const struct sl_param *last = &m->params[m->unit_first_param[unit + 1]];
    int result = 0;
    for (struct run_of_tensors run; param < last && !result; param = run.end) {
        run = next_run(param, last);
        uint64_t end = run.end < last ? run.end->offset : elements;
        result = run.rows ? add_tiles(sp, &run, &at, end)
                          : add_layer_piece(sp, SL_PIECE_VECTORS, param, &at, end);
    }
    for (uint32_t p = first_piece; p < sp->piece_count; p++)
        sp->pieces[p].index = p - first_piece;
    return result;
}

/* All layers are cut alike: a family's tensors have the same sizes in each. */
static int order_layer(struct sl_step_plan *sp)
{
    uint32_t count = 0;
    sp->layer_pieces = (sp->piece_count - sp->first_layer_piece) / sp->options.model->layers;
    assert(sp->first_layer_piece + sp->layer_pieces * sp->options.model->layers == sp->piece_count);
    sp->layer_order = malloc(sp->layer_pieces * sizeof(*sp->layer_order));
    if (!sp->layer_order)
        return -ENOMEM;
    const struct sl_piece *pieces = &sp->pieces[sp->first_layer_piece];
    for (int vectors = 1; vectors >= 0; vectors--) {
        for (uint32_t j = 0; j < sp->layer_pieces; j++)
            if ((pieces[j].kind == SL_PIECE_VECTORS) == vectors)
                sp->layer_order[count++] = j;
        if (vectors)
            sp->layer_vectors = count;
    }
    assert(sp->layer_vectors <= SL_LAYER_VECTORS_MAX);
    return 0;
}

static int cut_pieces(struct sl_step_plan *sp)
{
    const struct sl_model *m = sp->options.model;
    const struct sl_param *table = sl_model_param(m, 0, SL_ROLE_TOKEN_EMBEDDING);
    const struct sl_param *positions = sl_model_param(m, 0, SL_ROLE_POSITION_EMBEDDING);
    sp->token_first = 0;
    int result = add_table(sp, SL_PIECE_TOKENS, table);
    sp->token_count = sp->piece_count;
    if (!result && positions &&
        !add_piece(sp, SL_PIECE_POSITIONS, 0, 0, positions->offset,
                   positions->rows * positions->columns))
        result = -ENOMEM;
    if (!result && positions) {
        sp->pieces[sp->piece_count - 1].row_count = (uint32_t)positions->rows;
    }
    sp->first_layer_piece = sp->piece_count;
    for (uint32_t layer = 0; layer < m->layers && !result; layer++)
        result = add_layer(sp, layer);
    if (!result && m->layers)
        result = order_layer(sp);
    if (result)
        return result;
    uint32_t last = m->layers + 1;
    const struct sl_param *head = sl_model_param(m, last, SL_ROLE_HEAD);
    sp->norm_piece = sp->piece_count;
    uint64_t norm_elements = head ? head->offset : m->unit_elements[last];
    if (!add_piece(sp, SL_PIECE_NORM, last, 0, 0, norm_elements))
        return -ENOMEM;
    sp->head_first = head ? sp->piece_count : sp->token_first;
    if (head)
        result = add_table(sp, SL_PIECE_HEAD, head);
    sp->head_count = head ? sp->piece_count - sp->head_first : sp->token_count;
    return result;
}

static struct sl_sub_group *add_group(struct sl_step_plan *sp, uint32_t piece)
{
    struct sl_sub_group *grown = realloc(sp->groups, (sp->group_count + 1) * sizeof(*grown));
    if (!grown)
        return NULL;
    sp->groups = grown;
    struct sl_sub_group *group = &grown[sp->group_count++];
    *group = (struct sl_sub_group){.piece = piece, .run_first = sp->run_count};
    group->gradient_offset = sp->pieces[piece].gradient_elements;
    group->state = SL_PLAN_NONE;
    sp->pieces[piece].group_count++;
    return group;
}

static struct sl_run *add_run(struct sl_step_plan *sp, struct sl_sub_group *group,
                              struct sl_run run)
{
    struct sl_run *grown = realloc(sp->runs, (sp->run_count + 1) * sizeof(*grown));
    if (!grown)
        return NULL;
    sp->runs = grown;
    run.state_offset = group->elements;
    run.gradient_offset = group->gradient_offset + group->elements;
    group->elements += sl_align_up(run.count, RUN_ALIGNMENT);
    group->run_count++;
    sp->runs[sp->run_count] = run;
    return &sp->runs[sp->run_count++];
}

static void close_group(struct sl_step_plan *sp, struct sl_sub_group *group)
{
    if (!group)
        return;
    group->gradient_elements = sl_align_up(group->elements, GROUP_ALIGNMENT);
    sp->pieces[group->piece].gradient_elements += group->gradient_elements;
}

/* One tensor's part [first, first + count) into sub-groups of the piece. `group` is the open one.
 */
static int cut_tensor(struct sl_step_plan *sp, uint32_t p, uint32_t param, uint64_t first,
                      uint64_t count, struct sl_sub_group **open)
{
    uint64_t limit = sl_max_u64(sp->options.sub_group_elements, 1);
    uint64_t at = first, end = first + count;
    while (at < end) {
        struct sl_piece *piece = &sp->pieces[p];
        struct sl_sub_group *group = *open;
        uint64_t room = group && group->elements < limit ? limit - group->elements : 0;
        uint64_t take = end - at <= room ? end - at : room / SL_GRADIENT_CHUNK * SL_GRADIENT_CHUNK;
        if (take == 0) {
            close_group(sp, group);
            *open = group = add_group(sp, p);
            if (!group)
                return -ENOMEM;
            piece = &sp->pieces[p];
            take = limit / SL_GRADIENT_CHUNK * SL_GRADIENT_CHUNK;
            if (end - at <= limit)
                take = end - at;
            else if (take == 0)
                take = sl_min_u64(SL_GRADIENT_CHUNK, end - at);
        }
        const struct sl_param *tensor = &sp->options.model->params[param];
        struct sl_run run = {
            .param = param,
            .param_first = at,
            .count = take,
            .weight_offset = tensor->offset + at - piece->unit_first,
            .sums_offset = piece->sums_elements + (at - first),
            .chunk_first = piece->chunk_count + (at - first) / SL_GRADIENT_CHUNK,
        };
        if (!add_run(sp, group, run))
            return -ENOMEM;
        at += take;
    }
    sp->pieces[p].sums_elements += count;
    sp->pieces[p].chunk_count += sl_div_up(count, SL_GRADIENT_CHUNK);
    sp->trained_elements += count;
    return 0;
}

static int cut_groups(struct sl_step_plan *sp)
{
    const struct sl_model *m = sp->options.model;
    for (uint64_t i = 0; i < m->param_count; i++)
        sp->sums_offset[i] = UINT64_MAX;
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        sp->pieces[p].chunk_first = sp->chunk_count;
        sp->pieces[p].group_first = sp->group_count;
        sp->pieces[p].run_first = sp->run_count;
        uint64_t piece_first = sp->pieces[p].unit_first;
        uint64_t piece_end = piece_first + sp->pieces[p].elements;
        uint32_t unit = sp->pieces[p].unit;
        struct sl_sub_group *open = NULL;
        for (uint64_t i = m->unit_first_param[unit]; i < m->unit_first_param[unit + 1]; i++) {
            const struct sl_param *param = &m->params[i];
            uint64_t first = sl_max_u64(param->offset, piece_first);
            uint64_t end = sl_min_u64(param->offset + param->rows * param->columns, piece_end);
            if (first >= end || param->frozen)
                continue;
            if (first == param->offset) /* a table's tiles: row 0's place in the first tile */
                sp->sums_offset[i] = sp->pieces[p].sums_elements;
            int result = cut_tensor(sp, p, (uint32_t)i, first - param->offset, end - first, &open);
            if (result)
                return result;
        }
        close_group(sp, open);
        sp->pieces[p].run_count = sp->run_count - sp->pieces[p].run_first;
        sp->chunk_count += sp->pieces[p].chunk_count;
    }
    return 0;
}

/* Does the lane that updates this sub-group see the weight itself, not a copy? */
static bool weight_in_reach(const struct sl_step_plan *sp, const struct sl_sub_group *group)
{
    return sl_piece_in_host_reach(sp, &sp->pieces[group->piece]) || group->tier == SL_TIER_DEVICE;
}

/* [ master | exp_avg | exp_avg_sq | scale | scale ], each array at a phase of its own. */
static void lay_state(const struct sl_step_plan *sp, struct sl_sub_group *group)
{
    const struct sl_step_options *o = &sp->options;
    bool weight_is_master = o->precision == SL_F32 && weight_in_reach(sp, group) &&
                            !sp->pieces[group->piece].speculated;
    uint64_t at = 0, phase = STAGGER_BYTES;
    uint64_t master = group->master_kind == SL_MASTER_SPLIT ? 2 : 4;
    if (weight_is_master || group->master_kind == SL_MASTER_NONE)
        master = 0;
    group->master_bytes = master * group->elements;
    if (master) {
        group->master_offset = phase;
        at = phase + group->master_bytes;
        phase += STAGGER_BYTES;
    }
    bool has[2] = {sl_optim_has_exp_avg(&o->hyper), sl_optim_has_exp_avg_sq(&o->hyper)};
    for (int k = 0; k < 2; k++) {
        group->moment_offset[k] = UINT64_MAX;
        if (!has[k])
            continue;
        group->moment_offset[k] = sl_align_up(at, 4096) + phase;
        at = group->moment_offset[k] + sl_moment_bytes(o->moment_kind) * group->elements;
        phase += STAGGER_BYTES;
    }
    for (int k = 0; k < 2; k++) {
        group->scale_offset[k] = UINT64_MAX;
        if (!has[k] || o->moment_kind != SL_MOMENT_Q8)
            continue;
        group->scale_offset[k] = sl_align_up(at, 64);
        at = group->scale_offset[k] + group->elements / SL_OPTIM_Q8_BLOCK * sizeof(float);
    }
    group->state_bytes = sl_align_up(at, SL_PLAN_ALIGNMENT);
}

/* A device of its own updates whole pieces: gradient, state and weights side by side. The first
 * ones, whose gradients are the last and whose new weights are the first to be used. */
static void choose_device_pieces(struct sl_step_plan *sp)
{
    const double *fraction = sp->options.placement.fraction[SL_PLACED_OPTIMIZER];
    double left = fraction[SL_TIER_DEVICE] * (double)sp->trained_elements;
    for (uint32_t p = 0; p < sp->piece_count && !sp->options.unified; p++) {
        struct sl_piece *piece = &sp->pieces[p];
        if (!piece->group_count || left < (double)piece->sums_elements / 2)
            continue;
        left -= (double)piece->sums_elements;
        piece->updated_by_device = true;
    }
}

/* The share of the update that runs during the backward pass: pieces in the order in which their
 * gradients are ready, but not the embedding, whose gradient is the last of all. What a device
 * of its own updates is done in no time; weights without a master are all there is of the old
 * state. */
static void choose_speculated(struct sl_step_plan *sp)
{
    const struct sl_step_options *o = &sp->options;
    bool undoable = o->precision != SL_BF16 || o->master_kind != SL_MASTER_NONE;
    double left = undoable ? o->speculate * (double)sp->trained_elements : 0;
    for (uint32_t k = 0; k < sp->piece_count; k++) {
        struct sl_piece *piece = &sp->pieces[sl_piece_backward(sp, k)];
        bool table = piece->kind == SL_PIECE_TOKENS || piece->kind == SL_PIECE_POSITIONS;
        if (table || piece->updated_by_device || !piece->group_count)
            continue;
        piece->speculated = left > 0;
        left -= (double)piece->sums_elements;
    }
}

/* Two spreads of one kind of state: over the pieces that are speculated on, which take what lies on
 * `slow` tiers before the others do, and over the others. `amount`: elements per tier in all;
 * `elements`: of the pieces that are not speculated on, and of those that are. */
struct split {
    double fraction[2][SL_TIER_COUNT];
    struct sl_spread spread[2];
};

static void split_spread(struct split *split, const double amount[SL_TIER_COUNT],
                         const double elements[2], const bool slow[SL_TIER_COUNT])
{
    double sum[2] = {0}; /* on fast tiers, on slow ones */
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        sum[slow[tier]] += amount[tier];
    double first = fmin(sum[1], elements[1]);
    const double taken[2] = {fmin(sum[1] - first, elements[0]), first};
    for (int k = 0; k < 2; k++) {
        double share = elements[k] > 0 ? taken[k] / elements[k] : 0;
        if (sum[0] <= 0)
            share = 1;
        const double part[2] = {1 - share, share};
        for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
            double of = sum[slow[tier]];
            split->fraction[k][tier] = of > 0 ? part[slow[tier]] * amount[tier] / of : 0;
        }
        split->spread[k] = (struct sl_spread){.fraction = split->fraction[k]};
    }
}

/* State that is speculated on goes to NVMe first, as far as NVMe has a share: its second version
 * costs space alone there, and the drive, the slowest of all, gets the backward pass as well.
 * Otherwise tiers are interleaved. */
static void choose_state_tiers(struct sl_step_plan *sp)
{
    const double *all = sp->options.placement.fraction[SL_PLACED_OPTIMIZER];
    double elements[2] = {0}, amount[SL_TIER_COUNT];
    for (uint32_t p = 0; p < sp->piece_count; p++)
        if (!sp->pieces[p].updated_by_device)
            elements[sp->pieces[p].speculated] += (double)sp->pieces[p].sums_elements;
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        amount[tier] = all[tier] * (double)sp->trained_elements;
    if (!sp->options.unified)
        amount[SL_TIER_DEVICE] = 0; /* has been given, whole pieces */
    struct split split;
    split_spread(&split, amount, elements, (const bool[SL_TIER_COUNT]){[SL_TIER_NVME] = true});
    for (uint32_t g = 0; g < sp->group_count; g++) {
        struct sl_sub_group *group = &sp->groups[g];
        const struct sl_piece *piece = &sp->pieces[group->piece];
        group->tier = piece->updated_by_device ? SL_TIER_DEVICE
                                               : sl_spread_next(&split.spread[piece->speculated],
                                                                (double)group->elements);
    }
}

/* Weights that are speculated on leave a device of its own first: they need room in host memory
 * anyway (step_emit_update.c). */
static void choose_weight_tiers(struct sl_step_plan *sp)
{
    const double *all = sp->options.placement.fraction[SL_PLACED_WEIGHTS];
    bool off_device = !sp->options.unified;
    double elements[2] = {0}, amount[SL_TIER_COUNT], given = 0;
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        const struct sl_piece *piece = &sp->pieces[p];
        if (piece->updated_by_device)
            given += (double)piece->elements;
        else
            elements[piece->speculated] += (double)piece->elements;
    }
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        amount[tier] = all[tier] * (given + elements[0] + elements[1]);
    amount[SL_TIER_DEVICE] = fmax(0, amount[SL_TIER_DEVICE] - given);
    struct split split;
    split_spread(
        &split, amount, elements,
        (const bool[SL_TIER_COUNT]){[SL_TIER_HOST] = off_device, [SL_TIER_NVME] = off_device});
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        struct sl_piece *piece = &sp->pieces[p];
        piece->weights_tier =
            piece->updated_by_device
                ? SL_TIER_DEVICE
                : sl_spread_next(&split.spread[piece->speculated], (double)piece->elements);
    }
}

static void choose_gradient_tiers(struct sl_step_plan *sp)
{
    struct sl_spread spread = {.fraction = sp->options.placement.fraction[SL_PLACED_GRADIENTS]};
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        struct sl_piece *piece = &sp->pieces[p];
        piece->gradient_tier = SL_TIER_HOST;
        if (piece->gradient_elements)
            piece->gradient_tier = sl_spread_next(&spread, (double)piece->gradient_elements);
        if (piece->updated_by_device)
            piece->gradient_tier = SL_TIER_DEVICE;
    }
}

static void choose_tiers(struct sl_step_plan *sp)
{
    choose_device_pieces(sp);
    choose_speculated(sp);
    choose_state_tiers(sp);
    choose_weight_tiers(sp);
    choose_gradient_tiers(sp);
}

/* A speculated update must be undone from the old state alone, so that one keeps a whole master. */
static void lay_states(struct sl_step_plan *sp)
{
    const struct sl_step_options *o = &sp->options;
    for (uint32_t g = 0; g < sp->group_count; g++) {
        struct sl_sub_group *group = &sp->groups[g];
        group->master_kind = o->precision == SL_BF16 ? o->master_kind : SL_MASTER_F32;
        bool reach = weight_in_reach(sp, group), speculated = sp->pieces[group->piece].speculated;
        if (group->master_kind == SL_MASTER_SPLIT && (!reach || speculated))
            group->master_kind = SL_MASTER_F32; /* 2 bytes less are not worth a download */
        lay_state(sp, group);
        if (group->state_bytes == 0 && group->tier == SL_TIER_NVME)
            group->tier = SL_TIER_HOST; /* SGD without momentum has nothing to fetch */
    }
}

static uint32_t layer_first(const struct sl_step_plan *sp, uint32_t layer)
{
    return sp->first_layer_piece + layer * sp->layer_pieces;
}

uint32_t sl_layer_piece_forward(const struct sl_step_plan *sp, uint32_t layer, uint32_t k)
{
    return layer_first(sp, layer) + sp->layer_order[k];
}

uint32_t sl_layer_piece_backward(const struct sl_step_plan *sp, uint32_t layer, uint32_t k)
{
    uint32_t tiles = sp->layer_pieces - sp->layer_vectors;
    if (k >= tiles)
        return layer_first(sp, layer) + sp->layer_order[k - tiles];
    const struct sl_piece *pieces = &sp->pieces[layer_first(sp, layer)];
    const uint32_t *order = sp->layer_order + sp->layer_vectors;
    /* The k-th place of the order with the matrices turned round: behind the tiles of later
     * matrices, among its own. */
    for (uint32_t end = tiles; end > 0;) {
        uint32_t first = end - 1;
        while (first > 0 && pieces[order[first - 1]].role == pieces[order[end - 1]].role)
            first--;
        if (k < end - first)
            return layer_first(sp, layer) + order[first + k];
        k -= end - first;
        end = first;
    }
    return SL_PLAN_NONE;
}

uint32_t sl_piece_forward(const struct sl_step_plan *sp, uint32_t k)
{
    if (k < sp->first_layer_piece || k >= sp->norm_piece)
        return k;
    k -= sp->first_layer_piece;
    return sl_layer_piece_forward(sp, k / sp->layer_pieces, k % sp->layer_pieces);
}

uint32_t sl_piece_backward(const struct sl_step_plan *sp, uint32_t k)
{
    uint32_t heads = sp->piece_count - sp->norm_piece - 1; /* of an untied head, behind the norm */
    if (sp->head_count > 1 && k < heads)
        return sp->head_first + k;
    if (sp->head_count > 1 && heads && k == heads)
        return sp->norm_piece;
    if (k <= heads) /* norm, then a head in one piece */
        return sp->norm_piece + k;
    k -= heads + 1;
    uint32_t in_layers = sp->norm_piece - sp->first_layer_piece;
    if (k >= in_layers)
        return k - in_layers;
    uint32_t layer = sp->options.model->layers - 1 - k / sp->layer_pieces;
    return sl_layer_piece_backward(sp, layer, k % sp->layer_pieces);
}

int sl_step_layout(struct sl_step_plan *sp, struct sl_error *error)
{
    sp->sums_offset = malloc((sp->options.model->param_count + 1) * sizeof(uint64_t));
    int result = sp->sums_offset ? cut_pieces(sp) : -ENOMEM;
    if (!result)
        result = cut_groups(sp);
    if (result)
        return sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
    choose_tiers(sp);
    lay_states(sp);
    return 0;
}
