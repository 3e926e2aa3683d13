/* Programs as text, a line for each entry. See program.h. Called by print.c; owns nothing. */
#include "common/base/units.h"
#include "worker-cpu/program/program.h"

static const char *role_text(enum tensor_role role)
{
    switch (role) {
    case TENSOR_Q:
        return "q";
    case TENSOR_K:
        return "k";
    case TENSOR_V:
        return "v";
    case TENSOR_O:
        return "o";
    case TENSOR_GATE:
        return "gate";
    case TENSOR_UP:
        return "up";
    case TENSOR_DOWN:
        return "down";
    case TENSOR_EMBED:
    case TENSOR_HEAD:
        return "head";
    default:
        return "?";
    }
}

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
        switch (e->kind) {
        case PROGRAM_EMBED:
            fprintf(out, "embed   %s%s%s; %u tokens a chunk", e->gather ? "x" : "",
                    e->gather && e->rotates ? ", " : "", e->rotates ? "cosine, sine" : "", e->chunk);
            break;
        case PROGRAM_NORM:
            fprintf(out, "%s %s", e->norm ? "norm   " : "tile   ", e->sampled ? "sampled rows, " : "");
            fprintf(out, "width %u", e->width);
            for (uint32_t t = 0; t < e->tile_count; t++) fprintf(out, ", tile %s", e->tile[t]->name);
            fprintf(out, "; %u tokens a chunk", e->chunk);
            break;
        case PROGRAM_LINEAR:
            fprintf(out, "linear ");
            for (uint32_t s = 0; s < e->segment_count; s++) {
                const struct program_segment *g = &e->segment[s];
                const struct linear_kernel *kernel = program->tiled ? g->kernels->tokens : g->kernels->one;
                fprintf(out, " %s %ux%u %s %s%s", role_text(g->role), g->matrix.rows, g->matrix.cols,
                        tensor_format_name(g->matrix.format), kernel->name, g->bias ? " +bias" : "");
            }
            fprintf(out, "%s%s; %u chunks of %u rows and less", e->swiglu ? ", swiglu" : "",
                    e->accumulate ? ", + residual" : "", e->chunks, e->bound[1] - e->bound[0]);
            if (e->share) fprintf(out, ", %u thread%s", e->share, e->share == 1 ? "" : "s");
            break;
        case PROGRAM_ROTATE:
            fprintf(out, "rotate  q%s, k%s; append k, v; %u tokens a chunk", e->norm ? " normed" : "",
                    e->norm2 ? " normed" : "", e->chunk);
            break;
        case PROGRAM_ATTEND:
            fprintf(out, "attend  kv layer %u", e->kv_layer);
            if (e->window) fprintf(out, ", window %u", e->window);
            break;
        case PROGRAM_SAMPLE:
            fprintf(out, "sample");
            break;
        case PROGRAM_RECEIVE:
            fprintf(out, "receive hand-over %u%s", e->ticket, e->last ? ", the last" : "");
            break;
        case PROGRAM_SEND:
            fprintf(out, "send    hand-over %u", e->ticket);
            break;
        }
        fputc('\n', out);
    }
}
