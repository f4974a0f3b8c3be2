// SPDX-License-Identifier: Apache-2.0
/* The formats as Jinja, for `transformers` and whoever else opens a folder that was tuned with one
 * of them. Each is what the named format writes, in the words that sl_chat_detect knows it by;
 * tests/fixtures/tokenizers/make_chat.py has the same texts and renders them.
 */
#include "engine/chat.h"

static const char *const texts[SL_CHAT_FORMAT_COUNT] = {
    [SL_CHAT_PLAIN] =
        "{# a message a line #}{% for message in messages %}{{ message['content'] }}{% if "
        "message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% if message['role'] != "
        "'assistant' or not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    [SL_CHAT_CHATML] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\n' }}{% endif %}",
    [SL_CHAT_QWEN] =
        "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + "
        "messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are "
        "Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}{%- endif "
        "%}{%- for message in messages %}{%- if message.role == 'tool' %}{%- if loop.first or "
        "messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}{{- '\\"
        "n<tool_response>\\n' + message.content + '\\n</tool_response>' }}{%- if loop.last or "
        "messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}{%- elif "
        "not (message.role == 'system' and loop.first) %}{{- '<|im_start|>' + message.role + '\\"
        "n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}{%- if "
        "add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
    [SL_CHAT_LLAMA2] =
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set "
        "system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages "
        "%}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if "
        "loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + "
        "system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
        "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + "
        "'[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
        "' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    [SL_CHAT_LLAMA3] =
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
        "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content "
        "%}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    [SL_CHAT_MISTRAL] =
        "{%- if messages[0]['role'] == 'system' %}{%- set system_message = "
        "messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set "
        "loop_messages = messages %}{%- endif %}{{- bos_token }}{%- for message in loop_messages "
        "%}{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined "
        "%}{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}{%- else "
        "%}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}{%- elif message['role'] "
        "== 'assistant' %}{{- ' ' + message['content']|trim + eos_token}}{%- endif %}{%- endfor "
        "%}",
    [SL_CHAT_GEMMA] =
        "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = "
        "messages[0]['content'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}{%- else "
        "-%}{%- set first_user_prefix = \"\" -%}{%- set loop_messages = messages -%}{%- endif "
        "-%}{%- for message in loop_messages -%}{%- if (message['role'] == 'assistant') -%}{%- "
        "set role = \"model\" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}{{ "
        "'<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else \"\") }}{{ "
        "message['content'] | trim }}{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if "
        "add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}",
    [SL_CHAT_PHI] =
        "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + "
        "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + "
        "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' "
        "%}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if "
        "add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    [SL_CHAT_ALPACA] =
        "{% for message in messages %}{% if message['role'] == 'user' %}{% if loop.first %}{{ "
        "'Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n' }}{% endif %}{{ '### Instruction:\n' + message['content'] + "
        "'\n\n### Response:\n' }}{% elif message['role'] == 'assistant' %}{{ message['content'] "
        "+ eos_token }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endif %}{% endfor %}",
};

const char *sl_chat_jinja(enum sl_chat_format format)
{
    return texts[format];
}
