// SPDX-License-Identifier: Apache-2.0
/* bench-tflops: the throughput of training a model here, and what share of the machine's matrix
 * products that is. The run is the one of `sluice train`, on synthetic tokens; what is counted, and
 * what is not, stands in docs/tflops.md. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "bench/tflops_ceiling.h"
#include "bench/tflops_run.h"

#define MODELS_MAX 32
#define SETS_MAX 64

static const char usage[] =
    "usage: bench-tflops [--model DIR|PRESET]... [--config FILE] [--set key=value]...\n"
    "                    [--device NAME] [--steps N] [--warm N] [--product-max N]\n"
    "                    [--json | --csv]\n"
    "\n"
    "  --model    a named shape or a folder with config.json; several: one after the other\n"
    "             (gpt2-124m)\n"
    "  --config   a DeepSpeed JSON or Accelerate YAML, as for sluice train\n"
    "  --set      one key: train.micro_batch=2, train.sequence_length=1024,\n"
    "             train.activation_checkpointing=false, placement.optimizer=nvme, threads=8, ...\n"
    "  --device   auto, host, host:discrete, cuda, cuda:N (auto)\n"
    "  --steps    measured steps, 1 to 1000 (5)\n"
    "  --warm     steps before them, 1 to 1000 (2)\n"
    "  --product-max  side of the largest product of a GPU's ceiling, 1 to 8192 (8192)\n"
    "  --json     one object per model, in an array; --csv: one line per model\n"
    "\n"
    "TFLOPS of the model count no recomputation; those of the hardware do. Both are compared with\n"
    "the fastest matrix product of the same run.\n";

enum format { TABLE, JSON, CSV };

struct arguments {
    const char *models[MODELS_MAX], *sets[SETS_MAX];
    size_t model_count;
    struct tflops_options run;
    enum format format;
};

static bool number(const char *name, const char *text, uint32_t max, uint32_t *out)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-' || value < 1 || value > max) {
        fprintf(stderr, "bench-tflops: --%s %s: a number from 1 to %u is needed\n", name, text,
                max);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool append(const char *name, const char **list, size_t *count, size_t limit,
                   const char *value)
{
    if (*count == limit) {
        fprintf(stderr, "bench-tflops: more than %zu --%s options\n", limit, name);
        return false;
    }
    list[(*count)++] = value;
    return true;
}

static bool parse(int argc, char **argv, struct arguments *a, bool *help)
{
    enum { MODEL = 256, CONFIG, SET, DEVICE, STEPS, WARM, PRODUCT, FORMAT_JSON, FORMAT_CSV, HELP };
    static const struct option longs[] = {
        {"model", required_argument, NULL, MODEL}, {"config", required_argument, NULL, CONFIG},
        {"set", required_argument, NULL, SET},     {"device", required_argument, NULL, DEVICE},
        {"steps", required_argument, NULL, STEPS}, {"warm", required_argument, NULL, WARM},
        {"product-max", required_argument, NULL, PRODUCT},
        {"json", no_argument, NULL, FORMAT_JSON},  {"csv", no_argument, NULL, FORMAT_CSV},
        {"help", no_argument, NULL, HELP},         {NULL, 0, NULL, 0},
    };
    *a = (struct arguments){.run = {.warm = 2, .steps = 5, .product_max = TFLOPS_PRODUCT_MAX}};
    a->run.run.sets = a->sets;
    bool good = true;
    for (int option; good && (option = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (option) {
        case MODEL:
            good = append("model", a->models, &a->model_count, MODELS_MAX, optarg);
            break;
        case CONFIG:
            a->run.run.config = optarg;
            break;
        case SET:
            good = append("set", a->sets, &a->run.run.set_count, SETS_MAX, optarg);
            break;
        case DEVICE:
            a->run.run.device = optarg;
            break;
        case STEPS:
            good = number("steps", optarg, TFLOPS_STEPS_MAX, &a->run.steps);
            break;
        case WARM:
            good = number("warm", optarg, TFLOPS_STEPS_MAX, &a->run.warm);
            break;
        case PRODUCT:
            good = number("product-max", optarg, TFLOPS_PRODUCT_MAX, &a->run.product_max);
            break;
        case FORMAT_JSON:
            a->format = JSON;
            break;
        case FORMAT_CSV:
            a->format = CSV;
            break;
        case HELP:
            *help = true;
            return true;
        default:
            good = false;
        }
    }
    if (good && optind < argc) {
        fprintf(stderr, "bench-tflops: \"%s\" is not an option\n", argv[optind]);
        good = false;
    }
    if (good && a->model_count == 0)
        a->models[a->model_count++] = "gpt2-124m";
    return good;
}

static double tera(double flops, const struct tflops_result *r)
{
    return 1e-12 * flops / r->step_seconds;
}

static double share(double flops, const struct tflops_result *r)
{
    return flops / r->step_seconds / r->ceiling;
}

static void print_table(const char *model, const struct tflops_result *r)
{
    char text[SL_SIZE_TEXT_BYTES];
    printf("%s: %.2f M parameters, %s, %llu x %llu tokens x %llu per step, recomputation %s\n",
           model, 1e-6 * (double)r->parameters, sl_dtype_name(r->precision),
           (unsigned long long)r->micro_batch, (unsigned long long)r->sequence,
           (unsigned long long)r->accumulation, r->recompute ? "on" : "off");
    printf("%s; %s\nceiling %.4f TFLOPS (%s)\n\n", r->device, r->placement, 1e-12 * r->ceiling,
           r->ceiling_shape);
    printf("| step | tokens/s | model TFLOPS | of ceiling (MFU) | hardware TFLOPS | of ceiling |\n"
           "| --- | --- | --- | --- | --- | --- |\n"
           "| %.3f s +- %.3f | %.1f | %.4f | %.1f %% | %.4f | %.1f %% |\n\n",
           r->step_seconds, r->spread_seconds, r->tokens_per_second, tera(r->model_flops, r),
           100 * share(r->model_flops, r), tera(r->hardware_flops, r),
           100 * share(r->hardware_flops, r));
    printf("| lane | busy, s per step | of the step | waits for others, s | moved per step |\n"
           "| --- | --- | --- | --- | --- |\n");
    for (int lane = 0; lane < SL_LANES; lane++)
        if (r->busy_seconds[lane] > 0)
            printf("| %s | %.3f | %.1f %% | %.3f | %s |\n", sl_lane_text(lane),
                   r->busy_seconds[lane], 100 * r->busy_seconds[lane] / r->step_seconds,
                   r->wait_seconds[lane], sl_size_format(r->bytes[lane], text));
    printf("\nmemory");
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        printf("%s %s %s", tier ? "," : "", sl_tier_name((enum sl_tier)tier),
               sl_size_format(r->memory[tier], text));
    printf("\n\n");
}

static void put_text(const char *text)
{
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            printf("\\%c", *at);
        else if (*at < 0x20)
            printf("\\u%04x", *at);
        else
            putchar(*at);
    }
    putchar('"');
}

static void print_json(const char *model, const struct tflops_result *r, bool first)
{
    printf("%s  {\"model\": ", first ? "" : ",\n");
    put_text(model);
    printf(", \"device\": ");
    put_text(r->device);
    printf(", \"threads\": %zu, \"precision\": \"%s\", \"parameters\": %llu, \"micro_batch\": "
           "%llu, \"accumulation\": %llu, \"sequence_length\": %llu, \"recompute\": %s,\n"
           "   \"placement\": \"%s\",\n",
           r->threads, sl_dtype_name(r->precision), (unsigned long long)r->parameters,
           (unsigned long long)r->micro_batch, (unsigned long long)r->accumulation,
           (unsigned long long)r->sequence, r->recompute ? "true" : "false", r->placement);
    printf("   \"step_seconds\": %.9g, \"step_spread_seconds\": %.9g, \"tokens_per_second\": %.9g, "
           "\"loss\": %.9g,\n   \"model_flops_per_step\": %.9g, \"hardware_flops_per_step\": %.9g, "
           "\"model_tflops\": %.9g, \"hardware_tflops\": %.9g,\n",
           r->step_seconds, r->spread_seconds, r->tokens_per_second, r->loss, r->model_flops,
           r->hardware_flops, tera(r->model_flops, r), tera(r->hardware_flops, r));
    printf("   \"ceiling_tflops\": %.9g, \"ceiling\": \"%s\", \"mfu\": %.9g, \"hfu\": %.9g,\n"
           "   \"lanes\": {",
           1e-12 * r->ceiling, r->ceiling_shape, share(r->model_flops, r),
           share(r->hardware_flops, r));
    for (int lane = 0; lane < SL_LANES; lane++)
        printf("%s\"%s\": {\"busy_seconds\": %.9g, \"wait_seconds\": %.9g, \"bytes\": %llu}",
               lane ? ", " : "", sl_lane_text(lane), r->busy_seconds[lane], r->wait_seconds[lane],
               (unsigned long long)r->bytes[lane]);
    printf("},\n   \"memory_bytes\": {");
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        printf("%s\"%s\": %llu", tier ? ", " : "", sl_tier_name((enum sl_tier)tier),
               (unsigned long long)r->memory[tier]);
    printf("}}");
}

static void print_csv(const char *model, const struct tflops_result *r, bool first)
{
    if (first)
        printf("model,parameters,precision,micro_batch,sequence_length,accumulation,recompute,"
               "placement,step_seconds,spread_seconds,tokens_per_second,model_tflops,mfu,"
               "hardware_tflops,hfu,ceiling_tflops\n");
    printf("\"%s\",%llu,%s,%llu,%llu,%llu,%d,\"%s\",%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g\n",
           model, (unsigned long long)r->parameters, sl_dtype_name(r->precision),
           (unsigned long long)r->micro_batch, (unsigned long long)r->sequence,
           (unsigned long long)r->accumulation, r->recompute, r->placement, r->step_seconds,
           r->spread_seconds, r->tokens_per_second, tera(r->model_flops, r),
           share(r->model_flops, r), tera(r->hardware_flops, r), share(r->hardware_flops, r),
           1e-12 * r->ceiling);
}

int main(int argc, char **argv)
{
    struct arguments a;
    bool help = false;
    if (!parse(argc, argv, &a, &help)) {
        fputs(usage, stderr);
        return 2;
    }
    if (help) {
        fputs(usage, stdout);
        return 0;
    }
    if (a.format == JSON)
        printf("[\n");
    int status = 0;
    for (size_t i = 0; i < a.model_count && status == 0; i++) {
        struct tflops_result result;
        struct sl_error error = {0};
        a.run.run.model = a.models[i];
        if (tflops_run(&a.run, &result, &error)) {
            fprintf(stderr, "bench-tflops: %s: %s\n", a.models[i], error.message);
            status = error.domain == SL_DOMAIN_INPUT ? 2 : 1;
        } else if (a.format == JSON) {
            print_json(a.models[i], &result, i == 0);
        } else if (a.format == CSV) {
            print_csv(a.models[i], &result, i == 0);
        } else {
            print_table(a.models[i], &result);
        }
        fflush(stdout);
    }
    if (a.format == JSON)
        printf("\n]\n");
    return status;
}
