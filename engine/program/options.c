// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/word.h"
#include "engine/program/program.h"

static void write_log(void *user, enum sl_log_level level, const char *message)
{
    (void)user;
    if (level != SL_LOG_DEBUG)
        fprintf(stderr, "%s%s\n", level == SL_LOG_WARNING ? "warning: " : "", message);
}

const struct sl_log program_log = {write_log, NULL};

int report_error(const struct sl_error *error)
{
    fprintf(stderr, "sluice: %s\n", error->message);
    bool input = error->domain == SL_DOMAIN_INPUT || error->domain == SL_DOMAIN_MEMORY;
    return input ? EXIT_WRONG_INPUT : EXIT_RUN_FAILED;
}

int refuse_usage(int argc, char **argv, const char *usage)
{
    if (argc < 2)
        fputs(usage, stderr);
    else
        fprintf(stderr, "sluice %s --help describes the options\n", argv[0]);
    return EXIT_WRONG_INPUT;
}

#define OPTIONS_MAX 32

void report_option(int option, char **argv, const struct option *longs)
{
    const char *text = argv[optind - 1];
    if (option == ':') {
        fprintf(stderr, "sluice: %s needs a value\n", text);
        return;
    }
    char word[SL_WORD_BYTES];
    const char *names[OPTIONS_MAX];
    size_t count = 0;
    while (count < OPTIONS_MAX && longs[count].name) {
        names[count] = longs[count].name;
        count++;
    }
    size_t dashes = strspn(text, "-");
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(text + dashes, "="), text + dashes);
    const char *nearest = sl_word_nearest(word, names, count);
    if (nearest && strcmp(nearest, word) == 0 && dashes == 2) {
        fprintf(stderr, "sluice: --%s takes no value\n", word);
        return;
    }
    fprintf(stderr, "sluice: %s has no option %s", argv[0], text);
    if (nearest)
        fprintf(stderr, "; did you mean --%s?", nearest);
    fputc('\n', stderr);
}

static bool add_set(struct run_options *o, const char *set)
{
    if (o->set_count == SETS_MAX) {
        fprintf(stderr, "sluice: more than %d --set options\n", SETS_MAX);
        return false;
    }
    o->sets[o->set_count++] = set;
    return true;
}

/* --steps N is --set train.steps=N. */
static bool add_short(struct run_options *o, const char *key, const char *value)
{
    if (o->set_text_count == sizeof(o->set_text) / sizeof(o->set_text[0])) {
        fprintf(stderr, "sluice: --steps and --seed may be given once\n");
        return false;
    }
    char *text = o->set_text[o->set_text_count++];
    int length = snprintf(text, sizeof(o->set_text[0]), "%s=%s", key, value);
    if (length >= (int)sizeof(o->set_text[0])) {
        fprintf(stderr, "sluice: %s: \"%s\" is not a number\n", key, value);
        return false;
    }
    return add_set(o, text);
}

static bool add_data(struct run_options *o, const char *file)
{
    if (o->data_count == DATA_MAX) {
        fprintf(stderr, "sluice: more than %d data files\n", DATA_MAX);
        return false;
    }
    o->data[o->data_count++] = file;
    return true;
}

int parse_run_options(int argc, char **argv, const char *usage, struct run_options *o)
{
    enum {
        MODEL = 256,
        DATA,
        CONFIG,
        OUT,
        STEPS,
        SEED,
        SET,
        RESUME,
        DEVICE,
        HARDWARE,
        TRACE,
        JSON,
        HELP
    };
    static const struct option longs[] = {
        {"model", required_argument, NULL, MODEL},
        {"data", required_argument, NULL, DATA},
        {"config", required_argument, NULL, CONFIG},
        {"out", required_argument, NULL, OUT},
        {"steps", required_argument, NULL, STEPS},
        {"seed", required_argument, NULL, SEED},
        {"set", required_argument, NULL, SET},
        {"resume", no_argument, NULL, RESUME},
        {"device", required_argument, NULL, DEVICE},
        {"hardware", required_argument, NULL, HARDWARE},
        {"trace", required_argument, NULL, TRACE},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    *o = (struct run_options){0};
    bool good = true;
    optind = 1;
    for (int option; good && (option = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
        switch (option) {
        case MODEL:
            o->model = optarg;
            break;
        case DATA: /* --data FILE... : all arguments up to the next option */
            good = add_data(o, optarg);
            while (good && optind < argc && strncmp(argv[optind], "--", 2) != 0)
                good = add_data(o, argv[optind++]);
            break;
        case CONFIG:
            o->config = optarg;
            break;
        case OUT:
            o->out = optarg;
            break;
        case STEPS:
            good = add_short(o, "train.steps", optarg);
            break;
        case SEED:
            good = add_short(o, "train.seed", optarg);
            break;
        case SET:
            good = add_set(o, optarg);
            break;
        case RESUME:
            o->resume = true;
            break;
        case HARDWARE:
            o->hardware = optarg;
            break;
        case DEVICE:
            o->device = optarg;
            break;
        case TRACE:
            o->trace = optarg;
            break;
        case JSON:
            o->json = true;
            break;
        case 'h':
        case HELP:
            fputs(usage, stdout);
            return EXIT_DONE;
        default:
            report_option(option, argv, longs);
            good = false;
        }
    }
    if (good && optind < argc) {
        fprintf(stderr, "sluice: \"%s\" is not an option\n", argv[optind]);
        good = false;
    }
    return good ? -1 : refuse_usage(argc, argv, usage);
}

struct sl_run_options library_options(const struct run_options *o)
{
    return (struct sl_run_options){
        .model = o->model,
        .config = o->config,
        .sets = o->sets,
        .set_count = o->set_count,
        .data = o->data,
        .data_count = o->data_count,
        .device = o->device,
        .hardware = o->hardware,
        .log = &program_log,
    };
}
