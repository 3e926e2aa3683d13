/* Creating, checking, mapping and populating the arena. See arena.h. Called by helmd (create) and workers
 * (attach). Owns the descriptor and the mapping inside struct arena. */
#include "common/shared/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/units.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

#define SMALL_PAGE     ((uint64_t)4096)
#define ARENA_SEALS    (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define COLLAPSE_TRIES 3
#define NODE_MAX       1024 /* NUMA nodes in a node mask; the kernel's own limit */

/* No real model or machine comes near these; below them no product of two or three overflows 64 bits unseen.
 */
#define TOKENS_MAX   ((uint32_t)1 << 28)
#define WIDTH_MAX    ((uint32_t)1 << 24)
#define KV_FIELD_MAX ((uint32_t)1 << 16)
#define LANES_MAX    4096u
#define BYTES_MAX    ((uint64_t)1 << 46)

static const char *const region_names[ARENA_REGION_COUNT] = {
    "control", "slots",  "masks",  "history", "page_table", "vram_table", "lanes", "kv_lanes", "expert_lanes",
    "experts", "logits", "pooled", "session", "snapshots",  "state",      "kv",    "weights"};

static int check_range(const char *what, uint64_t value, uint64_t min, uint64_t max, struct helm_err *err)
{
    if (value >= min && value <= max) return 0;
    return helm_fail(err, HELM_E_LIMIT, "arena: %s is %llu, not between %llu and %llu", what,
                     (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

static uint32_t samples_of(const struct arena_spec *spec)
{
    return spec->samples ? spec->samples : spec->slots;
}

static int check_spec(const struct arena_spec *spec, struct helm_err *err)
{
    const struct kv_layout *kv = &spec->kv;
    const struct {
        const char *what;
        uint64_t value, min, max;
    } fields[] = {
        {"slots", spec->slots, 1, ARENA_SLOTS_MAX},
        {"samples", samples_of(spec), 1, ARENA_STEP_ROWS},
        {"context_tokens", spec->context_tokens, 1, TOKENS_MAX},
        {"step_tokens", spec->step_tokens, 1, TOKENS_MAX},
        {"hidden", spec->hidden, 1, WIDTH_MAX},
        {"vocab", spec->vocab, 1, WIDTH_MAX},
        {"lanes", spec->lanes[ARENA_LANE_STEP], 0, LANES_MAX},
        {"kv lanes", spec->lanes[ARENA_LANE_KV], spec->vram_page_count ? 1 : 0,
         spec->vram_page_count ? LANES_MAX : 0},
        {"expert lanes", spec->lanes[ARENA_LANE_EXPERTS], 0, LANES_MAX},
        {"kv.layers", kv->layers, 0, KV_FIELD_MAX}, /* 0: all layers' pages are in VRAM */
        {"kv.kv_heads", kv->kv_heads, 1, KV_FIELD_MAX},
        {"kv.head_dim", kv->head_dim, 1, KV_FIELD_MAX},
        {"kv.page_tokens", kv->page_tokens, 1, KV_FIELD_MAX},
        {"kv.dtype", kv->dtype, 0, KV_DTYPE_COUNT - 1},
        {"kv.latent", kv->latent, 0, kv->head_dim},
        {"vram_page_count", spec->vram_page_count, 0, spec->page_count},
        {"window_page_count", spec->window_page_count, 0, spec->page_count},
        {"window_tokens", spec->window_tokens, spec->window_page_count ? 1 : 0,
         spec->window_page_count ? TOKENS_MAX : 0},
        {"window_kv_heads", spec->window_kv_heads, 0, KV_FIELD_MAX},
        {"window_head_dim", spec->window_head_dim, 0, KV_FIELD_MAX},
        {"window_layers", spec->window_layers, 0, spec->window_page_count ? KV_FIELD_MAX : 0},
        {"kv_heads_asking", spec->kv_heads_asking, 0, KV_FIELD_MAX},
        {"kv_heads_asking x (head_dim + 2)", (uint64_t)spec->kv_heads_asking * (kv->head_dim + 2ull), 0,
         WIDTH_MAX},
        {"experts_chosen", spec->experts_chosen, 0, spec->experts},
        {"experts", spec->experts, 0, KV_FIELD_MAX},
        {"expert_layers", spec->expert_layers, 0, KV_FIELD_MAX},
        {"session_bytes", spec->session_bytes, 0, BYTES_MAX},
        {"state.slot_bytes", spec->state.slot_bytes, 0, spec->state.snapshot_bytes},
        {"state.snapshot_bytes", spec->state.snapshot_bytes, 0, BYTES_MAX >> 16},
        {"snapshot_count", spec->snapshot_count, 0, spec->state.snapshot_bytes ? KV_FIELD_MAX : 0},
        {"weight_bytes", spec->weight_bytes, 0, BYTES_MAX},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int rc = check_range(fields[i].what, fields[i].value, fields[i].min, fields[i].max, err);
        if (rc) return rc;
    }
    if (kv->page_tokens & (kv->page_tokens - 1))
        return helm_fail(err, HELM_E_LIMIT, "arena: kv.page_tokens is %u, not a power of two",
                         kv->page_tokens);
    if (!kv_dtype_takes(kv->dtype, kv->head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "arena: kv.head_dim is %u, not a multiple of %d as a %s cache needs", kv->head_dim,
                         KV_Q8_0_VALUES, kv_dtype_name((enum kv_dtype)kv->dtype));
    if (spec->window_head_dim && !kv_dtype_takes(kv->dtype, spec->window_head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "arena: window_head_dim is %u, not a multiple of %d as a %s cache needs",
                         spec->window_head_dim, KV_Q8_0_VALUES, kv_dtype_name((enum kv_dtype)kv->dtype));
    if (!spec->vram_page_count != !spec->kv_heads_asking)
        return helm_fail(err, HELM_E_LIMIT,
                         "arena: vram_page_count is %u, kv_heads_asking %u: two tiers have both",
                         spec->vram_page_count, spec->kv_heads_asking);
    if (!spec->expert_layers != !spec->experts_chosen)
        return helm_fail(err, HELM_E_LIMIT, "arena: expert_layers is %u, experts_chosen %u: both, or neither",
                         spec->expert_layers, spec->experts_chosen);
    return 0;
}

/* kv_page_bytes * page_count */
static int kv_pool_bytes(const struct kv_layout *kv, uint32_t page_count, uint64_t *bytes)
{
    uint64_t product = kv_head_bytes(kv); /* at most 2^34 */
    if (units_mul(product, (uint64_t)kv_kinds(kv) * kv->kv_heads, &product) ||
        units_mul(product, kv->layers, &product))
        return -1;
    return units_mul(product, page_count, bytes);
}

/* Cells of windows. */
static struct kv_layout windows_of(const struct arena_spec *spec)
{
    struct kv_layout kv = spec->kv;
    kv.layers = spec->window_layers;
    if (spec->window_kv_heads) kv.kv_heads = spec->window_kv_heads;
    if (spec->window_head_dim) kv.head_dim = spec->window_head_dim;
    return kv;
}

/* The kv region has pages, then those of windows. */
static int pools_bytes(const struct arena_spec *spec, uint64_t *bytes, struct helm_err *err)
{
    const struct kv_layout windows = windows_of(spec);
    uint64_t window_bytes;
    if (kv_pool_bytes(&spec->kv, spec->page_count, bytes) || *bytes > BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "arena: the KV pool (%u pages) exceeds %llu bytes",
                         spec->page_count, (unsigned long long)BYTES_MAX);
    if (kv_pool_bytes(&windows, spec->window_page_count, &window_bytes) || window_bytes > BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "arena: the pool of windows (%u pages) exceeds %llu bytes",
                         spec->window_page_count, (unsigned long long)BYTES_MAX);
    if (window_bytes) *bytes = state_windows_at(&spec->kv, spec->page_count) + window_bytes;
    return 0;
}

/* A token in a lane: its residual stream; m, s and o of each of its heads (queries take fewer); its residual
 * stream, and of what is asked ids and weights. */
static int lane_regions(const struct arena_spec *spec, uint64_t bytes[ARENA_LANE_KINDS], struct helm_err *err)
{
    const uint32_t tokens[] = {spec->step_tokens, ARENA_KV_TOKENS, spec->step_tokens},
                   width[] = {spec->hidden, spec->kv_heads_asking * (spec->kv.head_dim + 2),
                              spec->hidden + 2 * spec->experts_chosen};
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        if (units_mul(lane_bytes(tokens[k], width[k]), spec->lanes[k], &bytes[k]) || bytes[k] > BYTES_MAX)
            return helm_fail(err, HELM_E_LIMIT, "arena: the %s (%u of %u x %u) exceed %llu bytes",
                             region_names[ARENA_REGION_LANES + k], spec->lanes[k], tokens[k], width[k],
                             (unsigned long long)BYTES_MAX);
    return 0;
}

int arena_plan(const struct arena_spec *spec, struct arena_header *header, struct helm_err *err)
{
    memset(header, 0, sizeof *header);
    int rc = check_spec(spec, err);
    if (rc) return rc;

    uint64_t kv_bytes = 0, lanes_bytes[ARENA_LANE_KINDS];
    uint64_t pages_per_slot =
        ((uint64_t)spec->context_tokens + spec->kv.page_tokens - 1) / spec->kv.page_tokens;
    rc = pools_bytes(spec, &kv_bytes, err);
    if (rc) return rc;
    rc = lane_regions(spec, lanes_bytes, err);
    if (rc) return rc;

    uint64_t logits_bytes = (uint64_t)samples_of(spec) * spec->vocab * sizeof(float);
    if (logits_bytes < 2 * (uint64_t)spec->hidden * sizeof(float))
        logits_bytes = 2 * (uint64_t)spec->hidden * sizeof(float);

    const uint64_t bytes[ARENA_REGION_COUNT] = {
        [ARENA_REGION_CONTROL] = sizeof(struct arena_control),
        [ARENA_REGION_SLOTS] = spec->slots * sizeof(struct arena_slot),
        [ARENA_REGION_MASKS] = (uint64_t)spec->slots * arena_mask_words(spec->vocab) * sizeof(uint32_t),
        [ARENA_REGION_HISTORY] = (uint64_t)spec->slots * spec->context_tokens * sizeof(uint32_t),
        [ARENA_REGION_PAGE_TABLE] =
            (spec->window_page_count ? 2 : 1) * spec->slots * pages_per_slot * sizeof(uint32_t),
        [ARENA_REGION_VRAM_TABLE] =
            spec->vram_page_count ? spec->slots * pages_per_slot * sizeof(uint32_t) : 0,
        [ARENA_REGION_LANES] = lanes_bytes[ARENA_LANE_STEP],
        [ARENA_REGION_KV_LANES] = lanes_bytes[ARENA_LANE_KV],
        [ARENA_REGION_EXPERT_LANES] = lanes_bytes[ARENA_LANE_EXPERTS],
        [ARENA_REGION_EXPERTS] = spec->expert_layers
                                     ? sizeof(struct arena_experts) +
                                           (uint64_t)spec->expert_layers * spec->experts * sizeof(uint64_t)
                                     : 0,
        [ARENA_REGION_LOGITS] = logits_bytes,
        [ARENA_REGION_POOLED] = (uint64_t)spec->slots * spec->hidden * sizeof(double),
        [ARENA_REGION_SESSION] = spec->session_bytes,
        [ARENA_REGION_SNAPSHOTS] = spec->snapshot_count * spec->state.snapshot_bytes,
        [ARENA_REGION_STATE] = spec->slots * spec->state.slot_bytes,
        [ARENA_REGION_KV] = kv_bytes,
        [ARENA_REGION_WEIGHTS] = spec->weight_bytes,
    };
    /* Whole pages each, so that regions of different writers share none; huge pages where the bytes are. */
    uint64_t end = sizeof *header;
    for (int i = 0; i < ARENA_REGION_COUNT; i++) {
        bool big = i == ARENA_REGION_KV || i == ARENA_REGION_WEIGHTS;
        header->region[i].offset = round_up(end, big ? ARENA_HUGE_PAGE : SMALL_PAGE);
        header->region[i].bytes = bytes[i];
        end = header->region[i].offset + bytes[i];
    }
    header->total_bytes = round_up(end, ARENA_HUGE_PAGE);
    rc = check_range("total size", header->total_bytes, 0, BYTES_MAX, err);
    if (rc) return rc;

    header->magic = ARENA_MAGIC;
    header->abi = ARENA_ABI;
    header->slots = spec->slots;
    header->samples = samples_of(spec);
    header->context_tokens = spec->context_tokens;
    header->step_tokens = spec->step_tokens;
    header->pages_per_slot = (uint32_t)pages_per_slot;
    header->page_count = spec->page_count;
    header->hidden = spec->hidden;
    header->vocab = spec->vocab;
    memcpy(header->lanes, spec->lanes, sizeof header->lanes);
    header->vram_page_count = spec->vram_page_count;
    header->window_tokens = spec->window_tokens;
    header->window_page_count = spec->window_page_count;
    header->window_layers = spec->window_layers;
    header->kv_heads_asking = spec->kv_heads_asking;
    header->window_kv_heads = windows_of(spec).kv_heads;
    header->window_head_dim = windows_of(spec).head_dim;
    header->experts_chosen = spec->experts_chosen;
    header->experts = spec->experts;
    header->expert_layers = spec->expert_layers;
    header->kv = spec->kv;
    header->state = spec->state;
    header->snapshot_count = spec->snapshot_count;
    return 0;
}

/* Maps at a 2 MiB boundary: only then can a 2 MiB extent of the file become one page-table entry. */
static int map_aligned(int fd, uint64_t bytes, void **base, struct helm_err *err)
{
    size_t reserve = bytes + ARENA_HUGE_PAGE;
    char *space = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return helm_fail_errno(err, "arena: cannot reserve %zu bytes of address space", reserve);
    char *aligned = (char *)round_up((uintptr_t)space, ARENA_HUGE_PAGE);
    void *mapped = mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        int rc = helm_fail_errno(err, "arena: cannot map %llu bytes", (unsigned long long)bytes);
        munmap(space, reserve);
        return rc;
    }
    size_t before = (size_t)(aligned - space);
    if (before) munmap(space, before);
    if (ARENA_HUGE_PAGE > before) munmap(aligned + bytes, ARENA_HUGE_PAGE - before);
    *base = mapped;
    return 0;
}

void arena_empty_lanes(const struct arena *arena)
{
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        for (uint32_t l = 0; l < arena_header_of(arena)->lanes[k]; l++)
            lane_init(arena_lane_at(arena, (enum arena_lane_kind)k, l));
}

static void init_bells(struct arena *arena)
{
    struct arena_control *control = arena_control_of(arena);
    doorbell_init(&control->step_bell, 0);
    doorbell_init(&control->drawn_bell, 0);
    for (int i = 0; i < ARENA_WORKERS_MAX; i++) doorbell_init(&control->done[i].bell, 0);
    doorbell_init(&control->weights_bell, 0);
    arena_empty_lanes(arena);
}

int arena_create(const struct arena_spec *spec, struct arena *arena, struct helm_err *err)
{
    struct arena_header header;
    *arena = (struct arena){.fd = -1};
    int rc = arena_plan(spec, &header, err);
    if (rc) return rc;

    arena->fd = memfd_create("helm-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (arena->fd < 0 && errno == EINVAL) /* before Linux 6.3 every memfd is executable */
        arena->fd = memfd_create("helm-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0) {
        rc = helm_fail_errno(err, "arena: memfd_create");
        goto out;
    }
    if (ftruncate(arena->fd, (off_t)header.total_bytes) != 0) {
        rc = helm_fail_errno(err, "arena: cannot set its size to %llu bytes%s",
                             (unsigned long long)header.total_bytes,
                             errno == EFBIG ? " (limit of file sizes, ulimit -f)" : "");
        goto out;
    }
    if (fcntl(arena->fd, F_ADD_SEALS, ARENA_SEALS) != 0) {
        rc = helm_fail_errno(err, "arena: cannot seal its size");
        goto out;
    }
    rc = map_aligned(arena->fd, header.total_bytes, &arena->base, err);
    if (rc) goto out;
    arena->bytes = header.total_bytes;
    memcpy(arena->base, &header, sizeof header);
    init_bells(arena);
out:
    if (rc) arena_close(arena);
    return rc;
}

/* Every field of the header must be what arena_plan makes of the others. */
static int check_header(const struct arena_header *header, uint64_t file_bytes, struct helm_err *err)
{
    if (header->magic != ARENA_MAGIC)
        return helm_fail(err, HELM_E_FORMAT, "arena: magic is 0x%08x, not 0x%08x", header->magic,
                         ARENA_MAGIC);
    if (header->abi != ARENA_ABI)
        return helm_fail(err, HELM_E_MISMATCH, "arena: ABI %u, this program has %u: rebuild or restart helmd",
                         header->abi, ARENA_ABI);
    if (header->total_bytes != file_bytes)
        return helm_fail(err, HELM_E_MISMATCH, "arena: header says %llu bytes, the file has %llu",
                         (unsigned long long)header->total_bytes, (unsigned long long)file_bytes);
    const struct arena_spec spec = {.slots = header->slots,
                                    .samples = header->samples,
                                    .context_tokens = header->context_tokens,
                                    .step_tokens = header->step_tokens,
                                    .hidden = header->hidden,
                                    .vocab = header->vocab,
                                    .lanes = {header->lanes[ARENA_LANE_STEP], header->lanes[ARENA_LANE_KV],
                                              header->lanes[ARENA_LANE_EXPERTS]},
                                    .window_tokens = header->window_tokens,
                                    .window_page_count = header->window_page_count,
                                    .window_layers = header->window_layers,
                                    .window_kv_heads = header->window_kv_heads,
                                    .window_head_dim = header->window_head_dim,
                                    .vram_page_count = header->vram_page_count,
                                    .kv_heads_asking = header->kv_heads_asking,
                                    .experts_chosen = header->experts_chosen,
                                    .experts = header->experts,
                                    .expert_layers = header->expert_layers,
                                    .kv = header->kv,
                                    .page_count = header->page_count,
                                    .state = header->state,
                                    .snapshot_count = header->snapshot_count,
                                    .session_bytes = header->region[ARENA_REGION_SESSION].bytes,
                                    .weight_bytes = header->region[ARENA_REGION_WEIGHTS].bytes};
    struct arena_header expected;
    int rc = arena_plan(&spec, &expected, err);
    if (rc) return rc;
    if (header->pages_per_slot != expected.pages_per_slot)
        return helm_fail(err, HELM_E_MISMATCH,
                         "arena: pages_per_slot is %u, %u tokens in pages of %u need %u",
                         header->pages_per_slot, header->context_tokens, header->kv.page_tokens,
                         expected.pages_per_slot);
    for (int i = 0; i < ARENA_REGION_COUNT; i++) {
        const struct arena_region *has = &header->region[i], *wants = &expected.region[i];
        if (has->bytes > file_bytes || has->offset > file_bytes - has->bytes)
            return helm_fail(err, HELM_E_LIMIT,
                             "arena: region %s (%llu bytes at %llu) lies outside the file of %llu",
                             region_names[i], (unsigned long long)has->bytes, (unsigned long long)has->offset,
                             (unsigned long long)file_bytes);
        /* Equality also means aligned and without overlap: the plan's regions are. */
        if (has->offset != wants->offset || has->bytes != wants->bytes)
            return helm_fail(err, HELM_E_MISMATCH,
                             "arena: region %s is %llu bytes at %llu, its header's sizes give %llu at %llu",
                             region_names[i], (unsigned long long)has->bytes, (unsigned long long)has->offset,
                             (unsigned long long)wants->bytes, (unsigned long long)wants->offset);
    }
    if (header->total_bytes != expected.total_bytes)
        return helm_fail(err, HELM_E_MISMATCH, "arena: %llu bytes in all, its header's sizes give %llu",
                         (unsigned long long)header->total_bytes, (unsigned long long)expected.total_bytes);
    return 0;
}

int arena_attach(int fd, struct arena *arena, struct helm_err *err)
{
    struct stat st;
    struct arena_header header; /* a copy: what was checked cannot change afterwards */
    *arena = (struct arena){.fd = -1};
    if (fstat(fd, &st) != 0) return helm_fail_errno(err, "arena: descriptor %d", fd);
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof header)
        return helm_fail(err, HELM_E_FORMAT, "arena: descriptor %d is not an arena (%lld bytes)", fd,
                         (long long)st.st_size);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & ARENA_SEALS) != ARENA_SEALS)
        return helm_fail(err, HELM_E_FORMAT,
                         "arena: descriptor %d is not sealed against shrinking, growing and more seals", fd);
    if (seals & F_SEAL_WRITE)
        return helm_fail(err, HELM_E_FORMAT, "arena: descriptor %d is sealed against writing", fd);
    int rc = file_pread_all(fd, &header, sizeof header, 0, "arena", err);
    if (rc) return rc;
    rc = check_header(&header, (uint64_t)st.st_size, err);
    if (rc) return rc;
    rc = map_aligned(fd, header.total_bytes, &arena->base, err);
    if (rc) return rc;
    arena->fd = fd;
    arena->bytes = header.total_bytes;
    return 0;
}

void arena_close(struct arena *arena)
{
    if (arena->base) {
        munmap(arena->base, arena->bytes);
        if (arena->fd >= 0) close(arena->fd);
    } else if (arena->fd > STDERR_FILENO) { /* a zeroed struct must not close standard input */
        close(arena->fd);
    }
    *arena = (struct arena){.fd = -1};
}

/* Reading is enough: a fault on a hole of shared memory allocates the page. */
static void touch(const char *at)
{
    (void)__atomic_load_n(at, __ATOMIC_RELAXED);
}

static void touch_small(const char *from, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += SMALL_PAGE) touch(from + at);
    if (bytes) touch(from + bytes - 1);
}

static bool collapse(char *extent)
{
    touch(extent); /* an extent without any page cannot be collapsed */
    for (int i = 0; i < COLLAPSE_TRIES; i++) {
        if (madvise(extent, ARENA_HUGE_PAGE, MADV_COLLAPSE) == 0) return true;
        if (errno != EAGAIN && errno != EBUSY) return false; /* those two pass: a page was in use just then */
    }
    return false;
}

void arena_populate(const struct arena *arena, uint64_t offset, uint64_t bytes, uint64_t *huge_bytes,
                    uint64_t *small_bytes)
{
    if (offset > arena->bytes) offset = arena->bytes;
    if (bytes > arena->bytes - offset) bytes = arena->bytes - offset;
    char *base = arena->base;
    uint64_t end = offset + bytes;
    while (offset < end) {
        uint64_t extent_end = (offset / ARENA_HUGE_PAGE + 1) * ARENA_HUGE_PAGE;
        uint64_t next = extent_end < end ? extent_end : end;
        if (next - offset == ARENA_HUGE_PAGE && collapse(base + offset)) {
            *huge_bytes += next - offset;
        } else {
            touch_small(base + offset, next - offset);
            *small_bytes += next - offset;
        }
        offset = next;
    }
}

/* Some containers forbid the memory-policy calls, some kernels lack them. With one node there is nothing to
 * choose. */
static bool machine_has_one_node(void)
{
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    if (!file) return errno == ENOENT;
    char line[64] = "";
    bool one = fgets(line, sizeof line, file) && (strcmp(line, "0\n") == 0 || strcmp(line, "0") == 0);
    fclose(file);
    return one;
}

int arena_bind(const struct arena *arena, uint64_t offset, uint64_t bytes, int node, struct helm_err *err)
{
    if (offset % SMALL_PAGE || offset > arena->bytes || bytes > arena->bytes - offset)
        return helm_fail(err, HELM_E_LIMIT,
                         "arena: cannot bind %llu bytes at %llu of %llu (whole pages inside it)",
                         (unsigned long long)bytes, (unsigned long long)offset,
                         (unsigned long long)arena->bytes);
    if (node < 0 || node >= NODE_MAX)
        return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d does not exist", node);
    if (bytes == 0) return 0;

    const unsigned bits = 8 * sizeof(unsigned long);
    unsigned long mask[NODE_MAX / (8 * sizeof(unsigned long)) + 1] = {0};
    mask[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
    if (syscall(SYS_mbind, (char *)arena->base + offset, bytes, MPOL_BIND, mask, NODE_MAX + 1ul, 0) == 0)
        return 0;
    if (errno == EINVAL)
        return helm_fail(err, HELM_E_NOT_FOUND,
                         "NUMA node %d does not exist, has no memory or is not allowed", node);
    if (node == 0 && (errno == ENOSYS || errno == EPERM) && machine_has_one_node()) return 0;
    if (errno == ENOSYS)
        return helm_fail(err, HELM_E_UNSUPPORTED, "NUMA node %d: this kernel has no memory policies", node);
    return helm_fail_errno(err, "arena: cannot bind to NUMA node %d", node);
}

int arena_node_of(const struct arena *arena, uint64_t offset, int *node, struct helm_err *err)
{
    *node = -1;
    if (offset >= arena->bytes)
        return helm_fail(err, HELM_E_LIMIT, "arena: byte %llu lies outside it (%llu)",
                         (unsigned long long)offset, (unsigned long long)arena->bytes);
    char *at = (char *)arena->base + offset;
    if (syscall(SYS_get_mempolicy, node, NULL, 0ul, at, (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR)) == 0)
        return 0;
    if ((errno == ENOSYS || errno == EPERM) && machine_has_one_node()) {
        *node = 0;
        return 0;
    }
    return helm_fail_errno(err, "arena: cannot ask where byte %llu is", (unsigned long long)offset);
}

void arena_share_pages(const struct arena *arena)
{
    const struct arena_header *h = arena_header_of(arena);
    for (uint32_t s = 0; s < h->slots; s++) {
        uint32_t *pages = arena_page_table_of(arena, s);
        for (uint32_t i = 0; i < h->pages_per_slot; i++)
            pages[i] = (h->page_count / h->slots * s + i) % h->page_count;
        const uint32_t each = h->window_page_count / h->slots;
        for (uint32_t i = 0; each && i < h->pages_per_slot; i++)
            arena_window_table_of(arena, s)[i] = each * s + i % each;
        struct arena_slot *slot = arena_slot_of(arena, s);
        memset(slot, 0, sizeof *slot);
        slot->sampling.top_p = slot->sampling.repetition_penalty = 1;
    }
}
