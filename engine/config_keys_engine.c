// SPDX-License-Identifier: Apache-2.0
/* Sluice's own keys: where state lies and how the plan is made. All are bit-neutral unless they
 * say otherwise. */
#include "engine/config_keys_rows.h"
#include "nvme/swap.h"
#include "offload/topology.h"

#define TIERS "auto|device|host|nvme"
#define FRACTION(kind, text, tier)                                                                 \
    HONORED("placement." kind "." tier, SL_KEY_NUMBER, "",                                         \
            "share of the " text " on this tier; what is left over goes to the device",            \
            .flags = SL_KEY_OWN, .min = 0, .max = 1)
#define PLACEMENT(kind, text)                                                                      \
    HONORED("placement." kind, SL_KEY_CHOICE, "auto",                                              \
            "tier of all " text "; auto: the plan fills the fastest tier first",                   \
            .flags = SL_KEY_OWN, .choices = TIERS),                                                \
        FRACTION(kind, text, "device"), FRACTION(kind, text, "host"), FRACTION(kind, text, "nvme")

static const struct sl_key engine_keys[] = {
    PLACEMENT("weights", "weights"),
    PLACEMENT("gradients", "gradients"),
    PLACEMENT("optimizer", "optimizer state"),
    PLACEMENT("activations", "activations"),
    HONORED("memory.device", SL_KEY_SIZE, "what is free",
            "budget of device memory: 12GiB; no effect on the host device, whose memory is "
            "memory.host's",
            .flags = SL_KEY_OWN),
    HONORED("memory.host", SL_KEY_SIZE, "nine tenths of what is free", "budget of host memory",
            .flags = SL_KEY_OWN),
    HONORED("memory.nvme", SL_KEY_SIZE, "what is free on its paths", "budget of the swap files",
            .flags = SL_KEY_OWN),
    HONORED("nvme.path", SL_KEY_WORDS, "", "folders of the swap files, striped over all of them",
            .flags = SL_KEY_OWN),
    HONORED("nvme.block_size", SL_KEY_SIZE, "chosen", "bytes of one I/O; as aio.block_size",
            .flags = SL_KEY_OWN, .max = 1 << 30),
    HONORED("nvme.queue_depth", SL_KEY_COUNT, "chosen", "I/Os in flight; as aio.queue_depth",
            .flags = SL_KEY_OWN, .max = SL_SWAP_DEPTH_MAX),
    HONORED("nvme.backend", SL_KEY_CHOICE, "auto", "how files are read and written",
            .flags = SL_KEY_OWN, .choices = "auto|uring|threads"),
    HONORED("nvme.checksums", SL_KEY_BOOL, "true", "verify every block that is read back",
            .flags = SL_KEY_OWN),
    HONORED(
        "threads", SL_KEY_COUNT, "0",
        "host workers; 0: one for each core, of 8 or more less one where a drive or a device of "
        "its own is used",
        .flags = SL_KEY_OWN, .max = SL_TOPOLOGY_CORES_MAX),
    HONORED("schedule.order", SL_KEY_CHOICE, "auto",
            "several micro-batches: all through a layer, or each through all layers",
            .flags = SL_KEY_OWN, .choices = "auto|layer-major|batch-major"),
    HONORED("schedule.prefetch_layers", SL_KEY_COUNT, "1",
            "layers, or tiles of cut ones, fetched ahead of their use", .flags = SL_KEY_OWN,
            .min = 1, .max = 1024),
    HONORED("schedule.micro_batch_group", SL_KEY_COUNT, "0",
            "layer-major: micro-batches per visit of a layer; 0: all", .flags = SL_KEY_OWN,
            .max = 1 << 20),
    HONORED("schedule.speculate", SL_KEY_NUMBER, "chosen",
            "share of the parameters, the last layers first, whose update runs during the backward "
            "pass on a prediction of clipping and overflow, and again where that was wrong: the "
            "same bits, sooner, for a second copy of their optimizer state; 0 where there is no "
            "hardware profile to choose by",
            .flags = SL_KEY_OWN | SL_KEY_AUTO, .min = 0, .max = 1),
    HONORED("schedule.speculate_always", SL_KEY_BOOL, "false",
            "speculate also after a step that was clipped or skipped", .flags = SL_KEY_OWN),
    HONORED("schedule.delayed_update", SL_KEY_BOOL, "false",
            "a numeric key: a step computes with the weights from before the last update, which "
            "then nothing waits for (the delayed parameter update of ZeRO-Offload); without it "
            "the update is exact and runs beside the next forward pass",
            .flags = SL_KEY_OWN),
    HONORED("optimizer.master", SL_KEY_CHOICE, "f32",
            "master weights of bf16 training: f32, or split (the bf16 weight and 16 more bits: "
            "lossless, 2 bytes less), or none (the bf16 weight alone, rounded stochastically: 4 "
            "bytes less, a numeric key)",
            .flags = SL_KEY_OWN, .choices = "f32|split|none"),
    HONORED("optimizer.moments", SL_KEY_CHOICE, "f32",
            "type of the optimizer's moments, a numeric key", .flags = SL_KEY_OWN,
            .choices = "f32|bf16|q8"),
    HONORED("tiling.table_bytes", SL_KEY_SIZE, "64MiB for tables above 256MiB, else none",
            "embedding and head tables whose weights exceed this are fetched and used in tiles of "
            "so many bytes, a numeric key; 0: not tiled",
            .flags = SL_KEY_OWN),
    HONORED("tiling.layer_bytes", SL_KEY_SIZE, "0",
            "layers whose weights exceed this are fetched and used matrix by matrix, larger "
            "matrices in tiles of rows of so many bytes: the device holds a tile of weights, sums "
            "and gradient at a time instead of a layer's, and the working memory of a layer for "
            "each micro-batch of a visit; a numeric key; 0: whole layers",
            .flags = SL_KEY_OWN),
};

const struct sl_key_block sl_keys_engine = {
    "Placement, memory and plan", "Sluice's own keys. Given ones win over the DeepSpeed blocks.",
    engine_keys, COUNT_OF(engine_keys)};
