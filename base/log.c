// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void sl_log_write(const struct sl_log *log, enum sl_log_level level, const char *format, ...)
{
    if (!log || !log->write)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    log->write(log->user, level, line);
}
