// SPDX-License-Identifier: Apache-2.0
/* Flops of a model, counted from its description.
 *
 * Choice    counts are analytic: what the model's shapes need, not what a backend happened to do,
 * so that two placements of one model compare. A matrix [rows, columns] costs rows x columns
 *           multiply-accumulates per token, attention two products over the keys that a token sees.
 * Rejected  hooks around kernels, as a Python profiler has to: they would time queues, not work.
 *
 *     0 model
 *     1   embedding | layers (each) | final norm | head
 *     2     attention | mlp | norms
 *     3       qkv | scores | o | up | down
 */
#include "engine/flops_profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum part { PART_QKV, PART_O, PART_UP, PART_DOWN, PART_NORMS, PART_COUNT };

struct layer {
    uint64_t params[PART_COUNT];
    double macs[PART_COUNT];
    double scores;
};

static enum part part_of(enum sl_role role)
{
    switch (role) {
    case SL_ROLE_QKV:
    case SL_ROLE_QKV_BIAS:
        return PART_QKV;
    case SL_ROLE_O:
    case SL_ROLE_O_BIAS:
        return PART_O;
    case SL_ROLE_UP:
    case SL_ROLE_UP_BIAS:
        return PART_UP;
    case SL_ROLE_DOWN:
    case SL_ROLE_DOWN_BIAS:
        return PART_DOWN;
    default:
        return PART_NORMS;
    }
}

/* Keys that the tokens of one sequence see, summed: causal, cut by a window. */
static double keys_seen(uint64_t sequence, uint64_t window)
{
    double t = (double)sequence, w = window && window < sequence ? (double)window : t;
    return w * (w + 1) / 2 + (t - w) * w;
}

static struct layer count_layer(const struct sl_model *model, uint32_t index, uint64_t batch,
                                uint64_t sequence)
{
    struct layer layer = {0};
    double tokens = (double)batch * (double)sequence;
    uint64_t first = model->unit_first_param[index + 1], end = model->unit_first_param[index + 2];
    for (uint64_t p = first; p < end; p++) {
        const struct sl_param *param = &model->params[p];
        uint64_t elements = param->rows * param->columns;
        enum part part = part_of(param->role);
        layer.params[part] += elements;
        if (!param->vector && part != PART_NORMS)
            layer.macs[part] += tokens * (double)elements;
    }
    layer.scores = 2 * (double)batch * keys_seen(sequence, model->window[index]) *
                   (double)model->heads * (double)model->head_size;
    return layer;
}

struct builder {
    struct sl_flops_module *modules;
    size_t count, capacity;
    bool failed;
};

static size_t add(struct builder *b, uint32_t depth, uint32_t count, uint64_t params, double macs,
                  const char *name)
{
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 32;
        struct sl_flops_module *grown = realloc(b->modules, capacity * sizeof(*grown));
        if (!grown) {
            b->failed = true;
            return 0;
        }
        b->modules = grown;
        b->capacity = capacity;
    }
    struct sl_flops_module *module = &b->modules[b->count];
    *module =
        (struct sl_flops_module){.depth = depth, .count = count, .params = params, .macs = macs};
    snprintf(module->name, sizeof(module->name), "%s", name);
    return b->count++;
}

static void add_layers(struct builder *b, const struct layer *layer, uint32_t first, uint32_t count)
{
    char name[SL_FLOPS_MODULE_NAME_BYTES];
    uint64_t params = 0;
    double macs = layer->scores;
    for (int part = 0; part < PART_COUNT; part++) {
        params += layer->params[part];
        macs += layer->macs[part];
    }
    if (count > 1)
        snprintf(name, sizeof(name), "layers %u to %u, each", first, first + count - 1);
    else
        snprintf(name, sizeof(name), "layer %u", first);
    add(b, 1, count, params, macs, name);
    add(b, 2, 1, layer->params[PART_QKV] + layer->params[PART_O],
        layer->macs[PART_QKV] + layer->macs[PART_O] + layer->scores, "attention");
    add(b, 3, 1, layer->params[PART_QKV], layer->macs[PART_QKV], "query, key, value");
    add(b, 3, 1, 0, layer->scores, "scores and sums");
    add(b, 3, 1, layer->params[PART_O], layer->macs[PART_O], "output");
    add(b, 2, 1, layer->params[PART_UP] + layer->params[PART_DOWN],
        layer->macs[PART_UP] + layer->macs[PART_DOWN], "mlp");
    add(b, 3, 1, layer->params[PART_UP], layer->macs[PART_UP], "up");
    add(b, 3, 1, layer->params[PART_DOWN], layer->macs[PART_DOWN], "down");
    add(b, 2, 1, layer->params[PART_NORMS], 0, "norms");
}

static uint64_t unit_params(const struct sl_model *model, uint32_t unit, bool head)
{
    uint64_t elements = 0;
    for (uint64_t p = model->unit_first_param[unit]; p < model->unit_first_param[unit + 1]; p++)
        if ((model->params[p].role == SL_ROLE_HEAD) == head)
            elements += model->params[p].rows * model->params[p].columns;
    return elements;
}

int sl_flops_modules(const struct sl_model *model, uint64_t batch, uint64_t sequence,
                     struct sl_flops_module **modules, size_t *count)
{
    struct builder b = {0};
    double tokens = (double)batch * (double)sequence, macs = 0;
    uint32_t last = model->layers + 1;
    add(&b, 0, 1, model->param_elements, 0, "model");
    add(&b, 1, 1, unit_params(model, 0, false), 0, "embedding");
    for (uint32_t first = 0; first < model->layers;) {
        struct layer layer = count_layer(model, first, batch, sequence);
        uint32_t run = 1;
        for (; first + run < model->layers; run++) {
            struct layer next = count_layer(model, first + run, batch, sequence);
            if (memcmp(&layer, &next, sizeof(layer)) != 0)
                break;
        }
        add_layers(&b, &layer, first, run);
        first += run;
    }
    add(&b, 1, 1, unit_params(model, last, false), 0, "final norm");
    add(&b, 1, 1, unit_params(model, last, true),
        tokens * (double)model->vocabulary * (double)model->hidden,
        model->tied ? "head (tied to the embedding)" : "head");
    if (b.failed) {
        free(b.modules);
        return -ENOMEM;
    }
    for (size_t i = 1; i < b.count; i++)
        if (b.modules[i].depth == 1)
            macs += b.modules[i].count * b.modules[i].macs;
    b.modules[0].macs = macs;
    *modules = b.modules;
    *count = b.count;
    return 0;
}

/* --- text --- */

/* 1.23 G, 45.6 T. */
static const char *with_unit(double value, char text[32])
{
    static const char *const units[] = {"", " K", " M", " G", " T", " P", " E"};
    int unit = 0;
    while (value >= 1000 && unit < 6) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 32, "%.*f%s", unit ? 2 : 0, value, units[unit]);
    return text;
}

static void line(FILE *out, const char *name, double value, const char *unit)
{
    char text[32];
    fprintf(out, "%-52s %s%s\n", name, with_unit(value, text), unit);
}

static void latency(FILE *out, const char *name, uint64_t ns)
{
    if (ns)
        fprintf(out, "%-52s %.3f ms\n", name, 1e-6 * (double)ns);
}

static void rate(FILE *out, const char *name, double flops, uint64_t ns)
{
    if (ns)
        line(out, name, flops / (1e-9 * (double)ns), "FLOPS");
}

static void print_totals(FILE *out, const struct sl_flops_module *model, double layer_macs,
                         const struct sl_flops_options *o)
{
    double passes = (double)o->micro_batches, forward = 2 * model->macs * passes;
    double backward = 2 * forward, again = o->recompute ? 2 * layer_macs * passes : 0;
    fprintf(out, "Flops profile of step %llu: %llu x %llu tokens, %llu micro-batches\n",
            (unsigned long long)o->profile_step, (unsigned long long)o->batch,
            (unsigned long long)o->sequence, (unsigned long long)o->micro_batches);
    line(out, "parameters", (double)model->params, "");
    line(out, "forward MACs of one micro-batch", model->macs, " MACs");
    line(out, "forward flops of the step", forward, "");
    line(out, "backward flops of the step", backward, "");
    if (again > 0)
        line(out, "recomputed flops of the step", again, "");
    latency(out, "forward latency", o->forward_ns);
    rate(out, "forward FLOPS", forward, o->forward_ns);
    latency(out, "backward latency", o->backward_ns);
    rate(out, "backward FLOPS (with recomputation)", backward + again, o->backward_ns);
    latency(out, "update latency", o->update_ns);
    latency(out, "step latency", o->step_ns);
    rate(out, "step FLOPS (model flops, no recomputation)", forward + backward, o->step_ns);
    if (o->step_ns)
        fprintf(out, "%-52s %.2f\n", "samples/second",
                (double)(o->batch * o->micro_batches) / (1e-9 * (double)o->step_ns));
}

static bool printed(const struct sl_flops_module *module, const struct sl_flops_options *o)
{
    return o->module_depth < 0 || (int64_t)module->depth <= o->module_depth;
}

/* The `top` most expensive modules of one level: selection by repeated maximum, levels are short.
 */
static void print_top(FILE *out, const struct sl_flops_module *modules, size_t count,
                      uint32_t depth, uint64_t top)
{
    double below = -1, last;
    char text[32];
    fprintf(out, "  level %u:", depth);
    for (uint64_t rank = 0; rank < top; rank++) {
        const struct sl_flops_module *best = NULL;
        last = -1;
        for (size_t i = 0; i < count; i++) {
            double macs = modules[i].count * modules[i].macs;
            if (modules[i].depth == depth && (below < 0 || macs < below) && macs > last) {
                best = &modules[i];
                last = macs;
            }
        }
        if (!best || last <= 0)
            break;
        fprintf(out, "%s %s %sMACs", rank ? "," : "", best->name, with_unit(last, text));
        below = last;
    }
    fputc('\n', out);
}

static void print_tree(FILE *out, const struct sl_flops_module *modules, size_t count,
                       const struct sl_flops_options *o)
{
    char params[32], macs[32], name[96];
    double total = modules[0].macs > 0 ? modules[0].macs : 1;
    double scale = 1; /* of the layer group that the line is in */
    fprintf(out, "\n%-44s %12s %14s %8s\n", "module", "parameters", "MACs", "share");
    for (size_t i = 0; i < count; i++) {
        const struct sl_flops_module *module = &modules[i];
        if (module->depth <= 1)
            scale = module->count;
        if (!printed(module, o))
            continue;
        snprintf(name, sizeof(name), "%*s%s", 2 * (int)module->depth, "", module->name);
        fprintf(out, "%-44s %12s %14s %7.2f%%\n", name, with_unit((double)module->params, params),
                with_unit(module->macs, macs), 100 * scale * module->macs / total);
    }
}

char *sl_flops_profile_text(const struct sl_model *model, const struct sl_flops_options *o)
{
    struct sl_flops_module *modules = NULL;
    size_t count = 0, bytes = 0;
    char *text = NULL;
    if (sl_flops_modules(model, o->batch, o->sequence, &modules, &count))
        return NULL;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        goto done;
    double layer_macs = 0;
    uint32_t deepest = 0;
    for (size_t i = 0; i < count; i++) {
        if (modules[i].depth == 1 && strncmp(modules[i].name, "layer", 5) == 0)
            layer_macs += modules[i].count * modules[i].macs;
        if (printed(&modules[i], o) && modules[i].depth > deepest)
            deepest = modules[i].depth;
    }
    print_totals(out, &modules[0], layer_macs, o);
    if (o->top_modules)
        fprintf(out, "\nmost expensive modules\n");
    for (uint32_t depth = 1; o->top_modules && depth <= deepest; depth++)
        print_top(out, modules, count, depth, o->top_modules);
    if (o->detailed)
        print_tree(out, modules, count, o);
    if (fclose(out) != 0) {
        free(text);
        text = NULL;
    }
done:
    free(modules);
    return text;
}
