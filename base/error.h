// SPDX-License-Identifier: Apache-2.0
/* Errors: a code for programs, a sentence for people.
 *
 * A fallible function returns 0 or a negative errno value and, where it takes a struct sl_error,
 * fills it. The first error survives: a filled error is never overwritten, so that cleanup code may
 * call fallible functions with the same error object.
 */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

#include <stdarg.h>

#define SL_ERROR_MESSAGE_BYTES 1024

enum sl_domain {
    SL_DOMAIN_NONE,
    SL_DOMAIN_INPUT,     /* a file, key or argument of the user is wrong: exit code 2 */
    SL_DOMAIN_MEMORY,    /* a budget or the machine's memory is too small */
    SL_DOMAIN_IO,        /* a read, write, or file operation failed */
    SL_DOMAIN_DEVICE,    /* the device or its driver failed */
    SL_DOMAIN_DATA,      /* a checksum or a checkpoint does not agree */
    SL_DOMAIN_NUMERIC,   /* the run diverged: too many skipped steps */
    SL_DOMAIN_INTERRUPT, /* the user asked to stop */
    SL_DOMAIN_INTERNAL,  /* a broken invariant of our own */
};

struct sl_error {
    enum sl_domain domain;
    int code; /* negative errno; 0 means no error */
    char message[SL_ERROR_MESSAGE_BYTES];
};

/* Fill `error` unless it already holds one, and return `code`.
 *
 * Units    code is a negative errno value
 * Threads  the caller owns `error`; NULL is allowed and drops the message
 * Errors   none
 */
int sl_error_set(struct sl_error *error, enum sl_domain domain, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Put "prefix: " before the message of a filled error. Truncates at the end of the buffer. */
void sl_error_prefix(struct sl_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Name of a domain for reports ("input", "memory", ...). Never NULL. */
const char *sl_domain_name(enum sl_domain domain);

#endif
