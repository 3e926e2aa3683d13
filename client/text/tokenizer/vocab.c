/* The model's vocabulary and merges: read from their JSON or handed over one by one, kept in hash tables
 * sized before they are filled.
 *
 * Spellings lie back to back in one buffer; nothing is allocated per token. Tables are at most half full and
 * probed linearly; a file made to collide runs into TOK_PROBES_MAX. Called by tokenizer/load.c,
 * tokenizer/gguf.c, tokenizer/bpe.c and the queries; struct tok_vocab owns its four arrays. */
#include "client/text/tokenizer/internal.h"
#include "common/base/grow.h"

#include <stdlib.h>
#include <string.h>

uint64_t tok_hash(const char *text, size_t length)
{
    const uint64_t k = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = length * k, word;
    while (length >= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * k;
        hash ^= hash >> 32;
        text += 8;
        length -= 8;
    }
    if (length >= 4) {
        uint32_t low, high; /* they overlap for fewer than 8 bytes; the length is in the hash already */
        memcpy(&low, text, 4);
        memcpy(&high, text + length - 4, 4);
        hash = (hash ^ ((uint64_t)high << 32 | low)) * k;
    } else if (length) {
        uint32_t tail = (uint8_t)text[0] | (uint32_t)(uint8_t)text[length / 2] << 8 |
                        (uint32_t)(uint8_t)text[length - 1] << 16;
        hash = (hash ^ tail) * k;
    }
    hash ^= hash >> 29;
    hash *= UINT64_C(0xBF58476D1CE4E5B9);
    return hash ^ hash >> 32;
}

static uint64_t hash_pair(uint64_t pair)
{
    pair ^= pair >> 31;
    pair *= UINT64_C(0x9E3779B97F4A7C15);
    pair ^= pair >> 29;
    pair *= UINT64_C(0xBF58476D1CE4E5B9);
    return pair ^ pair >> 32;
}

/* Bits of a table that `count` entries leave at least half empty. */
static unsigned bits_for(size_t count)
{
    unsigned bits = 4;
    while (((size_t)1 << bits) < 2 * count) bits++;
    return bits;
}

void tok_vocab_free(struct tok_vocab *vocab)
{
    tok_buffer_free(&vocab->bytes);
    free(vocab->entries);
    free(vocab->slots);
    free(vocab->merges);
    *vocab = (struct tok_vocab){0};
}

struct tok_vocab_slot *tok_slot_of(struct tok_vocab_slot *slots, unsigned slot_bits,
                                   const struct tok_vocab *vocab, const char *text, size_t length,
                                   uint32_t *tag, unsigned *probes)
{
    uint64_t hash = tok_hash(text, length);
    size_t mask = ((size_t)1 << slot_bits) - 1, at = hash & mask;
    *tag = (uint32_t)(hash >> 32);
    for (*probes = 0;; ++*probes, at = (at + 1) & mask) {
        struct tok_vocab_slot *slot = &slots[at];
        if (slot->id == HELM_TOKENIZER_NO_ID) return slot;
        if (slot->tag != *tag) continue;
        const struct tok_entry *entry = &vocab->entries[slot->id];
        if (entry->length == length && memcmp(vocab->bytes.data + entry->offset, text, length) == 0)
            return slot;
    }
}

uint32_t tok_vocab_find(const struct tok_vocab *vocab, const char *text, size_t length)
{
    uint32_t tag;
    unsigned probes;
    if (!vocab->slots || length > vocab->longest) return HELM_TOKENIZER_NO_ID;
    return tok_slot_of(vocab->slots, vocab->slot_bits, vocab, text, length, &tag, &probes)->id;
}

const struct tok_merge_slot *tok_vocab_find_merge(const struct tok_vocab *vocab, uint32_t left,
                                                  uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = ((size_t)1 << vocab->merge_bits) - 1;
    for (size_t at = hash_pair(pair) & mask;; at = (at + 1) & mask) {
        const struct tok_merge_slot *slot = &vocab->merges[at];
        if (slot->pair == pair) return slot;
        if (slot->pair == UINT64_MAX) return NULL;
    }
}

void tok_token_list_free(struct tok_token_list *list)
{
    free(list->items);
    *list = (struct tok_token_list){0};
}

int tok_vocab_spell(struct tok_vocab *vocab, struct tok_token_list *list, uint32_t id, size_t offset,
                    struct helm_err *err)
{
    if (!GROW(list->items, list->count, list->capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for %zu tokens", list->count + 1);
    list->items[list->count++] =
        (struct tok_listed){id, (uint32_t)offset, (uint32_t)(vocab->bytes.length - offset)};
    tok_buffer_append(&vocab->bytes, "", 1);
    return 0;
}

/* Reads {"spelling": id, ...} into bytes and list. */
static int read_vocab(struct tok_vocab *vocab, const struct tok_slice *json, struct tok_token_list *list,
                      struct helm_err *err)
{
    struct tok_scan scan = {json->text, json->text, json->text + json->length, "model.vocab"};
    if (!tok_scan_take(&scan, '{')) return tok_scan_fail(&scan, "'{'", err);
    if (tok_scan_take(&scan, '}')) return 0;
    do {
        size_t offset = vocab->bytes.length;
        int rc = tok_scan_string(&scan, &vocab->bytes, err);
        if (rc) return rc;
        uint32_t id;
        if (!tok_scan_take(&scan, ':')) return tok_scan_fail(&scan, "':'", err);
        rc = tok_scan_id(&scan, &id, err);
        if (rc) return rc;
        rc = tok_vocab_spell(vocab, list, id, offset, err);
        if (rc) return rc;
    } while (tok_scan_take(&scan, ','));
    if (!tok_scan_take(&scan, '}')) return tok_scan_fail(&scan, "',' or '}'", err);
    return 0;
}

static int insert_token(struct tok_vocab *vocab, uint32_t id, struct helm_err *err)
{
    const struct tok_entry *entry = &vocab->entries[id];
    const char *text = vocab->bytes.data + entry->offset;
    uint32_t tag;
    unsigned probes;
    struct tok_vocab_slot *slot =
        tok_slot_of(vocab->slots, vocab->slot_bits, vocab, text, entry->length, &tag, &probes);
    if (slot->id != HELM_TOKENIZER_NO_ID)
        return helm_fail(err, HELM_E_FORMAT, "token '%.64s' has two ids, %u and %u", text, slot->id, id);
    if (probes > TOK_PROBES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "more than %d tokens with one hash", TOK_PROBES_MAX);
    *slot = (struct tok_vocab_slot){tag, id};
    return 0;
}

int tok_vocab_index(struct tok_vocab *vocab, const struct tok_token_list *list, uint32_t extra_id_end,
                    struct helm_err *err)
{
    int rc = tok_buffer_check(&vocab->bytes, err);
    if (rc) return rc;
    vocab->id_end = extra_id_end;
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].id >= vocab->id_end) vocab->id_end = list->items[i].id + 1;
        if (list->items[i].length > vocab->longest) vocab->longest = list->items[i].length;
    }
    vocab->slot_bits = bits_for(list->count);
    size_t slots = (size_t)1 << vocab->slot_bits;
    vocab->entries = calloc((size_t)vocab->id_end + 1, sizeof *vocab->entries);
    vocab->slots = malloc(slots * sizeof *vocab->slots);
    if (!vocab->entries || !vocab->slots)
        return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %zu tokens, ids below %u",
                         list->count, vocab->id_end);
    for (size_t i = 0; i < slots; i++) vocab->slots[i] = (struct tok_vocab_slot){0, HELM_TOKENIZER_NO_ID};
    for (size_t i = 0; i < list->count; i++) {
        const struct tok_listed *item = &list->items[i];
        struct tok_entry *entry = &vocab->entries[item->id];
        if (entry->flags & TOK_ENTRY_PRESENT)
            return helm_fail(err, HELM_E_FORMAT, "id %u is both '%.64s' and '%.64s'", item->id,
                             vocab->bytes.data + entry->offset, vocab->bytes.data + item->offset);
        entry->offset = item->offset;
        entry->length = item->length;
        entry->flags = TOK_ENTRY_PRESENT;
        rc = insert_token(vocab, item->id, err);
        if (rc) return rc;
    }
    return 0;
}

int tok_vocab_load(struct tok_vocab *vocab, const struct tok_slice *json, uint32_t extra_id_end,
                   struct helm_err *err)
{
    struct tok_token_list list = {0};
    (void)tok_buffer_reserve(&vocab->bytes, json->length);
    int rc = read_vocab(vocab, json, &list, err);
    if (!rc && (rc = tok_vocab_index(vocab, &list, extra_id_end, err))) helm_err_prefix(err, "model.vocab");
    tok_token_list_free(&list);
    return rc;
}

int tok_vocab_name_id(struct tok_vocab *vocab, uint32_t id, const char *text, size_t length,
                      struct helm_err *err)
{
    struct tok_entry *entry = &vocab->entries[id];
    size_t offset = vocab->bytes.length;
    tok_buffer_append(&vocab->bytes, text, length);
    tok_buffer_append(&vocab->bytes, "", 1);
    *entry = (struct tok_entry){(uint32_t)offset, (uint32_t)length & 0x1FFFFFFFu, TOK_ENTRY_PRESENT};
    return tok_buffer_check(&vocab->bytes, err);
}

int tok_vocab_reserve_merges(struct tok_vocab *vocab, size_t count, struct helm_err *err)
{
    vocab->merge_bits = bits_for(count);
    size_t slots = (size_t)1 << vocab->merge_bits;
    vocab->merges = malloc(slots * sizeof *vocab->merges);
    if (!vocab->merges) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu merges", count);
    memset(vocab->merges, 0xFF, slots * sizeof *vocab->merges);
    return 0;
}

int tok_vocab_add_merge(struct tok_vocab *vocab, uint32_t left, uint32_t right, uint32_t rank, uint32_t id,
                        struct helm_err *err)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = ((size_t)1 << vocab->merge_bits) - 1, at = hash_pair(pair) & mask;
    for (unsigned probes = 0; vocab->merges[at].pair != UINT64_MAX && vocab->merges[at].pair != pair;
         probes++, at = (at + 1) & mask) {
        if (probes == TOK_PROBES_MAX)
            return helm_fail(err, HELM_E_LIMIT, "more than %d merges with one hash", TOK_PROBES_MAX);
    }
    vocab->merges[at] = (struct tok_merge_slot){pair, rank, id}; /* of two equal pairs the later counts */
    return 0;
}

int tok_vocab_merge_spelled(struct tok_vocab *vocab, const struct tok_buffer *joined, size_t split,
                            uint32_t rank, struct helm_err *err)
{
    int rc = tok_buffer_check(joined, err);
    if (rc) return rc;
    uint32_t left = tok_vocab_find(vocab, joined->data, split);
    uint32_t right = tok_vocab_find(vocab, joined->data + split, joined->length - split);
    uint32_t whole = tok_vocab_find(vocab, joined->data, joined->length);
    if (left != HELM_TOKENIZER_NO_ID && right != HELM_TOKENIZER_NO_ID && whole != HELM_TOKENIZER_NO_ID)
        return tok_vocab_add_merge(vocab, left, right, rank, whole, err);
    size_t from = left == HELM_TOKENIZER_NO_ID ? 0 : right == HELM_TOKENIZER_NO_ID ? split : 0;
    size_t to = left == HELM_TOKENIZER_NO_ID ? split : joined->length;
    int shown = (int)(to - from > 64 ? 64 : to - from);
    return helm_fail(err, HELM_E_FORMAT, "merge %u needs token '%.*s', which is not in the vocabulary", rank,
                     shown, joined->data + from);
}

/* Cuts "a b" at its space: out of the text, its place to *split. */
bool tok_merge_cut(struct tok_buffer *joined, size_t *split)
{
    char *space = joined->length ? memchr(joined->data, ' ', joined->length) : NULL;
    if (!space || memchr(space + 1, ' ', joined->length - (size_t)(space + 1 - joined->data))) return false;
    *split = (size_t)(space - joined->data);
    memmove(space, space + 1, joined->length - *split - 1);
    joined->length--;
    return true;
}

/* Reads "a b" or ["a", "b"]: the concatenation goes to `joined`, the length of the first part to *split. */
static int read_merge(struct tok_scan *scan, struct tok_buffer *joined, size_t *split, bool *ignored,
                      struct helm_err *err)
{
    *ignored = false;
    joined->length = 0;
    if (tok_scan_take(scan, '[')) {
        int rc = tok_scan_string(scan, joined, err);
        if (rc) return rc;
        *split = joined->length;
        if (!tok_scan_take(scan, ',')) return tok_scan_fail(scan, "','", err);
        rc = tok_scan_string(scan, joined, err);
        if (rc) return rc;
        return tok_scan_take(scan, ']') ? 0 : tok_scan_fail(scan, "']'", err);
    }
    int rc = tok_scan_string(scan, joined, err);
    if (rc) return rc;
    if (joined->length >= 8 && memcmp(joined->data, "#version", 8) == 0) {
        *ignored = true; /* the first line of a merges.txt that was copied in */
        return 0;
    }
    return tok_merge_cut(joined, split) ? 0 : tok_scan_fail(scan, "a merge of two parts with one space", err);
}

/* An upper bound for the number of merges: every one has at least two quotes and a comma or bracket. */
static size_t count_merges(const struct tok_slice *json)
{
    size_t quotes = 0;
    for (size_t i = 0; i < json->length; i++) quotes += json->text[i] == '"';
    return quotes / 2;
}

int tok_vocab_load_merges(struct tok_vocab *vocab, const struct tok_slice *json, struct helm_err *err)
{
    struct tok_scan scan = {json->text, json->text, json->text + json->length, "model.merges"};
    struct tok_buffer joined = {0};
    size_t bound = count_merges(json);
    /* Pairs of strings have four quotes each; looking at the first entry avoids a table twice too large. */
    const char *first = json->length > 1 ? memchr(json->text + 1, '"', json->length - 1) : NULL;
    if (first && memchr(json->text + 1, '[', (size_t)(first - json->text - 1))) bound /= 2;
    int rc = tok_vocab_reserve_merges(vocab, bound, err);
    if (rc) goto out;
    if (!tok_scan_take(&scan, '[')) {
        rc = tok_scan_fail(&scan, "'['", err);
        goto out;
    }
    if (tok_scan_take(&scan, ']')) goto out;
    uint32_t rank = 0;
    size_t entries = 0;
    do {
        size_t split = 0;
        bool ignored;
        rc = read_merge(&scan, &joined, &split, &ignored, err);
        if (rc) goto out;
        if (ignored) continue;
        if (++entries > bound) { /* mixed forms; the table was sized for the first */
            rc = helm_fail(err, HELM_E_FORMAT, "model.merges: entries of both forms");
            goto out;
        }
        rc = tok_vocab_merge_spelled(vocab, &joined, split, rank, err);
        if (rc) {
            helm_err_prefix(err, "model.merges");
            goto out;
        }
        rank++;
    } while (tok_scan_take(&scan, ','));
    if (!tok_scan_take(&scan, ']')) rc = tok_scan_fail(&scan, "',' or ']'", err);
out:
    tok_buffer_free(&joined);
    return rc;
}
