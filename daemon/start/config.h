/* helmd's configuration: the command line over a configuration file over defaults, every value checked.
 *
 * Called by main.c once. One table of options serves the command line, --help and the file (INI: key = value,
 * the same names without "--"); the command line wins. Strings from the file are owned here; config_free. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/args.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/model/model.h"
#include "daemon/children/accelerator.h"
#include "daemon/planner/activations/choice.h"
#include "daemon/steps/prefix.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/invariant.h"
#include "daemon/planner/planner.h"

struct config {
    const char *model, *device, *vram, *config_file, *kernels, *rundir, *plan_file, *experts_file,
        *worker_dir, *kv_dtype_name, *kv_tiers_name, *kv_page_tokens;
    const char *log_level_name, *curve_secret_key_file, *curve_clients_file;
    const char *admin_group_name, *gateway_group_name;
    uint32_t admin_group, gateway_group; /* ENDPOINT_NO_GROUP (endpoint.h): none */
    const char *profile_file; /* NULL: the cached one of this hardware, measured first if there is none */
    const char *now;          /* auto, on, off, or a file */
    const char *strategy_name, *gpu_graphs_name, *gpu_chains_name, *pack_name, *weights_name;
    const char *activations_name, *prefix_cache_name;
    enum search_strategy strategy;
    uint64_t batch, prompt; /* what the plan is made fast for */
    uint64_t max_stall_ms;  /* that a prompt may hold up decoding sequences; 0: without bound */
    enum activations_option activations;
    bool no_graphs, no_chains, pack, pack_all, exact;
    const char *invariant_name, *share_name;
    enum invariant_option invariant;
    const struct mixture *weights; /* NULL: as stored */
    enum prefix_sharing sharing;
    struct args_list listen;
    struct accelerator_wish devices;              /* of `device` and `vram` */
    uint64_t host_memory_bytes, disk_bytes_per_s; /* 0: not stated */
    uint64_t emulated_copy_bytes_per_s;           /* 0: as fast as memory */
    uint64_t ctx;                                 /* 0: chosen from model and memory */
    uint64_t node;                                /* CONFIG_NO_NODE: chosen */
    uint64_t threads;                             /* 0: one a physical core */
    uint64_t kv_tokens;                           /* in the KV pool; 0: chosen */
    uint64_t snapshot_bytes;                      /* of fixed states; 0: chosen */
    uint64_t step_tokens;                         /* 0: the planner's choice */
    const char *speculate_name;
    const char *draft_model;          /* NULL: none */
    const char *draft_device;         /* NULL: the first of `devices` */
    enum request_speculate speculate; /* of requests that do not say */
    uint64_t draft_tokens;            /* REQUEST_NO_DRAFTS: not given */
    uint64_t parallel, queue, spin_us, drain_seconds;
    uint64_t step_timeout_ms; /* 0: computed from the model's size */
    uint64_t restart_limit;
    uint64_t parent_fd, ready_fd; /* CONFIG_NO_FD: not given */
    bool die_with_parent;
    enum kv_dtype kv_dtype;
    enum kv_tiers kv_tiers;
    enum log_level log_level;
    char **owned; /* strings read from the file */
    uint32_t owned_count;
};

#define CONFIG_NO_FD     UINT64_MAX
#define CONFIG_NO_NODE   UINT64_MAX
#define CONFIG_QUEUE_MAX 4096
#define CONFIG_SLOTS_MAX 64
#define CONFIG_STALL_MS  500
#define CONFIG_SPIN_US   8 /* as POOL_SPIN_US_DEFAULT: longer spins take a busy neighbour's share */

/* Parses argv and the file it names. Prints help or version and exits when asked (*exit_now true and 0
 * returned). */
HELM_MUST_CHECK int config_read(int argc, char *const argv[], struct config *config, bool *exit_now,
                                struct helm_err *err);
void config_free(struct config *config);
