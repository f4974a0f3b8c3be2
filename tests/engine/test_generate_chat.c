// SPDX-License-Identifier: Apache-2.0
/* Conversations: a tiny model learns three answers by heart, on answers alone, and gives them, turn
 * after turn, stopping where the template says. */
#include "tests/test.h"

#include <string.h>
#include <unistd.h>

#include "engine/generate.h"
#include "engine/sluice.h"

static char root[] = "/tmp/sluice-generate-chat-XXXXXX";
static char logged[4096];

static void write_log(void *user, enum sl_log_level level, const char *message)
{
    (void)user;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof(logged) - used, "%s\n", message);
}
static const struct sl_log log_sink = {write_log, NULL};

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}, "
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

static void learn(const char *template, char model[SL_RESULT_PATH_BYTES])
{
    static const char records[] =
        "{\"messages\": [" USER("sea") ANSWER("It is wide.") ", " USER("light") ANSWER(
            "It was good.") "]}\n"
                            "{\"messages\": [" USER("light") ANSWER("It was good.") ", " USER("sea")
                                ANSWER(
                                    "It is wide.") "]}\n"
                                                   "{\"messages\": [" USER("sea") ANSWER(
                                                       "It is wide.") "]}\n"
                                                                      "{\"messages\": [" USER(
                                                                          "light")
                                                                          ANSWER(
                                                                              "It was good.") "]}"
                                                                                              "\n";
    char path[64], out[96], set[64];
    bool plain = strcmp(template, "plain") == 0; /* its frames are short */
    const char *length = plain ? "train.sequence_length=64" : "train.sequence_length=256";
    snprintf(path, sizeof(path), "%s/data.jsonl", root);
    snprintf(out, sizeof(out), "%s/%s", root, template);
    snprintf(set, sizeof(set), "data.template=%s", template);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(records, file);
    fclose(file);
    const char *data[] = {path};
    const char *sets[] = {length,
                          "train.learning_rate=5e-3",
                          "train.precision=fp32",
                          "train.steps=200",
                          "train.lr_scheduler_type=cosine",
                          "threads=2",
                          set};
    struct sl_train_options options = {
        .run = {.model = "tiny",
                .data = data,
                .data_count = 1,
                .sets = sets,
                .set_count = sizeof(sets) / sizeof(sets[0]),
                .device = "host"},
        .out = out,
    };
    struct sl_train_result result;
    struct sl_error error = {0};
    if (sl_train(&options, &result, &error))
        fail_msg("%s", error.message);
    snprintf(model, SL_RESULT_PATH_BYTES, "%s", result.checkpoint);
}

struct talk {
    const char *const *messages; /* NULL at the end */
    char said[512];
};

static bool next(void *user, const char **text, size_t *bytes)
{
    struct talk *talk = user;
    strcat(talk->said, "|");
    if (!*talk->messages)
        return false;
    *text = *talk->messages++;
    *bytes = strlen(*text);
    return true;
}

static int say(void *user, const char *text, size_t bytes)
{
    struct talk *talk = user;
    assert_true(strlen(talk->said) + bytes < sizeof(talk->said));
    strncat(talk->said, text, bytes);
    return 0;
}

static struct sl_generate_result converse(const char *model, const char *template,
                                          const char *const *messages, uint32_t context,
                                          struct talk *talk)
{
    static const char *const sets[] = {"threads=2"};
    *talk = (struct talk){.messages = messages};
    struct sl_generate_options o = {.model = model,
                                    .chat = true,
                                    .chat_template = template,
                                    .context_tokens = context,
                                    .max_tokens = 60,
                                    .top_p = 1,
                                    .device = "host",
                                    .sets = sets,
                                    .set_count = 1,
                                    .message = next,
                                    .text = say,
                                    .user = talk,
                                    .log = &log_sink};
    struct sl_generate_result result;
    struct sl_error error = {0};
    logged[0] = 0;
    if (sl_generate(&o, &result, &error))
        fail_msg("%s", error.message);
    return result;
}

/* plain ends an answer with a token of the byte tokenizer, chatml with a text that is none. */
static void answers_come_turn_by_turn(void **state)
{
    (void)state;
    static const char *const templates[] = {"plain", "chatml"};
    static const char *const messages[] = {"sea", "light", NULL};
    static const char *const reversed[] = {"light", "sea", NULL};
    for (int i = 0; i < 2; i++) {
        char model[SL_RESULT_PATH_BYTES];
        struct talk talk;
        learn(templates[i], model);
        struct sl_generate_result result = converse(model, templates[i], messages, 0, &talk);
        assert_string_equal(talk.said, "|It is wide.|It was good.|");
        assert_true(result.reused_tokens > 10);
        converse(model, templates[i], reversed, 0, &talk);
        assert_string_equal(talk.said, "|It was good.|It is wide.|");
    }
}

static void a_full_context_loses_its_oldest_turns(void **state)
{
    (void)state;
    static const char *const messages[] = {"sea", "light", "sea", "light", "sea", NULL};
    char model[SL_RESULT_PATH_BYTES];
    struct talk talk;
    snprintf(model, sizeof(model), "%s/chatml/checkpoint-00000200", root);
    converse(model, "chatml", messages, 200, &talk);
    assert_non_null(strstr(logged, "the oldest 2 messages are left out"));
    assert_int_equal(strncmp(talk.said, "|It is wide.|", 13), 0);
    assert_string_equal(talk.said + strlen(talk.said) - 13, "|It is wide.|");
    static const char *const large[] = {
        "a message that finds no room in so small a context, whatever is left out before it", NULL};
    struct sl_generate_options o = {.model = model,
                                    .chat = true,
                                    .chat_template = "chatml",
                                    .context_tokens = 64,
                                    .max_tokens = 60,
                                    .prompt = large[0],
                                    .prompt_bytes = strlen(large[0]),
                                    .device = "host",
                                    .text = say,
                                    .user = &talk};
    struct sl_error error = {0};
    assert_int_not_equal(sl_generate(&o, NULL, &error), 0);
    assert_non_null(strstr(error.message, "room for 64"));
    o.chat_template = "vicuna";
    error = (struct sl_error){0};
    assert_int_not_equal(sl_generate(&o, NULL, &error), 0);
    assert_non_null(strstr(error.message, "vicuna"));
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_turn_by_turn),
        cmocka_unit_test(a_full_context_loses_its_oldest_turns),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
