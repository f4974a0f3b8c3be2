// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/program/program.h"
#include "engine/tokenize.h"
#include "offload/workers.h"

static const char usage[] =
    "usage: sluice tokenize --tokenizer DIR|bytes --out FILE.bin FILE...\n"
    "                       [--format llmc|nanogpt] [--train-on-prompt] [--chat-template NAME]\n"
    "                       [--threads N] [--fresh]\n"
    "\n"
    "  FILE             plain text; .json, .jsonl, .ndjson: records with \"text\"\n"
    "  --tokenizer      a folder with tokenizer.json; bytes: an id for each byte\n"
    "  --out            token ids, for sluice train --data FILE.bin, llm.c and nanoGPT\n"
    "  --format         llmc (default): with a header, 16 or 32 bits; nanogpt: 16 bits, bare\n"
    "  --train-on-prompt  take conversations (messages, ShareGPT, Alpaca); a .bin has no mask:\n"
    "                   questions are trained like answers. To train answers alone give the JSON\n"
    "                   file to sluice train, which tokenizes it once and keeps the ids\n"
    "  --chat-template  plain, chatml, qwen, llama2, llama3, mistral, gemma, phi, alpaca;\n"
    "                   else by the tokenizer's own template\n"
    "  --threads        default: one a core\n"
    "  --fresh          begin anew, where a stopped run left its state\n"
    "\n"
    "Ctrl-C stops; the same command goes on from there, after a crash from its last state.\n";

static volatile sig_atomic_t stop;

static void on_interrupt(int number)
{
    (void)number;
    stop = 1;
}

struct bar {
    bool terminal, open;
    uint64_t start_ns, shown_ns;
    const struct sl_tokenize_result *result;
};

/* On a terminal a line in place, five times a second; elsewhere one in ten seconds. */
static bool show(void *user, uint64_t done, uint64_t total, uint64_t tokens)
{
    enum { WIDTH = 30 };
    struct bar *bar = user;
    uint64_t now = sl_clock_ns();
    char text[SL_SIZE_TEXT_BYTES], cells[WIDTH + 1];
    uint64_t pause = bar->terminal ? 200000000u : 10000000000u;
    if (now - bar->shown_ns < pause && done < total)
        return !stop;
    bar->shown_ns = now;
    double seconds = (double)(now - bar->start_ns) * 1e-9, share = (double)done / (double)total;
    double rate = (double)(done - bar->result->bytes_resumed) / seconds;
    int filled = (int)(share * WIDTH);
    memset(cells, ' ', WIDTH);
    memset(cells, '=', (size_t)filled);
    cells[WIDTH] = 0;
    fprintf(stderr, "%s[%s] %3.0f %% of %s, %.2f M tokens, %.1f MB/s, eta %.0f s%s",
            bar->terminal ? "\r\033[K" : "", cells, 100 * share, sl_size_format(total, text),
            (double)tokens * 1e-6, rate * 1e-6, (double)(total - done) / rate,
            bar->terminal ? "" : "\n");
    bar->open = bar->terminal;
    return !stop;
}

struct arguments {
    const char *tokenizer;
    size_t threads;
    struct sl_tokenize_options options;
};

static bool read_format(const char *text, enum sl_bin_format *format)
{
    *format = strcmp(text, "nanogpt") == 0 ? SL_BIN_NANOGPT : SL_BIN_LLMC;
    bool good = *format == SL_BIN_NANOGPT || strcmp(text, "llmc") == 0;
    if (!good)
        fprintf(stderr, "sluice: --format %s: give llmc or nanogpt\n", text);
    return good;
}

static bool read_threads(const char *text, size_t *threads)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    bool good = end != text && *end == 0 && value >= 1 && value <= 1024;
    if (!good)
        fprintf(stderr, "sluice: --threads %s: give 1 to 1024\n", text);
    *threads = value;
    return good;
}

/* EXIT_DONE for --help, EXIT_WRONG_INPUT, or -1 to go on. */
static int parse(int argc, char **argv, struct arguments *a)
{
    enum { TOKENIZER = 256, OUT, FORMAT, PROMPT, TEMPLATE, THREADS, FRESH, HELP };
    static const struct option longs[] = {
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"out", required_argument, NULL, OUT},
        {"format", required_argument, NULL, FORMAT},
        {"train-on-prompt", no_argument, NULL, PROMPT},
        {"chat-template", required_argument, NULL, TEMPLATE},
        {"threads", required_argument, NULL, THREADS},
        {"fresh", no_argument, NULL, FRESH},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    bool good = true;
    optind = 1;
    for (int option; good && (option = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
        switch (option) {
        case TOKENIZER:
            a->tokenizer = optarg;
            break;
        case OUT:
            a->options.output = optarg;
            break;
        case FORMAT:
            good = read_format(optarg, &a->options.format);
            break;
        case PROMPT:
            a->options.train_on_prompt = true;
            break;
        case TEMPLATE:
            a->options.chat_template = optarg;
            break;
        case THREADS:
            good = read_threads(optarg, &a->threads);
            break;
        case FRESH:
            a->options.fresh = true;
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
    a->options.files = (const char *const *)argv + optind;
    a->options.file_count = (size_t)(argc - optind);
    if (good && (!a->tokenizer || !a->options.output || a->options.file_count == 0)) {
        if (argc > 1)
            fprintf(stderr, "sluice: tokenize needs%s%s%s\n",
                    a->tokenizer ? "" : " --tokenizer DIR|bytes",
                    a->options.output ? "" : " --out FILE.bin",
                    a->options.file_count ? "" : " a FILE of text");
        good = false;
    }
    return good ? -1 : refuse_usage(argc, argv, usage);
}

static int run(struct arguments *a, struct sl_error *error)
{
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_workers *workers = NULL;
    struct sl_workers_options pool = {.thread_count = a->threads, .log = &program_log};
    struct sl_tokenize_result result = {0};
    struct bar bar = {.terminal = isatty(STDERR_FILENO), .result = &result};
    bool bytes = strcmp(a->tokenizer, "bytes") == 0;
    int code = sl_tokenizer_open(&tokenizer, bytes ? NULL : a->tokenizer, error);
    if (!code)
        code = sl_workers_create(&workers, &pool, error);
    if (!code) {
        a->options.tokenizer = tokenizer;
        a->options.workers = workers;
        a->options.log = &program_log;
        a->options.progress = show;
        a->options.progress_user = &bar;
        bar.start_ns = bar.shown_ns = sl_clock_ns();
        code = sl_tokenize(&a->options, &result, error);
        if (bar.open)
            fputc('\n', stderr);
    }
    if (!code) {
        double seconds = (double)(sl_clock_ns() - bar.start_ns) * 1e-9;
        uint64_t read = result.bytes_read - result.bytes_resumed;
        char written[SL_SIZE_TEXT_BYTES], text[SL_SIZE_TEXT_BYTES];
        printf("%s: %llu tokens, %s; %s of text read in %.1f s, %.1f MB/s", a->options.output,
               (unsigned long long)result.tokens, sl_size_format(result.bytes_written, written),
               sl_size_format(read, text), seconds, (double)read / seconds * 1e-6);
        if (result.tokens_resumed)
            printf("; %llu tokens were there", (unsigned long long)result.tokens_resumed);
        printf("\n");
    }
    sl_workers_destroy(workers);
    sl_tokenizer_close(tokenizer);
    return code;
}

int command_tokenize(int argc, char **argv)
{
    struct arguments arguments = {.options.format = SL_BIN_LLMC};
    int code = parse(argc, argv, &arguments);
    if (code >= 0)
        return code;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sl_error error = {0};
    code = run(&arguments, &error);
    if (code == -ECANCELED) {
        fprintf(stderr, "stopped; to go on: the same command\n");
        return EXIT_RUN_FAILED;
    }
    return code ? report_error(&error) : EXIT_DONE;
}
