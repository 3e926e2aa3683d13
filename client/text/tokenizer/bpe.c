/* The BPE model: one word in, its token ids out.
 *
 * A word starts as its characters' tokens; then the pair with the lowest rank (leftmost of equals) is merged
 * until no pair can be. Candidates wait in a heap, so a word of n characters takes n log n steps: without a
 * pre-tokenizer the whole text is one word. A queued candidate is checked only against the merge's result
 * when it is taken, as Hugging Face does: where two merges give one token, that decides which is done first.
 * Words met before come from a cache. Called by tokenizer.c; struct tok_bpe_work owns the scratch memory of
 * one encode. */
#include "client/text/tokenizer/internal.h"
#include "common/base/grow.h"

#include <stdlib.h>
#include <string.h>

#define NONE             UINT32_MAX
#define BOUNDARY         "\xE2\x96\x81" /* U+2581, a space to SentencePiece */
#define BOUNDARY_BYTES   3
#define CACHE_BITS       13 /* words of one text that are remembered */
#define CACHE_WORD_BYTES 64 /* longest word worth remembering */
#define CACHE_MIN_BYTES  1024

struct symbol {
    uint32_t id; /* NONE: merged into an earlier one */
    uint32_t previous;
    uint32_t next;
};

struct candidate {
    uint64_t key; /* rank << 32 | position of the left symbol */
    uint32_t id;  /* of the pair's token */
};

struct cached_word {
    uint64_t hash;
    uint32_t offset;
    uint32_t length; /* 0: free */
    uint32_t first_id;
    uint32_t id_count;
};

struct tok_bpe_work {
    const struct tok_bpe *bpe;
    const struct tok_vocab *vocab;
    bool plain;
    struct tok_ids *ids;
    struct symbol *symbols;
    size_t symbol_count;
    size_t symbol_capacity;
    struct candidate *heap;
    size_t heap_count;
    size_t heap_capacity;
    struct cached_word *cache;
    struct tok_buffer spelled; /* a word in the byte-level alphabet */
};

int tok_bpe_work_open(const struct helm_tokenizer *tokenizer, bool plain, struct tok_ids *ids,
                      struct tok_bpe_work **out, struct helm_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return helm_fail(err, HELM_E_NOMEM, "no memory to encode");
    (*out)->bpe = &tokenizer->bpe;
    (*out)->vocab = &tokenizer->vocab;
    (*out)->plain = plain;
    (*out)->ids = ids;
    return 0;
}

void tok_bpe_work_free(struct tok_bpe_work *work)
{
    if (!work) return;
    free(work->symbols);
    free(work->heap);
    free(work->cache);
    tok_buffer_free(&work->spelled);
    free(work);
}

/* Without a pre-tokenizer the whole text is one word. A merge across a place makes a token that has the two
 * characters beside it; so where no token has a character just before U+2581, the word can be cut there and
 * nothing changes. */
static void prepare_cuts(struct tok_bpe *bpe, const struct tok_vocab *vocab)
{
    bpe->cuts =
        !bpe->byte_level && !bpe->ignore_merges && tok_vocab_find(vocab, BOUNDARY, BOUNDARY_BYTES) != NONE;
    if (!bpe->cuts) return;
    for (uint32_t id = 0; id < vocab->id_end; id++) {
        const char *text = vocab->bytes.data + vocab->entries[id].offset, *at = text;
        const char *end = text + vocab->entries[id].length;
        while (end - at >= BOUNDARY_BYTES &&
               (at = memmem(at, (size_t)(end - at), BOUNDARY, BOUNDARY_BYTES))) {
            uint32_t before;
            if (at > text) {
                utf8_get_before(text, (size_t)(at - text), &before);
                bpe->joined[before >> 6 & 1023] |= UINT64_C(1) << (before & 63);
            }
            at += BOUNDARY_BYTES;
        }
    }
}

void tok_bpe_prepare(struct tok_bpe *bpe, const struct tok_vocab *vocab)
{
    prepare_cuts(bpe, vocab);
    static const char digits[] = "0123456789ABCDEF";
    char text[8];
    for (unsigned i = 0; i < 256; i++) {
        bpe->byte_ids[i] = tok_vocab_find(vocab, text, utf8_put(tok_bytelevel_char((uint8_t)i), text));
        if (i < 128) {
            text[0] = (char)i;
            bpe->ascii_ids[i] = tok_vocab_find(vocab, text, 1);
        }
        memcpy(text, "<0x", 3);
        text[3] = digits[i >> 4];
        text[4] = digits[i & 15];
        text[5] = '>';
        bpe->fallback_ids[i] = tok_vocab_find(vocab, text, 6);
    }
}

static int push_symbol(struct tok_bpe_work *work, uint32_t id, struct helm_err *err)
{
    if (!GROW(work->symbols, work->symbol_count, work->symbol_capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for a word of %zu symbols", work->symbol_count + 1);
    uint32_t at = (uint32_t)work->symbol_count++;
    work->symbols[at] = (struct symbol){id, at ? at - 1 : NONE, at + 1};
    return 0;
}

/* A character that is no token: its bytes' tokens, or the unknown token, or nothing. *unknown: one is
 * waiting. */
static int push_unknown(struct tok_bpe_work *work, const char *text, size_t length, bool *unknown,
                        struct helm_err *err)
{
    const struct tok_bpe *bpe = work->bpe;
    bool all = bpe->byte_fallback;
    for (size_t i = 0; i < length && all; i++) all = bpe->fallback_ids[(uint8_t)text[i]] != NONE;
    if (all) {
        /* An unknown token that waits comes after these: so it is in Hugging Face. */
        for (size_t i = 0; i < length; i++) {
            int rc = push_symbol(work, bpe->fallback_ids[(uint8_t)text[i]], err);
            if (rc) return rc;
        }
        return 0;
    }
    if (!bpe->has_unk) return 0;
    if (bpe->unk_id == NONE)
        return helm_fail(err, HELM_E_FORMAT,
                         "a character needs model.unk_token, which is not in the vocabulary");
    if (*unknown && !bpe->fuse_unk) {
        int rc = push_symbol(work, bpe->unk_id, err);
        if (rc) return rc;
    }
    *unknown = true;
    return 0;
}

static int split_word(struct tok_bpe_work *work, const char *text, size_t length, struct helm_err *err)
{
    const struct tok_bpe *bpe = work->bpe;
    bool unknown = false;
    work->symbol_count = 0;
    for (size_t at = 0; at < length;) {
        char spelled[4];
        const char *character = text + at;
        size_t width = 1, step = 1;
        uint32_t id, codepoint;
        if (bpe->byte_level) {
            id = bpe->byte_ids[(uint8_t)text[at]];
            if (id == NONE) {
                width = utf8_put(tok_bytelevel_char((uint8_t)text[at]), spelled);
                character = spelled;
            }
        } else if ((uint8_t)text[at] < 0x80) {
            id = bpe->ascii_ids[(uint8_t)text[at]];
        } else {
            step = width = utf8_get(text + at, &codepoint);
            id = tok_vocab_find(work->vocab, character, width);
        }
        at += step;
        int rc = 0;
        if (id == NONE) {
            rc = push_unknown(work, character, width, &unknown, err);
        } else {
            if (unknown) rc = push_symbol(work, bpe->unk_id, err);
            unknown = false;
            if (!rc) rc = push_symbol(work, id, err);
        }
        if (rc) return rc;
    }
    if (unknown) {
        int rc = push_symbol(work, bpe->unk_id, err);
        if (rc) return rc;
    }
    if (work->symbol_count) work->symbols[work->symbol_count - 1].next = NONE;
    return 0;
}

/* ---- the heap: smallest key first ---- */

static void sift_down(struct candidate *heap, size_t count, size_t at)
{
    struct candidate moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= moving.key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heap_push(struct tok_bpe_work *work, struct candidate candidate)
{
    size_t at = work->heap_count++;
    while (at) {
        size_t parent = (at - 1) / 2;
        if (work->heap[parent].key <= candidate.key) break;
        work->heap[at] = work->heap[parent];
        at = parent;
    }
    work->heap[at] = candidate;
}

static struct candidate heap_pop(struct tok_bpe_work *work)
{
    struct candidate top = work->heap[0];
    work->heap[0] = work->heap[--work->heap_count];
    if (work->heap_count) sift_down(work->heap, work->heap_count, 0);
    return top;
}

/* At most one candidate for each pair at the start, and two more for each merge, of which there are fewer
 * than symbols; a merge takes one away first. */
static int heap_reserve(struct tok_bpe_work *work, struct helm_err *err)
{
    size_t wanted = 2 * work->symbol_count + 2;
    if (wanted <= work->heap_capacity) return 0;
    struct candidate *heap = realloc(work->heap, wanted * sizeof *heap);
    if (!heap) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu merge candidates", wanted);
    work->heap = heap;
    work->heap_capacity = wanted;
    return 0;
}

static void consider(struct tok_bpe_work *work, uint32_t left, uint32_t right)
{
    const struct tok_merge_slot *merge =
        tok_vocab_find_merge(work->vocab, work->symbols[left].id, work->symbols[right].id);
    if (merge) heap_push(work, (struct candidate){(uint64_t)merge->rank << 32 | left, merge->id});
}

static int merge_word(struct tok_bpe_work *work, struct helm_err *err)
{
    const struct tok_vocab *vocab = work->vocab;
    struct symbol *symbols = work->symbols;
    int rc = heap_reserve(work, err);
    if (rc) return rc;
    work->heap_count = 0;
    for (uint32_t i = 0; i + 1 < work->symbol_count; i++) {
        const struct tok_merge_slot *merge = tok_vocab_find_merge(vocab, symbols[i].id, symbols[i + 1].id);
        if (merge)
            work->heap[work->heap_count++] = (struct candidate){(uint64_t)merge->rank << 32 | i, merge->id};
    }
    for (size_t i = work->heap_count / 2; i-- > 0;) sift_down(work->heap, work->heap_count, i);
    while (work->heap_count) {
        struct candidate top = heap_pop(work);
        uint32_t left = (uint32_t)top.key;
        if (symbols[left].id == NONE || symbols[left].next == NONE) continue;
        uint32_t right = symbols[left].next;
        const struct tok_merge_slot *merge = tok_vocab_find_merge(vocab, symbols[left].id, symbols[right].id);
        if (!merge || merge->id != top.id) continue;
        symbols[left].id = top.id;
        symbols[left].next = symbols[right].next;
        symbols[right].id = NONE;
        if (symbols[left].next != NONE) symbols[symbols[left].next].previous = left;
        if (symbols[left].previous != NONE) consider(work, symbols[left].previous, left);
        if (symbols[left].next != NONE) consider(work, left, symbols[left].next);
    }
    return 0;
}

/* The token spelled exactly as the word, for ignore_merges; NONE to *id if there is none. */
static int find_whole(struct tok_bpe_work *work, const char *text, size_t length, uint32_t *id,
                      struct helm_err *err)
{
    const struct tok_vocab *vocab = work->vocab;
    *id = NONE;
    if (length > vocab->longest) return 0;
    if (work->bpe->byte_level) {
        work->spelled.length = 0;
        for (size_t i = 0; i < length; i++)
            tok_buffer_append_char(&work->spelled, tok_bytelevel_char((uint8_t)text[i]));
        int rc = tok_buffer_check(&work->spelled, err);
        if (rc) return rc;
        text = work->spelled.data;
        length = work->spelled.length;
    }
    *id = tok_vocab_find(vocab, text, length);
    if (*id != NONE && work->plain && vocab->entries[*id].flags & TOK_ENTRY_SPECIAL) *id = NONE;
    return 0;
}

static int encode_word(struct tok_bpe_work *work, const char *text, size_t length, struct helm_err *err)
{
    if (work->bpe->ignore_merges) {
        uint32_t id;
        int rc = find_whole(work, text, length, &id, err);
        if (rc) return rc;
        if (id != NONE) return tok_ids_push(work->ids, id, err);
    }
    int rc = split_word(work, text, length, err);
    if (rc || work->symbol_count == 0) return rc;
    if (work->symbol_count > 1) rc = merge_word(work, err);
    for (uint32_t at = 0; !rc && at != NONE; at = work->symbols[at].next)
        rc = tok_ids_push(work->ids, work->symbols[at].id, err);
    return rc;
}

/* Words of one text repeat; the cache refers to their places in it and in ids, and lasts for one call. */
static int prepare_cache(struct tok_bpe_work *work, struct helm_err *err)
{
    size_t entries = (size_t)1 << CACHE_BITS;
    if (!work->cache) work->cache = malloc(entries * sizeof *work->cache);
    if (!work->cache) return helm_fail(err, HELM_E_NOMEM, "no memory for the word cache");
    memset(work->cache, 0, entries * sizeof *work->cache);
    return 0;
}

/* Bytes of the word at `text` that can be encoded by themselves. */
static size_t next_cut(const struct tok_bpe *bpe, const struct tok_vocab *vocab, const char *text,
                       size_t length)
{
    for (size_t at = 1; at + BOUNDARY_BYTES <= length; at++) {
        const char *hit = memmem(text + at, length - at, BOUNDARY, BOUNDARY_BYTES);
        if (!hit) break;
        at = (size_t)(hit - text);
        uint32_t before;
        size_t width = utf8_get_before(text, at, &before);
        bool joined = bpe->joined[before >> 6 & 1023] >> (before & 63) & 1;
        /* A character that is no token itself becomes bytes or an unknown token, whose spellings say nothing
         * about the text. */
        bool token = before < 0x80 ? bpe->ascii_ids[before] != NONE
                                   : tok_vocab_find(vocab, text + at - width, width) != NONE;
        if (!joined && token) return at;
    }
    return length;
}

static int encode_cached(struct tok_bpe_work *work, const char *text, size_t offset, size_t length,
                         struct helm_err *err)
{
    const char *word = text + offset;
    struct tok_ids *ids = work->ids;
    if (length < 2 || length > CACHE_WORD_BYTES) return encode_word(work, word, length, err);
    uint64_t hash = tok_hash(word, length);
    struct cached_word *slot = &work->cache[hash >> (64 - CACHE_BITS)];
    int rc;
    if (slot->length == length && slot->hash == hash && memcmp(text + slot->offset, word, length) == 0) {
        rc = tok_ids_reserve(ids, slot->id_count, err);
        if (rc) return rc;
        memcpy(ids->data + ids->count, ids->data + slot->first_id, slot->id_count * sizeof *ids->data);
        ids->count += slot->id_count;
        return 0;
    }
    size_t before = ids->count;
    rc = encode_word(work, word, length, err);
    *slot = (struct cached_word){hash, (uint32_t)offset, (uint32_t)length, (uint32_t)before,
                                 (uint32_t)(ids->count - before)};
    return rc;
}

int tok_bpe_encode(struct tok_bpe_work *work, const struct tok_words *words, struct helm_err *err)
{
    const struct tok_pieces *pieces = &words->pieces;
    const char *text = words->source;
    size_t bytes = 0;
    int rc = 0;
    for (size_t i = 0; i < pieces->count && bytes < CACHE_MIN_BYTES; i++) bytes += pieces->data[i].length;
    bool cached = bytes >= CACHE_MIN_BYTES;
    if (cached) rc = prepare_cache(work, err);
    for (size_t i = 0; i < pieces->count && !rc; i++) {
        size_t offset = pieces->data[i].offset, end = offset + pieces->data[i].length;
        while (offset < end && !rc) {
            size_t length = end - offset;
            if (work->bpe->cuts) length = next_cut(work->bpe, work->vocab, text + offset, length);
            rc = cached ? encode_cached(work, text, offset, length, err)
                        : encode_word(work, text + offset, length, err);
            offset += length;
        }
    }
    return rc;
}
