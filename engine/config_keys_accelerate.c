// SPDX-License-Identifier: Apache-2.0
#include "engine/config_keys_rows.h"

#define A .flags = SL_KEY_ACCELERATE
#define AW .flags = SL_KEY_ACCELERATE | SL_KEY_WARN
#define D "deepspeed_config."
#define LAUNCHER "one process is started, without a launcher"
#define FSDP                                                                                       \
    "only DEEPSPEED is read; set distributed_type: DEEPSPEED and under deepspeed_config "          \
    "zero_stage: 3, offload_param_device: cpu, offload_optimizer_device: cpu"

static const struct sl_key accelerate_keys[] = {
    HONORED("distributed_type", SL_KEY_CHOICE, "NO", "only DEEPSPEED and NO are read", A,
            .choices = "DEEPSPEED|NO|FSDP|MEGATRON_LM|MULTI_GPU|MULTI_CPU|TPU|XLA|TP"),
    HONORED("mixed_precision", SL_KEY_CHOICE, "no", "precision: no is 32-bit training", A,
            .choices = "no|fp16|bf16|fp8"),
    HONORED(D "deepspeed_config_file", SL_KEY_STRING, "",
            "the JSON with the whole configuration; looked for beside the YAML too", A),
    HONORED(D "zero_stage", SL_KEY_COUNT, "2", "as zero_optimization.stage", A, .max = 3),
    HONORED(D "offload_optimizer_device", SL_KEY_CHOICE, "none", "as offload_optimizer.device", A,
            .choices = "none|cpu|nvme"),
    HONORED(D "offload_param_device", SL_KEY_CHOICE, "none", "as offload_param.device", A,
            .choices = "none|cpu|nvme"),
    HONORED(D "offload_optimizer_nvme_path", SL_KEY_STRING, "", "as offload_optimizer.nvme_path",
            A),
    HONORED(D "offload_param_nvme_path", SL_KEY_STRING, "", "as offload_param.nvme_path", A),
    HONORED(D "gradient_accumulation_steps", SL_KEY_COUNT, "1", "as gradient_accumulation_steps",
            .flags = SL_KEY_ACCELERATE | SL_KEY_AUTO, .min = 1, .max = 1 << 20),
    HONORED(D "gradient_clipping", SL_KEY_NUMBER, "1.0", "as gradient_clipping",
            .flags = SL_KEY_ACCELERATE | SL_KEY_AUTO, .min = 0, .max = 1e30),
    HONORED(D "zero3_save_16bit_model", SL_KEY_BOOL, "false",
            "as stage3_gather_16bit_weights_on_model_save", A),
    NO_EFFECT(D "zero3_init_flag", SL_KEY_BOOL, "true", "a model is never loaded whole anyway", A),
    NO_EFFECT(D "deepspeed_multinode_launcher", SL_KEY_STRING, "pdsh", LAUNCHER, A),
    NO_EFFECT(D "deepspeed_hostfile", SL_KEY_STRING, "", LAUNCHER, A),
    NO_EFFECT(D "deepspeed_inclusion_filter", SL_KEY_STRING, "", LAUNCHER, A),
    NO_EFFECT(D "deepspeed_exclusion_filter", SL_KEY_STRING, "", LAUNCHER, A),
    NO_EFFECT(D "deepspeed_moe_layer_cls_names", SL_KEY_STRING, "", "weights move in whole layers",
              A),
    NO_EFFECT("compute_environment", SL_KEY_STRING, "LOCAL_MACHINE", LAUNCHER, A),
    NO_EFFECT("debug", SL_KEY_BOOL, "false", "it checks collectives between processes", A),
    NO_EFFECT("num_processes", SL_KEY_COUNT, "1",
              "one process runs, so the total batch is that of one process", AW, .harmless = "1"),
    NO_EFFECT("num_machines", SL_KEY_COUNT, "1", LAUNCHER, A),
    NO_EFFECT("machine_rank", SL_KEY_COUNT, "0", LAUNCHER, A),
    NO_EFFECT("main_process_ip", SL_KEY_STRING, "", LAUNCHER, A),
    NO_EFFECT("main_process_port", SL_KEY_COUNT, "", LAUNCHER, A),
    NO_EFFECT("main_training_function", SL_KEY_STRING, "main", LAUNCHER, A),
    NO_EFFECT("rdzv_backend", SL_KEY_STRING, "static", LAUNCHER, A),
    NO_EFFECT("same_network", SL_KEY_BOOL, "true", LAUNCHER, A),
    NO_EFFECT("gpu_ids", SL_KEY_STRING, "all", "use CUDA_VISIBLE_DEVICES", A),
    NO_EFFECT("enable_cpu_affinity", SL_KEY_BOOL, "false", "workers are bound to cores anyway", A),
    NO_EFFECT("downcast_bf16", SL_KEY_STRING, "no", "it is for TPUs", A),
    NO_EFFECT("tpu_name", SL_KEY_STRING, "", "it is for TPUs", A),
    NO_EFFECT("tpu_zone", SL_KEY_STRING, "", "it is for TPUs", A),
    NO_EFFECT("tpu_env", SL_KEY_BLOCK, "[]", "it is for TPUs", A),
    NO_EFFECT("tpu_use_cluster", SL_KEY_BOOL, "false", "it is for TPUs", A),
    NO_EFFECT("tpu_use_sudo", SL_KEY_BOOL, "false", "it is for TPUs", A),
    NO_EFFECT("commands", SL_KEY_BLOCK, "", "it is for TPUs", A),
    NO_EFFECT("command_file", SL_KEY_STRING, "", "it is for TPUs", A),
    NO_EFFECT("use_cpu", SL_KEY_BOOL, "false", "the device is chosen with --device", AW,
              .harmless = "false"),
    NO_EFFECT("dynamo_config", SL_KEY_BLOCK, "", "there is no Python to compile", A),
    NO_EFFECT("dynamo_backend", SL_KEY_STRING, "no", "there is no Python to compile", A),
    NO_EFFECT("ipex_config", SL_KEY_BLOCK, "", "there is no Python to compile", A),
    NO_EFFECT("mpirun_config", SL_KEY_BLOCK, "", LAUNCHER, A),
    UNSUPPORTED("fsdp_config", SL_KEY_BLOCK, "", FSDP, A),
    UNSUPPORTED("megatron_lm_config", SL_KEY_BLOCK, "", FSDP, A),
    UNSUPPORTED("parallelism_config", SL_KEY_BLOCK, "", "one GPU runs; take the block out", A),
    UNSUPPORTED("fp8_config", SL_KEY_BLOCK, "", "fp8 is not here; set mixed_precision: bf16", A),
};

const struct sl_key_block sl_keys_accelerate = {
    "Accelerate YAML",
    "Read from a file that ends in .yaml or .yml, or is not an object in braces.", accelerate_keys,
    COUNT_OF(accelerate_keys)};
