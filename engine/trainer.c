// SPDX-License-Identifier: Apache-2.0
/* The main road:
 *
 *     session -> plan -> arenas -> state (initial, weights, or checkpoint)
 *     -> [ batch -> submit step i -> step i - 1 has ended: log -> evaluate? save? ]* -> save
 *
 * Two steps are in flight: the update of one runs beside the forward pass of the next. What a step
 * needs from the one before it (loss scale, learning rate of the pending update) is decided on the
 * control lane, in `decided`, where the plan has put it; this thread only feeds data and reads
 * results.
 */
#include "engine/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/plan_text.h"
#include "engine/process_memory.h"
#include "engine/run_folder.h"
#include "engine/run_log.h"
#include "engine/run_profile.h"
#include "engine/state.h"

#define CONTEXTS 3 /* two in flight and one being filled */
#define TRACE_EVENTS 200000u
#define EXAMPLE_BYTES 2000u /* shown of conversations, whose masks are worth reading, ... */
#define STREAM_BYTES 300u   /* ... and of plain text */

struct trainer {
    const struct sl_train_options *o;
    struct sl_session session;
    struct sl_engine engine;
    struct sl_run_folder folder;
    struct sl_checkpoint from; /* --resume: what is gone on from */
    struct sl_run_log *log;
    struct sl_step_context contexts[CONTEXTS];
    int32_t *rows[CONTEXTS];      /* ids, targets, positions, first */
    struct sl_loss_scaler scaler; /* control lane while steps are in flight */
    struct sl_error scaler_error;
    struct sl_dataset_state data; /* behind the last submitted step */
    uint64_t step, submitted;     /* finished, queued */
    uint64_t applied;             /* updates decided on: the schedule's index */
    double lr[CONTEXTS];
    double best_loss, eval_loss;
    char best[SL_CHECKPOINT_PATH_BYTES], last[SL_CHECKPOINT_PATH_BYTES];
    uint64_t last_finish_ns;
    struct sl_executor_stats stats;
    uint64_t resident_after_first;
};

static size_t rows_of_step(const struct trainer *t)
{
    const struct sl_step_options *o = &t->engine.sp.options;
    return o->batch * o->sequence * o->micro_batches;
}

/* What the next update is done with. */
static void predicted(struct sl_step_context *context, struct sl_optim_hyper *hyper)
{
    const struct trainer *t = context->user;
    const struct sl_config *c = &t->session.config;
    *hyper = c->optimizer;
    hyper->lr = (float)sl_schedule_lr(&c->schedule, t->applied);
    hyper->beta1 =
        (float)sl_schedule_momentum(&c->schedule, t->applied, (double)c->optimizer.beta1);
    hyper->seed = c->seed;
}

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    struct trainer *t = context->user;
    bool skip;
    sl_loss_scaler_update(&t->scaler, !control->apply, &skip, &t->scaler_error);
    predicted(context, &control->hyper);
    t->lr[context - t->contexts] = (double)control->hyper.lr;
    t->applied += control->apply;
    control->loss_scale = t->scaler.scale;
}

static int make_contexts(struct trainer *t, struct sl_error *error)
{
    size_t rows = rows_of_step(t);
    for (int i = 0; i < CONTEXTS; i++) {
        t->rows[i] = calloc(4 * rows, sizeof(int32_t));
        if (!t->rows[i])
            return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for batches");
        t->contexts[i] = (struct sl_step_context){
            .ids = t->rows[i],
            .targets = t->rows[i] + rows,
            .positions = t->rows[i] + 2 * rows,
            .first = t->rows[i] + 3 * rows,
            .clip = t->session.config.clip_norm,
            .decided = decided,
            .predicted = predicted,
            .user = t,
        };
    }
    return 0;
}

static struct sl_dataset_batch batch_of(struct trainer *t, int slot)
{
    size_t rows = rows_of_step(t);
    int32_t *at = t->rows[slot];
    return (struct sl_dataset_batch){
        .ids = at, .targets = at + rows, .positions = at + 2 * rows, .first = at + 3 * rows};
}

static int check_resume(const struct trainer *t, const char *path, const struct sl_checkpoint *c,
                        struct sl_error *error)
{
    const struct sl_step_options *o = &t->engine.sp.options;
    struct {
        const char *key;
        uint64_t was, is;
    } numeric[] = {
        {"precision", c->precision, o->precision},
        {"optimizer", c->optimizer, o->hyper.kind},
        {"optimizer.moments", c->moments, o->moment_kind},
        {"optimizer.master none", c->master == SL_MASTER_NONE, o->master_kind == SL_MASTER_NONE},
        {"micro-batch", c->micro_batch, o->batch},
        {"accumulation", c->accumulation, o->micro_batches},
        {"sequence length", c->sequence_length, o->sequence},
        {"tiling.table_bytes", c->tile_bytes, o->tile_bytes},
        {"tiling.layer_bytes", c->layer_bytes, o->layer_bytes},
        {"schedule.delayed_update", c->delayed_update, o->delayed_update},
        {"parameters", c->param_elements, o->model->param_elements},
        {"train.seed", c->seed, t->session.config.seed},
        {"data", c->data_fingerprint, sl_dataset_fingerprint(t->session.dataset)},
    };
    for (size_t i = 0; i < sizeof(numeric) / sizeof(numeric[0]); i++)
        if (numeric[i].was != numeric[i].is)
            return sl_error_set(
                error, SL_DOMAIN_INPUT, -EINVAL,
                "--resume %s: %s was %llu and is now %llu; resume with the settings "
                "of the run, or start a new run with --model %s",
                path, numeric[i].key, (unsigned long long)numeric[i].was,
                (unsigned long long)numeric[i].is, path);
    char fingerprint[SL_FINGERPRINT_BYTES];
    sl_checkpoint_fingerprint(&t->engine, fingerprint);
    if (strcmp(fingerprint, c->fingerprint) != 0)
        sl_log_write(
            t->o->run.log, SL_LOG_WARNING,
            "resumed on other hardware (%s, was %s): the run goes on, its bits will differ "
            "from an unbroken one",
            fingerprint, c->fingerprint);
    return 0;
}

/* A micro-batch that is auto is the run's, whatever this machine would choose. */
static int take_batch_of_run(struct trainer *t, struct sl_error *error)
{
    struct sl_batch_free *batch = &t->session.engine.batch;
    uint64_t micro_batch = t->from.micro_batch;
    if (!batch->free)
        return 0;
    if (micro_batch == 0 || (batch->total && batch->total % micro_batch))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "--resume %s: a batch of %llu is no multiple of the run's micro-batch "
                            "%llu; resume with the settings of the run",
                            t->last, (unsigned long long)batch->total,
                            (unsigned long long)micro_batch);
    batch->free = false;
    sl_log_write(t->o->run.log, SL_LOG_INFO,
                 "micro-batch: %llu, of the run (train.micro_batch auto)",
                 (unsigned long long)micro_batch);
    return sl_session_set_batch(&t->session, micro_batch,
                                batch->total ? batch->total / micro_batch : batch->accumulation,
                                error);
}

static int find_resume(struct trainer *t, struct sl_error *error)
{
    int result = sl_checkpoint_latest(t->o->out, t->last, error);
    if (!result)
        result = sl_checkpoint_read(t->last, &t->from, error);
    return result ? result : take_batch_of_run(t, error);
}

/* The plan, by the batch of the run where one is resumed. Before arenas and swap space: what is
 * refused costs nothing. */
static int plan(struct trainer *t, struct sl_error *error)
{
    int result = t->o->resume ? find_resume(t, error) : 0;
    if (!result)
        result = sl_engine_plan(&t->engine, &t->session.engine, error);
    if (!result && t->engine.batch.row_count)
        result = sl_session_set_batch(&t->session, t->engine.options.step.batch,
                                      t->engine.options.step.micro_batches, error);
    if (!result && t->o->resume)
        result = check_resume(t, t->last, &t->from, error);
    return result;
}

static int resume(struct trainer *t, struct sl_error *error)
{
    struct sl_checkpoint *c = &t->from;
    int result = sl_loss_scaler_load(&t->scaler, c->scaler, error);
    if (!result)
        result = sl_checkpoint_load(&t->engine, t->last, c, error);
    if (result)
        return result;
    t->step = t->submitted = c->step;
    t->applied = c->updates;
    t->data = c->data;
    t->best_loss = c->best_loss;
    sl_log_write(t->o->run.log, SL_LOG_INFO, "resumed from %s at step %llu", t->last,
                 (unsigned long long)c->step);
    return 0;
}

static int load_state(struct trainer *t, struct sl_error *error)
{
    sl_loss_scaler_init(&t->scaler, &t->session.config.scaler);
    t->best_loss = NAN;
    t->eval_loss = NAN;
    int result;
    if (t->o->resume)
        result = resume(t, error);
    else if (t->session.model_has_weights)
        result = sl_checkpoint_load_weights(&t->engine, t->session.model_path, error);
    else
        result = sl_state_initialize(&t->engine, t->session.config.seed, error);
    if (!result)
        sl_engine_control(&t->engine)->loss_scale = t->scaler.scale;
    return result;
}

static int save(struct trainer *t, bool best, struct sl_error *error)
{
    const struct sl_step_options *o = &t->engine.sp.options;
    struct sl_checkpoint c = {
        .step = t->step,
        .updates = sl_engine_control(&t->engine)->updates,
        .seed = t->session.config.seed,
        .data = t->data,
        .data_fingerprint = sl_dataset_fingerprint(t->session.dataset),
        .precision = o->precision,
        .optimizer = o->hyper.kind,
        .moments = o->moment_kind,
        .master = o->master_kind,
        .micro_batch = o->batch,
        .accumulation = o->micro_batches,
        .sequence_length = o->sequence,
        .tile_bytes = o->tile_bytes,
        .layer_bytes = o->layer_bytes,
        .delayed_update = o->delayed_update,
        .param_elements = o->model->param_elements,
        .eval_loss = t->eval_loss,
        .best_loss = t->best_loss,
    };
    sl_loss_scaler_save(&t->scaler, c.scaler);
    sl_checkpoint_fingerprint(&t->engine, c.fingerprint);
    char path[SL_CHECKPOINT_PATH_BYTES];
    sl_checkpoint_path(t->o->out, t->step, path);
    if (strcmp(path, t->last) == 0)
        return 0; /* this step is saved already */
    int result = sl_checkpoint_save(&t->engine, path,
                                    t->session.model_path[0] ? t->session.model_path : NULL,
                                    t->session.tokenizer, &c, error);
    if (result)
        return result;
    memcpy(t->last, path, sizeof(path));
    if (best)
        memcpy(t->best, path, sizeof(path));
    return sl_checkpoint_prune(t->o->out, t->session.config.keep_last, t->best[0] ? t->best : NULL,
                               error);
}

static int evaluate(struct trainer *t, struct sl_error *error)
{
    const struct sl_step_options *o = &t->engine.sp.options;
    size_t at_once = o->batch * o->micro_batches;
    uint64_t sequences = sl_dataset_eval_sequences(t->session.dataset);
    uint64_t limit = t->session.config.eval_batches * o->batch;
    if (limit)
        sequences = sl_min_u64(sequences, limit);
    double sum = 0;
    uint64_t tokens = 0;
    int slot = (int)(t->submitted % CONTEXTS);
    int result = 0;
    for (uint64_t i = 0; i < sequences && !result; i += at_once) {
        struct sl_dataset_batch batch = batch_of(t, slot);
        sl_dataset_eval(t->session.dataset, i, at_once, &batch);
        t->contexts[slot].trained_tokens = batch.trained_tokens;
        double loss;
        result = sl_engine_evaluate(&t->engine, &t->contexts[slot], &loss, error);
        sum += loss;
        tokens += batch.trained_tokens;
    }
    t->eval_loss = tokens ? sum / (double)tokens : NAN;
    return result;
}

static int submit(struct trainer *t, struct sl_error *error)
{
    int slot = (int)(t->submitted % CONTEXTS);
    struct sl_dataset_batch batch = batch_of(t, slot);
    const struct sl_step_options *o = &t->engine.sp.options;
    sl_dataset_next(t->session.dataset, &t->data, o->batch * o->micro_batches, &batch);
    t->contexts[slot].trained_tokens = batch.trained_tokens;
    int result = sl_engine_step(&t->engine, &t->contexts[slot], error);
    t->submitted += result == 0;
    return result;
}

static bool due(uint64_t step, uint64_t interval)
{
    return interval && step % interval == 0;
}

/* Is a line due? The first step's too: steps may take minutes, and silence looks like a hang. */
static bool print_due(const struct trainer *t, uint64_t step)
{
    uint64_t interval = t->session.config.print_steps;
    return due(step, interval) || (interval && (step == 1 || step == t->session.steps));
}

/* Step t->step has ended: say so. */
static int report(struct trainer *t, struct sl_progress *p, struct sl_error *error)
{
    const struct sl_step_context *c = &t->contexts[t->step % CONTEXTS];
    const struct sl_step_control *r = &c->result;
    struct sl_executor_stats stats;
    sl_executor_stats(t->engine.executor, &stats);
    double seconds = (double)(c->finish_ns - t->last_finish_ns) * 1e-9;
    *p = (struct sl_progress){
        .step = t->step + 1,
        .steps = t->session.steps,
        .loss = r->loss,
        .norm = r->norm,
        .norm_clipped = r->norm_clipped,
        .lr = t->lr[t->step % CONTEXTS],
        .loss_scale = r->loss_scale,
        .skipped = !r->apply,
        .skipped_total = t->scaler.skipped_total,
        .step_seconds = seconds,
        .tokens_per_second = (double)rows_of_step(t) / seconds,
        .eta_seconds = seconds * (double)(t->session.steps - t->step - 1),
        .due = print_due(t, t->step + 1),
    };
    static const char *const speculations[] = {NULL, "right", "wrong", "off"};
    p->speculation = speculations[r->speculation];
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        p->busy_seconds[lane] = (double)(stats.busy_ns[lane] - t->stats.busy_ns[lane]) * 1e-9;
        p->wait_seconds[lane] = (double)(stats.wait_ns[lane] - t->stats.wait_ns[lane]) * 1e-9;
    }
    t->stats = stats;
    t->last_finish_ns = c->finish_ns;
    t->step++;
    if (t->resident_after_first == 0 && t->step >= 2)
        t->resident_after_first = sl_process_resident_bytes();
    if (!r->apply) {
        const char *name =
            r->nonfinite_param >= 0 ? t->session.model.params[r->nonfinite_param].name : "the norm";
        sl_log_write(t->o->run.log, SL_LOG_WARNING,
                     "step %llu skipped: %llu gradient values are not finite, first in %s",
                     (unsigned long long)t->step, (unsigned long long)r->nonfinite, name);
    }
    if (t->scaler_error.code) {
        *error = t->scaler_error;
        return error->code;
    }
    return 0;
}

/* What the model is worth before the run: step 0 of the log, and nothing that a checkpoint could be
 * the best against. */
static int evaluate_start(struct trainer *t, struct sl_error *error)
{
    struct sl_progress p = {.steps = t->session.steps, .evaluated = true};
    int result = evaluate(t, error);
    p.eval_loss = t->eval_loss;
    if (!result)
        result = sl_run_log_step(t->log, &p, error);
    if (!result && t->o->progress)
        t->o->progress(t->o->user, &p);
    return result;
}

/* After a step: evaluation and checkpoint where they are due, then the line in the log. */
static int after_step(struct trainer *t, struct sl_progress *p, bool last, struct sl_error *error)
{
    const struct sl_config *c = &t->session.config;
    /* Asked to stop with another step in flight: that one is the last. */
    bool stop = t->o->stop && *t->o->stop && t->submitted == t->step;
    bool has_eval = sl_dataset_eval_sequences(t->session.dataset) > 0;
    bool eval = has_eval && (due(t->step, c->eval_interval) || (last && c->eval_interval));
    bool keep = due(t->step, c->save_interval) || last || stop;
    int result = 0;
    if (eval || keep)
        result = sl_engine_flush(&t->engine, error);
    if (eval && !result) {
        result = evaluate(t, error);
        p->evaluated = true;
        p->eval_loss = t->eval_loss;
        t->last_finish_ns = sl_clock_ns();
    }
    bool best = eval && !result && !(t->eval_loss >= t->best_loss);
    if (best)
        t->best_loss = t->eval_loss;
    if (!result && (keep || (best && c->keep_best))) {
        result = save(t, best && c->keep_best, error);
        p->saved = t->last;
        t->last_finish_ns = sl_clock_ns();
    }
    if (!result)
        result = sl_run_log_step(t->log, p, error);
    if (!result)
        result = sl_run_profile_step(c, &t->engine.sp.options, p, t->o->run.log, error);
    if (!result && t->o->progress)
        t->o->progress(t->o->user, p);
    return result;
}

/* Will something after `step` need the pipeline drained? Then the next step must not be queued yet.
 */
static bool drains_after(const struct trainer *t, uint64_t step)
{
    const struct sl_config *c = &t->session.config;
    return step == t->session.steps || due(step, c->eval_interval) || due(step, c->save_interval);
}

static int finish_steps(struct trainer *t, uint64_t until, struct sl_error *error)
{
    int result = 0;
    while (t->step < until && !result) {
        uint32_t in_flight = (uint32_t)(t->submitted - t->step - 1);
        result = sl_executor_wait(t->engine.executor, in_flight);
        if (result) {
            sl_executor_error(t->engine.executor, error);
            break;
        }
        struct sl_progress p;
        result = report(t, &p, error);
        if (!result)
            result = after_step(t, &p, t->step == t->session.steps, error);
    }
    return result;
}

static int train_steps(struct trainer *t, struct sl_error *error)
{
    bool first = t->step == 0 && t->session.config.eval_at_start;
    int result = 0;
    if (first && sl_dataset_eval_sequences(t->session.dataset) > 0)
        result = evaluate_start(t, error);
    t->last_finish_ns = sl_clock_ns();
    while (t->step < t->session.steps && !result) {
        bool stop = t->o->stop && *t->o->stop;
        if (stop && t->submitted == t->step) {
            /* Asked to stop behind a step that had been drained: its end did not save it. */
            result = t->step ? sl_engine_flush(&t->engine, error) : 0;
            return result || t->step == 0 ? result : save(t, false, error);
        }
        if (!stop && t->submitted < t->session.steps &&
            !(t->submitted > t->step && drains_after(t, t->submitted))) {
            result = submit(t, error);
            /* One more in flight before the first of the two is waited for. */
            if (!result && t->submitted - t->step < 2 && t->submitted < t->session.steps &&
                !drains_after(t, t->submitted))
                continue;
        }
        if (!result)
            result = finish_steps(t, t->step + 1, error);
    }
    return result;
}

static void fill_result(struct trainer *t, struct sl_train_result *result)
{
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    uint64_t total[SL_TIER_COUNT];
    sl_engine_memory(&t->engine, lines, total);
    struct sl_executor_stats stats;
    sl_executor_stats(t->engine.executor, &stats);
    uint64_t resident = sl_process_resident_bytes();
    *result = (struct sl_train_result){
        .step = t->step,
        .loss = t->step ? t->contexts[(t->step - 1) % CONTEXTS].result.loss : NAN,
        .eval_loss = t->eval_loss,
        .peak_bytes = sl_process_peak_bytes(),
        .planned_bytes = total[SL_TIER_HOST],
        .growth_bytes = t->resident_after_first && resident > t->resident_after_first
                            ? resident - t->resident_after_first
                            : 0,
        .stopped = t->step < t->session.steps,
    };
    memcpy(result->lane_bytes, stats.bytes, sizeof(stats.bytes));
    memcpy(result->checkpoint, t->last, sizeof(t->last));
}

static int show_plan(struct trainer *t, struct sl_error *error)
{
    char *text = sl_plan_text(&t->engine, &t->session);
    if (!text)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    t->o->planned(t->o->user, text);
    free(text);
    return 0;
}

static int open_session(struct trainer *t, struct sl_error *error)
{
    struct sl_run_options run = t->o->run;
    char cache[SL_CHECKPOINT_PATH_BYTES];
    snprintf(cache, sizeof(cache), "%s/cache", t->o->out);
    run.cache = run.cache ? run.cache : cache;
    run.stop = run.stop ? run.stop : t->o->stop;
    return sl_session_open(&t->session, &run, error);
}

static int show_example(struct trainer *t, struct sl_error *error)
{
    const struct sl_dataset *data = t->session.dataset;
    struct sl_text text = {0};
    size_t bytes_max = sl_dataset_has_examples(data) ? EXAMPLE_BYTES : STREAM_BYTES;
    int code = sl_dataset_show(data, t->session.tokenizer, 0, bytes_max, &text);
    char *shown = NULL;
    if (!code && asprintf(&shown, "%.*s", (int)text.bytes, text.data) < 0)
        code = -ENOMEM;
    if (!code)
        t->o->example(t->o->user, shown);
    free(shown);
    sl_text_finish(&text);
    return code ? sl_error_set(error, SL_DOMAIN_MEMORY, code, "out of memory") : 0;
}

static int start(struct trainer *t, struct sl_error *error)
{
    const struct sl_train_options *o = t->o;
    int result = o->trace ? sl_trace_check_path(o->trace, error) : 0;
    if (!result)
        result = sl_run_folder_open(&t->folder, o->out, o->resume, o->run.log, error);
    if (!result)
        result = open_session(t, error);
    if (result)
        return result;
    if (!t->session.dataset)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "--data is missing: give a text file");
    if (t->session.steps == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "train.steps or train.epochs is 0");
    t->session.engine.trace_events = o->trace ? TRACE_EVENTS : 0;
    result = plan(t, error);
    if (!result && o->planned)
        result = show_plan(t, error);
    if (!result)
        result = make_contexts(t, error);
    if (!result)
        result = sl_engine_start(&t->engine, error);
    if (!result)
        result = load_state(t, error);
    if (!result)
        result = sl_run_log_open(&t->log, o->out, &t->session.config, error);
    if (!result)
        result = sl_run_log_begin(t->log, t->step, error);
    if (!result && o->example && !o->resume)
        result = show_example(t, error);
    return result;
}

int sl_train(const struct sl_train_options *options, struct sl_train_result *result_out,
             struct sl_error *error)
{
    struct trainer *t = calloc(1, sizeof(*t));
    if (!t)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    t->o = options;
    int result = start(t, error);
    if (!result)
        result = train_steps(t, error);
    if (!result && options->trace)
        result = sl_trace_write(t->engine.trace, &t->engine.sp.plan, options->trace, error);
    if (!result && result_out)
        fill_result(t, result_out);
    sl_engine_finish(&t->engine);
    sl_run_log_close(t->log);
    sl_run_folder_close(&t->folder);
    for (int i = 0; i < CONTEXTS; i++)
        free(t->rows[i]);
    sl_session_close(&t->session);
    free(t);
    return result;
}
