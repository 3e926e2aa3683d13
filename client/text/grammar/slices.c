/* Tokens by classes of characters. See slices.h.
 *
 * A token's head is its characters of SLICE_PLAIN up to the first byte that begins no such one. Its classes
 * are those that all of its head is in; they lie within each other, and the narrowest is the last of them. */
#include "client/text/grammar/slices.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/expr.h"

static const enum slice_class parents[SLICE_CLASSES] = {
    [SLICE_PLAIN] = SLICE_CLASSES, [SLICE_ASCII] = SLICE_PLAIN,  [SLICE_SPACED] = SLICE_ASCII,
    [SLICE_WORD] = SLICE_SPACED,   [SLICE_LETTERS] = SLICE_WORD, [SLICE_LOWER] = SLICE_LETTERS,
    [SLICE_UPPER] = SLICE_LETTERS, [SLICE_DIGITS] = SLICE_WORD,
};

static bool between(uint8_t low, uint8_t byte, uint8_t high)
{
    return byte >= low && byte <= high;
}

bool slice_has_byte(enum slice_class class, uint8_t byte)
{
    const bool lower = between('a', byte, 'z'), upper = between('A', byte, 'Z'),
               digit = between('0', byte, '9');
    switch (class) {
    case SLICE_PLAIN:
        return between(0x20, byte, 0x7f) && byte != '"' && byte != '\\';
    case SLICE_ASCII:
        return between(0x20, byte, 0x7e) && byte != '"' && byte != '\\';
    case SLICE_SPACED:
        return lower || upper || digit || byte == '_' || byte == ' ';
    case SLICE_WORD:
        return lower || upper || digit || byte == '_';
    case SLICE_LETTERS:
        return lower || upper;
    case SLICE_LOWER:
        return lower;
    case SLICE_UPPER:
        return upper;
    case SLICE_DIGITS:
        return digit;
    case SLICE_CLASSES:
        break;
    }
    return false;
}

/* ---- which token is where ---- */

struct head {
    uint32_t bytes, chars;
    uint32_t classes; /* bits; 0: in no slice */
    enum slice_class narrowest;
};

static struct head head_of(const struct trie_entry *e, const uint8_t classes_of[128])
{
    struct head h = {.classes = (1u << SLICE_CLASSES) - 1};
    for (size_t at = 0; at < e->length; h.bytes = (uint32_t)at, h.chars++) {
        uint32_t c;
        if (!expr_next_char((const char *)e->bytes, e->length, &at, &c)) break;
        const uint32_t classes = c < 128 ? classes_of[c] : 1u << SLICE_PLAIN;
        if (!classes) break;
        h.classes &= classes;
    }
    if (h.chars == 0 || h.chars > SLICE_CHARS) h.classes = 0;
    h.narrowest = h.classes ? (enum slice_class)(31 - __builtin_clz(h.classes)) : SLICE_CLASSES;
    return h;
}

struct builder {
    const struct trie_entry *entry; /* [count] sorted by their bytes */
    struct head *head;              /* [count] */
    uint32_t count, words;
    struct trie_entry *tail; /* [tails] the bytes after heads, sorted; id: which entry */
    uint32_t tails;
    struct trie_entry *picked; /* [count] scratch */
    struct helm_err *err;
};

static bool is_whole(const struct builder *b, uint32_t i)
{
    return b->head[i].classes && b->head[i].bytes == b->entry[i].length;
}

/* ---- tries ---- */

static int build_own(const struct builder *b, enum slice_class class, struct slice *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->head[i].narrowest == class && is_whole(b, i)) b->picked[n++] = b->entry[i];
    int rc = trie_build(b->picked, n, &s->own, b->err);
    n = 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->head[i].narrowest == class && !is_whole(b, i)) b->picked[n++] = b->entry[i];
    return rc ? rc : trie_build(b->picked, n, &s->begun, b->err);
}

static int build_rest(const struct builder *b, struct slices *slices)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (!b->head[i].classes) b->picked[n++] = b->entry[i];
    return trie_build(b->picked, n, &slices->rest, b->err);
}

static int build_tails(const struct builder *b, enum slice_class class, struct slice *s)
{
    int rc = 0;
    for (uint32_t chars = 0; chars <= SLICE_CHARS && !rc; chars++) {
        uint32_t n = 0;
        for (uint32_t t = 0; t < b->tails; t++) {
            const struct head *h = &b->head[b->tail[t].id];
            if (!(h->classes >> class & 1) || (chars && h->chars != chars)) continue;
            b->picked[n] = b->tail[t];
            b->picked[n++].id = b->entry[b->tail[t].id].id;
        }
        rc = trie_build(b->picked, n, &s->tail[chars], b->err);
    }
    return rc;
}

static void sort_tails(struct builder *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        if (!b->head[i].classes || is_whole(b, i)) continue;
        b->tail[b->tails++] = (struct trie_entry){b->entry[i].bytes + b->head[i].bytes,
                                                  b->entry[i].length - b->head[i].bytes, i};
    }
    qsort(b->tail, b->tails, sizeof *b->tail, trie_entry_order);
}

/* ---- whole tokens ---- */

static void set_bit(uint32_t *bits, uint32_t id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

static int build_masks(const struct builder *b, enum slice_class class, struct slice *s)
{
    uint32_t at[SLICE_CHARS + 2];
    for (uint32_t i = 0; i < b->count; i++) {
        if (!is_whole(b, i) || !(b->head[i].classes >> class & 1)) continue;
        s->tokens++;
        s->length_at[b->head[i].chars + 1]++;
        if (b->head[i].chars > s->most) s->most = b->head[i].chars;
    }
    for (uint32_t n = 1; n < SLICE_CHARS + 2; n++) s->length_at[n] += s->length_at[n - 1];
    memcpy(at, s->length_at, sizeof at);
    s->all = calloc(b->words, sizeof *s->all);
    s->upto = calloc((size_t)SLICE_COUNTS * b->words, sizeof *s->upto);
    s->by_length = malloc((s->tokens ? s->tokens : 1) * sizeof *s->by_length);
    if (!s->all || !s->upto || !s->by_length)
        return helm_fail(b->err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", b->count);
    for (uint32_t i = 0; i < b->count; i++) {
        if (!is_whole(b, i) || !(b->head[i].classes >> class & 1)) continue;
        s->by_length[at[b->head[i].chars]++] = b->entry[i].id;
        set_bit(s->all, b->entry[i].id);
        for (uint32_t n = b->head[i].chars; n <= SLICE_COUNTS; n++)
            set_bit(s->upto + (size_t)(n - 1) * b->words, b->entry[i].id);
    }
    return 0;
}

void slice_add_tokens(const struct slice *s, uint32_t n, uint32_t words, uint32_t *bits)
{
    if (n == 0) return;
    const uint32_t counted = n < SLICE_COUNTS ? n : SLICE_COUNTS;
    const uint32_t *from = n >= s->most ? s->all : s->upto + (size_t)(counted - 1) * words;
    for (uint32_t w = 0; w < words; w++) bits[w] |= from[w];
    if (n >= s->most) return;
    for (uint32_t i = s->length_at[counted + 1]; i < s->length_at[n + 1]; i++) set_bit(bits, s->by_length[i]);
}

/* ---- the whole ---- */

int slices_build(const struct trie_entry *entry, uint32_t count, uint32_t words, struct slices *slices,
                 struct helm_err *err)
{
    struct builder b = {.entry = entry, .count = count, .words = words, .err = err};
    const size_t room = count ? count : 1;
    uint8_t classes_of[128] = {0};
    *slices = (struct slices){0};
    b.head = malloc(room * sizeof *b.head);
    b.tail = malloc(room * sizeof *b.tail);
    b.picked = malloc(room * sizeof *b.picked);
    int rc = b.head && b.tail && b.picked
                 ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", count);
    for (unsigned c = 0; c < 128; c++)
        for (unsigned class = 0; class < SLICE_CLASSES; class ++)
            classes_of[c] |= (uint8_t)(slice_has_byte(class, (uint8_t)c) << class);
    for (uint32_t i = 0; i < count && !rc; i++) b.head[i] = head_of(&entry[i], classes_of);
    if (!rc) sort_tails(&b);
    if (!rc) rc = build_rest(&b, slices);
    for (unsigned class = 0; class < SLICE_CLASSES && !rc; class ++) {
        struct slice *s = &slices->slice[class];
        s->parent = parents[class];
        rc = build_masks(&b, class, s);
        if (!rc) rc = build_own(&b, class, s);
        if (!rc) rc = build_tails(&b, class, s);
    }
    free(b.head);
    free(b.tail);
    free(b.picked);
    return rc;
}

void slices_free(struct slices *slices)
{
    for (unsigned class = 0; class < SLICE_CLASSES; class ++) {
        struct slice *s = &slices->slice[class];
        free(s->all);
        free(s->upto);
        free(s->by_length);
        trie_free(&s->own);
        trie_free(&s->begun);
        for (uint32_t n = 0; n <= SLICE_CHARS; n++) trie_free(&s->tail[n]);
    }
    trie_free(&slices->rest);
    *slices = (struct slices){0};
}
