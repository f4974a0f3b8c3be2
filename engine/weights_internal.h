// SPDX-License-Identifier: Apache-2.0
/* What weights.c (reading) and weights_match.c (opening) share. */
#ifndef SLUICE_ENGINE_WEIGHTS_INTERNAL_H
#define SLUICE_ENGINE_WEIGHTS_INTERNAL_H

#include <pthread.h>

#include "engine/safetensors.h"
#include "engine/weights.h"
#include "engine/weights_stream.h"

#define SL_WEIGHTS_SHARDS_MAX 4096u

struct sl_weights_source {
    const struct sl_safetensors *file;
    const struct sl_safetensor *tensor;
};

struct sl_weights { /* const for callers but for the stream */
    const struct sl_model *model;
    struct sl_safetensors *files;
    size_t file_count;
    struct sl_weights_source *sources; /* [param_count] */
    pthread_mutex_t stream_lock;       /* held by the one read that streams */
    struct sl_read_stream *stream;     /* made by the first one */
};

/* Open the files that a folder names, filling files and file_count. */
int sl_weights_open_files(struct sl_weights *weights, const char *directory,
                          struct sl_error *error);

#endif
