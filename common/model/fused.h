/* Tensors that lie in files otherwise than each role by itself and row by row: experts' gate and up in one
 * tensor, in turn; MXFP4 as numbers and scales apart; 16-bit values column by column; q, k and v contiguous;
 * runs of rows in turn.
 *
 * Called by checkpoint.c, which enters such a tensor of a file as one or two of the model, by shards.c, which
 * reads them, and by helm-mkmodel, which writes them. Constant table and pure functions but for reads. */
#pragma once

#include "common/model/model.h"

/* How a tensor of a file holds its roles. */
enum fused_part {
    FUSED_BLOCKS,  /* MXFP4's numbers, U8 [experts][rows][cols / 32][16]: value 2i in the lower half of byte i
                    */
    FUSED_SCALES,  /* and powers of two, U8 [experts][rows][cols / 32], 127: 1 */
    FUSED_COLUMNS, /* 16 or 32 bits, [experts][cols][rows] */
    FUSED_IN_TURN, /* biases, [experts][rows] */
    FUSED_ROWS,    /* a matrix, or vector, whose roles' rows (values) follow each other */
    FUSED_HEADS,   /* of each head the columns of role[0], then the rows of role[1], as `run` and `row` say of
                      these */
    FUSED_RUNS /* a matrix, or all experts', in which runs of rows of the roles take turns, as `row` says */
};
#define FUSED_ROLES_MAX 3
/* A row of an architecture's table, which ends with one of no roles. */
struct fused_tensor {
    const char *name, *gguf; /* after the layer's prefix; NULL: no such file has it */
    enum fused_part part;
    uint32_t roles; /* whose rows take turns, or follow each other */
    enum tensor_role role[FUSED_ROLES_MAX];
    /* RUNS, HEADS: as many rows lie together in the file as in the matrix of role[number], whose number of
     * rows is a multiple of it; and where in the file a run's first row lies. */
    uint64_t (*run)(const struct model_config *config);
    uint64_t (*row)(const struct model_config *config, uint32_t number, uint64_t row);
};
/* The roles of a row. */
#define FUSED_ROLES(...)                                                                                     \
    sizeof((enum tensor_role[]){__VA_ARGS__}) / sizeof(enum tensor_role),                                    \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
/* RUNS of many architectures. Expert by expert, rows of its gate, then of its up; rows of its down. */
uint64_t fused_expert_rows(const struct model_config *config);
uint64_t fused_expert_row(const struct model_config *config, uint32_t number, uint64_t row);
uint64_t fused_down_rows(const struct model_config *config);
uint64_t fused_same_row(const struct model_config *config, uint32_t number, uint64_t row);
/* The `index`-th tensor that files of this configuration have instead of single roles'; NULL after the
 * last. */
const struct fused_tensor *fused_of(const struct model_config *config, uint32_t index);
/* The shape in the file: rank, shape[]. */
uint32_t fused_shape(const struct model_config *config, const struct fused_tensor *fused, uint64_t shape[4]);

/* Bytes of a tensor whose `stored` is not STORED_ROWS. fds: of the model's shards. */
HELM_MUST_CHECK int fused_read(const int *fds, const struct model_tensor *tensor, uint64_t from,
                               uint64_t bytes, void *to, struct helm_err *err);
/* The 16 numbers' bytes of a block as a file has them to those of FORMAT_MXFP4, whose lower halves are the
 * first 16. */
void fused_mxfp4_numbers(const uint8_t file[16], uint8_t block[16]);
