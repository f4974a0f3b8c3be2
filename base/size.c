// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

int sl_size_parse(const char *text, uint64_t *bytes)
{
    if (!text || !(isdigit((unsigned char)text[0]) || text[0] == '.'))
        return -EINVAL;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || !isfinite(value) || value < 0)
        return -EINVAL;
    while (*end == ' ')
        end++;
    static const char units[] = "KMGTP";
    double scale = 1;
    if (*end) {
        int power = 0;
        for (int i = 0; units[i]; i++)
            if (toupper((unsigned char)*end) == units[i])
                power = i + 1;
        if (power) {
            end++;
            double base = 1000;
            if (*end == 'i' || *end == 'I') {
                base = 1024;
                end++;
            }
            scale = pow(base, power);
        }
        if (*end && strcasecmp(end, "B") != 0)
            return -EINVAL;
    }
    double result = value * scale;
    if (result >= 18446744073709551616.0)
        return -ERANGE;
    *bytes = (uint64_t)result;
    return 0;
}

const char *sl_size_format(uint64_t bytes, char buffer[SL_SIZE_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, SL_SIZE_TEXT_BYTES, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}
