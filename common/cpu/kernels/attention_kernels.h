/* The attention kernels that stand in the table of common/cpu/kernels/attention.c: one pair of functions per
 * instruction set, all of the signature in common/cpu/kernels/attention.h. Included by that table and by the
 * files that define them. */
#pragma once

#include "common/cpu/kernels/attention.h"

#define KEYS_BLOCK 64 /* positions that the vector variants take at a time */
#ifndef TILE_ROWS
#define TILE_ROWS 6 /* query rows that share one register-blocked product */
#endif

void attention_attend_ref(const struct attention_task *task);
void attention_attend_avx2(const struct attention_task *task);
void attention_attend_avx512(const struct attention_task *task);
void attention_attend_avx512bf16(const struct attention_task *task);      /* KV in bf16 or q8_0 */
void attention_attend_avx512bf16vbmi2(const struct attention_task *task); /* in q8_0 */
void attention_attend_amxvbmi2(const struct attention_task *task);        /* in bf16 or q8_0 */
void attention_attend_parts_amxvbmi2(const struct attention_task *task);  /* in f16 */
void attention_attend_amxint8(const struct attention_task *task);         /* in q8_0 */

size_t attention_scratch_ref(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_avx2(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_avx512(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_avx512bf16(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_avx512bf16vbmi2(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_amxvbmi2(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_parts_amxvbmi2(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
size_t attention_scratch_amxint8(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
