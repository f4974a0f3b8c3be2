// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/generate.h"
#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice generate --model DIR --prompt TEXT [--max-tokens N] [--temperature T]\n"
    "                       [--top-p P] [--seed S] [--device NAME] [--set key=value]... [--logits "
    "FILE]\n"
    "                       [--stats]\n"
    "\n"
    "  --temperature  0: always the most probable token (default 0.8)\n"
    "  --top-p        sample from the most probable tokens that make up P (default 1)\n"
    "  --set          placement.weights=nvme nvme.path=DIR, memory.host=..., threads=...\n"
    "  --logits       write the prompt's ids and logits as safetensors (tests/parity/export.py)\n"
    "  --stats        tokens per second, to standard error\n";

static int print_text(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return ferror(stdout);
}

static bool number(const char *text, double low, double high, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == 0 && *value >= low && *value <= high;
}

int command_generate(int argc, char **argv)
{
    enum {
        MODEL = 256,
        PROMPT,
        TOKENS,
        TEMPERATURE,
        TOP_P,
        SEED,
        DEVICE,
        SET,
        LOGITS,
        STATS,
        HELP
    };
    static const struct option longs[] = {
        {"model", required_argument, NULL, MODEL},
        {"prompt", required_argument, NULL, PROMPT},
        {"max-tokens", required_argument, NULL, TOKENS},
        {"temperature", required_argument, NULL, TEMPERATURE},
        {"top-p", required_argument, NULL, TOP_P},
        {"seed", required_argument, NULL, SEED},
        {"device", required_argument, NULL, DEVICE},
        {"set", required_argument, NULL, SET},
        {"logits", required_argument, NULL, LOGITS},
        {"stats", no_argument, NULL, STATS},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    const char *sets[SETS_MAX];
    struct sl_generate_options o = {.max_tokens = 128,
                                    .temperature = 0.8,
                                    .top_p = 1,
                                    .sets = sets,
                                    .text = print_text,
                                    .log = &program_log};
    bool stats = false, good = true;
    double value = 0;
    optind = 1;
    for (int option; good && (option = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (option) {
        case MODEL:
            o.model = optarg;
            break;
        case PROMPT:
            o.prompt = optarg;
            o.prompt_bytes = strlen(optarg);
            break;
        case TOKENS:
            good = number(optarg, 1, 1e9, &value);
            o.max_tokens = (uint32_t)value;
            break;
        case TEMPERATURE:
            good = number(optarg, 0, 100, &o.temperature);
            break;
        case TOP_P:
            good = number(optarg, 1e-6, 1, &o.top_p);
            break;
        case SEED:
            good = number(optarg, 0, 9e15, &value);
            o.seed = (uint64_t)value;
            break;
        case DEVICE:
            o.device = optarg;
            break;
        case SET:
            good = o.set_count < SETS_MAX;
            if (good)
                sets[o.set_count++] = optarg;
            break;
        case LOGITS:
            o.logits_path = optarg;
            break;
        case STATS:
            stats = true;
            break;
        case HELP:
            fputs(usage, stdout);
            return EXIT_DONE;
        default:
            good = false;
        }
        if (!good && option != '?')
            fprintf(stderr, "sluice: \"%s\" is out of range\n", optarg);
    }
    if (!good || optind < argc || !o.model || !o.prompt) {
        fputs(usage, stderr);
        return EXIT_WRONG_INPUT;
    }
    struct sl_generate_result result;
    struct sl_error error = {0};
    if (sl_generate(&o, &result, &error))
        return report_error(&error);
    printf("\n");
    if (stats)
        fprintf(stderr, "prompt: %llu tokens, %.0f tokens/s; new: %llu tokens, %.1f tokens/s\n",
                (unsigned long long)result.prompt_tokens,
                (double)result.prompt_tokens / result.prompt_seconds,
                (unsigned long long)result.new_tokens,
                (double)result.new_tokens / result.new_seconds);
    return EXIT_DONE;
}
