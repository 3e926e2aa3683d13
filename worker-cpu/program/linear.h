/* The functions that execute.c runs for LINEAR entries, chunk by chunk, and how their weights are read ahead.
 *
 * Owns nothing; `ctx` is a struct run. Results do not depend on the thread that computes a chunk, nor on
 * read-ahead.
 */
#pragma once

#include "worker-cpu/program/execute.h"

/* Where row `row` of a segment begins: the first of a group, or the end. */
static inline const char *linear_row_at(const struct program_segment *g, uint32_t row)
{
    if (g->place) /* rows of one expert, which is in memory */
        return g->place[row / g->place_rows] +
               row % g->place_rows * tensor_format_row_bytes(g->matrix.format, g->matrix.cols);
    return (const char *)g->matrix.data + tensor_format_row_at(&g->matrix, row);
}

/* Rows that are one run in memory and are read by one call: `rows`, or those of a group. */
static inline uint32_t linear_run_rows(const struct program_segment *g, uint32_t rows)
{
    const struct tensor_format_traits *format = tensor_format_of(g->matrix.format);
    return format->variable && format->group_rows < rows ? format->group_rows : rows;
}

/* A chunk of an entry of the one-token tier, and of the others: row chunk * tiles + tile, of a decoded entry
 * the row chunk alone, whose rows are decoded once for all tiles. */
void linear_one_token(void *ctx, uint32_t chunk, uint32_t thread);
void linear_tokens(void *ctx, uint32_t chunk, uint32_t thread);
/* A chunk of an entry of a program of a few tokens that have the bits of one: as linear_one_token's. */
void linear_few(void *ctx, uint32_t chunk, uint32_t thread);

/* A chunk of a LINEAR_HEADS entry: piece chunk % chunks of head chunk / chunks. Any number of tokens, each
 * with the bits of one. */
void linear_heads(void *ctx, uint32_t chunk, uint32_t thread);

/* While a thread waits: fetches what it will read first of run->ahead into its L2, so that memory has
 * something to do meanwhile. A pool_idle_fn. */
bool linear_fetch_ahead(void *ctx, uint32_t thread, uint32_t piece);

/* Chooses the reads that suit this processor. */
struct run_reads linear_reads_choose(void);

/* Bytes of one tile of `tokens` tokens as the kernel lays it out. */
size_t linear_tile_bytes(const struct linear_kernel *kernel, size_t tokens, size_t cols);

/* Bytes of a thread's scratch that a segment needs: for its input in the order of its one-token kernel, and
 * for the rows that are decoded at a time for a gemm. */
size_t linear_ordered_bytes(const struct program_segment *segment);
size_t linear_decoded_bytes(const struct program_segment *segment);
/* Scratch of a program of a few tokens: for its inputs in that order, and for the products of some rows. */
size_t linear_few_ordered_bytes(const struct program_segment *segment, uint32_t tokens);
#define LINEAR_FEW_SCRATCH_BYTES (PROGRAM_FEW_TOKENS * PROGRAM_ROWS_MAX * sizeof(float))

/* Rows [first, last) of one segment times the tokens of one tile, which its kernel of several has tiled:
 * y[token * ldy + row - first], without bias. */
struct linear_product {
    const struct program_segment *segment;
    uint32_t first, last;
    const void *tiled;
    uint32_t tokens, ldy;
    float *y;
};
void linear_multiply(const struct run *run, const struct linear_product *product, uint32_t thread);

static inline uint32_t run_ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Chunks of a LINEAR of several tokens. */
static inline uint32_t linear_chunks(const struct program_entry *e, uint32_t tokens)
{
    return e->decoded ? e->chunks : e->chunks * run_ceil_div(tokens, PROGRAM_TILE_TOKENS);
}

static inline uint32_t run_tokens(const struct run *run, const struct program_entry *e)
{
    return e->sampled ? run->batch.sample_count : run->batch.token_count;
}
