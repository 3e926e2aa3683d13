/* Programs as text, a line for each entry. See program.h. Called by print.c; owns nothing. */
#include "common/base/units.h"
#include "worker-cpu/program/program.h"

static const char *const role_text[TENSOR_ROLE_COUNT] = {[TENSOR_Q] = "q",
                                                         [TENSOR_K] = "k",
                                                         [TENSOR_V] = "v",
                                                         [TENSOR_O] = "o",
                                                         [TENSOR_Q_GATE] = "q gate",
                                                         [TENSOR_Q_A] = "q a",
                                                         [TENSOR_Q_B] = "q b",
                                                         [TENSOR_K_B] = "k b",
                                                         [TENSOR_V_B] = "v b",
                                                         [TENSOR_DELTA_QKV] = "qkv",
                                                         [TENSOR_DELTA_Z] = "z",
                                                         [TENSOR_DELTA_ALPHA] = "alpha",
                                                         [TENSOR_DELTA_BETA] = "beta",
                                                         [TENSOR_DELTA_OUT] = "out",
                                                         [TENSOR_GATE] = "gate",
                                                         [TENSOR_UP] = "up",
                                                         [TENSOR_DOWN] = "down",
                                                         [TENSOR_EMBED] = "head",
                                                         [TENSOR_HEAD] = "head",
                                                         [TENSOR_ROUTER] = "router",
                                                         [TENSOR_GATE_EXPERTS] = "gate",
                                                         [TENSOR_UP_EXPERTS] = "up",
                                                         [TENSOR_DOWN_EXPERTS] = "down",
                                                         [TENSOR_SHARED_GATE] = "shared gate",
                                                         [TENSOR_SHARED_UP] = "shared up",
                                                         [TENSOR_SHARED_DOWN] = "shared down"};

static void print_embed(const struct program_entry *e, bool tiled, FILE *out)
{
    (void)tiled;
    fprintf(out, " %s%s%s", e->gather ? "x" : "", e->gather && e->rotates ? ", " : "",
            e->rotates ? "cosine, sine" : "");
}

static void print_norm(const struct program_entry *e, bool tiled, FILE *out)
{
    (void)tiled;
    fprintf(out, "%s%s, width %u", e->norm ? "" : " without a weight", e->sampled ? " of sampled rows" : "",
            e->width);
    for (uint32_t t = 0; t < e->tile_count; t++) fprintf(out, ", tile %s", e->tile[t]->name);
}

static void print_linear(const struct program_entry *e, bool tiled, FILE *out)
{
    for (uint32_t s = 0; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        const struct linear_kernel *kernel = tiled ? g->kernels->tokens : g->kernels->one;
        fprintf(out, " %s %ux%u %s %s%s", role_text[g->role], g->matrix.rows, g->matrix.cols,
                tensor_format_name(g->matrix.format), kernel->name, g->bias ? " +bias" : "");
    }
    fprintf(out, "%s%s",
            e->activation == ACTIVATION_NONE ? ""
            : e->gated                       ? ", swiglu"
                                             : ", activated",
            e->residual ? ", + residual" : "");
    for (uint32_t t = 0; t < e->tile_count; t++) fprintf(out, ", tile %s", e->tile[t]->name);
    fprintf(out, "%s; %u chunks of %u rows and less", e->join ? " at once" : "", e->chunks,
            e->bound[1] - e->bound[0]);
    if (e->share) fprintf(out, ", %u thread%s", e->share, e->share == 1 ? "" : "s");
}

static void print_linear_heads(const struct program_entry *e, bool tiled, FILE *out)
{
    const struct program_segment *g = &e->segment[0];
    (void)tiled;
    fprintf(out, " %s %ux%u %s %s, %u of %u numbers of a head; %u pieces of each", role_text[g->role],
            g->matrix.rows, g->matrix.cols, tensor_format_name(g->matrix.format), g->kernels->one->name,
            g->matrix.cols, e->head_in, e->chunks);
}

static void print_experts(const struct program_entry *e, bool tiled, FILE *out)
{
    fprintf(out, " %u of %u,", e->chosen, e->experts);
    print_linear(e, tiled, out);
}

static void print_rope_append(const struct program_entry *e, bool tiled, FILE *out)
{
    (void)tiled;
    fprintf(out, " q%s, k%s", e->norm ? " normed" : "", e->norm2 ? " normed" : "");
}

static void print_attend(const struct program_entry *e, bool tiled, FILE *out)
{
    (void)tiled;
    fprintf(out, " kv layer %u", e->kv_layer);
    if (e->window) fprintf(out, ", window %u", e->window);
    if (e->sinks) fprintf(out, ", sinks");
}

static void print_lane(const struct program_entry *e, bool tiled, FILE *out)
{
    (void)tiled;
    fprintf(out, " hand-over %u%s", e->ticket, e->last ? ", the last" : "");
}

static void print_attend_host(const struct program_entry *e, bool tiled, FILE *out)
{
    print_attend(e, tiled, out);
    fprintf(out, ", query %u%s", e->ticket, e->last ? ", the last" : "");
}

/* Prints an entry's details after its name. */
static void (*const print_of[OP_KIND_COUNT])(const struct program_entry *e, bool tiled, FILE *out) = {
    [OP_EMBED] = print_embed,
    [OP_NORM] = print_norm,
    [OP_LINEAR] = print_linear,
    [OP_LINEAR_HEADS] = print_linear_heads,
    [OP_ROPE_APPEND] = print_rope_append,
    [OP_ATTEND] = print_attend,
    [OP_LANE_READ] = print_lane,
    [OP_EXPERTS_GLU] = print_experts,
    [OP_EXPERTS_DOWN] = print_experts,
    [OP_LANE_WRITE] = print_lane,
    [OP_ATTEND_HOST] = print_attend_host,
};

void program_print(const struct program *program, const char *title, FILE *out)
{
    char text[UNITS_TEXT];
    fprintf(out, "%s: %u entries, %s of weights\n", title, program->count,
            units_format_size(program->bytes, text));
    for (uint32_t i = 0; i < program->count; i++) {
        const struct program_entry *e = &program->entry[i];
        fprintf(out, "%5u ", i);
        if (e->layer >= 0)
            fprintf(out, "layer %-4d ", e->layer);
        else
            fprintf(out, "%-11s", "");
        fprintf(out, "%s", op_name(e->kind));
        if (print_of[e->kind]) print_of[e->kind](e, program->tiled, out);
        fputc('\n', out);
    }
}
