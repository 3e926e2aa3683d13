/* Where every matrix lies: which memory, in which format, from which byte on. This file is the only place
 * that knows the layout.
 *
 * helmd makes the list from model and plan, once, and ships it with the plan; workers check it and obey it.
 * The planner's ledger takes its sizes from it. Pure functions of model and plan; the list belongs to the
 * plan.
 *
 * Order: host memory, then VRAM of each device, each in order of use: the embedding (unless it is also the
 * head there), the matrices of every unit that is at home in the memory (q k v o, gate up down), the head.
 * After the embedding come the table of per-layer embeddings, in host memory, and their projection, in the
 * memory of each processor that makes these inputs. Each begins at a multiple of placement_align. A unit with
 * experts in both memories (`mixed`) has all matrices in host memory, and those of no routed expert in VRAM
 * too. An MLP at home on `shared` has its first rows in VRAM, the others in host memory. q k v, and gate up,
 * lie one after the other, so that a product can take them as one. A tied model's list names the embedding's
 * matrix, for the head too.
 *
 * Formats of variable size: how small a matrix becomes is known when it is loaded, so `bytes` is its room. In
 * host memory it has room for the most, and lies where its room begins. In VRAM the room is what the planner
 * reserves by what weights come to; such matrices are the last there, and stacked: from the first one's
 * offset on lie the tables of all of them, then their groups as they come out of loading. Loading fails with
 * HELM_E_CAPACITY where the stack takes more than the sum of their rooms.
 *
 * Vectors (norms, biases) are in no list: each worker has those of the units that it computes as fp32, laid
 * one after the other by placement_vectors, which the ledger asks too; in VRAM after the matrices. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"

struct placement {
    enum tensor_role role; /* of the tensor in the files */
    int32_t layer;
    enum tensor_format format;
    enum plan_memory memory;
    uint64_t offset, bytes;
};

/* Packed bytes divided by plain bytes, where weights were sampled, without tables of offsets: of the matrices
 * of attention halves, MLP halves and the head; 0: not known. */
struct packed_parts {
    double attention, mlp, head;
};
/* Added to a part for the room in VRAM, since the sample may differ from the rest. */
#define PLACEMENT_PACKED_SLACK 0.005
/* The share of escapes among packed bf16 weights (common/formats/packed.h) that is assumed of weights not
 * sampled. It packs large matrices to 0.71 of their bytes, within a hundredth of what language models' come
 * to; small ones to more. */
#define PLACEMENT_PACKED_ESCAPES 0.041

/* Where everything that is placed in a memory begins. */
uint64_t placement_align(enum plan_memory memory);
/* `bytes` up to the next such boundary. */
uint64_t placement_rounded(enum plan_memory memory, uint64_t bytes);
/* Whether a matrix of a unit that has this home lies in the memory; of `disk` with slots for experts. */
bool placement_lies(enum plan_home home, enum tensor_role role, enum plan_memory memory);
/* Whether a processor makes what each layer takes of the tokens (model_math.inputs): it computes MLP halves
 * of such a model. It reads rows of the embedding, in its own memory or else in host memory, and of the table
 * of per-layer embeddings. */
bool placement_inputs(const struct model *model, const struct plan *plan, enum plan_processor processor);
/* Whether it computes with the tokens' numbers: with those, or with the embedding. */
bool placement_reads_tokens(const struct model *model, const struct plan *plan,
                            enum plan_processor processor);
/* Whether a matrix of the model can lie in a format, by how it is stored and by its shape: of experts each
 * begins at a group. */
bool placement_takes(const struct model *model, const struct model_tensor *tensor, enum tensor_format format);
/* The format in which a matrix lies: the unit's, or as plan.weights has it. */
enum tensor_format placement_format(const struct model *model, const struct mixture *weights,
                                    const struct model_tensor *tensor, enum tensor_format format);
/* For each of the model's units (unit_count(layers)): whether all its matrices can be packed to lie so in
 * VRAM and cross the link, and for the CPU to compute with. Experts that lie in both memories cannot. */
void placement_packing(const struct model *model, bool *link, bool *cpu);
/* `bytes` of a matrix's placement; a vector's bytes as fp32, rounded up. parts: or NULL. */
uint64_t placement_room(const struct model_tensor *tensor, enum tensor_format format, enum plan_memory memory,
                        const struct packed_parts *parts);
uint64_t placement_vector_room(const struct model_tensor *tensor, enum plan_memory memory);

/* Makes the plan's list, in place of any that it has. parts: for rooms in VRAM, or NULL. HELM_E_UNSUPPORTED:
 * a matrix cannot lie as the plan says. */
HELM_MUST_CHECK int placement_make(const struct model *model, const struct packed_parts *parts,
                                   struct plan *plan, struct helm_err *err);
/* Checks that the plan's list has exactly the tensors that model and plan need, each once, in its memory and
 * format, with the bytes that it needs, in order and without overlap. Errors name the tensor and the numbers:
 * HELM_E_FORMAT, HELM_E_MISMATCH, HELM_E_LIMIT. */
HELM_MUST_CHECK int placement_check(const struct model *model, const struct plan *plan, struct helm_err *err);

/* The placements of a plan in one memory. */
struct placements {
    const struct placement *place; /* of the plan's list, in order of offset */
    uint32_t count;
    uint64_t region_bytes; /* up to the end of the last, rounded up */
    uint64_t varying;      /* of them the rooms of formats of variable size */
};
struct placements placements_in(const struct plan *plan, enum plan_memory memory);
/* The formats of its matrices, as bits (format_bit). */
unsigned placements_formats(const struct placements *in);
/* Half layers that lie packed in the memories of devices; *varying: the rooms there of formats of variable
 * size. */
uint32_t placements_packed_in_vram(const struct plan *plan, uint64_t *varying);
/* NULL: not there. */
const struct placement *placement_find(const struct placements *in, enum tensor_role role, int32_t layer);
/* The model's tensor; the list was made for it or checked. */
const struct model_tensor *placement_tensor(const struct model *model, const struct placement *place);

/* The vectors of the units that a processor computes in any phase, and of the head: out[model->tensor_count],
 * offsets from 0 on, or NULL. Returns their bytes. */
uint64_t placement_vectors(const struct model *model, const struct plan *plan, enum plan_processor processor,
                           struct placement *out, uint32_t *count);
