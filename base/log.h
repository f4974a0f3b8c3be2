// SPDX-License-Identifier: Apache-2.0
/* The library never prints: it hands lines to the callback that its user gave. */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

enum sl_log_level { SL_LOG_DEBUG, SL_LOG_INFO, SL_LOG_WARNING };

struct sl_log {
    /* `message` has no newline and is valid during the call. May be called from any thread. */
    void (*write)(void *user, enum sl_log_level level, const char *message);
    void *user;
};

/* Does nothing where log or log->write is NULL. Lines are cut at 1,023 bytes. */
void sl_log_write(const struct sl_log *log, enum sl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
