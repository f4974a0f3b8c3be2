// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/generate.h"
#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice generate --model DIR --prompt TEXT [--max-tokens N] [--temperature T]\n"
    "                       [--top-p P] [--seed S] [--device NAME] [--set key=value]...\n"
    "                       [--logits FILE] [--stats]\n"
    "       sluice generate --model DIR --chat [--prompt TEXT] [--system TEXT]\n"
    "                       [--chat-template NAME] [--context N] [...]\n"
    "\n"
    "  --chat         the prompt is a message, the text its answer; without --prompt every line "
    "of\n"
    "                 standard input is a message of one conversation, until its end\n"
    "  --system       the system message; else the template's own, if it has one\n"
    "  --chat-template  plain, chatml, qwen, llama2, llama3, mistral, gemma, phi, alpaca;\n"
    "                 else by the model's own template\n"
    "  --context      tokens that a conversation may hold (default 4096)\n"
    "  --temperature  0: always the most probable token (default 0.8)\n"
    "  --top-p        sample from the most probable tokens that make up P (default 1)\n"
    "  --set          placement.weights=nvme nvme.path=DIR, memory.host=..., threads=...,\n"
    "                 train.precision=bf16 (by default the type of the folder's weights)\n"
    "  --logits       write the prompt's ids and logits as safetensors (tests/parity/export.py)\n"
    "  --stats        tokens per second, to standard error\n";

/* Where messages come from, and what ends an answer early. */
struct talk {
    bool terminal; /* a person: show where to write */
    bool answered; /* something was printed that wants a line end */
    char *line;
    size_t capacity;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static int print_text(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return ferror(stdout) || interrupted;
}

/* The next line of standard input; Ctrl-C while it is awaited ends the program, while an answer is
 * written it ends the answer. */
static bool next_message(void *user, const char **text, size_t *bytes)
{
    struct talk *talk = user;
    if (talk->answered)
        printf("\n");
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &action, NULL);
    ssize_t length;
    do {
        if (talk->terminal)
            printf("> ");
        fflush(stdout);
        length = getline(&talk->line, &talk->capacity, stdin);
        while (length > 0 && (talk->line[length - 1] == '\n' || talk->line[length - 1] == '\r'))
            length--;
    } while (length == 0);
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, NULL);
    interrupted = 0;
    talk->answered = length > 0;
    *text = talk->line;
    *bytes = length > 0 ? (size_t)length : 0;
    return length > 0;
}

static bool number(const char *option, double low, double high, double *value)
{
    char *end;
    *value = strtod(optarg, &end);
    bool good = end != optarg && *end == 0 && *value >= low && *value <= high;
    if (!good)
        fprintf(stderr, "sluice: --%s %s: a number from %g to %g is meant\n", option, optarg, low,
                high);
    return good;
}

static bool fits(const struct sl_generate_options *o)
{
    if (!o->model || (!o->prompt && !o->chat)) {
        fprintf(stderr, "sluice: generate needs%s%s\n", o->model ? "" : " --model DIR",
                o->prompt || o->chat ? "" : " --prompt TEXT or --chat");
        return false;
    }
    if (o->chat ? o->logits_path != NULL : o->system || o->chat_template || o->context_tokens) {
        fprintf(stderr, o->chat ? "sluice: --logits is of a prompt without --chat\n"
                                : "sluice: --system, --chat-template and --context need --chat\n");
        return false;
    }
    return true;
}

static void print_stats(const struct sl_generate_result *r)
{
    fprintf(stderr, "prompt: %llu tokens, %.0f tokens/s; new: %llu tokens, %.1f tokens/s",
            (unsigned long long)r->prompt_tokens, (double)r->prompt_tokens / r->prompt_seconds,
            (unsigned long long)r->new_tokens, (double)r->new_tokens / r->new_seconds);
    if (r->reused_tokens)
        fprintf(stderr, "; %llu of earlier turns were cached",
                (unsigned long long)r->reused_tokens);
    fprintf(stderr, "\n");
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
        CHAT,
        SYSTEM,
        TEMPLATE,
        CONTEXT,
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
        {"chat", no_argument, NULL, CHAT},
        {"system", required_argument, NULL, SYSTEM},
        {"chat-template", required_argument, NULL, TEMPLATE},
        {"context", required_argument, NULL, CONTEXT},
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
    for (int option; good && (option = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
        switch (option) {
        case MODEL:
            o.model = optarg;
            break;
        case PROMPT:
            o.prompt = optarg;
            o.prompt_bytes = strlen(optarg);
            break;
        case TOKENS:
            good = number("max-tokens", 1, 1e9, &value);
            o.max_tokens = (uint32_t)value;
            break;
        case TEMPERATURE:
            good = number("temperature", 0, 100, &o.temperature);
            break;
        case TOP_P:
            good = number("top-p", 1e-6, 1, &o.top_p);
            break;
        case SEED:
            good = number("seed", 0, 9e15, &value);
            o.seed = (uint64_t)value;
            break;
        case DEVICE:
            o.device = optarg;
            break;
        case SET:
            good = o.set_count < SETS_MAX;
            if (good)
                sets[o.set_count++] = optarg;
            else
                fprintf(stderr, "sluice: more than %d --set options\n", SETS_MAX);
            break;
        case LOGITS:
            o.logits_path = optarg;
            break;
        case STATS:
            stats = true;
            break;
        case CHAT:
            o.chat = true;
            break;
        case SYSTEM:
            o.system = optarg;
            break;
        case TEMPLATE:
            o.chat_template = optarg;
            break;
        case CONTEXT:
            good = number("context", 16, 1e9, &value);
            o.context_tokens = (uint32_t)value;
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
        fprintf(stderr, "sluice: \"%s\" is not an option; a prompt of several words is quoted\n",
                argv[optind]);
        good = false;
    }
    if (argc < 2 || !good || !fits(&o))
        return refuse_usage(argc, argv, usage);
    struct talk talk = {.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    if (o.chat && !o.prompt)
        o.message = next_message;
    o.user = &talk;
    struct sl_generate_result result;
    struct sl_error error = {0};
    int failed = sl_generate(&o, &result, &error);
    free(talk.line);
    if (failed)
        return report_error(&error);
    if (!o.message || talk.terminal)
        printf("\n");
    if (stats)
        print_stats(&result);
    return EXIT_DONE;
}
