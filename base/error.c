// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <stdio.h>
#include <string.h>

int sl_error_set(struct sl_error *error, enum sl_domain domain, int code, const char *format, ...)
{
    if (!error || error->code != 0)
        return code;
    error->domain = domain;
    error->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof(error->message), format, args);
    va_end(args);
    return code;
}

void sl_error_prefix(struct sl_error *error, const char *format, ...)
{
    if (!error || error->code == 0)
        return;
    char joined[SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(joined, sizeof(joined), format, args);
    va_end(args);
    if (used < 0 || (size_t)used >= sizeof(joined) - 3)
        return;
    snprintf(joined + used, sizeof(joined) - (size_t)used, ": %.*s",
             (int)(sizeof(joined) - (size_t)used - 3), error->message);
    memcpy(error->message, joined, sizeof(joined));
}

const char *sl_domain_name(enum sl_domain domain)
{
    static const char *const names[] = {
        [SL_DOMAIN_NONE] = "none",         [SL_DOMAIN_INPUT] = "input",
        [SL_DOMAIN_MEMORY] = "memory",     [SL_DOMAIN_IO] = "io",
        [SL_DOMAIN_DEVICE] = "device",     [SL_DOMAIN_DATA] = "data",
        [SL_DOMAIN_NUMERIC] = "numeric",   [SL_DOMAIN_INTERRUPT] = "interrupt",
        [SL_DOMAIN_INTERNAL] = "internal",
    };
    if ((unsigned)domain >= sizeof(names) / sizeof(names[0]) || !names[domain])
        return "unknown";
    return names[domain];
}
