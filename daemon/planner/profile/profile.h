/* A machine in numbers: what helm-profile measured (or a data sheet says), as the cost model needs it.
 *
 * Read and written as JSON by helm-profile, helmd and helm-plan. Pure data. All rates are bytes or
 * floating-point operations a second, all times seconds. Every value is a median with the spread of its
 * samples (10th and 90th percentile), and says where it comes from. A value of 0 is unmeasured; profile_check
 * says which ones a profile may lack. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "common/formats/kv_dtype.h"
#include "common/formats/tensor_format.h"
#include "daemon/planner/profile/policy.h"

#define PROFILE_VERSION 1
/* The method of measuring: a fact of the fingerprint, so a new one has machines measured again. */
#define PROFILE_METHOD     26
#define PROFILE_POINTS_MAX 16
#define PROFILE_TEXT       128
#define PROFILE_GPUS_MAX   16 /* in a file's list */
/* Percent from which on a profile counts as disturbed: forecasts have wider bands, and it is measured again
 * when the machine is found quiet, which is below PROFILE_QUIET. */
#define PROFILE_BUSY  ((uint32_t)(PERCENT * WORTH_MUCH))
#define PROFILE_QUIET (PROFILE_BUSY / 2)

enum profile_source {
    PROFILE_UNKNOWN,   /* value is 0 */
    PROFILE_MEASURED,  /* here, by helm-profile */
    PROFILE_TEXT_SAYS, /* "text": a publication's measurement */
    PROFILE_SHEET,     /* "sheet": a data sheet */
    PROFILE_ESTIMATE,  /* "estimate": reckoned from others */
};

struct profile_value {
    double value, low, high;
    enum profile_source source;
};
const char *profile_source_name(enum profile_source source); /* "measured", "text", "sheet", ... */
/* A function of a number (threads, tokens): points with x rising; between them by interpolation in log x. */
struct profile_point {
    uint32_t x;
    struct profile_value y;
};
struct profile_table {
    struct profile_point point[PROFILE_POINTS_MAX];
    uint32_t count;
};
/* 0 of an empty table; outside the points the nearest one's value. Between a measured and another value:
 * "estimate". */
struct profile_value profile_table_at(const struct profile_table *table, uint32_t x);

struct profile_cpu {
    char name[PROFILE_TEXT];
    uint32_t threads; /* that the worker would use: what the rates below were measured with */
    uint64_t l3_bytes;
    uint64_t weight_bytes;            /* that the rates were measured with, 0: not known */
    struct profile_table read;        /* by threads: plain reads of memory laid out like weights */
    struct profile_value gemv;        /* weights a second, one token, the kernels and layout of the worker */
    struct profile_value gemv_beside; /* the same while the link streams from host memory */
    struct profile_value
        read_beside; /* plain reads by all threads meanwhile; unknown: nothing is held against it */
    struct profile_table linear; /* by tokens (2 and more): operations a second, 2 * rows * cols * tokens */
    struct profile_value attention;       /* KV bytes a second, one query */
    struct profile_value attention_flops; /* a chunk's attention: operations a second */
    struct profile_value attention_host;  /* as attention, in layers of a GPU; unknown: the same */
    struct profile_value operation;       /* seconds that an operation costs beside its bytes: begin, end */
    /* Packed weights (common/formats/packed.h): one token's products with them, bytes of what they are
     * unpacked a second, and the same while the link streams. Unknown of a processor without kernels for
     * them. */
    struct profile_value gemv_packed, gemv_packed_beside;
};

enum profile_device { PROFILE_DEVICE_NONE, PROFILE_DEVICE_CUDA, PROFILE_DEVICE_EMULATED };
struct profile_gpu {
    enum profile_device device;
    char name[PROFILE_TEXT], uuid[64], compute[16];
    uint64_t vram_bytes, vram_free;
    uint64_t context_bytes;
    struct profile_value read;   /* VRAM reads */
    struct profile_value gemv;   /* weights a second, one token */
    struct profile_table linear; /* by tokens (2 and more): operations a second */
    /* by tokens: seconds that a product costs beside what `linear` says, with the norms and activations
     * around it. Empty: `linear` is a whole layer's of the 8B shape, products are operations like all others.
     */
    struct profile_table linear_operation;
    struct profile_value attention; /* KV bytes a second, one query */
    struct profile_value attention_flops;
    struct profile_table attention_rows; /* attention_flops by queries x heads: few leave a device half idle;
                                            empty: as attention_flops */
    struct profile_value expand; /* bytes a second that packed weights are expanded to; unknown: as `read`
                                    allows */
    /* packed weights in VRAM, whole matrices: one token's products with them, bytes of what they are unpacked
     * a second; unknown of a device that has no kernel for it, or was measured before there was one */
    struct profile_value gemv_packed;
    struct profile_value operation; /* a kernel in a captured graph, beside its bytes */
    struct profile_value launch;    /* a kernel outside a graph (steps of many tokens) */
    /* Seconds from the first kernel of a chunk that has nothing to do, from a cold start as in a prompt, to
     * the host's knowing that the last one is done. Unknown: nothing beside `launch`. */
    struct profile_value begin;
    struct profile_value begin_graph; /* the latter of a captured step; unknown: nothing beside `operation` */
    /* The same of one token where its operations are chained (worker-gpu/kernels/kernels.h): unknown of a
     * device that has no chains, which is priced by the values above. An operation in a chain may cost 0. */
    struct profile_value chain_gemv, chain_attention, chain_operation;
    /* chain_attention is for PROFILE_GROUP query heads a KV head, this for PROFILE_PAIR; unknown: the same */
    struct profile_value chain_attention_pair;
    /* KV bytes a second that one query's attention reads in host memory, alone; unknown: as copies bring */
    struct profile_value attention_direct;
};
#define PROFILE_GROUP 4
#define PROFILE_PAIR  2

struct profile_link {
    uint32_t generation, width; /* of PCIe, 0: unknown */
    struct profile_value h2d, d2h;
    struct profile_value h2d_beside; /* while the CPU computes one token with all threads */
    struct profile_value
        h2d_beside_read; /* while it reads with all threads; unknown: nothing is held against it */
    /* while it computes one token with packed weights; unknown: as h2d_beside */
    struct profile_value h2d_beside_packed;
    struct profile_value direct;           /* the GPU's kernels reading host memory */
    struct profile_value latency;          /* of one small copy */
    struct profile_value hand_over;        /* activations from one worker to the other, one way */
    struct profile_value hand_over_beside; /* while copies flow; unknown: the same */
};

/* Rates with weights of one format, where all others in the profile are of bf16. Bytes are of weights as they
 * are stored. A format that is unmeasured is priced by bf16's bytes a second. */
struct profile_format {
    struct profile_value cpu_gemv;        /* one token */
    struct profile_value cpu_gemv_beside; /* while the link streams; unknown: as bf16's share of its speed */
    struct profile_table cpu_linear;      /* by tokens: operations a second */
    struct profile_value gpu_gemv,
        gpu_operation; /* one token, kernels of their own: bytes, and a product beside them */
    struct profile_value gpu_chain_gemv,
        gpu_chain_operation; /* chained; unknown: the format goes into no chain */
    /* by tokens; empty: several tokens are multiplied by what gpu_expand makes. More than 16 are a chunk's,
     * up to the most that the device multiplies by blocks as they lie */
    struct profile_table gpu_linear, gpu_linear_operation;
    struct profile_value gpu_expand; /* bytes a second of the values of 16 bits that it makes */
    /* The CPU's with activations rounded to int8 (common/formats/linear_inputs.h). Unknown: it has no kernels
     * for that. */
    struct profile_value cpu_int8_gemv, cpu_int8_gemv_beside;
    struct profile_table cpu_int8_linear;
};

/* Rates of attention over a cache of one type, where all others in the profile are of f16's. Bytes are of
 * cells as they lie in memory. Unknown: as f16's. */
struct profile_kv {
    struct profile_value cpu_attention, cpu_attention_flops, cpu_attention_host;
    struct profile_value gpu_attention, gpu_attention_flops;
    struct profile_value gpu_chain_attention, gpu_chain_attention_pair; /* unknown: a kernel of its own */
    struct profile_value gpu_attention_direct;
};

/* Uses of experts in slots in host memory that a run counted, with so many slots a layer (found.h); uses 0:
 * none did. `of`: the model's identity */
struct profile_found {
    uint64_t of, uses, found;
    uint32_t slots, experts;
};

struct programs;
struct profile {
    char fingerprint[72]; /* of the hardware; "" for a machine that is described, not measured */
    char machine[PROFILE_TEXT];
    char made[32]; /* date, UTC */
    bool quick;    /* measured in a hurry (helm-profile --quick): wider spreads */
    bool brief;    /* only what plans of its formats need: without packed weights, other types of the cache */
    /* of the time of the processors it may use, that other programs took meanwhile: see PROFILE_BUSY */
    uint32_t busy_percent;
    uint64_t host_bytes; /* host memory that a program may use; 0: not said (that of the machine at hand) */
    struct profile_cpu cpu;
    struct profile_gpu gpu;    /* that is planned for, of those in the file */
    struct profile_link link;  /* all 0 without a device */
    struct profile_value step; /* of helmd and the doorbells, a step */
    /* bytes a second of a model's files past the page cache; unknown: nothing is planned on disk */
    struct profile_value disk_read;
    struct profile_found found; /* of no file */
    struct profile_value wake;  /* from a ring until a sleeping thread runs; unknown: nothing */
    struct profile_format format[FORMAT_COUNT]; /* bf16's and packed bf16's are those above: unknown here */
    struct profile_kv kv[KV_DTYPE_COUNT];       /* single numbers' are those above: unknown here */
    /* In no file: a model's own programs (programs.h), borrowed; NULL: all is priced by rates. Whether they
     * are those with int8 activations; bytes a second that memory was read at and is read at now, both 0: the
     * same */
    const struct programs *programs;
    bool programs_int8;
    double programs_then, programs_now;
    /* In no file: the same machine with its second GPU as the only one, borrowed; NULL: both are alike */
    const struct profile *second;
};

/* Those of a set of formats (format_bit) that have no rates of their own here and could have. */
unsigned profile_formats_lacking(const struct profile *profile, unsigned formats);
/* "q4_k,q6_k": names of a set, in the registry's order. */
#define PROFILE_FORMATS_TEXT 192
void profile_formats_text(unsigned formats, char text[PROFILE_FORMATS_TEXT]);
/* Such names to a set. HELM_E_USAGE: one is none, or of a format that has no rates of its own. */
HELM_MUST_CHECK int profile_formats_read(const char *names, unsigned *formats, struct helm_err *err);
/* disk.c: the rate at which the disk gives the model's files, if there is none yet: as it is `stated` (0: it
 * is not), or measured with these files, which takes a third of a second. It stays unknown where there are
 * only headers, and of a model that needs no disk: of clearly fewer bytes than the memory that weights may
 * lie in. The log says why where it is unknown otherwise. */
struct model;
HELM_MUST_CHECK int profile_disk(const struct model *model, uint64_t stated, uint64_t memory,
                                 struct profile *profile, struct helm_err *err);
/* That memory: `room`, or for a plan from a file as much as the model needs, unless the plan has weights on
 * disk. */
uint64_t profile_disk_room(const char *plan_file, uint64_t room);
/* Whether a profile can have rates of this format beside those of bf16. */
bool profile_format_has_rates(enum tensor_format format);

/* A part of every rate of the CPU and the link by which it may be wrong because others were at work; 0 of a
 * profile that was taken in peace. They only ever make the machine look slower, and they were not there all
 * the time. */
double profile_disturbance(const struct profile *profile);

/* HELM_E_FORMAT naming the first value that the cost model cannot do without, or that contradicts another.
 * Needed of the CPU: threads, read, gemv, linear, attention, attention_flops; with a device: read, gemv,
 * linear, attention and attention_flops of it, h2d and d2h of its link, and both values "beside". Operation
 * costs, launch, hand_over, latency and step may be 0; direct, what is of chains, of a chunk's begin and of
 * packed weights unknown. */
HELM_MUST_CHECK int profile_check(const struct profile *profile, struct helm_err *err);
/* For a measurement that other programs disturbed, so that values contradict each other however often they
 * are taken: each that is too fast for its limit becomes its limit, and the profile counts as disturbed.
 * True: one did. */
bool profile_settle(struct profile *profile);
/* {"helm_profile": 1, "fingerprint", "machine", "made", "quick", "busy_percent", "host_bytes", "cpu": {...},
 *  "gpus": [{..., "link": {...}}, ...], "step", "formats": {"q4_K": {...}}, "kv": {"q8_0": {...}}}
 *
 * A value is {"value", "low", "high", "source"}, a table [{"x", "value", ...}, ...]; member names are the
 * fields'. On the way in, low and high may be absent (no spread), so may a value (unknown), fingerprint,
 * made, quick, busy_percent and host_bytes. Members of other names are refused, so that a typing error cannot
 * pass for an unknown value; only "note" (a text, for people) and what earlier versions measured, which is
 * ignored, may stand anywhere. NULL: no memory.
 *
 * A profile that was read is of the machine with one GPU of the list, since the CPU's rates beside the link
 * and the formats' are a pair's. `gpu` names it: "cuda:1" (the second of this kind), "cuda", "emulated", a
 * uuid, a name; "cpu": none; NULL or "auto": the first. HELM_E_NOT_FOUND: there is no such one. Each other
 * entry has its own "cpu", "formats" and "kv", where they differ. Files from before there were lists have
 * "gpu" and "link", objects or null. */
json_t *profile_to_json(const struct profile *profile);
HELM_MUST_CHECK int profile_from_json(const json_t *json, const char *gpu, struct profile *profile,
                                      struct helm_err *err);
/* The field of this name ("gpu.read", "link.h2d", "formats.q4_K.gpu_gemv"): a struct profile_table, or
 * (*table false) a struct profile_value; NULL: no such name. */
void *profile_find(struct profile *profile, const char *name, bool *table);
/* From JSON text of a file or a program; profile_check has accepted it. `what` is named in errors. */
#define PROFILE_BYTES_MAX ((size_t)MIB)
/* The most of files beside profiles that hold a few numbers. */
#define PROFILE_SMALL_BYTES_MAX ((size_t)4096)
HELM_MUST_CHECK int profile_parse(const char *what, const char *text, size_t bytes, struct profile *profile,
                                  struct helm_err *err);
/* From a file; profile_check has accepted it. `gpu`: as above. */
HELM_MUST_CHECK int profile_read(const char *path, const char *gpu, struct profile *profile,
                                 struct helm_err *err);
/* Written beside and renamed, so that a reader never sees half a file. Nine digits of each number. */
HELM_MUST_CHECK int profile_write(const char *path, const struct profile *profile, struct helm_err *err);
/* Takes the reference; NULL: HELM_E_NOMEM. */
HELM_MUST_CHECK int profile_write_json(const char *path, json_t *json, struct helm_err *err);
/* Whether profile_write can succeed, as far as that is known: asked before a minute of measuring. */
HELM_MUST_CHECK int profile_write_check(const char *path, struct helm_err *err);

/* The hardware as it is now: hex digest of CPU model and microcode, caches, CPUs that may be used and the
 * cgroup's share of them, memory and NUMA nodes, the device's uuid, driver, link generation and width ("" for
 * none), and of what else makes a profile outdated: HELM's version, the method of measuring and the threads
 * that were asked for.
 * `facts` (may be NULL) gets the text that was digested, one fact a line. */
struct profile_hardware {
    char
        device[PROFILE_TEXT]; /* "cuda GPU-... driver ... gen 5 x16", "emulated", "" (accelerator.hardware) */
    uint32_t threads;         /* that the worker is told to use; 0: its own choice */
    int node;                 /* NUMA node that it is told to use; -1: the device's, or the worker's choice */
};
#define PROFILE_FACTS_TEXT 4096
HELM_MUST_CHECK int profile_fingerprint(const struct profile_hardware *hardware, char out[72], char *facts,
                                        size_t facts_size, struct helm_err *err);
/* The same of a machine that is stated: for tests. */
struct cpu_set;
struct profile_machine {
    const char *root; /* before every path that is read (/proc, /sys) */
    const struct cpu_set *cpus;
    double quota;
};
HELM_MUST_CHECK int profile_fingerprint_under(const struct profile_machine *machine,
                                              const struct profile_hardware *hardware, char out[72],
                                              char *facts, size_t facts_size, struct helm_err *err);
/* Where the cached profile of this fingerprint is: helm/profiles/ in $STATE_DIRECTORY (of a service: there
 * without "helm/"), $XDG_CACHE_HOME or ~/.cache. Nothing is made. HELM_E_NOT_FOUND: there is no such place,
 * since none of these is set, or the home is a folder that does not exist. */
HELM_MUST_CHECK int profile_cache_path(const char *fingerprint, char *path, size_t size,
                                       struct helm_err *err);
/* The same of what else is kept beside profiles: NAME.json. */
HELM_MUST_CHECK int profile_cache_file(const char *name, char *path, size_t size, struct helm_err *err);
/* Makes the folders of such a path. Before profile_write. */
HELM_MUST_CHECK int profile_cache_make(const char *path, struct helm_err *err);
/* The processor's name, and the bytes of all its last-level caches together, 0 where the system does not say.
 * Nothing is measured. */
void profile_cpu_name(char name[PROFILE_TEXT]);
uint64_t profile_l3_bytes(void);
