// SPDX-License-Identifier: Apache-2.0
#include "engine/config_keys_rows.h"
#include "nvme/swap.h"

static const struct sl_key precision_keys[] = {
    HONORED("fp16.enabled", SL_KEY_BOOL, "false", "fp16 training with an fp32 master",
            .flags = SL_KEY_AUTO),
    HONORED("fp16.loss_scale", SL_KEY_NUMBER, "0", "0: dynamic; otherwise this scale for ever",
            .flags = SL_KEY_AUTO, .min = 0, .max = 1e30),
    HONORED("fp16.initial_scale_power", SL_KEY_COUNT, "16", "the first dynamic scale is 2^this",
            .flags = SL_KEY_AUTO, .max = 126),
    HONORED("fp16.loss_scale_window", SL_KEY_COUNT, "1000", "good steps before the scale doubles",
            .flags = SL_KEY_AUTO, .min = 1),
    HONORED("fp16.hysteresis", SL_KEY_COUNT, "2", "overflows before the scale halves",
            .flags = SL_KEY_AUTO, .min = 1, .max = 1000000),
    HONORED("fp16.consecutive_hysteresis", SL_KEY_BOOL, "false",
            "good steps refill the hysteresis"),
    HONORED("fp16.min_loss_scale", SL_KEY_NUMBER, "1",
            "the dynamic scale never falls below; at least 1", .flags = SL_KEY_AUTO, .min = -1e30,
            .max = 1e30),
    NO_EFFECT("fp16.auto_cast", SL_KEY_BOOL, "false",
              "inputs are token ids, there is nothing to cast"),
    NO_EFFECT("fp16.fused_mode", SL_KEY_BOOL, "true", "the update is always one fused pass"),
    UNSUPPORTED("fp16.fp16_master_weights_and_grads", SL_KEY_BOOL, "false",
                "fp16 keeps an fp32 master; to save memory use bf16 with optimizer.master split",
                .harmless = "false"),
    HONORED("bf16.enabled", SL_KEY_BOOL, "false", "bf16 training with an fp32 master",
            .flags = SL_KEY_AUTO),
    NO_EFFECT("bf16.immediate_grad_update", SL_KEY_BOOL, "true",
              "gradients are summed where they are produced anyway"),
    NO_EFFECT("bf16.check_grad_overflow", SL_KEY_BOOL, "true",
              "the norm is computed in the same pass, so an overflow is always seen, counted and "
              "skipped"),
    UNSUPPORTED("bf16.bf16_master_weights_and_grads", SL_KEY_BOOL, "false",
                "rounding the weights to nearest at each step loses small updates; use "
                "optimizer.master split, which is lossless, or none, which rounds stochastically, "
                "and optimizer.moments bf16",
                .harmless = "false"),
    HONORED("bf16.bf16_optimizer_states", SL_KEY_BOOL, "false", "bf16 moments; a numeric key"),
    RENAMED("bfloat16.enabled", "bf16.enabled", "an older name of the block"),
    RENAMED("bfloat16.immediate_grad_update", "bf16.immediate_grad_update",
            "an older name of the block"),
    RENAMED("bfloat16.check_grad_overflow", "bf16.check_grad_overflow",
            "an older name of the block"),
};

const struct sl_key_block sl_keys_precision = {
    "fp16 and bf16",
    "With neither block: 32-bit training. Without any --config: bf16. The scale rules are those of "
    "DeepSpeed, except that a step is unscaled by the scale of its own backward pass.",
    precision_keys, COUNT_OF(precision_keys)};

#define AC "activation_checkpointing."

static const struct sl_key runtime_keys[] = {
    HONORED("aio.block_size", SL_KEY_SIZE, "chosen (DeepSpeed: 1048576)", "bytes of one I/O",
            .min = 4096, .max = 1 << 30),
    HONORED("aio.queue_depth", SL_KEY_COUNT, "chosen (DeepSpeed: 8)", "I/Os in flight", .min = 1,
            .max = SL_SWAP_DEPTH_MAX),
    HONORED("aio.intra_op_parallelism", SL_KEY_COUNT, "chosen (DeepSpeed: 1)",
            "threads that share a request where io_uring is not allowed; with io_uring the queue "
            "depth does this",
            .min = 1, .max = 256),
    RENAMED("aio.thread_count", "aio.intra_op_parallelism",
            "the name in DeepSpeed's documentation"),
    RENAMED("aio.num_threads", "aio.intra_op_parallelism",
            "the name that DeepSpeed's tuner writes"),
    NO_EFFECT("aio.single_submit", SL_KEY_BOOL, "false", "requests are submitted in batches"),
    NO_EFFECT("aio.overlap_events", SL_KEY_BOOL, "true",
              "submission and completion always overlap"),
    NO_EFFECT("aio.use_gds", SL_KEY_BOOL, "false",
              "GPUDirect Storage is not used: data passes through pinned host memory",
              .flags = SL_KEY_WARN, .harmless = "false"),
    HONORED(AC "cpu_checkpointing", SL_KEY_BOOL, "false", "layer inputs lie in host memory"),
    RENAMED(AC "enabled", "train.activation_checkpointing",
            "not DeepSpeed's, which ignores it; here it is what it says"),
    NO_EFFECT(AC "partition_activations", SL_KEY_BOOL, "false", ONE_GPU),
    NO_EFFECT(AC "contiguous_memory_optimization", SL_KEY_BOOL, "false",
              "activations lie in one arena anyway"),
    NO_EFFECT(AC "number_checkpoints", SL_KEY_COUNT, "", "one for each layer",
              .flags = SL_KEY_AUTO),
    NO_EFFECT(AC "synchronize_checkpoint_boundary", SL_KEY_BOOL, "false",
              "the plan orders the work"),
    NO_EFFECT(AC "profile", SL_KEY_BOOL, "false", "use --trace"),
    HONORED("flops_profiler.enabled", SL_KEY_BOOL, "false",
            "a table of FLOPs and times of one step"),
    HONORED("flops_profiler.profile_step", SL_KEY_COUNT, "1", "which step", .min = 1),
    HONORED("flops_profiler.module_depth", SL_KEY_NUMBER, "-1", "depth of the tree; -1: all of it",
            .min = -1, .max = 64),
    HONORED("flops_profiler.top_modules", SL_KEY_COUNT, "1", "the most expensive modules to list"),
    HONORED("flops_profiler.detailed", SL_KEY_BOOL, "true", "the whole tree"),
    HONORED("flops_profiler.output_file", SL_KEY_STRING, "the log", "where the table goes"),
    NO_EFFECT("flops_profiler.recompute_fwd_factor", SL_KEY_NUMBER, "0",
              "recomputation is counted from the plan"),
    NO_EFFECT("checkpoint.tag_validation", SL_KEY_STRING, "Warn", ONE_GPU),
    NO_EFFECT("checkpoint.load_universal", SL_KEY_BOOL, "false",
              "checkpoints do not depend on the number of ranks"),
    NO_EFFECT("checkpoint.use_node_local_storage", SL_KEY_BOOL, "false", "there is one node"),
    NO_EFFECT("checkpoint.parallel_write", SL_KEY_BLOCK, "", "checkpoints are written in parallel"),
    NO_EFFECT("checkpoint.writer", SL_KEY_BLOCK, "", "checkpoints are written in the background"),
    NO_EFFECT("checkpoint.checkpoint_serialization", SL_KEY_BOOL, "true",
              "the format is safetensors"),
};

const struct sl_key_block sl_keys_runtime = {
    "aio, activation_checkpointing, flops_profiler, checkpoint", "", runtime_keys,
    COUNT_OF(runtime_keys)};

static const struct sl_key monitor_keys[] = {
    HONORED("tensorboard.enabled", SL_KEY_BOOL, "false", "write TensorBoard event files"),
    HONORED("tensorboard.output_path", SL_KEY_STRING, "under --out", "folder of the event files"),
    HONORED("tensorboard.job_name", SL_KEY_STRING, "DeepSpeedJobName", "sub-folder"),
    HONORED("csv_monitor.enabled", SL_KEY_BOOL, "false", "write a CSV file for each figure"),
    HONORED("csv_monitor.output_path", SL_KEY_STRING, "under --out", "folder of the CSV files"),
    HONORED("csv_monitor.job_name", SL_KEY_STRING, "DeepSpeedJobName", "sub-folder"),
    NO_EFFECT("wandb", SL_KEY_BLOCK, "",
              "nothing leaves the machine; use csv_monitor or tensorboard, both can be imported",
              .flags = SL_KEY_WARN),
    NO_EFFECT("comet", SL_KEY_BLOCK, "",
              "nothing leaves the machine; use csv_monitor or tensorboard, both can be imported",
              .flags = SL_KEY_WARN),
};

const struct sl_key_block sl_keys_monitor = {"Monitors", "", monitor_keys, COUNT_OF(monitor_keys)};
